package main

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/hcl"
)

// aPast is a fake agent with a commit in force, three receipts, and an unmanaged guest.
func aPast(t *testing.T) (*controltest.Agent, *control.Facts) {
	t.Helper()
	f := controltest.New()
	f.Change(func(s *agent.Status) {
		s.InForce = &agent.CommitStatus{ID: "3f2c1a9d00", Subject: "Web 2", Author: "A. Homelab", Since: noon}
	})
	f.Change(func(s *agent.Status) {
		s.Nodes = []engine.NodeStatus{{Address: "vm.one", Node: "one", VMID: 10001, Ready: true}}
	})
	receipt := func(id, outcome string, drift bool, steps ...ledger.Step) ledger.Receipt {
		return ledger.Receipt{
			Version: 1, ID: id, Verb: "agent", By: "father", Host: "father", Commit: "3f2c1a9d00", Subject: "Web 2", Author: "A. Homelab",
			Began: noon, Seconds: 12.5, Outcome: outcome, Drift: drift, Steps: steps,
		}
	}
	f.List = []ledger.Receipt{
		receipt("3", "done", true, ledger.Step{Address: "vm.one", Action: "update", Status: "done", Reason: "memory differs", Seconds: 1.5, Changes: []ledger.Change{
			{Path: "memory", Before: 512, After: 1024}, {Path: "cipassword", Sensitive: true}, {Path: "tags", Before: nil, After: ""},
		}}),
		receipt("2", "partly", false,
			ledger.Step{Address: "vm.old", Action: "delete", Status: "done", Reason: "left the site", Seconds: 2},
			ledger.Step{Address: "vm.two", Action: "create", Status: "failed", Error: "no space", Seconds: 3, Changes: []ledger.Change{{Path: "cores", After: 1}}}),
		receipt("1", "done", false, ledger.Step{Address: "vm.one", Action: "create", Status: "done", Reason: "is not there", Seconds: 4}),
	}
	f.List[2].Verb, f.List[2].By = "apply", "cli:me@here"
	k := control.NewFacts("father")
	k.Site(engine.Desired{Site: load(t, enginetest.TwoNodes), Commit: "3f2c1a9d00"})
	k.Observed(model.Observed{Unmanaged: []model.Unmanaged{{VMID: 999, Name: "scratch", Kind: "vm", Why: "no ownership tag"}}})
	return f, k
}

func TestWhy(t *testing.T) {
	t.Parallel()
	f, k := aPast(t)
	why := func(address string) string {
		return view.Why(k.Reasons(address, f.Status(), f))
	}
	one := `vm.one (10001), of manifest web
  declared   site.hcl:14:3
  by commit  3f2c1a9d “Web 2” (A. Homelab)
  is         ready
last done
  2026-01-02 12:00:00  update done in 1.5 s, to revert changes on the host
      by father with commit 3f2c1a9d “Web 2” (A. Homelab)
      because memory differs
      memory: 512 → 1024
      cipassword: (sensitive) → (sensitive)
      tags: nothing → nothing
  2026-01-02 12:00:00  create done in 4.0 s
      by cli:me@here with commit 3f2c1a9d “Web 2” (A. Homelab)
      because is not there
`
	for _, name := range []string{"vm.one", "one", "10001"} {
		require.Equal(t, one, why(name))
	}
	require.Equal(t, `vm.two, of manifest web
  declared   site.hcl:20:3
  by commit  3f2c1a9d “Web 2” (A. Homelab)
last done
  2026-01-02 12:00:00  create failed in 3.0 s
      by father with commit 3f2c1a9d “Web 2” (A. Homelab)
      error: no space
`, why("two"))
	require.Equal(t, `vm.old
  removed    with commit 3f2c1a9d “Web 2” (A. Homelab)
  phase      decommissioned
last done
  2026-01-02 12:00:00  delete done in 2.0 s
      by father with commit 3f2c1a9d “Web 2” (A. Homelab)
      because left the site
`, why("vm.old"))
	for _, name := range []string{"999", "scratch", "vm.scratch"} {
		require.Equal(t, name+"\n  unmanaged  vm scratch (999): no ownership tag; it is ignored\n", why(name))
	}
	r := k.Reasons("vm.onne", f.Status(), f)
	require.True(t, r.NotFound)
	require.Equal(t, `did you mean "vm.one"?`, r.Hint)
	require.Len(t, f.List[1].Steps, 2, "the receipts themselves stay whole")

	f.List[0].Steps = append(f.List[0].Steps, ledger.Step{Address: "ct.old"}, ledger.Step{Address: "pool.one"})
	r = k.Reasons("old", f.Status(), f)
	require.True(t, r.NotFound)
	require.Equal(t, `"old" may be ct.old or vm.old: write one of these addresses`, r.Hint)
	require.Equal(t, one, why("one"), "a name is that of a node first")
}

