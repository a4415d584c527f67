package chaos_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// laws holds the host against what must be true when all is quiet.
func (w *world) laws(snap pve.Snapshot) {
	site, stand := w.site(), w.standing(snap)
	for addr, list := range ours(snap) {
		made := slices.DeleteFunc(slices.Clone(list), func(g pve.Guest) bool { return w.byHand[g.VMID] })
		if len(made) > 1 {
			w.violation('b', "%d guests are %s: %v", len(made), addr, vmids(made))
		}
		if site.find(addr) == nil && len(stand[addr]) == 0 {
			w.violation('c', "%s (%v) is ours, and the site does not have it", addr, vmids(list))
		}
	}
	for _, n := range site.nodes {
		if len(stand[n.addr()]) == 0 {
			w.as(n, ours(snap)[n.addr()])
		}
	}
	w.volumes(snap, stand)
	for _, vmid := range slices.Sorted(maps.Keys(w.foreign)) {
		was := w.foreign[vmid]
		is, there := snap.Guest(vmid)
		switch {
		case !there:
			w.violation('d', "guest %d (%s) is gone, and was not ours", vmid, was.Name())
		case !maps.Equal(unlocked(is.Config), unlocked(was.Config)) || was.HA == "" && is.HA == "" && (is.Running != was.Running || is.Node != was.Node) || is.Pool != was.Pool || len(is.Pending) != len(was.Pending):
			w.violation('d', "guest %d (%s) is changed, and was not ours:\n    was %v %v\n    is  %v %v", vmid, was.Name(), was.Running, was.Config, is.Running, is.Config)
		case disksOf(snap, vmid) != w.disks[vmid]:
			w.violation('d', "disks of guest %d, which is not ours, were %s and are %s", vmid, w.disks[vmid], disksOf(snap, vmid))
		}
	}
}

// unlocked is a configuration without its lock: a copy that dies leaves the template
// of a container locked.
func unlocked(c map[string]string) map[string]string {
	if c["template"] == "1" {
		c = maps.Clone(c)
		delete(c, "lock")
	}
	return c
}

func vmids(list []pve.Guest) []int {
	var out []int
	for _, g := range list {
		out = append(out, g.VMID)
	}
	return out
}

func disksOf(snap pve.Snapshot, vmid int) string {
	var out []string
	for _, list := range snap.Volumes {
		for _, v := range list {
			if v.VMID == vmid && (v.Content == "images" || v.Content == "rootdir") {
				out = append(out, fmt.Sprintf("%s (%d bytes)", v.ID, v.Size))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// as holds a guest against its node: the plan is not the only one to say that all is well.
func (w *world) as(n *node, list []pve.Guest) {
	if len(list) != 1 {
		w.violation('a', "%s is there %d times", n.addr(), len(list))
		return
	}
	g := list[0]
	c := next(g)
	is := fmt.Sprintf("name %s, cores %s, memory %s, running %v, protection %v", c["name"]+c["hostname"], c["cores"], c["memory"], g.Running, c["protection"] == "1")
	want := fmt.Sprintf("name %s, cores %d, memory %d, running %v, protection %v", n.name, n.cores, n.memory, n.power == "running", n.guarded)
	if is != want {
		w.violation('a', "%s (%d) is: %s; shall be: %s", n.addr(), g.VMID, is, want)
	}
	m, _ := markOf(g)
	for _, name := range m.Removes {
		gone := !slices.ContainsFunc(n.disks, func(d disk) bool { return d.name == name })
		for key, val := range g.Config {
			if gone && len(g.Snapshots) == 0 && m.Detached[name] != "" && strings.HasPrefix(key, "unused") && val == m.Detached[name] && !n.guarded {
				w.violation('c', "%s (%d): the data of disk %s are still at %s", n.addr(), g.VMID, name, key)
			}
		}
	}
	for _, d := range append([]disk{{name: "root", size: n.disk}}, n.disks...) {
		slot := m.Slots["disk."+d.name]
		if _, attached := g.Config[slot]; !attached && g.Pending[slot] != "" {
			continue // it waits for a restart, and only then can be grown
		}
		if drive := sized(g, slot); !strings.Contains(drive, fmt.Sprintf("size=%dG", d.size)) {
			w.violation('a', "%s (%d): disk %s shall have %d GiB, and is %q", n.addr(), g.VMID, d.name, d.size, drive)
		}
	}
	for _, t := range append([]string{"homestak"}, n.tags...) {
		if !slices.Contains(strings.Split(c["tags"], ";"), t) {
			w.violation('a', "%s (%d) has tags %q, without %s", n.addr(), g.VMID, c["tags"], t)
		}
	}
}

// volumes looks for disks that belong to no guest.
func (w *world) volumes(snap pve.Snapshot, stand reasons) {
	used := map[string]bool{}
	// Decision 6: where no machine has or had words of its own nobody looks for seeds.
	looked := slices.ContainsFunc(w.site().nodes, func(n *node) bool { return n.seeded != 0 })
	for _, g := range snap.Guests {
		for _, conf := range []map[string]string{g.Config, g.Pending} {
			for _, v := range conf {
				head, _, _ := strings.Cut(v, ",")
				used[strings.TrimPrefix(head, "file=")] = true
			}
		}
		if len(g.Snapshots) > 0 {
			for _, list := range snap.Volumes {
				for _, v := range list {
					used[v.ID] = used[v.ID] || v.VMID == g.VMID // named in a section of the file that is not shown
				}
			}
		}
	}
	for _, list := range snap.Volumes {
		for _, v := range list {
			seed := seedPath.FindStringSubmatch(v.ID)
			if seed != nil && !used[v.ID] && looked && v.Size > 64<<10 && len(stand["vm."+seed[1]]) == 0 { // one that may not be deleted is emptied; where the making waits, so does the seed
				w.violation('c', "seed image %s is in no drive", v.ID)
			}
			if v.VMID != 0 && (v.Content == "images" || v.Content == "rootdir") && !used[v.ID] && !w.crashed[v.VMID] {
				w.violation('c', "volume %s belongs to no guest", v.ID)
			}
		}
	}
}
