package proxmox_test

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/diag"
	engineguest "github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

const (
	herVM = 101
	herCT = 103
	ourCT = 10000 // db
	ourVM = 10001 // web
)

// besieged is a site with two guests, one that is declared and not created yet, and beside them an unmanaged VM and container.
func besieged(t *testing.T, version string, attack func(*testing.T, *world)) {
	inTime(t, pve.Config{Version: version}, func(t *testing.T, w *world) {
		w.Node("web", nil)
		w.ct("db", nil)
		w.Apply()
		w.Node("new", nil)
		w.Root(http.MethodPost, "/nodes/father/qemu", url.Values{"vmid": {fmt.Sprint(herVM)}, "name": {"hers"}, "scsi0": {"local-lvm:2"}, "net0": {"virtio,bridge=vmbr0"}, "smbios1": {"uuid=11111111-2222-3333-4444-555555555555"}})
		w.Host.Edit(func(e *pve.Edit) {
			e.Add(pve.Guest{VMID: herCT, Kind: "lxc", Config: map[string]string{"hostname": "hers-too", "arch": "amd64", "ostype": "debian", "memory": "512", "rootfs": "local-lvm:vm-103-disk-0,size=2G", "net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:99"}})
		})
		require.Eventually(t, func() bool { return w.Guest(herVM).Config["lock"] == "" && w.Guest(herCT).Config["lock"] == "" }, 1e12, 1e9)
		attack(t, w)
	})
}

// claims are tags that an attacker may write into the description of a guest, for a node that is gone, one that exists, and one
// that is to be created.
func (w *world) claims(vmid int) map[string]owner.Tag {
	out := map[string]owner.Tag{}
	kind, ours := "vm", w.tagOf(ourVM)
	if vmid == herCT {
		kind, ours = "ct", w.tagOf(ourCT)
	}
	for _, node := range []string{"gone", "web", "db", "new"} {
		m := owner.Tag{V: 1, Site: "home", Type: kind, Node: node, Owner: "father", VMID: vmid}
		out["provisional "+node] = m
		m.VMID, m.UUID, m.MAC = 0, "11111111-2222-3333-4444-555555555555", "BC:24:11:00:00:99"
		out["own identity "+node] = m
		m.CreationVMID = vmid
		out["own identity and VMID "+node] = m
		m.V, m.Sig = 2, ours.Sig
		out["signature of another "+node] = m
		m.Begun = 1
		out["signature of another, begun "+node] = m
	}
	out["copy"] = ours
	ours.UUID, ours.MAC = "11111111-2222-3333-4444-555555555555", "BC:24:11:00:00:99"
	out["copy with own identity"] = ours
	return out
}

func (w *world) tagOf(vmid int) owner.Tag {
	_, m, found := owner.ParseDescription(w.Guest(vmid).Config["description"])
	require.True(w.T, found)
	return m
}

// unharmed makes a pass and requires that it does nothing to her guests, and what it has to do for its own.
func (w *world) unharmed(steps ...string) *plan.Plan {
	w.T.Helper()
	before := map[int]pve.Guest{herVM: w.Guest(herVM), herCT: w.Guest(herCT)}
	p := w.Plan()
	for _, s := range p.Steps {
		for _, r := range []*model.Resource{s.Want, s.Have} {
			require.False(w.T, r != nil && r.Guest != nil && before[r.Guest.VMID].VMID != 0, "%s", proxmoxtest.Describe(p))
		}
	}
	for _, want := range steps {
		require.Contains(w.T, proxmoxtest.Describe(p), want, "%v", p.Findings)
	}
	require.Empty(w.T, w.Run(p))
	for vmid, was := range before {
		require.Equal(w.T, was, w.Guest(vmid), "touched")
	}
	return p
}

// TestS1AClaimIsNotProof: a user who may edit the description of a guest cannot have it destroyed, adopted, renamed or configured,
// nor keep the node that it claims to be from being managed.
func TestS1AClaimIsNotProof(t *testing.T) {
	for _, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			besieged(t, version, func(t *testing.T, w *world) {
				eve := map[int]string{}
				for vmid, user := range map[int]string{herVM: "eve@pve", herCT: "mallory@pve"} {
					eve[vmid] = w.tokenOf(user, map[string]string{fmt.Sprintf("/vms/%d", vmid): "VM.Config.Options,VM.Audit"})
				}
				memory := 2048
				for vmid, kind := range map[int]string{herVM: "qemu", herCT: "lxc"} {
					for name, m := range w.claims(vmid) {
						w.As(eve[vmid], http.MethodPut, fmt.Sprintf("/nodes/father/%s/%d/config", kind, vmid), url.Values{"description": {m.Line()}, "tags": {"homestak"}})
						memory += 16
						w.VM("web").Memory = memory
						p := w.unharmed("update vm.web")
						if m.Addr().Name != "new" || m.Type == "ct" {
							require.Contains(t, fmt.Sprint(p.Findings), fmt.Sprint(vmid), name)
						}
						require.Equal(t, fmt.Sprint(memory), cmp.Or(w.Guest(ourVM).Pending["memory"], w.Guest(ourVM).Config["memory"]), name)
					}
				}
			})
		})
	}
}

// guestPrivileges are the privileges that PVE has for guests.
func guestPrivileges(version string) []string {
	out := []string{
		"VM.Audit", "VM.Config.Options", "VM.Config.HWType", "VM.Config.Network", "VM.Config.Disk", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.CDROM",
		"VM.Config.Cloudinit", "VM.PowerMgmt", "VM.Console", "VM.Snapshot", "VM.Snapshot.Rollback", "VM.Clone", "VM.Migrate", "VM.Backup",
	}
	if version == "8.4" {
		return append(out, "VM.Monitor")
	}
	return append(out, "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted", "VM.Replicate")
}

// TestS1MutatedTags: none of ten thousand mutated descriptions of a VM, and none of as many of a container, leads to a step on
// an unmanaged guest.
func TestS1MutatedTags(t *testing.T) {
	besieged(t, "9.2", func(t *testing.T, w *world) {
		w.Apply()
		id := owner.Identity{Site: "home", Owner: "father", Host: "father", Keys: keysOfTests}
		for _, vmid := range []int{herVM, herCT} {
			at, cfg := refOf(vmid), configOf(w.Guest(vmid))
			at.LXC = vmid == herCT
			seeds := []string{w.Guest(10000).Config["description"], w.Guest(10001).Config["description"]}
			for _, m := range w.claims(vmid) {
				seeds = append(seeds, m.Line())
			}
			slices.Sort(seeds)
			r := rand.New(rand.NewPCG(1, 2))
			for n := range 10_000 {
				text := mutate(r, seeds)
				cfg.Now["description"], cfg.Next["description"] = text, text
				require.False(t, id.Check(cfg, at).Owned, text)
				if n%100 == 0 { // and through a whole pass
					w.Host.Edit(func(e *pve.Edit) { e.Set(vmid, "description", text); e.Set(vmid, "tags", "homestak") })
					w.unharmed()
				}
			}
		}
	})
}

