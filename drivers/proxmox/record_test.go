package proxmox_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/observation"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// observe records the host of a world and reads the file again.
func observe(t *testing.T, w *proxmoxtest.World) *observation.Host {
	t.Helper()
	host, err := w.Driver.Record(t.Context())
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "host.json")
	require.NoError(t, host.WriteFile(file))
	read, err := observation.ReadFile(file)
	require.NoError(t, err)
	return read
}

// twinOf puts a twin in place of the host of a world. Back takes it away.
func twinOf(t *testing.T, w *proxmoxtest.World, o *observation.Host) (back func()) {
	t.Helper()
	live := w.Host
	twin, err := pve.Twin(o, pve.Config{
		TaskTime: time.Second, Promise: func(deviation string) { t.Error("the twin answers otherwise than the API promises:", deviation) },
	})
	require.NoError(t, err)
	w.Host = twin
	w.Reopen()
	return func() { w.Host = live; w.Reopen() }
}

// someHost is a site on a random host with guests that are not of the site, on which people work by hand.
func someHost(t *testing.T, seed uint64) *proxmoxtest.World {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 5))
	c := pve.Config{Seed: int64(seed), Guests: r.IntN(12), TaskTime: time.Second, Version: pve.Versions()[r.IntN(3)], Bridges: []string{"vmbr0", "vmbr1"}}
	if seed%3 == 0 {
		c.Nodes = []string{"mother", "uncle"}[:1+r.IntN(2)]
	}
	c.Storages = append(pve.DefaultStorages(), pve.Storage{Name: "tank", Type: "dir", Content: []string{"images", "rootdir", "backup"}, Shared: true})
	w := proxmoxtest.New(t, c)
	w.Site.Hosts["father"].Nodes = append([]string{"father"}, c.Nodes...)
	w.Template(9000, "golden")
	for i := range 1 + r.IntN(3) {
		w.Node(fmt.Sprintf("web-%d", i), func(vm *guest.VM) {
			vm.Cores = 1 + r.IntN(4)
			if r.IntN(2) == 0 {
				vm.Template = "golden"
			}
		})
	}
	if r.IntN(2) == 0 {
		w.CT("ct-1", nil)
	}
	if r.IntN(2) == 0 {
		addr := model.Address{Kind: "pool", Name: "of-site"}
		w.Site.Objects[addr] = &model.Resource{Addr: addr, Spec: &objects.Pool{Host: "father", Comment: "Of the site."}}
	}
	w.Apply()
	wait := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
	wait(20 * time.Second)

	guests := w.Host.Snapshot().Guests
	w.Root("POST", "/pools", url.Values{"poolid": {"theirs"}, "comment": {"Ask Anna"}})
	w.Root("POST", "/cluster/firewall/ipset", url.Values{"name": {"office"}, "comment": {"of the office"}})
	w.Root("POST", "/cluster/firewall/ipset/office", url.Values{"cidr": {"192.0.2.0/24"}, "nomatch": {"1"}})
	anna := grant(t, w, "/ Administrator 1")
	hand := func(method, path string, values url.Values) { _, _ = w.Send(anna, method, path, values) } // the guest may be locked
	for _, g := range guests {
		one := guests[r.IntN(len(guests))]
		at := fmt.Sprintf("/nodes/%s/%s/%d", one.Node, one.Kind, one.VMID)
		if one.Config["template"] == "1" {
			continue
		}
		switch r.IntN(9) {
		case 0:
			hand("PUT", at+"/config", url.Values{"memory": {fmt.Sprint(512 + 16*r.IntN(100))}})
		case 1:
			hand("PUT", at+"/config", url.Values{"delete": {"onboot"}, "tags": {"by-hand;old"}})
		case 2:
			hand("POST", at+"/snapshot", url.Values{"snapname": {fmt.Sprintf("s%d", g.VMID)}, "description": {"before"}})
		case 3:
			hand("PUT", "/pools/theirs", url.Values{"vms": {fmt.Sprint(g.VMID)}, "allow-move": {"1"}})
		case 4:
			w.Host.Edit(func(e *pve.Edit) { e.Stop(one.VMID) })
		case 5:
			w.Host.Edit(func(e *pve.Edit) { e.Lock(one.VMID, "backup") })
		case 6:
			w.Host.Edit(func(e *pve.Edit) { e.Pend(one.VMID, "cores", "7") })
		case 7:
			w.Host.Edit(func(e *pve.Edit) { e.Set(one.VMID, "description", "Written over by hand.") })
		default:
			w.Host.Edit(func(e *pve.Edit) { e.Delete(one.VMID) })
			guests = w.Host.Snapshot().Guests
		}
		wait(3 * time.Second)
	}
	if len(c.Nodes) > 0 && r.IntN(2) == 0 {
		w.Host.Edit(func(e *pve.Edit) { e.Offline(c.Nodes[0], true) })
	}
	wait(20 * time.Second)
	// And a commit that asks for more than that.
	switch r.IntN(3) {
	case 0:
		w.Node("new", nil)
	case 1:
		w.Drop("web-0")
	default:
		w.VM("web-0").Memory = 4096
	}
	return w
}

