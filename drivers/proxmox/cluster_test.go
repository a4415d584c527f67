package proxmox_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// inCluster runs a test in a cluster of five nodes.
func inCluster(t *testing.T, c pve.Config, story func(*testing.T, *world)) {
	t.Helper()
	c.Nodes, c.TaskTime = []string{"n2", "n3", "n4", "n5"}, time.Second
	inTime(t, c, func(t *testing.T, w *world) {
		w.Site.Hosts["father"].Nodes = []string{"father", "n2", "n3", "n4", "n5"}
		w.Reopen()
		story(t, w)
	})
}

// nodesOf are the nodes of the guests, by name.
func nodesOf(w *world) map[string]string {
	out := map[string]string{}
	for _, g := range w.Host.Snapshot().Guests {
		out[g.Config["name"]+g.Config["hostname"]] = g.Node
	}
	return out
}

// filesOn are the nodes that have files of the site.
func filesOn(w *world, storage, content string) []string {
	var out []string
	for _, v := range w.Host.Snapshot().Volumes[storage] {
		if v.Content == content && strings.Contains(v.ID, "homestak.") {
			out = append(out, v.Node)
		}
	}
	slices.Sort(out)
	return out
}

// look is what one observation asks, with the numbers of VMIDs left out.
func look(w *world) map[string]int {
	out := map[string]int{}
	_, remembered := w.recalling(nil)
	var mutex sync.Mutex // requests are made side by side
	w.Sees = func(r *http.Request) {
		mutex.Lock()
		defer mutex.Unlock()
		out[r.Method+" "+strings.TrimPrefix(r.URL.Path, "/api2/json")]++
	}
	defer func() { w.Sees = nil }()
	w.Reopen()
	p, _ := w.recalling(remembered)
	require.Empty(w.T, p.Steps, proxmoxtest.Describe(p))
	require.Empty(w.T, p.Findings)
	return out
}

// New guests spread over the nodes that are online, each with the image on its node. A move by the HA manager or a person is
// no drift, and a pass over guests on many nodes asks no more than one over guests on one.
func TestClusterPlacesGuests(t *testing.T) {
	inCluster(t, pve.Config{Offline: []string{"n4"}}, func(t *testing.T, w *world) {
		for i := range 4 {
			w.Node(fmt.Sprint("web-", i), nil).Spread = "web"
		}
		w.CT("ct", nil).Preset = "small"
		p := w.Apply()
		for _, s := range p.Steps {
			if s.Address == addrOf("vm.web-0") {
				require.Regexp(t, `^declared, and does not exist yet; on n2: [0-9.]+ of [0-9.]+ GiB free; father: [0-9.]+; n3: [0-9.]+; n4: offline; n5: [0-9.]+$`, s.Reason)
			}
		}
		is := nodesOf(w)
		require.ElementsMatch(t, []string{"father", "n2", "n3", "n5"}, []string{is["web-0"], is["web-1"], is["web-2"], is["web-3"]})
		require.Equal(t, "father", is["ct"], "all have the same room, after the VMs")
		require.Equal(t, []string{"father", "n2", "n3", "n5"}, filesOn(w, "local", "import"))
		w.Host.Edit(func(e *pve.Edit) { e.Offline("n4", false) })
		time.Sleep(time.Minute)
		w.Converged()
		spread := look(w)

		w.Root(http.MethodPost, "/cluster/ha/resources", url.Values{"sid": {"vm:10001"}})
		time.Sleep(time.Minute)
		w.Root(http.MethodPost, "/nodes/"+is["web-0"]+"/qemu/10001/migrate", url.Values{"target": {"n5"}, "online": {"1"}, "with-local-disks": {"1"}})
		w.Root(http.MethodPost, "/nodes/"+is["web-1"]+"/qemu/10002/migrate", url.Values{"target": {"father"}, "online": {"1"}, "with-local-disks": {"1"}})
		time.Sleep(2 * time.Minute)
		require.NotEqual(t, is, nodesOf(w))
		moved := look(w)
		requests := func(of map[string]int) (n int) {
			for path, times := range of {
				require.False(t, strings.Contains(path, "/storage/") && !strings.HasPrefix(path, "GET /nodes/father/"), path)
				n += times
			}
			return n
		}
		require.Equal(t, 20, requests(spread), "%v", spread)
		require.Equal(t, requests(spread), requests(moved), "%v\n%v", spread, moved)

		w.Site.Objects[model.Address{Kind: "image", Name: "debian-12"}].Spec.(*objects.Image).Checksum = "sha256:" + strings.Repeat("ab", 32)
		w.Apply()
		require.Equal(t, []string{"father"}, filesOn(w, "local", "import"), "the new one, and no old ones")
		for i := range 4 {
			w.Drop(fmt.Sprint("web-", i))
		}
		w.Drop("ct")
		delete(w.Site.Objects, model.Address{Kind: "image", Name: "debian-12"})
		delete(w.Site.Objects, model.Address{Kind: "template", Name: "debian-ct"})
		w.Apply()
		require.Empty(t, w.Host.Snapshot().Guests)
		require.Empty(t, slices.Concat(filesOn(w, "local", "import"), filesOn(w, "local", "vztmpl")))
	})
}