// TestS1RootInAGuestDecidesNothing: a guest agent that claims to be another guest, by its host name, its network cards and
// addresses and the output of commands, changes nothing of what is managed and what is done.
func TestS1RootInAGuestDecidesNothing(t *testing.T) {
	besieged(t, "9.2", func(t *testing.T, w *world) {
		w.Apply()
		tags := map[int]owner.Tag{ourVM: w.tagOf(ourVM), ourCT: w.tagOf(ourCT)}
		w.Host.Edit(func(e *pve.Edit) { e.Set(herVM, "agent", "1"); e.Start(herVM); e.Start(herCT) })
		w.VM("web").Memory = 4096
		honest := proxmoxtest.Describe(w.Plan())
		require.Contains(t, honest, "update vm.web")

		lies := 0
		d, err := proxmox.Open(proxmox.Config{
			Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(),
			Transport: proxmoxtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
				inside := strings.Contains(r.URL.Path, "/agent/") || strings.HasSuffix(r.URL.Path, "/interfaces")
				require.False(t, inside && strings.Contains(r.URL.Path, fmt.Sprint("/", herVM, "/")), "hers is not entered")
				if !inside {
					return w.Host.RoundTrip(r)
				}
				lies++
				card := fmt.Sprintf(`[{"name":"eth0","hwaddr":%q,"hardware-address":%[1]q,"inet":"10.0.0.1/24","ip-addresses":[{"ip-address":"10.0.0.1","ip-address-type":"ipv4","prefix":24}]}]`, tags[ourCT].MAC)
				answer := fmt.Sprintf(`{"data":{"result":%s,"host-name":"db","pid":1,"exited":1,"exitcode":0,"out-data":%q,"err-data":%[2]q}}`, card, tags[ourCT].Line())
				if strings.HasSuffix(r.URL.Path, "/interfaces") {
					answer = `{"data":` + card + `}`
				}
				return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Body: io.NopCloser(strings.NewReader(answer)), Header: http.Header{}, Request: r}, nil
			}),
		})
		require.NoError(t, err)
		w.Driver = d
		web := d.Machine(model.Address{Kind: "vm", Name: "web"}, model.Guest{VMID: ourVM, Node: "father"}, nil)
		_, _ = web.Address(t.Context()) // its card is not the one that PVE gave it
		_, err = web.Run(t.Context(), engineguest.Command{Args: []string{"hostname"}})
		require.NoError(t, err)
		require.NotZero(t, lies, "it was heard")
		p := w.Plan()
		require.Equal(t, honest, proxmoxtest.Describe(p))
		w.unharmed("update vm.web")
		for vmid, tag := range tags {
			require.Equal(t, tag.Addr(), w.tagOf(vmid).Addr())
		}
	})
}

// mutate changes some bytes of a tag, or joins parts of two.
func mutate(r *rand.Rand, seeds []string) string {
	s := []byte(seeds[r.IntN(len(seeds))])
	for range 1 + r.IntN(4) {
		i := r.IntN(len(s))
		switch other := seeds[r.IntN(len(seeds))]; r.IntN(4) {
		case 0:
			s[i] = "0123456789abcdef\"{}:,\\ \n"[r.IntN(24)]
		case 1:
			s = append(s[:i:i], s[min(len(s)-1, i+1+r.IntN(5)):]...)
		case 2:
			s = append(s[:i:i], other[min(i, len(other)-1):]...)
		default:
			s = []byte(string(s) + "\n" + other)
		}
	}
	return string(s)
}

// TestS1OldTagsAreSigned: a guest of an earlier version gets its signature while the files declare it as it is, and
// nothing else happens to it before.
func TestS1OldTagsAreSigned(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web", nil)
		w.ct("db", nil)
		w.Apply()
		unsign := func() {
			for _, vmid := range []int{10000, 10001} {
				m := w.tagOf(vmid)
				require.Equal(t, 2, m.V)
				m.V, m.Sig = 1, ""
				w.Host.Edit(func(e *pve.Edit) { e.Set(vmid, "description", m.Line()) })
			}
		}
		unsign()
		w.VM("web").Memory = 4096
		p := w.Plan()
		require.Equal(t, []string{"db"}, kindsOf(p), proxmoxtest.Describe(p))
		require.Contains(t, fmt.Sprint(p.Findings), "no valid signature")
		w.VM("web").Memory = 2048
		p = w.Apply()
		for _, s := range p.Steps {
			require.Equal(t, []string{"mark"}, proxmoxtest.Paths(s))
			require.Equal(t, model.ClassNone, s.Class)
		}
		require.Len(t, p.Steps, 2)
		w.Converged()
		require.NotEmpty(t, w.tagOf(10000).Sig)

		unsign()
		w.Drop("web")
		p = w.Plan()
		require.Equal(t, []string{"db"}, kindsOf(p), "never a removal")
		require.Contains(t, fmt.Sprint(p.Findings), "VM 10001 on node father is not managed")
		require.Contains(t, p.Findings[0].Detail, "qm destroy 10001")
	})
}

// TestS1NothingIsFreedForAForgedTag: who may edit the description of one of our guests writes into it that the data of a
// disk are to go. The tag is signed again, without that.
func TestS1NothingIsFreedForAForgedTag(t *testing.T) {
	for _, signed := range []bool{false, true} {
		inTime(t, pve.Config{}, func(t *testing.T, w *world) {
			w.Node("web", func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "data", Size: 3}} })
			w.Apply()
			eve := w.tokenOf("eve@pve", map[string]string{"/vms/10000": "VM.Config.Options,VM.Audit"})
			w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "unused0", "local-lvm:vm-10000-disk-7") })
			m := w.tagOf(10000)
			m.Removes, m.Detached = []string{"old"}, map[string]string{"old": "local-lvm:vm-10000-disk-7"}
			if !signed {
				m.V, m.Sig = 1, ""
			}
			w.As(eve, http.MethodPut, "/nodes/father/qemu/10000/config", url.Values{"description": {m.Line()}})
			w.Apply()
			w.Apply()
			w.Converged()
			require.Equal(t, "local-lvm:vm-10000-disk-7", w.Guest(10000).Config["unused0"])
			require.Empty(t, w.tagOf(10000).Removes)
		})
	}
}

