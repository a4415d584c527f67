package integration_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// ST-9: a push is the deploy step, over every transport. Nothing else is typed; a bad
// commit converges nothing and says so; the next good one does.
func TestAPushIsTheDeployStep(t *testing.T) {
	t.Parallel()
	for _, by := range transports() {
		t.Run(by.name, func(t *testing.T) {
			f := follow(t, pve.Config{TaskTime: 20 * time.Millisecond}, by)
			f.deploy("web", vm("web-1")+vm("web-2"))
			first := f.push("Two web servers")
			f.begins()
			f.converged(first)
			require.Equal(t, []string{"web-1", "web-2"}, f.names())

			f.edit("manifests/web.hcl", "node \"web-2\"", "node \"web-3\"")
			second := f.push("One of them goes by another name")
			f.converged(second)
			require.Equal(t, []string{"web-1", "web-3"}, f.names())

			f.edit("manifests/web.hcl", "preset.vm-small", "preset.vm-smal")
			bad := f.push("A typo")
			before := f.ours()
			st := f.refused(bad)
			require.Equal(t, engine.Invalid, st.Refused.Outcome)
			require.Contains(t, refusalText(st), "manifests/web.hcl:6:")
			require.Contains(t, refusalText(st), "vm-smal")
			require.Equal(t, second, st.InForce.ID)
			require.False(t, st.Healthy)
			f.looksAgain()
			require.Equal(t, before, f.ours(), "a bad commit has changed something")
			r := f.says(1, "status", "--config", f.config)
			require.Contains(t, r.out, "vm-smal")

			f.edit("manifests/web.hcl", "preset.vm-smal\n", "preset.vm-small\n")
			f.deploy("db", vm("db"))
			good := f.push("Mended, and a database")
			st = f.converged(good)
			require.Nil(t, st.Refused)
			require.Equal(t, []string{"db", "web-1", "web-3"}, f.names())

			f.remove("manifests/db.hcl")
			f.converged(f.push("No database after all"))
			require.Equal(t, []string{"web-1", "web-3"}, f.names())
			f.ends()
		})
	}
}

// ST-10 with an agent: what is changed by hand is found by the next full check, without
// a push, and put back; the receipt calls it drift.
func TestTheAgentPutsDriftBack(t *testing.T) {
	t.Parallel()
	for _, by := range transports() {
		t.Run(by.name, func(t *testing.T) {
			f := follow(t, pve.Config{TaskTime: 20 * time.Millisecond}, by)
			f.deploy("web", vm("changed", "restart = \"allowed\"")+vm("deleted")+vm("stopped")+vm("told", "drift = \"report\""))
			commit := f.push("Four")
			f.begins()
			f.converged(commit)
			before := f.ours()
			f.byHand(func(e *pve.Edit) {
				e.Set(before["changed"].VMID, "memory", "512")
				e.Delete(before["deleted"].VMID)
				e.Stop(before["stopped"].VMID)
				e.Set(before["told"].VMID, "cores", "7")
			})
			f.until("it is put back", func(s agent.Status) bool {
				g := f.ours()
				return s.State == agent.Idle && len(g) == 4 && g["changed"].Config["memory"] == "2048" && g["deleted"].Running && g["stopped"].Running
			})
			require.Equal(t, "7", f.guest("told").Config["cores"], "its drift is only to be told")
			out := f.says(0, "history", "--config", f.config)
			require.Contains(t, out.out, "drift")
			f.ends()
		})
	}
}

// ST-15 with an agent: what is out of sight is unknown, and nothing is made or destroyed
// there, however often the agent looks; when it is back all is well by itself.
func TestTheAgentWaitsForWhatItCannotSee(t *testing.T) {
	t.Parallel()
	for name, blind := range map[string]struct {
		faults     []string
		begin, end func(e *pve.Edit)
	}{
		"no quorum":     {begin: func(e *pve.Edit) { e.Quorum(false) }, end: func(e *pve.Edit) { e.Quorum(true) }},
		"403":           {faults: []string{"GET /cluster/resources status=403"}},
		"595":           {faults: []string{"GET /nodes/*/qemu status=595"}},
		"nothing works": {faults: []string{"* /** status=-1"}},
	} {
		for _, by := range transports() {
			t.Run(name+" by "+by.name, func(t *testing.T) {
				f := follow(t, pve.Config{Nodes: []string{"mother"}, TaskTime: 20 * time.Millisecond}, by)
				f.deploy("web", vm("web-1")+vm("web-2"))
				first := f.push("Two")
				f.begins()
				f.converged(first)
				before := f.ours()

				f.breaks(blind.faults...)
				if blind.begin != nil {
					f.byHand(blind.begin)
				}
				f.deploy("web", vm("web-1")+vm("web-3"))
				second := f.push("Another two")
				f.until("the pass on it has ended", func(s agent.Status) bool {
					return s.State == agent.Idle && s.Last != nil && s.Last.Commit == second && (s.Last.Unknown > 0 || s.Last.Error != "" || s.Last.Outcome != engine.Done)
				})
				require.Equal(t, before, f.ours(), "something was done while not all could be seen")
				f.heals()
				if blind.end != nil {
					f.byHand(blind.end)
				}
				f.converged(second)
				require.Equal(t, []string{"web-1", "web-3"}, f.names())
				f.ends()
			})
		}
	}
}