// Guests leave a node in maintenance and return, and people and a balancer move them: nothing of that is drift, each is converged
// where it is by then, and no new one is created on a node in maintenance.
func TestClusterUnderMaintenance(t *testing.T) {
	inCluster(t, pve.Config{}, func(t *testing.T, w *world) {
		for i := range 5 {
			w.Node(fmt.Sprint("web-", i), nil).Spread = "web"
		}
		w.Apply()
		home := nodesOf(w)
		require.Len(t, slices.Compact(slices.Sorted(maps.Values(home))), 5)
		id := func(name string) int {
			return w.Host.Snapshot().Guests[slices.IndexFunc(w.Host.Snapshot().Guests, func(g pve.Guest) bool { return g.Config["name"] == name })].VMID
		}
		for name := range home {
			w.Root(http.MethodPost, "/cluster/ha/resources", url.Values{"sid": {fmt.Sprint("vm:", id(name))}})
		}
		rev := 0
		// settled requires that nothing is planned, and that a change of each guest is made where it is.
		settled := func(when string) {
			t.Helper()
			time.Sleep(3 * time.Minute)
			at := nodesOf(w)
			look(w)
			rev++
			for name := range home {
				w.VM(name).Tags = []string{fmt.Sprint("rev-", rev)}
			}
			w.Apply()
			require.Equal(t, at, nodesOf(w), when)
			for _, g := range w.Host.Snapshot().Guests {
				require.Contains(t, g.Config["tags"], fmt.Sprint("rev-", rev), when)
				require.True(t, g.Running, when)
			}
			w.Converged()
		}
		settled("at first")
		for _, node := range []string{"n2", "father"} {
			w.Host.Edit(func(e *pve.Edit) { e.Maintenance(node, true) })
			settled(node + " is in maintenance")
			require.NotContains(t, slices.Collect(maps.Values(nodesOf(w))), node)

			at, to := nodesOf(w), []string{"n4", "n5"}
			if at["web-0"] == "n4" || at["web-1"] == "n5" {
				to = []string{"n3", "n4"}
			}
			w.Root(http.MethodPost, "/nodes/"+at["web-0"]+"/qemu/"+fmt.Sprint(id("web-0"))+"/migrate", url.Values{"target": to[:1], "online": {"1"}, "with-local-disks": {"1"}})
			w.Root(http.MethodPost, "/cluster/ha/resources/vm:"+fmt.Sprint(id("web-1"))+"/relocate", url.Values{"node": to[1:]})
			settled("a person and a balancer moved two")
			at = nodesOf(w)
			require.Equal(t, to[0], at["web-0"])
			require.Equal(t, to[1], at["web-1"])

			w.Node("new", nil).Spread = "web"
			p := w.Apply()
			require.Contains(t, proxmoxtest.Describe(p), node+": the HA manager has it as maintenance")
			require.NotEqual(t, node, nodesOf(w)["new"])
			w.Drop("new")
			w.Apply()
			w.Host.Edit(func(e *pve.Edit) { e.Maintenance(node, false) })
			settled(node + " is back")
		}
	})
}