// TestS1AHalfMadeGuestIsRemoved: a VM whose creation succeeded, though its answer was lost, is removed if its node leaves
// the files before a pass could complete it.
func TestS1AHalfMadeGuestIsRemoved(t *testing.T) {
	failing := true
	fault := func(r *http.Request) (int, bool) {
		if failing && strings.HasSuffix(r.URL.Path, "/qemu/10000/pending") {
			return http.StatusInternalServerError, false
		}
		return 0, false
	}
	inTime(t, pve.Config{Fault: fault}, func(t *testing.T, w *world) {
		w.Node("web", nil)
		require.NotEmpty(t, w.Run(w.Plan()), "the guest cannot be read back")
		failing = false
		require.NotZero(t, w.tagOf(10000).Begun)
		w.Drop("web")
		w.Apply()
		require.False(t, slices.ContainsFunc(w.Host.Guests(), func(g pve.Guest) bool { return g.VMID == 10000 }))
		w.Converged()
	})
}

// TestS1ARecycledVMIDIsUnmanaged: the tag of a creation proves nothing about a guest that PVE created at another time, even
// with the VMID and the identity of the tag.
func TestS1ARecycledVMIDIsUnmanaged(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web", nil)
		w.Apply()
		tag := w.tagOf(10000)
		require.NotZero(t, tag.Begun)
		w.Host.Edit(func(e *pve.Edit) { e.Delete(10000) })
		time.Sleep(6 * time.Minute)
		w.Root(http.MethodPost, "/nodes/father/qemu", url.Values{"vmid": {"10000"}, "name": {"hers"}, "tags": {owner.PVETag}, "scsi0": {"local-lvm:2"}, "smbios1": {"uuid=" + tag.UUID}, "description": {tag.Line()}})
		require.Eventually(t, func() bool { return w.Guest(10000).Config["lock"] == "" }, 1e12, 1e9)
		require.Equal(t, tag, w.tagOf(10000))
		w.Drop("web")
		p := w.Plan()
		require.Empty(t, p.Steps, proxmoxtest.Describe(p))
	})
}

// TestS1Rotation: tags of the former key are ours, and the next pass signs them with the current one.
func TestS1Rotation(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web", nil)
		w.Apply()
		w.reopenWith(func(string) [][]byte { return [][]byte{[]byte("the new key"), keysOfTests("father")[0]} }, false)
		p := w.Apply()
		require.Equal(t, []string{"mark"}, proxmoxtest.Paths(p.Steps[0]))
		w.Converged()
		w.reopenWith(func(string) [][]byte { return [][]byte{[]byte("the new key")} }, false)
		w.Converged()
		w.Drop("web")
		w.Apply()
		w.Converged()
	})
}

// TestS1WithoutTheKey: where the site has a key that is not known, nothing is changed.
func TestS1WithoutTheKey(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web", nil)
		w.Apply()
		w.reopenWith(nil, true)
		w.VM("web").Memory = 4096
		w.Node("new", nil)
		p := w.Plan()
		require.Empty(t, p.Steps, proxmoxtest.Describe(p))
		require.NotEmpty(t, p.Unknown)
	})
}

var keysOfTests = proxmoxtest.Keys

// signed is the line of a tag, signed for a VM of ours.
func (w *world) signed(vmid int, m owner.Tag) string {
	id := owner.Identity{Site: "home", Owner: "father", Host: "father", Keys: keysOfTests}
	return id.Sign(m, refOf(vmid), configOf(w.Guest(vmid))).Line()
}

func refOf(vmid int) api.GuestRef { return api.GuestRef{Node: "father", VMID: vmid} }

func configOf(g pve.Guest) api.GuestConfig {
	now := maps.Clone(g.Config)
	return api.GuestConfig{Now: now, Next: now}
}

// hasKey gives the site a key again.
func (w *world) hasKey() {
	w.Keys = keysOfTests
	w.Reopen()
}

// hasNoKey takes the key from the site.
func (w *world) hasNoKey() {
	w.Keys = nil
	w.Reopen()
}

// reopenWith makes a new driver with other keys.
func (w *world) reopenWith(keys func(string) [][]byte, missing bool) {
	d, err := proxmox.Open(proxmox.Config{Keys: keys, KeyMissing: missing, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(), Transport: w.Host})
	require.NoError(w.T, err)
	w.Driver = d
}

var updateTable = flag.Bool("update-table", false, "update the table of docs/security.md")

// states are the columns of the table: the state of the guest on which a user has a privilege.
var states = []string{"running", "stopped", "template", "half made", "managed"}

// siege is a site with a guest of each kind for each state, which she claims to be, and such guests of hers.
type siege struct {
	*world
	eve   string
	hers  map[int]string // state by VMID
	kinds map[int]string // qemu or lxc, by VMID
	first map[int]pve.Guest
	mine  map[int]model.Address
	tags  map[int]string // descriptions of ours
}

func newSiege(w *world) *siege {
	s := &siege{world: w, hers: map[int]string{}, kinds: map[int]string{}, first: map[int]pve.Guest{}, mine: map[int]model.Address{}, tags: map[int]string{}}
	containers := []*guest.CT{}
	for _, state := range states {
		w.Node("web-"+dashed(state), nil)
		containers = append(containers, w.ct("db-"+dashed(state), nil))
	}
	w.Apply()
	w.Converged()
	for i, state := range states[:4] { // so that each of the others has to be changed
		w.VM("web-" + dashed(state)).Memory = 4096
		containers[i].Memory = 4096
		w.Node("new-vm-"+dashed(state), nil)
		w.ct("new-ct-"+dashed(state), nil)
	}
	for i, state := range states[:4] {
		vm, ct := 101+10*i, 103+10*i
		s.hers[vm], s.hers[ct], s.kinds[vm], s.kinds[ct] = state, state, "qemu", "lxc"
		for id, config := range map[int]map[string]string{
			vm: {"name": "hers", "memory": "512", "net0": "virtio=BC:24:11:00:01:99,bridge=vmbr0", "smbios1": "uuid=" + herUUID(vm), "meta": "creation-qemu=9.0.2,ctime=1000000000", "agent": "1"},
			ct: {"hostname": "hers-too", "arch": "amd64", "ostype": "debian", "memory": "512", "rootfs": fmt.Sprintf("local-lvm:vm-%d-disk-0,size=2G", ct), "net0": "name=eth0,bridge=vmbr0,hwaddr=" + herMAC(ct)},
		} {
			switch state {
			case "template":
				config["template"] = "1"
			case "half made":
				config["lock"] = "create"
			}
			s.first[id] = pve.Guest{VMID: id, Kind: s.kinds[id], Config: config, Running: state == "running"}
		}
	}
	for _, g := range w.Host.Guests() {
		if _, m, found := owner.ParseDescription(g.Config["description"]); found {
			s.mine[g.VMID], s.tags[g.VMID] = m.Addr(), g.Config["description"]
			if strings.HasSuffix(m.Node, "-managed") {
				s.hers[g.VMID], s.kinds[g.VMID], s.first[g.VMID] = "managed", g.Kind, g
			}
		}
	}
	s.eve = w.tokenOf("eve@pve", map[string]string{"/vms/101": "VM.Audit"})
	for vmid := range s.hers {
		w.Root(http.MethodPut, "/access/acl", url.Values{"path": {fmt.Sprintf("/vms/%d", vmid)}, "users": {"eve@pve"}, "roles": {"eve-vms-101"}})
	}
	return s
}

