package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/hcl"
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
			before := f.managed()
			st := f.refused(bad)
			require.Equal(t, engine.Invalid, st.Refused.Outcome)
			require.Contains(t, refusalText(st), "manifests/web.hcl:6:")
			require.Contains(t, refusalText(st), "vm-smal")
			require.Equal(t, second, st.InForce.ID)
			require.False(t, st.Healthy)
			f.nextPass()
			require.Equal(t, before, f.managed(), "a bad commit has changed something")
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

			vmid := f.guest("web-3").VMID
			f.edit("manifests/web.hcl", "node \"web-3\"", "node \"web-4\"")
			f.write("moved.hcl", "moved {\n  from = node.web-3\n  to   = node.web-4\n}\n")
			f.converged(f.push("The same one goes by another name"))
			require.Equal(t, []string{"web-1", "web-4"}, f.names())
			require.Equal(t, vmid, f.guest("web-4").VMID, "its guest stays")
			f.ends()
		})
	}
}

// ST-10 with an agent: what is changed by hand is found by the next full check, without
// a push, and reverted; the receipt calls it drift.
func TestTheAgentPutsDriftBack(t *testing.T) {
	t.Parallel()
	for _, by := range transports() {
		t.Run(by.name, func(t *testing.T) {
			f := follow(t, pve.Config{TaskTime: 20 * time.Millisecond}, by)
			f.deploy("web", vm("changed", "restart = \"allowed\"")+vm("deleted")+vm("stopped")+vm("told", "drift = \"report\""))
			commit := f.push("Four")
			f.begins()
			f.converged(commit)
			before := f.managed()
			f.byHand(func(e *pve.Edit) {
				e.Set(before["changed"].VMID, "memory", "512")
				e.Delete(before["deleted"].VMID)
				e.Stop(before["stopped"].VMID)
				e.Set(before["told"].VMID, "cores", "7")
			})
			f.until("it is put back", func(s agent.Status) bool {
				g := f.managed()
				return s.State == agent.Idle && len(g) == 4 && g["changed"].Config["memory"] == "2048" && g["deleted"].Running && g["stopped"].Running
			})
			require.Equal(t, "7", f.guest("told").Config["cores"], "its drift is only to be told")
			out := f.says(0, "history", "--config", f.config)
			require.Contains(t, out.out, "drift")
			f.ends()
		})
	}
}

// ST-15 with an agent: an unseen part is unknown, and nothing is created or destroyed there, however often the agent checks. When
// it is back, the agent converges without help.
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
				before := f.managed()

				f.breaks(blind.faults...)
				if blind.begin != nil {
					f.byHand(blind.begin)
				}
				f.deploy("web", vm("web-1")+vm("web-3"))
				second := f.push("Another two")
				f.until("the pass on it has ended", func(s agent.Status) bool {
					return s.State == agent.Idle && s.Last != nil && s.Last.Commit == second && (s.Last.Unknown > 0 || s.Last.Error != "" || s.Last.Outcome != engine.Done)
				})
				require.Equal(t, before, f.managed(), "something was done while not all could be seen")
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
			before := f.managed()
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
				f.nextFetch()
				f.ends()
				once := f.says(1, "agent", "--once", "--config", f.config)
				require.Contains(t, once.out+once.err, "father")
			})
			require.False(t, f.guest("web-1").Running, "it put back what is no business of its any more")
			require.Equal(t, before["web-2"], f.guest("web-2"))
		})
	}
}