// A plan after one that failed in part leaves what exists where it is, and creates the rest.
func TestClusterAfterPartialFailure(t *testing.T) {
	broken := true
	c := pve.Config{Fault: func(r *http.Request) (int, bool) {
		if broken && r.Method == http.MethodPost && r.URL.Path == "/api2/json/nodes/n3/qemu" {
			return http.StatusInternalServerError, false
		}
		return 0, false
	}}
	inCluster(t, c, func(t *testing.T, w *world) {
		for i := range 5 {
			w.Node(fmt.Sprint("web-", i), nil)
		}
		p := w.Plan()
		at := map[model.Address]string{}
		for _, s := range p.Steps {
			if s.Action == plan.Create && s.VMID != 0 {
				at[s.Address] = s.Place
			}
		}
		require.Len(t, at, 5)
		errs := w.Run(p)
		made := nodesOf(w)
		require.Len(t, made, 4, "%v", errs)
		broken = false
		time.Sleep(time.Minute)
		p = w.Plan()
		require.Len(t, p.Steps, 1, proxmoxtest.Describe(p))
		require.Equal(t, at[p.Steps[0].Address], p.Steps[0].Place)
		w.Apply()
		now := nodesOf(w)
		maps.DeleteFunc(now, func(name, _ string) bool { return made[name] == "" })
		require.Equal(t, made, now)
		w.Converged()
	})
}

// A guest outside of its set is reported, with the command for a person, and stays.
func TestClusterOutsideOfItsSet(t *testing.T) {
	inCluster(t, pve.Config{}, func(t *testing.T, w *world) {
		n := w.Node("db", nil)
		n.Nodes = []string{"n2"}
		w.Apply()
		require.Equal(t, "n2", w.Guest(10000).Node)
		n.Nodes = []string{"n3", "n4"}
		p := w.Plan()
		require.Empty(t, p.Steps)
		require.Len(t, p.Findings, 1)
		require.Equal(t, "drift: vm.db is on node n2, not on its nodes (n3, n4): it stays managed there", p.Findings[0].Summary)
		require.Contains(t, p.Findings[0].Detail, "`qm migrate 10000 n3` on node n2, with --online if it runs")
	})
}

// A template on a storage of one node is cloned there. One that is made from an image is on the host's own node.
func TestClusterClonesWhereTheTemplateIs(t *testing.T) {
	for name, own := range map[string]bool{"named": false, "made here": true} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, pve.Config{}, func(t *testing.T, w *world) {
				if own {
					w.makes("local-lvm")
				} else {
					w.TemplateOn("n3", "local-lvm", 9000, "golden")
				}
				w.Node("web-1", func(v *guest.VM) { v.Template = "golden" })
				w.Node("web-2", func(v *guest.VM) { v.Template = "golden" })
				w.Apply()
				on := map[bool]string{true: "father", false: "n3"}[own]
				require.Equal(t, []string{on, on}, []string{nodesOf(w)["web-1"], nodesOf(w)["web-2"]})
				w.Converged()
			})
		})
	}
}

// A node without the storage of the image, or without the archive of the template, is not chosen. An image for the drive of
// a guest that exists is fetched to its node.
func TestClusterFetchesFilesToTheNode(t *testing.T) {
	nas := pve.Storage{Name: "nas", Type: "dir", Content: []string{"import"}}
	c := pve.Config{Storages: append(pve.DefaultStorages(), nas)}
	inCluster(t, c, func(t *testing.T, w *world) {
		w.Root(http.MethodPut, "/storage/nas", url.Values{"nodes": {"father,n3"}})
		w.Site.Objects[addrOf("image.debian-12")].Spec.(*objects.Image).Storage = "nas"
		n := w.Node("web", nil)
		n.Nodes = []string{"n2", "n3"}
		w.Node("first", nil).Nodes = []string{"father"}
		w.Apply()
		w.Root(http.MethodPost, "/nodes/father/storage/local/download-url", url.Values{"content": {"vztmpl"}, "filename": {"own.tar.zst"}, "url": {"https://images.test/own.tar.zst"}})
		time.Sleep(time.Minute)
		w.Declare("own", &guest.Template{Volume: "local:vztmpl/own.tar.zst"})
		w.CT("ct", func(c *guest.CT) { c.Template = "own" })
		w.Apply()
		require.Equal(t, map[string]string{"web": "n3", "first": "father", "ct": "father"}, nodesOf(w))

		iso := &objects.Image{URL: "https://images.test/tools.iso", Checksum: "sha256:" + strings.Repeat("cd", 32)}
		w.Site.Objects[addrOf("image.tools")] = &model.Resource{Addr: addrOf("image.tools"), Spec: iso}
		n.Resource.Needs = append(n.Resource.Needs, addrOf("image.tools"))
		w.VM("web").Options = map[string]string{"ide0": "tools,media=cdrom"}
		w.Apply()
		require.Equal(t, []string{"father", "n3"}, filesOn(w, "local", "iso"))
		w.Converged()
	})
}

func addrOf(text string) model.Address {
	a, _ := model.ParseAddress(text)
	return a
}