func dashed(state string) string { return strings.ReplaceAll(state, " ", "-") }

func herUUID(vmid int) string { return fmt.Sprintf("11111111-2222-3333-4444-%012d", vmid) }

func herMAC(vmid int) string { return fmt.Sprintf("BC:24:11:00:%02d:99", vmid%100) }

// lies are what she writes as a tag on one of her guests: claims of a node that is gone, one that exists, and one that is not
// created yet, each made in several ways.
func (s *siege) lies(vmid int) []owner.Tag {
	state, kind, name, ours := dashed(s.hers[vmid]), "vm", "web-", owner.Tag{}
	if s.kinds[vmid] == "lxc" {
		kind, name = "ct", "db-"
	}
	for id, addr := range s.mine {
		if addr == (model.Address{Kind: kind, Name: name + state}) {
			_, ours, _ = owner.ParseDescription(s.tags[id])
		}
	}
	var out []owner.Tag
	for _, node := range []string{"gone-" + state, name + state, "new-" + kind + "-" + state} {
		m := owner.Tag{V: 1, Site: "home", Type: kind, Node: node, Owner: "father", VMID: vmid}
		out = append(out, m)
		m.VMID, m.UUID, m.MAC = 0, herUUID(vmid), herMAC(vmid)
		out = append(out, m)
		m.CreationVMID = vmid
		out = append(out, m)
		m.V, m.Sig = 2, ours.Sig
		out = append(out, m)
		m.Begun = 1
		out = append(out, m)
	}
	out = append(out, ours)
	ours.UUID, ours.MAC = herUUID(vmid), herMAC(vmid)
	return append(out, ours)
}

// puts makes her guests what they were.
func (s *siege) puts() {
	s.Host.Edit(func(e *pve.Edit) {
		for _, vmid := range slices.Sorted(maps.Keys(s.first)) {
			e.Add(s.first[vmid])
		}
	})
}

// restarts lets those of ours be restarted on which she has a privilege.
func (s *siege) restarts() {
	for _, g := range s.Host.Guests() {
		if s.hers[g.VMID] == "managed" && g.Running && g.Lock == "" {
			path := fmt.Sprintf("/nodes/father/%s/%d/status/", g.Kind, g.VMID)
			s.Root(http.MethodPost, path+"stop", nil)
			time.Sleep(time.Minute)
			s.Root(http.MethodPost, path+"start", nil)
			time.Sleep(time.Minute)
		}
	}
}

// attack tries everything that PVE may allow on a guest, with one of the lies.
func (s *siege) attack(vmid, lie int) {
	path := fmt.Sprintf("/nodes/father/%s/%d", s.kinds[vmid], vmid)
	lies := s.lies(vmid)
	if s.hers[vmid] != "managed" || lie%2 == 0 {
		s.Send(s.eve, http.MethodPut, path+"/config", url.Values{"description": {lies[lie%len(lies)].Line()}, "tags": {"homestak"}})
	}
	if lie < len(lies) { // the claim alone first, since what follows may contradict it
		return
	}
	for _, keys := range []url.Values{
		{"name": {"web-running"}},
		{"hostname": {"db-running"}},
		{"smbios1": {"uuid=" + herUUID(1)}},
		{"net0": {"name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:77:77"}},
		{"net0": {"virtio=BC:24:11:00:77:77,bridge=vmbr0"}},
		{"memory": {"1024"}},
		{"cores": {"3"}},
		{"ciuser": {"eve"}},
		{"onboot": {"1"}},
		{"meta": {"creation-qemu=9.0.2,ctime=1"}},
		{"template": {"1"}},
		{"lock": {"backup"}},
		{"protection": {"1"}},
	} {
		s.Send(s.eve, http.MethodPut, path+"/config", keys)
	}
	s.Send(s.eve, http.MethodPost, path+"/snapshot", url.Values{"snapname": {"s"}})
	s.Send(s.eve, http.MethodPost, path+"/status/start", nil)
	if lie%3 == 0 {
		s.Send(s.eve, http.MethodPost, path+"/status/stop", nil)
		s.Send(s.eve, http.MethodPost, path+"/template", nil)
		s.Send(s.eve, http.MethodPost, path+"/clone", url.Values{"newid": {"199"}})
		s.Send(s.eve, http.MethodDelete, path, nil)
	}
}

// outcome is what a plan does because of an attack: by state, what happens to her guests and to the nodes that they claim.
// What is not about her guests must be as always: each of ours is changed as the files say.
func (s *siege) outcome(p *plan.Plan) map[string]string {
	s.T.Helper()
	out := map[string]string{}
	changed := map[model.Address]plan.Action{}
	for _, step := range p.Steps {
		changed[step.Address] = step.Action
		for _, r := range []*model.Resource{step.Want, step.Have} {
			if r == nil || r.Guest == nil || s.hers[r.Guest.VMID] == "" || s.hers[r.Guest.VMID] == "managed" {
				continue
			}
			out[s.hers[r.Guest.VMID]] += fmt.Sprintf("%s %s! ", step.Action, step.Address)
		}
	}
	for vmid, addr := range s.mine {
		if s.hers[vmid] == "managed" {
			continue
		}
		require.Equal(s.T, plan.Update, changed[addr], "%s is managed, although another guest claims to be this node\n%s%v", addr, proxmoxtest.Describe(p), p.Findings)
	}
	for vmid, addr := range s.mine {
		if s.hers[vmid] != "managed" {
			continue
		}
		switch action := changed[addr]; {
		case action == plan.Update:
			out["managed"] = join(out["managed"], reverts)
		case action == plan.Create:
			out["managed"] = join(out["managed"], again)
		case action != "":
			out["managed"] += fmt.Sprintf("%s %s! ", action, addr)
		case slices.ContainsFunc(p.Unmanaged, func(u model.Unmanaged) bool { return u.VMID == vmid }):
			out["managed"] = join(out["managed"], leaves)
		}
	}
	for _, state := range states[:4] {
		for _, kind := range []string{"vm", "ct"} {
			if addr := (model.Address{Kind: kind, Name: "new-" + kind + "-" + dashed(state)}); changed[addr] != plan.Create {
				out[state] = keeps
			}
		}
	}
	return out
}

