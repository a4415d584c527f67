package integration_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// PVE answers about 1 of 100 parallel writes with "got no worker upid - start worker
// failed". These stories are about that: a run goes on by itself.

// hundred is a manifest of so many VMs.
func hundred(n int) string {
	return strings.Replace(vm("web"), "{\n", fmt.Sprintf("{\n    count = %d\n", n), 1)
}

// tenAtOnce is the width at which a real host showed this; notes takes the notes of the run.
func tenAtOnce(notes *[]string) func(*engine.Pass) {
	return func(p *engine.Pass) {
		p.Width = 10
		p.Notify = func(e apply.Event) {
			if e.What == apply.Note {
				*notes = append(*notes, e.Text)
			}
		}
	}
}

// unfinished are the guests that hold nothing but the lock of their creation.
func (s *story) unfinished() []int {
	var out []int
	for _, g := range s.host.Snapshot().Guests {
		if len(g.Config) == 1 && g.Config["lock"] == "create" {
			out = append(out, g.VMID)
		}
	}
	return out
}

// clears does at the node what the program says: unlock and destroy.
func (s *story) clears(vmids ...int) {
	s.byHand(func(e *pve.Edit) {
		for _, id := range vmids {
			e.Set(id, "lock", "")
			e.Delete(id)
		}
	})
}

func TestWorkersThatDoNotStart(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.deploy("many", hundred(100))
	s.breaks(
		"POST /nodes/father/storage/local/download-url nth=1 no-worker",
		"POST /nodes/father/qemu nth=1 no-worker", "POST /nodes/father/qemu nth=17 no-worker", "POST /nodes/father/qemu nth=18 no-worker", "POST /nodes/father/qemu nth=100 no-worker",
		"PUT /nodes/father/qemu/*/resize nth=5 no-worker",
		"POST /nodes/father/qemu/*/status/start nth=1 no-worker", "POST /nodes/father/qemu/*/status/start nth=60 no-worker",
	)
	var notes []string
	r := s.pass("apply", tenAtOnce(&notes))
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Len(t, notes, 8, "%v", notes)
	require.Contains(t, notes[0], "image.debian-12: the outcome is unknown; checking the host and retrying in")
	require.Contains(t, notes[0], "(try 2 of 4)")

	left := s.unfinished()
	require.Len(t, left, 4)
	var names []string
	for _, g := range s.host.Snapshot().Guests {
		if strings.HasPrefix(g.Config["name"], "web-") {
			names = append(names, g.Config["name"])
			require.True(t, g.Running, g.Config["name"])
			require.NotContains(t, left, g.VMID)
		}
	}
	slices.Sort(names)
	require.Len(t, slices.Compact(names), 100, "each once")
	for _, n := range r.Nodes {
		require.NotContains(t, left, n.VMID, "the report names the VMID that the guest has")
		require.Equal(t, n.Name, guestIn(s.host.Snapshot(), n.VMID).Config["name"])
	}
	for _, id := range left {
		require.True(t, slices.ContainsFunc(r.Findings, func(f diag.Finding) bool {
			return strings.Contains(f.Summary, fmt.Sprintf("vm %d is unfinished, since PVE aborted the creation of %s", id, f.Address)) &&
				strings.Contains(f.Detail, fmt.Sprintf("`qm unlock %d && qm destroy %d` on node father", id, id))
		}), "%d: %v", id, r.Findings)
	}

	sent := s.requests()
	writes := 0
	for _, q := range sent {
		if q.method == http.MethodPost && q.path == "/nodes/father/qemu" {
			writes++
		}
	}
	require.Equal(t, 104, writes, "no creation is sent again but those that were broken off")
	s.heals()
	s.inSync()

	s.breaks("DELETE /nodes/father/qemu/* nth=3 no-worker", "DELETE /nodes/father/qemu/* nth=50 no-worker", "POST /nodes/father/qemu/*/status/shutdown nth=2 no-worker")
	notes = nil
	r = s.pass("destroy", func(p *engine.Pass) {
		tenAtOnce(&notes)(p)
		p.Manifest, p.Destroy = "many", true
	})
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Len(t, notes, 3)
	require.Equal(t, left, s.unfinished(), "what was broken off is nobody's, and stays")
	for _, g := range s.host.Snapshot().Guests {
		require.False(t, strings.HasPrefix(g.Config["name"], "web-"), g.Config["name"])
	}
}

// What is left of a creation has the VMID that the files declare: only an administrator
// can clear it.
func TestNoWorkerForADeclaredVMID(t *testing.T) {
	s := containers(t, pve.Config{})
	s.deploy("one", vm("a", "vmid = 10500")+ct("c", "vmid = 10501"))
	s.breaks("POST /nodes/father/qemu nth=1 no-worker", "POST /nodes/father/lxc nth=1 no-worker")
	r := s.pass("apply", nil)
	require.Equal(t, engine.Partly, r.Outcome, describe(r))
	require.Equal(t, []int{10500, 10501}, s.unfinished())
	require.Contains(t, nodeOf(r, "a").Error, "got no worker upid - start worker failed")
	require.Contains(t, nodeOf(r, "a").Error, "`qm unlock 10500 && qm destroy 10500` on node father")
	require.Contains(t, nodeOf(r, "c").Error, "`pct unlock 10501 && pct destroy 10501` on node father")

	s.clears(10500, 10501)
	s.apply()
	require.Empty(t, s.unfinished())
	s.inSync()
}