// TestTwin: the plan on a twin is the plan on the host, name of the plan included; the twin observed in turn is the same
// observation; and the plan can be carried out on it.
func TestTwin(t *testing.T) {
	steps, destructive, carried, edited := 0, 0, 0, 0
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			w := someHost(t, seed)
			live, o := planWithEdits(t, w), observe(t, w)
			twinOf(t, w, o)
			made := planWithEdits(t, w)
			for _, s := range made.Steps {
				edited += len(s.EditedBy())
			}
			for _, places := range [][]plan.Place{live.Places, made.Places} {
				for i := range places {
					p := &places[i]
					clear(p.Storages)   // what else is on a storage is not in a recording
					if p.Closed != "" { // nor what ran on a node that is offline
						p.Memory, p.Cores = plan.Amount{}, plan.Amount{}
					}
				}
			}
			require.Equal(t, document(t, live), document(t, made), "seed %d", seed)
			again := observe(t, w)
			require.Equal(t, withoutTimes(t, o), withoutTimes(t, again), "seed %d", seed)
			failed := w.Run(made)
			for _, s := range made.Steps {
				steps++
				if s.Action == "delete" || s.Action == "replace" {
					destructive++
				}
				if failed[s.Address] == nil {
					carried++
				}
			}
		})
	}
	t.Logf("%d steps, %d destructive, %d after edits by others, %d carried out", steps, destructive, edited, carried)
	require.Positive(t, destructive)
	require.Positive(t, edited)
}

// planWithEdits plans as the verb does: with the names of those who made the differences.
func planWithEdits(t *testing.T, w *proxmoxtest.World) *plan.Plan {
	t.Helper()
	want, _ := w.Site.Want("father")
	have, err := w.Driver.Observe(t.Context(), want)
	require.NoError(t, err)
	have.Edits = have.ReadEdits(t.Context(), w.PlanFor(want, have).Differing)
	return w.PlanFor(want, have)
}

// document is a plan as JSON, without its time.
func document(t *testing.T, p *plan.Plan) string {
	t.Helper()
	shown := *p
	shown.ObservedAt = time.Time{}
	text, err := json.MarshalIndent(shown, "", " ")
	require.NoError(t, err)
	return string(text)
}

// withoutTimes is an observation without what changes with time.
func withoutTimes(t *testing.T, o *observation.Host) string {
	t.Helper()
	o.ObservedAt = time.Time{}
	for i := range o.Guests {
		o.Guests[i].Uptime = 0
	}
	text, err := json.MarshalIndent(o, "", " ")
	require.NoError(t, err)
	return string(text)
}

// as opens the driver of a world for another token of its host.
func as(t *testing.T, w *proxmoxtest.World, token string) *proxmoxtest.World {
	t.Helper()
	d, err := proxmox.Open(proxmox.Config{Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: token, Transport: w.Host, Keys: w.Keys})
	require.NoError(t, err)
	other := *w
	other.Driver = d
	return &other
}

// grant makes a token of a user that has roles: PATH ROLE PROPAGATE.
func grant(t *testing.T, w *proxmoxtest.World, roles ...string) (token string) {
	t.Helper()
	_, _ = w.Send(w.Host.Token(), "DELETE", "/access/users/some@pve", nil)
	w.Root("POST", "/access/users", url.Values{"userid": {"some@pve"}})
	var doc struct{ Data struct{ Value string } }
	require.NoError(t, json.Unmarshal([]byte(w.As(w.Host.Token(), "POST", "/access/users/some@pve/token/look", url.Values{"privsep": {"0"}})), &doc))
	for _, role := range roles {
		parts := strings.Fields(role)
		w.Root("PUT", "/access/acl", url.Values{"path": {parts[0]}, "roles": {parts[1]}, "propagate": {parts[2]}, "users": {"some@pve"}})
	}
	return "some@pve!look=" + doc.Data.Value
}

