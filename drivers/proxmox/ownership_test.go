package proxmox_test

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
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

// besieged is a site with two guests, one that is declared and not created yet, and beside them a VM and a container of
// somebody else.
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

// tries sends a request as an attacker, who may be refused.
func (w *world) tries(token, method, path string, values url.Values) {
	r, err := http.NewRequestWithContext(w.T.Context(), method, "https://pve.test:8006/api2/json"+path, strings.NewReader(values.Encode()))
	require.NoError(w.T, err)
	r.Header.Set("Authorization", "PVEAPIToken="+token)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := w.Host.RoundTrip(r)
	require.NoError(w.T, err)
	_, _ = io.Copy(io.Discard, res.Body)
	require.NoError(w.T, res.Body.Close())
}

// claims are tags that somebody may write into the description of a guest, for a node that is gone, one that exists, and one
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

// TestS1AClaimIsNoProof: whoever may edit the description of a guest cannot make us destroy, adopt, rename or configure it,
// nor keep us from managing the node that it claims to be.
func TestS1AClaimIsNoProof(t *testing.T) {
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
						w.as(eve[vmid], http.MethodPut, fmt.Sprintf("/nodes/father/%s/%d/config", kind, vmid), url.Values{"description": {m.Line()}, "tags": {"homestak"}})
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
			Transport: proxmox.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
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
			w.as(eve, http.MethodPut, "/nodes/father/qemu/10000/config", url.Values{"description": {m.Line()}})
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

// TestS1ARecycledVMIDIsNotOurs: the tag of a creation proves nothing about a guest that PVE created at another time, even
// with the VMID and the identity of the tag.
func TestS1ARecycledVMIDIsNotOurs(t *testing.T) {
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