const (
	nothing = "nothing"
	keeps   = "block the creation of a node, by claiming to be it"
	reverts = "revert the change"
	again   = "create it again"
	leaves  = "treat it as unmanaged"
)

// join adds an outcome to others, each once and in one order.
func join(have, more string) string {
	all := append(strings.Split(have, "; "), strings.Split(more, "; ")...)
	slices.Sort(all)
	return strings.Join(slices.DeleteFunc(slices.Compact(all), func(one string) bool { return one == "" }), "; ")
}

// tried attacks all guests with a set of privileges, once for each lie, and returns the effects by state.
func (s *siege) tried(privs string, first, lies int) map[string]string {
	s.T.Helper()
	s.Root(http.MethodPut, "/access/roles/eve-vms-101", url.Values{"privs": {privs}})
	out := map[string]string{}
	for lie := first; lie < first+lies; lie++ {
		s.puts()
		for _, vmid := range slices.Sorted(maps.Keys(s.hers)) {
			s.attack(vmid, lie)
		}
		time.Sleep(time.Minute) // the tasks end
		if lie%2 == 1 {         // apply pending changes
			s.restarts()
		}
		for state, what := range s.outcome(s.Plan()) {
			out[state] = join(out[state], what)
		}
	}
	return out
}

// TestS1Table: the table of docs/security.md says what each privilege on one guest makes us do, for each state of the
// guest, whatever its tag claims. Two privileges on an unmanaged guest make us do no more than each of them, and on a managed one
// nothing else than what is in that column.
func TestS1Table(t *testing.T) {
	table := map[string]map[string]string{}
	for _, version := range []string{"8.4", "9.2"} {
		inTime(t, pve.Config{Version: version}, func(t *testing.T, w *world) {
			s := newSiege(w)
			privs := append(guestPrivileges(version), "VM.Allocate")
			single := map[string]map[string]string{}
			for _, one := range privs {
				single[one] = s.tried(one, 0, 24)
				if table[one] == nil {
					table[one] = single[one]
				}
				require.Equal(t, table[one], single[one], "%s on %s", one, version)
			}
			for i, one := range privs {
				for _, other := range privs[i+1:] {
					for state, what := range s.tried(one+","+other, 17+i, 1) {
						allowed := join(single[one][state], single[other][state])
						if state == "managed" { // such as stopping it, so that it can be removed
							allowed = strings.Join([]string{reverts, again, leaves}, "; ")
						}
						for part := range strings.SplitSeq(what, "; ") {
							require.Contains(t, allowed, part, "%s and %s, %s", one, other, state)
						}
					}
				}
			}
		})
	}
	privileges := slices.Sorted(maps.Keys(table))
	columns := [][]string{} // neighbors with the same effects share a column
	for i, state := range states {
		if i > 0 && !slices.ContainsFunc(privileges, func(one string) bool { return table[one][state] != table[one][states[i-1]] }) {
			columns[len(columns)-1] = append(columns[len(columns)-1], state)
			continue
		}
		columns = append(columns, []string{state})
	}
	var text strings.Builder
	text.WriteString("| privilege |")
	for _, c := range columns {
		fmt.Fprintf(&text, " %s |", strings.Join(c, ", "))
	}
	fmt.Fprintf(&text, "\n|---|%s\n", strings.Repeat("---|", len(columns)))
	rows := map[string][]string{} // privileges with the same effects share a row
	for _, one := range privileges {
		var cells strings.Builder
		for _, c := range columns {
			fmt.Fprintf(&cells, " %s |", cmp.Or(table[one][c[0]], nothing))
		}
		rows[cells.String()] = append(rows[cells.String()], one)
	}
	for _, cells := range slices.SortedFunc(maps.Keys(rows), func(a, b string) int { return cmp.Compare(rows[a][0], rows[b][0]) }) {
		fmt.Fprintf(&text, "| `%s` |%s\n", strings.Join(rows[cells], "`, `"), cells)
	}
	const file, begin, end = "../../docs/security.md", "<!-- TestS1Table -->\n\n", "\n<!-- end -->"
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(page), begin)
	require.True(t, found)
	written, after, found := strings.Cut(rest, end)
	require.True(t, found)
	if *updateTable {
		require.NoError(t, os.WriteFile(file, []byte(before+begin+text.String()+end+after), 0o600))
		written = text.String()
	}
	require.Equal(t, text.String(), written, "go test ./drivers/proxmox -run TestS1Table -update-table")
}

// keyless is a site without a key, with one guest, vm.web or ct.web, that has a disk whose data go when it leaves the files.
type keyless struct {
	*world
	ct   bool
	vm   *guest.VM // the declared guest, one of both
	lxc  *guest.CT
	node *model.Node
}

func inKeylessSite(t *testing.T, ct bool, story func(*testing.T, *keyless)) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.hasNoKey()
		k := &keyless{world: w, ct: ct}
		if ct {
			k.lxc = w.ct("web", func(c *guest.CT) { c.Disks = []guest.CTDisk{{Name: "data", Size: 4, Path: "/srv", Remove: true}} })
		} else {
			w.Node("web", func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "data", Size: 4, Remove: true}} })
			k.vm = w.VM("web")
		}
		k.node = w.Site.Manifests["web"].Nodes[0]
		w.Apply()
		time.Sleep(time.Minute)
		w.Converged()
		story(t, k)
	})
}

func (k *keyless) addr() model.Address { return k.node.Resource.Addr }

// nameKey is the key of the configuration that has the name.
func (k *keyless) nameKey() string {
	if k.ct {
		return "hostname"
	}
	return "name"
}

// renamed names the guest on its host.
func (k *keyless) renamed(name string) {
	k.Host.Edit(func(e *pve.Edit) { e.Set(10000, k.nameKey(), name) })
}