func TestHistoryTable(t *testing.T) {
	t.Parallel()
	f, _ := aPast(t)
	require.Equal(t, `  WHEN                 COMMIT    BY                 OUTCOME  TOOK  WHAT
  2026-01-02 12:00:00  3f2c1a9d  father             done     12 s  1 change (drift reverted)  “Web 2” (A. Homelab)
  2026-01-02 12:00:00  3f2c1a9d  father             partly   12 s  1 add, 1 destroy  “Web 2” (A. Homelab)
  2026-01-02 12:00:00  3f2c1a9d  cli:me@here apply  done     12 s  1 add  “Web 2” (A. Homelab)
`, view.Paint(false).History(f.List, ""))

	socket, _ := f.Serve(t, "")
	env := map[string]string{"HOMESTAK_SOCKET": socket}
	code, lines, _ := runIn(t, env, "history", "--json", "vm.two")
	require.Zero(t, code)
	var r ledger.Receipt
	require.NoError(t, json.Unmarshal([]byte(lines), &r))
	require.Equal(t, "2", r.ID)
	require.Equal(t, 1, strings.Count(lines, "\n"), "one line a receipt")
	code, _, stderr := runIn(t, env, "history", "vm.nothing")
	require.Zero(t, code)
	require.Contains(t, stderr, "no receipt is about vm.nothing")

	code, text, _ := runIn(t, env, "history", "verify")
	require.Zero(t, code)
	require.Equal(t, "the chain is intact: 3 receipts\n", text)
	f.Broken = []string{"2: is not what its successor says it was"}
	code, text, stderr = runIn(t, env, "history", "verify", "--json")
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, text, `"broken": [`)
	require.Contains(t, stderr, "the chain is broken at 1 receipt; 3 receipts hold")
	code, _, stderr = runIn(t, env, "why", "nobody")
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, "\"nobody\" is not a known address")
}

// The stored state of an agent is shown as far as it goes.
func TestLeftBehind(t *testing.T) {
	t.Parallel()
	f, _ := aPast(t)
	s := control.LastStatus(ledger.State{
		Identity: "father", Head: ledger.CommitRef{ID: "55aa", Since: noon}, Good: ledger.CommitRef{ID: "3f2c1a9d00", Since: noon.Add(-time.Hour)},
		FailingChecks: []ledger.FailingCheck{{Address: "vm.web-1", Check: "web", Since: noon, Error: "no route"}},
	}, f.List[1:2])
	require.Equal(t, noon.Add(12500*time.Millisecond), s.At)
	require.Equal(t, control.Absent, s.State)
	require.Equal(t, "Web 2", s.InForce.Subject)
	require.Nil(t, s.Converged)
	text := view.Paint(false).Status(s, noon.Add(time.Hour))
	require.True(t, strings.HasPrefix(text, "father  no agent is running here; this is its state at 2026-01-02 12:00:12\n"), text)
	require.Contains(t, text, "last pass   partly 59 min ago in 12 s: 1 add, 1 destroy")
	require.Contains(t, text, "failing     check web of vm.web-1 for 60 min: no route (not run now: no agent is running here)")
}

// load loads a site of one file.
func load(t *testing.T, text string) *model.Site {
	t.Helper()
	site, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(text)}}, hcl.Options{Kinds: proxmox.Kinds()})
	require.Zero(t, found.Errors(), "%v", found)
	return site
}