// ST-16 with an agent: what takes away too much is refused, and the way on is named.
func TestTheAgentHoldsBackAccidents(t *testing.T) {
	t.Parallel()
	for _, by := range transports() {
		t.Run(by.name, func(t *testing.T) {
			f := follow(t, pve.Config{TaskTime: 20 * time.Millisecond}, by)
			ten := vm("web", "count = 10")
			f.deploy("web", ten)
			f.deploy("safe", vm("safe", "protection = true"))
			first := f.push("Eleven")
			f.begins()
			f.converged(first)
			all := f.names()
			require.Len(t, all, 11)
			denied := func(commit, rule string) {
				t.Helper()
				st := f.refused(commit)
				require.Equal(t, engine.Refused, st.Refused.Outcome)
				require.Contains(t, refusalText(st), rule)
				require.Equal(t, all, f.names())
			}

			require.NoError(t, os.RemoveAll(filepath.Join(f.dir, "manifests")))
			denied(f.push("An empty site"), "Allow-Deletes: 11") // the site loses eleven, of which one is protected

			f.deploy("safe", vm("safe", "protection = true"))
			f.deploy("web", vm("web", "count = 1"))
			denied(f.push("Nine of ten are gone"), "Allow-Deletes: 9")

			f.deploy("web", ten)
			f.remove("manifests/safe.hcl")
			protected := f.push("A protected one is gone")
			f.until("it says that it is protected", func(s agent.Status) bool {
				return s.State == agent.Idle && !s.Healthy && s.Last != nil && s.Last.Commit == protected && strings.Contains(s.Summary, "protected")
			})
			require.Equal(t, all, f.names())

			f.deploy("safe", vm("safe", "protection = true"))
			f.converged(f.push("All are back"))
			require.Equal(t, all, f.names())

			f.deploy("web", vm("web", "count = 7"))
			f.converged(f.push("Three fewer is no accident"))
			require.Len(t, f.names(), 8)

			f.deploy("web", vm("web", "count = 1"))
			f.converged(f.push("Six fewer, and it is meant\n\nAllow-Deletes: 6"))
			require.Equal(t, []string{"safe", "web-1"}, f.names())
			f.ends()
		})
	}
}

// ST-22: an agent whose identity the site does not know converges nothing, says so,
// and destroys nothing.
func TestAnAgentThatTheSiteDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, by := range transports() {
		t.Run(by.name, func(t *testing.T) {
			f := follow(t, pve.Config{TaskTime: 20 * time.Millisecond}, by)
			f.deploy("web", vm("web-1")+vm("web-2"))
			first := f.push("Two")
			f.begins()
			f.converged(first)
			before := f.ours()
			f.quietly(func() {
				f.edit("host.hcl", "host \"father\"", "host \"mother\"")
				f.edit("manifests/web.hcl", "host.father", "host.mother")
				f.push("The host has another name now")
				st := f.until("it says so", func(s agent.Status) bool {
					return s.State == agent.Idle && !s.Healthy && s.Refused != nil
				})
				require.Contains(t, st.Summary, "father")
				require.Contains(t, st.Summary, "mother")
				f.byHand(func(e *pve.Edit) { e.Stop(before["web-1"].VMID) })
				f.asksGitAgain()
				f.ends()
				once := f.says(1, "agent", "--once", "--config", f.config)
				require.Contains(t, once.out+once.err, "father")
			})
			require.False(t, f.guest("web-1").Running, "it put back what is no business of its any more")
			require.Equal(t, before["web-2"], f.guest("web-2"))
		})
	}
}