// A new image reaches the nodes of one block one by one, as docs/howto/roll-out-an-image.md says.
func TestN14RollOut(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 10 * time.Millisecond})
	nodes := func(recreate string) {
		s.deploy("web", vm("web", "count = 4", recreate))
	}
	nodes("")
	s.apply()
	made := func() []string {
		var out []string
		for i := range 4 {
			out = append(out, s.guest(fmt.Sprint("web-", i+1)).Config["smbios1"])
		}
		return out
	}
	first := made()
	s.edit("site.hcl", "sha256:00", "sha256:11")
	s.apply()
	require.Equal(t, first, made(), "another image replaces nothing")
	p := s.plan()
	require.True(t, p.InSync())
	require.Len(t, p.Findings, 4)

	nodes(`recreate = count.index < 1 ? "2026-11" : ""`)
	p = s.plan()
	var text bytes.Buffer
	p.Text(&text, plan.TextOptions{})
	require.Contains(t, text.String(), `± vm web-1 (10000)      recreate "" → 2026-11    data-loss`)
	s.apply()
	second := made()
	require.Equal(t, first[1:], second[1:])
	require.NotEqual(t, first[0], second[0])
	require.Len(t, s.plan().Findings, 3)

	nodes(`recreate = count.index < 3 ? "2026-11" : null`)
	s.apply()
	nodes(`recreate = "2026-11"`)
	s.apply()
	p = s.plan()
	require.True(t, p.InSync())
	require.Empty(t, p.Findings)
	nodes("")
	s.inSync()
}

// decommission is a line of a node.
func decommission(policy string) string { return "decommission { policy = \"" + policy + "\" }" }

// backups are the backups on the host.
func (s *story) backups() []pve.Volume {
	var out []pve.Volume
	for _, v := range s.host.Snapshot().Volumes["local"] {
		if v.Content == "backup" {
			out = append(out, v)
		}
	}
	return out
}

// ST-11: what leaves the site leaves the host, by the policy that it was deployed
// with: the files that declared it are gone.
func TestAGuestLeavesAfterItsFinalBackup(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"apply", "destroy"} {
		t.Run(verb, func(t *testing.T) {
			s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
			s.deploy("web", vm("plain")+vm("precious", decommission("requires_final_backup")))
			s.apply()
			precious := s.vmidOf("precious")

			if verb == "destroy" {
				s.destroy("web")
			} else {
				s.remove("manifests/web.hcl")
				shown := s.says(4, "plan").out // the guard against an emptied site speaks, too
				require.Contains(t, shown, "after a final backup to local")
				s.apply()
			}

			require.Empty(t, s.managed())
			kept := s.backups()
			require.Len(t, kept, 1)
			require.Equal(t, precious, kept[0].VMID)
		})
	}
}

// ST-11: without its backup it does not leave, and the rest does.
func TestAGuestWithoutItsFinalBackupStays(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.deploy("web", vm("plain")+vm("precious", decommission("requires_final_backup")))
	s.apply()
	s.remove("manifests/web.hcl")
	s.byHand(func(e *pve.Edit) { e.Fill("local", true) })
	r := s.try()
	require.NotEqual(t, engine.Done, r.Outcome, describe(r))
	require.Contains(t, describe(r), "its final backup to local failed, so it is kept, stopped")
	require.Equal(t, []string{"precious"}, s.names())

	s.byHand(func(e *pve.Edit) { e.Fill("local", false) })
	s.apply()
	require.Empty(t, s.managed())
	require.Len(t, s.backups(), 1)
}

// ST-16: what may be in use is not destroyed; it takes a commit that stops it first.
func TestAGuestInUseIsNotDestroyed(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.deploy("web", vm("busy", decommission("requires_migration_first"))+vm("plain"))
	s.apply()
	s.deploy("web", vm("plain"))
	r := s.try()
	require.Equal(t, engine.Refused, r.Outcome, describe(r))
	requireFinding(t, r.Findings, "vm.busy", "it runs", "requires_migration_first")
	require.True(t, s.guest("busy").Running)

	s.deploy("web", vm("busy", decommission("requires_migration_first"), "power = \"stopped\"")+vm("plain"))
	s.apply()
	require.False(t, s.guest("busy").Running)
	s.deploy("web", vm("plain"))
	s.apply()
	require.Equal(t, []string{"plain"}, s.names())
	s.inSync()
}