// destroys plans what "destroy -M web" does.
func (k *keyless) destroys() *plan.Plan {
	want, found := k.Site.Want("father")
	require.Zero(k.T, found.Errors(), "%v", found)
	have, err := k.Driver.Observe(k.T.Context(), want)
	require.NoError(k.T, err)
	return plan.Make(plan.Input{Site: "home", Host: "father", Kinds: k.Site.Kinds, Want: want, Have: have, Destroy: true, Manifest: "web"})
}

func (k *keyless) setMemory(mib int) {
	if k.ct {
		k.lxc.Memory = mib
	} else {
		k.vm.Memory = mib
	}
}

func (k *keyless) dropDisk() {
	if k.ct {
		k.lxc.Disks = nil
	} else {
		k.vm.Disks = nil
	}
}

// TestS1WithoutAKeyNothingIsRemoved: where the site has no ownership key, the tag of a guest proves nothing. No guest is removed,
// replaced or renamed, and no data of a disk; the plan says which guest it is, and the two ways on.
func TestS1WithoutAKeyNothingIsRemoved(t *testing.T) {
	for name, change := range map[string]func(*keyless) *plan.Plan{
		"it leaves the manifest": func(k *keyless) *plan.Plan { k.Drop("web"); return k.Plan() },
		"its manifest leaves": func(k *keyless) *plan.Plan {
			delete(k.Site.Manifests, "web")
			return k.Plan()
		},
		"destroy":              func(k *keyless) *plan.Plan { return k.destroys() },
		"it was renamed there": func(k *keyless) *plan.Plan { k.renamed("mine"); return k.Plan() },
		"replacement":          func(k *keyless) *plan.Plan { k.node.Resource.Guest.VMID = 10050; return k.Plan() },
		"the data of a disk":   func(k *keyless) *plan.Plan { k.dropDisk(); return k.Plan() },
		"of an unmanaged guest with a tag": func(k *keyless) *plan.Plan {
			m := k.tagOf(10000)
			m.Node = "gone"
			k.Host.Edit(func(e *pve.Edit) { e.Set(10000, "description", m.Line()) })
			k.Drop("web")
			return k.Plan()
		},
	} {
		for _, ct := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, container %t", name, ct), func(t *testing.T) {
				inKeylessSite(t, ct, func(t *testing.T, k *keyless) {
					p := change(k)
					before := k.Host.Snapshot()
					require.Empty(t, p.Steps, proxmoxtest.Describe(p))
					require.True(t, p.Findings.HasErrors())
					tool := map[bool]string{false: "qm", true: "pct"}[ct]
					for _, text := range []string{"10000 is this guest: the site has no ownership key", "`openssl rand -hex 32`", "auth.ownership_key", fmt.Sprintf("`%s destroy 10000` on node father", tool)} {
						require.Contains(t, card(p), text)
					}
					require.Empty(t, k.Run(p))
					require.Equal(t, before.Writes, k.Host.Snapshot().Writes)
					require.Equal(t, before.Guests, k.Host.Snapshot().Guests)
				})
			})
		}
	}
}

// TestS1WithoutAKeyItConverges: guests are created, changed and started as declared where the site has no key. Once it
// has one, the next pass signs their tags, and they are removed.
func TestS1WithoutAKeyItConverges(t *testing.T) {
	for _, ct := range []bool{false, true} {
		inKeylessSite(t, ct, func(t *testing.T, k *keyless) {
			k.setMemory(1024)
			k.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
			k.Node("second", nil)
			p := k.Apply()
			require.Contains(t, proxmoxtest.Describe(p), "create vm.second")
			require.True(t, slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return s.Address == k.addr() && s.Action == plan.Update }), proxmoxtest.Describe(p))
			require.True(t, k.Guest(10000).Running)
			require.Empty(t, k.tagOf(10000).Sig)

			k.hasKey()
			k.Apply()
			k.Converged()
			require.NotEmpty(t, k.tagOf(10000).Sig)
			k.Drop("web")
			k.Apply()
			k.Converged()
			require.NotContains(t, vmids(k.world), 10000)
		})
	}
}

// TestS1WithoutAKeyNoStepRemoves: a removal that was planned where the key is known is not done where the site has none.
func TestS1WithoutAKeyNoStepRemoves(t *testing.T) {
	for _, ct := range []bool{false, true} {
		inKeylessSite(t, ct, func(t *testing.T, k *keyless) {
			k.hasKey()
			k.Apply()
			k.Drop("web")
			p := k.Plan()
			require.Equal(t, plan.Delete, p.Steps[0].Action)
			k.hasNoKey()
			before := maps.Clone(k.Guest(10000).Config)
			require.ErrorContains(t, k.Run(p)[k.addr()], "does not prove that the site may remove it")
			require.Equal(t, before, k.Guest(10000).Config)
			require.True(t, k.Guest(10000).Running)
		})
	}
}

// TestS1ANewerTagIsLeftAlone: a program that meets a tag of a newer version neither verifies nor changes it: its guest is not created
// again, not changed and, once its node left the files, not removed. Versions before signatures treat a signed tag in this way,
// which has the version 2.
func TestS1ANewerTagIsLeftAlone(t *testing.T) {
	for _, key := range []bool{false, true} {
		for _, ct := range []bool{false, true} {
			inKeylessSite(t, ct, func(t *testing.T, k *keyless) {
				if key {
					k.hasKey()
					k.Apply()
				}
				m := k.tagOf(10000)
				m.V = 3
				k.Host.Edit(func(e *pve.Edit) { e.Set(10000, "description", m.Line()) })
				before := k.Host.Snapshot()
				same := func() {
					p := k.Plan()
					require.Empty(t, p.Steps, proxmoxtest.Describe(p))
					require.Contains(t, card(p), "its ownership tag cannot be read")
					require.Equal(t, before.Writes, k.Host.Snapshot().Writes)
					require.Equal(t, before.Guests, k.Host.Snapshot().Guests)
				}
				same()
				k.setMemory(1024)
				same()
				require.Contains(t, card(k.Plan()), "if a newer version of this program wrote it, use that one")
				k.Drop("web")
				same()
			})
		}
	}
}

// adoptAsProposed follows the advice of a plan about a guest without ownership tag, which names two lines.
func (w *world) adoptAsProposed(node, advice string) {
	w.T.Helper()
	n := w.node(node)
	lines := strings.Split(advice, "\n")
	require.Equal(w.T, "if it is "+n.Resource.Addr.String()+" and only lost its ownership tag, these lines in its node adopt it as it is:", lines[0])
	_, err := fmt.Sscanf(lines[1]+"\n"+lines[2], "  vmid  = %d\n  adopt = %q", &n.VMID, &n.Adopt)
	require.NoError(w.T, err, advice)
	n.Resource.Guest.VMID = n.VMID
}