// TestTwinOfAToken: a twin shows a token what the host shows it, whatever it may see. Plans are equal too, but where the
// host has guests that the token may not see and knows of: a twin does not have them.
func TestTwinOfAToken(t *testing.T) {
	const hidden = "guests of a pool"
	grants := map[string][]string{
		"nothing":                   nil,
		"an auditor":                {"/ PVEAuditor 1"},
		"an administrator":          {"/ Administrator 1"},
		hidden:                      {"/pool/theirs PVEVMAdmin 1", "/nodes PVEAuditor 1", "/storage PVEDatastoreUser 1"},
		"the path of guests only":   {"/vms PVEVMAdmin 0", "/ PVEAuditor 0"},
		"all guests but one":        {"/ PVEAuditor 1", "/vms/100 NoAccess 1"},
		"no guests":                 {"/ PVEAuditor 1", "/vms NoAccess 1"},
		"no storage but tank":       {"/vms PVEVMAdmin 1", "/nodes PVEAuditor 1", "/storage/tank PVEDatastoreAdmin 1"},
		"bridges of one name":       {"/vms PVEVMAdmin 1", "/nodes PVEAuditor 1", "/storage PVEDatastoreUser 1", "/sdn/zones/localnetwork/vmbr1 PVESDNUser 1"},
		"pools of similar paths":    {"/ PVEAuditor 1", "/pool/a-b PVEPoolUser 1", "/pool/a/b PVEPoolAdmin 1"},
		"an auditor without a role": {"/ PVEAuditor 1", "/nodes NoAccess 1", "/storage NoAccess 1"},
	}
	for name, roles := range grants {
		for seed := range uint64(2) {
			synctest.Test(t, func(t *testing.T) {
				w := someHost(t, 3*seed+1)
				limited := as(t, w, grant(t, w, roles...))
				host, err := limited.Driver.Record(t.Context())
				require.NoError(t, err, name)
				live := limited.Plan()
				twinOf(t, limited, host)
				limited = as(t, limited, limited.Host.Token())
				plan := limited.Plan()
				if name != hidden {
					require.Equal(t, proxmoxtest.Describe(live), proxmoxtest.Describe(plan), "%s, seed %d", name, seed)
					require.Equal(t, live.ID, plan.ID, "%s, seed %d", name, seed)
				}
				again, err := limited.Driver.Record(t.Context())
				require.NoError(t, err)
				for _, o := range []*observation.Host{host, again} {
					for i := range o.Unread {
						o.Unread[i].Why = "" // a twin fails without PVE's words
					}
				}
				require.Equal(t, withoutTimes(t, host), withoutTimes(t, again), "%s, seed %d", name, seed)
			})
		}
	}
}

// TestTwinOfAnAuditor: what an auditor observed can be changed on the twin by a token that the twin is given.
func TestTwinOfAnAuditor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := someHost(t, 1)
		w.Drop("web-0")
		o, err := as(t, w, grant(t, w, "/ PVEAuditor 1")).Driver.Record(t.Context())
		require.NoError(t, err)
		live := w.Plan()
		w.Host, err = pve.Twin(o, pve.Config{TaskTime: time.Second, Token: "root@pam!try=x"})
		require.NoError(t, err)
		w.Reopen()
		plan := w.Plan()
		require.Equal(t, live.ID, plan.ID)
		require.Contains(t, proxmoxtest.Describe(plan), "delete vm.web-0")
		require.Empty(t, w.Run(plan))
	})
}

// TestTwinOfWhatIsNotSimulated: a host may have versions and kinds of storages that the simulator does not know.
func TestTwinOfWhatIsNotSimulated(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{Guests: 2}, func(t *testing.T, w *proxmoxtest.World) {
		o := observe(t, w)
		o.Storages = append(o.Storages, observation.Storage{
			Name: "vault", Type: "esxi", Content: "backup", Shared: true, Nodes: []string{"father"}, Size: 1 << 40, Used: 1 << 30,
			Volumes: []observation.Volume{{ID: "vault:backup/vm/100/2026-11-01T02:00:00Z", Content: "backup", Format: "pbs-vm", Size: 1 << 30, Created: 1793498400}},
		})
		for version, stands := range map[string]string{"7.4": "8.4", "8.4": "8.4", "9.0": "9.1", "9.2": "9.2", "9.10": "9.2", "10.1": "9.2"} {
			o.Version = version
			back := twinOf(t, w, o)
			again := observe(t, w)
			require.Equal(t, stands, again.Version, version)
			want := slices.Clone(o.Storages)
			want[len(want)-1].Volumes = nil // the names of its volumes mean nothing to the simulator
			require.Equal(t, want, again.Storages)
			back()
		}
	})
}