// A copy of a container whose task does not start leaves two locks: that of the copy, and
// that of the template, which no token may take away. The run says how to clear both.
func TestNoWorkerForACopyOfAContainer(t *testing.T) {
	t.Parallel()
	for _, version := range pve.Versions() {
		t.Run(version, func(t *testing.T) {
			s := begin(t, pve.Config{Version: version})
			s.write("template.hcl", ctTemplate)
			s.deploy("base", ct("base", "vmid = 10090", "power = \"stopped\""))
			s.apply()
			s.remove("manifests/base.hcl")
			s.byHand(func(e *pve.Edit) { e.Set(10090, "description", ""); e.Set(10090, "template", "1") })
			s.write("golden.hcl", "template \"golden\" {\n  vmid = 10090\n}\n")
			s.deploy("one", strings.ReplaceAll(ct("a"), "template.debian-ct", "template.golden"))
			s.breaks("POST /nodes/father/lxc/10090/clone nth=1 no-worker")
			r := s.try()
			require.NotEqual(t, engine.Done, r.Outcome, describe(r))
			require.Contains(t, nodeOf(r, "a").Error, "CT 10090 is locked (disk)")
			require.Contains(t, nodeOf(r, "a").Error, "`pct unlock 10090` on node father clears it")
			require.Contains(t, describe(r), "`pct unlock 10000 && pct destroy 10000` on node father")
			require.Equal(t, "create", guestIn(s.host.Snapshot(), 10000).Lock)

			s.byHand(func(e *pve.Edit) { e.Set(10090, "lock", "") })
			s.clears(10000)
			s.apply()
			s.inSync()
		})
	}
}

// A host that never starts a worker is not asked for ever.
func TestNoWorkerEver(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("one", vm("a", "power = \"stopped\""))
	s.apply()
	s.edit("manifests/one.hcl", "power = \"stopped\"", "power = \"running\"")
	s.breaks("POST /nodes/father/qemu/*/status/start no-worker")
	before := len(s.requests())
	r := s.try()
	require.Equal(t, engine.Failed, r.Outcome, describe(r))
	require.Contains(t, nodeOf(r, "a").Error, "tried 4 times, checking the host before each retry; the outcome is still unknown: ")
	require.Contains(t, nodeOf(r, "a").Error, "got no worker upid - start worker failed (PVE could not start the process of the task)")
	starts, lists := 0, 0
	for _, q := range s.requests()[before:] {
		starts += boolInt(strings.HasSuffix(q.path, "/status/start"))
		lists += boolInt(q.path == "/cluster/resources")
	}
	require.Equal(t, 4, starts)
	require.Equal(t, 4, lists, "the plan, and one look before each further try")
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A creation that is rolled back takes what was made under the other VMID.
func TestNoWorkerAndRollback(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("two", "  on_error = \"rollback\"\n"+vm("a")+vm("b"))
	s.breaks("POST /nodes/father/qemu nth=1 no-worker", "POST /nodes/father/qemu/10001/status/start status=500")
	r := s.pass("apply", oneAtATime)
	require.Equal(t, engine.Partly, r.Outcome, describe(r)) // the image stays
	require.Equal(t, []int{10000}, s.unfinished())
	require.Empty(t, slices.DeleteFunc(s.names(), func(n string) bool { return n == "" }))
	require.Equal(t, engine.NodeDestroyed, status(r, "a"), describe(r))
}

// The answers of the writes of one update are lost, done or not: the same run finds out.
func TestLostAnswersWithinOneRun(t *testing.T) {
	t.Parallel()
	for _, apply := range []string{"", " apply"} {
		t.Run("effect:"+apply, func(t *testing.T) {
			s := begin(t, pve.Config{})
			s.deploy("one", vm("a"))
			s.breaks(
				"POST /nodes/father/qemu nth=1 status=596"+apply,
				"POST /nodes/father/qemu/*/status/start nth=1 status=-1"+apply,
				"POST /nodes/father/storage/local/download-url nth=1 status=595"+apply,
			)
			s.apply()
			s.edit("manifests/one.hcl", "preset = preset.vm-small", "preset = preset.vm-small\n    disk   = 20\n    description = \"grown\"")
			s.breaks(
				"PUT /nodes/father/qemu/*/config nth=1 status=596"+apply,
				"PUT /nodes/father/qemu/*/resize nth=1 status=599"+apply,
			)
			s.apply()
			require.Contains(t, s.guest("a").Config["scsi0"], "size=20G")
			s.heals()
			s.inSync()
			s.breaks("DELETE /nodes/father/qemu/* nth=1 status=596" + apply)
			s.destroy("one")
			require.Empty(t, s.names())
		})
	}
}