// TestALostTagIsPutBack: the notes of a guest were cleared, or its tag was damaged. Following the advice literally repairs it.
func TestALostTagIsPutBack(t *testing.T) {
	for name, declare := range map[string]func(w *world){
		"vm": func(w *world) {
			w.Node("web-1", func(v *guest.VM) {
				v.Disks = []guest.Disk{{Name: "data", Size: 5}}
				v.Options = map[string]string{"balloon": "512"}
			}).Resource.Guest.VMID = 10050
		},
		"ct": func(w *world) {
			w.ct("web-1", func(c *guest.CT) { c.Disks = []guest.CTDisk{{Name: "data", Size: 5, Path: "/srv"}} })
			w.Site.Manifests["web"].Nodes[0].Resource.Guest.VMID = 10050
		},
	} {
		for _, left := range []string{"", `homestak-gitops: {"v`} {
			t.Run(name+left, func(t *testing.T) {
				inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
					declare(w)
					w.Apply()
					was := w.Guest(10050)
					w.Host.Edit(func(e *pve.Edit) { e.Set(10050, "description", left) })

					p := w.Plan()
					require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
					advice := p.Findings[0].Detail
					w.adoptAsProposed("web-1", advice)
					if left == "" {
						require.Contains(t, advice, "\nif it is another guest: choose another vmid for "+name+".web-1, or remove this guest")
					}
					p = w.Apply()
					require.Equal(t, plan.Summary{Adopt: 1, Unchanged: 1}, p.Summary, "%v", p.Findings)
					is := w.Guest(10050)
					require.Equal(t, was.Config["smbios1"], is.Config["smbios1"])
					require.Equal(t, was.Config["net0"], is.Config["net0"])
					w.Converged()
				})
			})
		}
	}
}

// TestALostTagThatIsNotKnown: a guest that does not look like the wanted one is not adopted.
func TestALostTagThatIsNotKnown(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*pve.Edit)
		says string // "" if it is adopted all the same
	}{
		"another name": {func(e *pve.Edit) { e.Set(10050, "name", "mine") }, "name is mine, and the files say web-1"},
		"a note":       {func(e *pve.Edit) { e.Set(10050, "description", "call Anna first") }, `description is "call Anna first", and the files say ""`},
		"one nic more": {func(e *pve.Edit) { e.Set(10050, "net5", "virtio=BC:24:11:00:00:01,bridge=vmbr0") }, "it has nic.net5"},
		"another slot": {func(e *pve.Edit) {
			e.Set(10050, "net1", "virtio=BC:24:11:00:00:02,bridge=vmbr0")
			e.Set(10050, "net0", "")
		}, "it has nic.net1"},
		"one disk more": {func(e *pve.Edit) { e.Set(10050, "scsi5", "local-lvm:vm-10050-disk-9,size=4G") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				w.Node("web-1", nil).Resource.Guest.VMID = 10050
				w.Apply()
				w.Host.Edit(func(e *pve.Edit) { e.Set(10050, "description", ""); c.edit(e) })
				w.adoptAsProposed("web-1", w.Plan().Findings[0].Detail)
				p := w.Plan()
				if c.says == "" {
					require.Equal(t, 1, p.Summary.Adopt)
					return
				}
				require.Empty(t, p.Steps)
				require.Contains(t, fmt.Sprint(p.Findings), c.says)
			})
		})
	}
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web-1", nil).Resource.Guest.VMID = 10050
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) { e.Set(10050, "description", ""); e.Set(10050, "smbios1", "") })
		require.Equal(t, "it has no identity by which it could be adopted: choose another vmid for vm.web-1, or remove this guest", w.Plan().Findings[0].Detail)
	})
}

// inPool runs a story with a token that has its privileges on guests through a pool
// alone. refused decides which requests of the story PVE answers with an error.
func inPool(t *testing.T, version string, refused func(*http.Request) bool, story func(t *testing.T, w *world)) {
	t.Helper()
	ready := false
	c := pve.Config{Version: version, Token: "ops@pve!agent=secret", TaskTime: time.Second, Fault: func(r *http.Request) (int, bool) {
		if ready && refused != nil && refused(r) {
			return http.StatusInternalServerError, false
		}
		return 0, false
	}}
	inTime(t, c, func(t *testing.T, w *world) {
		w.Root(http.MethodPost, "/pools", url.Values{"poolid": {"ours"}})
		for _, path := range []string{"/pool/ours", "/storage", "/sdn/zones", "/nodes"} {
			w.Root(http.MethodPut, "/access/acl", url.Values{"path": {path}, "users": {"ops@pve"}, "roles": {"Administrator"}})
		}
		w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/"}, "users": {"ops@pve"}, "roles": {"Administrator"}, "delete": {"1"}})
		w.Site.Hosts["father"].Pool = "ours"
		w.Reopen()
		ready = true
		story(t, w)
	})
}

// TestCreateWithPrivilegesThroughAPool: PVE checks the right to set tags before a new
// guest is in its pool, so they follow when it is. Every kind of guest gets them.
func TestCreateWithPrivilegesThroughAPool(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			inPool(t, version, nil, func(t *testing.T, w *world) {
				w.declare("tmpl", &guest.Template{Image: "debian-12", VMID: 9100})
				w.Node("one", func(v *guest.VM) { v.Tags = []string{"web"} })
				w.Node("two", func(v *guest.VM) { v.Tags, v.Disks = []string{"web"}, []guest.Disk{{Name: "data", Size: 2}} })
				w.Node("copy", func(v *guest.VM) { v.Tags, v.Template = []string{"web"}, "tmpl" })
				w.ct("box", func(c *guest.CT) { c.Tags = []string{"web"} })
				w.ct("boxes", func(c *guest.CT) {
					c.Tags, c.Disks = []string{"web"}, []guest.CTDisk{{Name: "data", Size: 2, Path: "/srv"}}
				})
				w.Apply()
				w.Converged()
				guests := w.Host.Snapshot().Guests
				require.Len(t, guests, 6)
				for _, g := range guests {
					require.Equal(t, map[bool]string{true: "homestak", false: "homestak;web"}[g.VMID == 9100], g.Config["tags"], "%d", g.VMID)
					require.Equal(t, g.VMID != 9100, g.Running)
				}
			})
		})
	}
}