const wellSite = `
site "home" {
  vmid_range "all" {
    from = 10000
    to   = 10999
  }
}
host "father" {
  api = "https://pve.test:8006"
}
image "debian" {
  url      = "https://images.test/debian.qcow2"
  checksum = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
}
spec "base" {
  check "agent" {
    agent = true
  }
  check "command" {
    command = "systemctl is-active web"
    expect  = "active"
  }
}
manifest "web" {
  pattern  = "flat"
  host     = "father"
  on_error = "ON_ERROR"
  node "web" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
    spec   = spec.base
    check "http" {
      http   = ":8080/health"
      expect = "ready"
    }
  }
  node "front" {
    type       = "vm"
    cores      = 1
    memory     = 512
    image      = image.debian
    depends_on = [node.web]
  }
}
`

// ward is a site, a simulated host, and what answers at the addresses of its guests.
type ward struct {
	site  *model.Site
	host  *pve.Host
	fault func(*http.Request) (int, bool)
	dial  func(ctx context.Context, network, addr string) (net.Conn, error)
}

func newWard(t *testing.T, onError string) *ward {
	t.Helper()
	w := &ward{}
	w.host = pve.New(pve.Config{
		TaskTime: time.Second,
		Exec: func(_ int, command []string, _ string) (string, string, int, bool) {
			return "active\n", "", 0, strings.Join(command, " ") == "/bin/sh -c systemctl is-active web"
		},
		Fault: func(r *http.Request) (int, bool) {
			if w.fault == nil {
				return 0, false
			}
			return w.fault(r)
		},
	})
	var found error
	site, l := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(strings.Replace(wellSite, "ON_ERROR", onError, 1))}}, hcl.Options{Kinds: proxmox.Kinds()})
	if l.HasErrors() {
		found = fmt.Errorf("%v", l)
	}
	require.NoError(t, found)
	w.site = site
	return w
}

// pass makes one pass with an own driver, as a new process does.
func (w *ward) pass(ctx context.Context) engine.Report {
	p := &engine.Pass{
		Verb: "apply", Host: "father",
		Load: func(context.Context) engine.Desired { return engine.Desired{Site: w.site} },
		Open: func(_ engine.Desired, h *model.Host) (engine.Driver, error) {
			return proxmox.Open(proxmox.Config{Host: h, Site: "home", Owner: "father", Token: w.host.Token(), Transport: w.host, Keys: ownershipKeys("home")})
		},
		Verdict: func(context.Context, *plan.Plan) (bool, error) { return true, nil },
	}
	p.Health.Dial = w.dial
	return p.Run(ctx)
}

func (w *ward) guests() string {
	var names []string
	for _, g := range w.host.Snapshot().Guests {
		names = append(names, g.Name())
	}
	return strings.Join(names, " ")
}

// serve answers each connection in a bubble with an HTTP answer, without a network.
func serve(answer string) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			defer func() { _ = there.Close() }()
			buf := make([]byte, 4<<10)
			if _, err := there.Read(buf); err == nil {
				_, _ = there.Write([]byte(answer))
			}
		}()
		return here, nil
	}
}

const (
	isReady = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nready"
	isDown  = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 8\r\nConnection: close\r\n\r\nstarting"
)

