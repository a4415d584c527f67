package proxmox_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

var updateTable = flag.Bool("update-table", false, "update the table of docs/security.md")

// states are the columns of the table: what the guest is on which somebody has a privilege.
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
		s.tries(s.eve, http.MethodPut, path+"/config", url.Values{"description": {lies[lie%len(lies)].Line()}, "tags": {"homestak"}})
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
		s.tries(s.eve, http.MethodPut, path+"/config", keys)
	}
	s.tries(s.eve, http.MethodPost, path+"/snapshot", url.Values{"snapname": {"s"}})
	s.tries(s.eve, http.MethodPost, path+"/status/start", nil)
	if lie%3 == 0 {
		s.tries(s.eve, http.MethodPost, path+"/status/stop", nil)
		s.tries(s.eve, http.MethodPost, path+"/template", nil)
		s.tries(s.eve, http.MethodPost, path+"/clone", url.Values{"newid": {"199"}})
		s.tries(s.eve, http.MethodDelete, path, nil)
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
	keeps   = "keep a node that has no guest yet from being created, by claiming to be that node"
	reverts = "revert the change"
	again   = "create the guest again"
	leaves  = "leave the guest alone, as unmanaged"
)

// join adds an outcome to others, each once and in one order.
func join(have, more string) string {
	all := append(strings.Split(have, "; "), strings.Split(more, "; ")...)
	slices.Sort(all)
	return strings.Join(slices.DeleteFunc(slices.Compact(all), func(one string) bool { return one == "" }), "; ")
}

// tried attacks all guests with a set of privileges, once for each of some lies, and returns what comes of it by state.
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
// guest, whatever its tag claims. Two privileges on a guest of
// somebody else make us do no more than each of them, and on one of ours nothing else than what is in that column.
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
	var text strings.Builder
	fmt.Fprintf(&text, "| privilege | %s |\n|---|%s\n", strings.Join(states, " | "), strings.Repeat("---|", len(states)))
	for _, one := range slices.Sorted(maps.Keys(table)) {
		fmt.Fprintf(&text, "| `%s` |", one)
		for _, state := range states {
			fmt.Fprintf(&text, " %s |", cmp.Or(table[one][state], nothing))
		}
		text.WriteString("\n")
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