// TestDamagedObservation: a file that was edited is refused, or makes a twin.
func TestDamagedObservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := withoutTimes(t, observe(t, someHost(t, 6)))
		text = strings.Replace(text, "0001-01-01", "2026-11-26", 1)
		r := rand.New(rand.NewPCG(1, 2))
		file, refused := filepath.Join(t.TempDir(), "host.json"), 0
		for range 200 {
			lines := strings.Split(text, "\n")
			i := r.IntN(len(lines))
			if key, _, member := strings.Cut(lines[i], `": `); member && strings.HasSuffix(lines[i], ",") {
				lines[i] = key + `": ` + []string{`""`, `"x:y"`, "-1", "null", "[]", "{}", "true"}[r.IntN(7)] + ","
			} else {
				lines = slices.Delete(lines, i, i+1)
			}
			require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600))
			o, err := observation.ReadFile(file)
			if err == nil {
				_, err = pve.Twin(o, pve.Config{})
			}
			if err != nil {
				refused++
			}
		}
		require.Greater(t, refused, 50)
	})
}

// TestObservationHasNoSecret: nothing that only root may read, or that PVE masks, is in an observation.
func TestObservationHasNoSecret(t *testing.T) {
	const secret = "s3cr3t"
	c := pve.Config{Guests: 4, Token: "root@pam!boss=" + secret + "-token", Password: secret + "-root"}
	proxmoxtest.InTime(t, c, func(t *testing.T, w *proxmoxtest.World) {
		w.Node("web", nil)
		w.Apply()
		w.Root("PUT", "/nodes/father/qemu/10000/config", url.Values{"cipassword": {secret + "-vm"}})
		w.Root("PUT", "/nodes/father/qemu/10000/config", url.Values{"description": {"x -delete " + secret + " -" + secret}})
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "description", "Public.") })
		w.Root("POST", "/nodes/father/qemu/10000/snapshot", url.Values{"snapname": {"one"}})
		w.Root("POST", "/access/users", url.Values{"userid": {"some@pve"}, "password": {secret + "-user"}})
		w.Root("POST", "/access/users/some@pve/token/other", url.Values{"comment": {secret + "-comment"}})
		w.Root("POST", "/storage", url.Values{"storage": {"nas"}, "type": {"cifs"}, "server": {"192.0.2.9"}, "share": {"s"}, "username": {"u"}, "password": {secret + "-cifs"}, "content": {"backup"}})
		w.Root("POST", "/cluster/metrics/server/db", url.Values{"type": {"influxdb"}, "server": {"192.0.2.9"}, "port": {"8086"}, "influxdbproto": {"http"}, "token": {secret + "-metrics"}})
		w.Root("POST", "/cluster/notifications/endpoints/gotify", url.Values{"name": {"phone"}, "server": {"https://gotify.test"}, "token": {secret + "-gotify"}})
		w.Root("PUT", "/cluster/options", url.Values{"http_proxy": {"http://u:" + secret + "@proxy.test:3128"}})
		w.Host.Edit(func(e *pve.Edit) {
			e.Set(10000, "args", "-fw_cfg name=opt/token,string="+secret+"-args")
			e.Pend(10000, "cipassword", secret+"-pending")
			e.Add(pve.Guest{VMID: 777, Kind: "lxc", Config: map[string]string{"hostname": "c", "env": "TOKEN=" + secret + "-env", "rootfs": "local-lvm:vm-777-disk-0,size=1G"}})
		})
		live, o := w.Plan(), observe(t, w)
		text := withoutTimes(t, o)
		require.NotContains(t, text, secret)
		require.Equal(t, 5, strings.Count(text, `"**********"`), "a password in force, pending and in a snapshot, arguments, an environment: %s", text)
		require.Contains(t, text, `"name": "nas"`)
		require.Contains(t, text, `"text": "update VM 10000: -description *"`)
		twinOf(t, w, o)
		require.Equal(t, live.ID, w.Plan().ID, "the digest of a guest with a password")
	})
}