// Two machines, of which one needs the other to be well: the first does not come up, so
// the second is not made; the next run goes on where this one ended.
func TestANodeThatIsNotWell(t *testing.T) {
	for onError, left := range map[string]string{"stop": "web", "continue": "web", "rollback": ""} {
		t.Run(onError, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWard(t, onError)
				w.dial = serve(isDown)
				r := w.pass(t.Context())
				require.Equal(t, engine.Partly, r.Outcome)
				require.Equal(t, left, w.guests())
				require.ErrorContains(t, r.Err, "check http (site.hcl:34:5) failed: 10.0.")
				require.ErrorContains(t, r.Err, ":8080: answered 503, first line: starting; tried 60 times since ")
				web := r.Nodes[1]
				require.Equal(t, "web", web.Name)
				var checks []string
				for _, c := range web.Checks {
					checks = append(checks, fmt.Sprintf("%s %t", c.Name, c.OK))
				}
				require.Equal(t, []string{"cloud-init true", "agent true", "command true", "http false"}, checks)
				require.Equal(t, "exit 0, stdout: active", web.Checks[2].Detail)
				receipt, _ := agent.Receipt(&r, "cli:ops@pve", false)
				checks = nil
				for _, c := range receipt.Checks {
					checks = append(checks, fmt.Sprintf("%s %s %t", c.Address, c.Check, c.OK))
				}
				require.Equal(t, []string{"vm.web cloud-init true", "vm.web agent true", "vm.web command true", "vm.web http false"}, checks)
				require.True(t, strings.HasPrefix(web.IP, "10.0."), "by the guest agent: %s", web.IP)

				w.dial = serve(isReady)
				before := w.host.Snapshot().Writes
				r = w.pass(t.Context())
				require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
				require.ElementsMatch(t, []string{"web", "front"}, strings.Fields(w.guests()))
				require.Greater(t, w.host.Snapshot().Writes, before)

				asked := agentRequests(w.host)
				require.Equal(t, engine.Done, w.pass(t.Context()).Outcome)
				require.Equal(t, asked, agentRequests(w.host), "nothing changes, so no guest is asked")
			})
		})
	}
}

func agentRequests(h *pve.Host) int {
	n := 0
	for what, count := range h.Snapshot().Requests {
		if strings.Contains(what, "/agent/") {
			n += count
		}
	}
	return n
}

// Whichever request of the wait fails, with or without effect: the wait goes on, and
// the guest is made once.
func TestEveryRequestOfAWaitMayFail(t *testing.T) {
	story := func(t *testing.T, status int, effect bool, at int64) (seen int64) {
		synctest.Test(t, func(t *testing.T) {
			w := newWard(t, "stop")
			w.dial = serve(isReady)
			var started atomic.Bool
			var n atomic.Int64
			w.fault = func(r *http.Request) (int, bool) {
				if strings.HasSuffix(r.URL.Path, "/10001/status/start") {
					started.Store(true)
				}
				waits := strings.Contains(r.URL.Path, "/agent/") || strings.HasSuffix(r.URL.Path, "/10001/pending")
				if started.Load() && waits && n.Add(1) == at {
					return status, effect
				}
				return 0, false
			}
			r := w.pass(t.Context())
			require.Equal(t, engine.Done, r.Outcome, "request %d: %v", at, r.Err)
			require.ElementsMatch(t, []string{"web", "front"}, strings.Fields(w.guests()))
			seen = n.Load()
		})
		return seen
	}
	total := story(t, 0, false, 0)
	require.Greater(t, total, int64(5))
	for _, status := range []int{500, 595, 596, -1} {
		for _, effect := range []bool{false, true} {
			for at := int64(1); at <= total; at++ {
				story(t, status, effect, at)
			}
		}
	}
}

// The same over a real network: a server of this machine has the guest's address.
func TestANodeIsAskedOverTheNetwork(t *testing.T) {
	t.Parallel()
	var hits atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		if r.URL.Path == "/health" {
			fmt.Fprint(w, "all is ready")
		}
	}))
	defer s.Close()
	w := newWard(t, "stop")
	w.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if !strings.HasPrefix(addr, "10.0.") || !strings.HasSuffix(addr, ":8080") {
			return nil, errors.New("no machine is at " + addr)
		}
		return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
	}
	r := w.pass(t.Context())
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	require.Equal(t, int64(1), hits.Load())
	require.True(t, r.Nodes[1].Checks[2].OK)
}