// TestTagsOfACreateCostOneRequest at most, and none where the token has its privileges
// elsewhere: then they are in the request that creates the guest.
func TestTagsOfACreateCostOneRequest(t *testing.T) {
	count := func(pool string, disks ...guest.Disk) (puts, all int) {
		inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
			if pool != "" {
				w.Root(http.MethodPost, "/pools", url.Values{"poolid": {pool}})
				w.Site.Hosts["father"].Pool = pool
				w.Reopen()
			}
			w.Node("first", nil) // with which the image is downloaded
			w.Apply()
			w.Node("web-1", func(v *guest.VM) { v.Disks = disks })
			p := w.Plan()
			before := w.Host.Snapshot().Requests
			require.Empty(t, w.Run(p))
			for call, n := range w.Host.Snapshot().Requests {
				all += n - before[call]
				if strings.HasPrefix(call, "PUT ") && strings.HasSuffix(call, "/config") {
					puts += n - before[call]
				}
			}
		})
		return puts, all
	}
	puts, all := count("")
	pooledPuts, pooled := count("ours")
	require.Equal(t, []int{0, 1}, []int{puts, pooledPuts})
	require.LessOrEqual(t, pooled, all+2, "the tags, and a look before them")
	puts, all = count("", guest.Disk{Name: "data", Size: 2})
	pooledPuts, pooled = count("ours", guest.Disk{Name: "data", Size: 2})
	require.Equal(t, []int{1, 1}, []int{puts, pooledPuts}, "the volumes are written down anyway")
	require.Equal(t, all, pooled)
}

// TestCrashBeforeTheTags: the guest is found by its name, or by its VMID where its node
// has left the files meanwhile, and is what its ownership tag says.
func TestCrashBeforeTheTags(t *testing.T) {
	for _, version := range versions {
		for _, leaves := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s leaves %v", version, leaves), func(t *testing.T) {
				down := true
				inPool(t, version, func(r *http.Request) bool {
					return down && r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/config")
				}, func(t *testing.T, w *world) {
					w.Node("web-1", nil)
					w.ct("box", nil)
					failed := w.Run(w.Plan())
					require.Len(t, failed, 2)
					require.Len(t, w.Host.Snapshot().Guests, 2)
					for _, g := range w.Host.Snapshot().Guests {
						require.Empty(t, g.Config["tags"])
					}
					down = false
					w.Reopen()
					time.Sleep(time.Minute)
					if leaves {
						w.Drop("web-1")
						w.Drop("box")
						w.Node("other", nil)
					}
					p := w.Plan()
					for _, s := range p.Steps {
						if !leaves {
							require.ElementsMatch(t, []string{"power", "tags"}, proxmoxtest.Paths(s))
						}
					}
					require.Empty(t, w.Run(p))
					w.Converged()
					require.Len(t, w.Host.Snapshot().Guests, map[bool]int{false: 2, true: 1}[leaves])
					for _, g := range w.Host.Snapshot().Guests {
						require.Equal(t, "homestak", g.Config["tags"])
						require.True(t, g.Running)
					}
				})
			})
		}
	}
}

// TestTagsThatPVEWouldChange are found where they are declared, and written as PVE keeps
// them; whatever a host keeps, there is nothing left to do.
func TestTagsThatPVEWouldChange(t *testing.T) {
	for _, version := range versions {
		for _, style := range []string{"", "case-sensitive=1", "ordering=config", "case-sensitive=1,ordering=config"} {
			t.Run(version+" "+style, func(t *testing.T) {
				inTime(t, pve.Config{Version: version}, func(t *testing.T, w *world) {
					if style != "" {
						w.Root(http.MethodPut, "/cluster/options", url.Values{"tag-style": {style}})
					}
					w.Node("web-1", func(v *guest.VM) { v.Tags = []string{"zeta", "Prod", "web", "web"} })
					w.ct("box", func(c *guest.CT) { c.Tags = []string{"zeta", "Prod", "prod"} })
					_, found := w.Site.Want("father")
					var said []string
					for _, f := range found {
						require.Equal(t, diag.Warning, f.Severity)
						said = append(said, f.Summary)
					}
					slices.Sort(said)
					require.Equal(t, []string{`tag "Prod" is kept as "prod"`, `tag "Prod" is kept as "prod"`, `tag "prod" is listed twice`, `tag "web" is listed twice`}, said)
					w.Apply()
					w.Converged()
					for _, g := range w.Host.Snapshot().Guests {
						require.Equal(t, strings.Fields(map[string]string{"qemu": "homestak prod web zeta", "lxc": "homestak prod zeta"}[g.Kind]), strings.Split(g.Config["tags"], ";"))
					}
					w.VM("web-1").Tags = []string{"Other"}
					require.Equal(t, []string{"tags"}, proxmoxtest.Paths(w.Apply().Steps[0]))
					w.Converged()
					id := w.Host.Snapshot().Guests[0].VMID
					was := w.Guest(id).Config["tags"]
					w.Host.Edit(func(e *pve.Edit) { e.Set(id, "tags", strings.ToUpper(was)) }) // as a create on 8.4 left it
					w.Converged()
				})
			})
		}
	}
}

// TestSimulatedHostRefusesTagsOfANewGuest: without the pool's help, of containers always
// and of VMs on 9.2.
func TestSimulatedHostRefusesTagsOfANewGuest(t *testing.T) {
	for _, version := range []string{"8.4", "9.1", "9.2"} {
		inPool(t, version, nil, func(t *testing.T, w *world) {
			post := func(kind string, p map[string]any) error {
				p["pool"], p["tags"] = "ours", "B;a;b"
				upid, err := w.Driver.Post(t.Context(), "/nodes/father/"+kind, p)
				if err != nil {
					return err
				}
				return w.Driver.WaitTask(t.Context(), upid)
			}
			err := post("qemu", map[string]any{"vmid": 100, "scsi0": "local-lvm:1"})
			if version == "9.2" {
				require.ErrorContains(t, err, "unable to create VM 100 - 403 Permission check failed (/vms/100, VM.Config.Options)")
				require.Empty(t, w.Host.Snapshot().Guests)
				require.Empty(t, w.Host.Snapshot().Volumes["local-lvm"])
			} else {
				require.NoError(t, err)
				require.Equal(t, "B;a;b", w.Guest(100).Config["tags"], "as it was sent")
			}
			err = post("lxc", map[string]any{"vmid": 101, "ostemplate": "local:vztmpl/none.tar.zst", "rootfs": "local-lvm:1"})
			require.ErrorContains(t, err, "Permission check failed (/vms/101, VM.Config.Options)")
		})
	}
}
