package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/policy"
	simhosts "github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/specserve/node"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// pulling is a story whose node web-1 is in mode pull: its parent is a real server, and the simulated
// Debian in it runs the packages of the program.
type pulling struct {
	*simulated
	parent *sim.Parent // nil: nobody serves specs
	rules  *policy.Set

	here    guest.Machine // the machine of the agent; nil for this one
	program string        // that containers get
}

const inPull = "execution {\n  mode = \"pull\"\n}"

// beginPulling sets the scene with a spec for web-1.
func beginPulling(t *testing.T, specs string) *pulling {
	t.Helper()
	p, err := sim.NewParent(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s := &pulling{simulated: &simulated{hosts: &push.KnownHosts{}, guests: &simhosts.Guests{Installed: sim.NodePrograms(), Network: &simhosts.Network{Dial: p.Dial}}}, parent: p}
	_, s.key, err = simhosts.GuestKey()
	require.NoError(t, err)
	t.Cleanup(func() {
		s.guests.Close()
		require.NoError(t, p.Close())
	})
	s.story = begin(t, pve.Config{BootTime: time.Nanosecond, Systems: s.guests})
	s.write("specs.hcl", specs)
	var found diag.List
	s.rules, found = policy.Compile(t.Context(), policy.Options{Site: os.DirFS(s.dir)})
	require.Empty(t, found)
	s.deploy("web", vm("web-1", `spec = spec.base`, inPull, `nic "lan" {`, `  ip = "192.0.2.50/24"`, `}`, `disk "data" {`, `  size = 1`, `}`))
	return s
}

// desired is the site as it is in its folder.
func (s *pulling) desired() engine.Desired {
	data, err := os.ReadFile(s.dir + "/secrets.yaml")
	require.NoError(s.t, err)
	secrets, found := hcl.ParseSecrets("secrets.yaml", data, nil)
	site, more := hcl.Load(os.DirFS(s.dir), hcl.Options{Kinds: s.access().Kinds(), Secrets: secrets})
	return engine.Desired{Site: site, Findings: append(found, more...)}
}

func (s *pulling) access() drivers.Access {
	a := drivers.Access{Owner: "father", Files: os.DirFS(s.dir), Guests: push.Config{HostKeys: s.hosts, Dial: s.dial, PrivateKeys: []string{s.key}, Locally: s.here, Program: s.program}}
	if s.parent != nil {
		a.Parent = s.parent
	}
	return a
}

// pass makes a pass as an agent with a server does.
func (s *pulling) pass(verb string, edits ...func(*engine.Pass)) engine.Report {
	s.t.Helper()
	return s.story.pass(verb, func(pass *engine.Pass) {
		pass.Load = func(context.Context) engine.Desired {
			d := s.desired()
			if s.parent != nil {
				require.NoError(s.t, s.parent.Publish(d.Site, "", s.rules, nil))
				pass.Health.Reported = s.parent.Reported
			}
			return d
		}
		pass.Open = func(h *model.Host) (engine.Driver, error) { return s.access().Open(s.desired(), h) }
		for _, edit := range edits {
			edit(pass)
		}
	})
}

// read reads a file of web-1.
func (s *pulling) read(name string) string {
	s.t.Helper()
	out, code := s.inside("cat " + name)
	require.Zero(s.t, code, out)
	return out
}

// A new VM in mode pull: it is created with what leads it to its parent, boots, gets the program,
// fetches its spec with its token, becomes what a push makes of it, and reports that it is ready. Then it
// is destroyed. Its token is nowhere but in the node.
func TestST01SimulatedPull(t *testing.T) {
	s := beginPulling(t, specOf())
	r := s.pass("plan")
	require.Equal(t, []string{"create image.debian-12", "create vm.web-1"}, actions(r.Plan))
	require.Empty(t, r.Plan.Deferred)
	require.Empty(t, r.Findings)
	r = s.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Len(t, r.Nodes, 1)
	require.Equal(t, "report", r.Nodes[0].Checks[0].Name)
	require.Contains(t, r.Nodes[0].Checks[0].Detail, "it reported that it is ready")
	for _, f := range simulatedFields {
		s.holds(f.effect, f.name)
	}
	// The node reports before its first boot takes itself away: that is tried again until the report is sent.
	nspawn.Await(t, "the first boot is done", func() bool {
		_, code := s.inside("[ -x /usr/local/bin/homestak-gitops ] && [ ! -e /var/lib/homestak-gitops/firstboot.py ] && ! systemctl is-enabled homestak-gitops-firstboot.service")
		return code == 0
	})
	var done node.Complete
	require.NoError(t, json.Unmarshal([]byte(s.read("/var/lib/homestak-gitops/config-complete.json")), &done))
	require.Equal(t, "web-1", done.Node)
	require.Contains(t, s.read("/var/lib/homestak-gitops/spec.json"), `"spec":"base"`)
	out, _ := s.inside("stat -c '%a %U' " + wire.ParentFile)
	require.Equal(t, "600 root\n", out)
	of, err := wire.ReadParent([]byte(s.read(wire.ParentFile)))
	require.NoError(t, err)
	require.Equal(t, "web-1", of.Identity)

	g := s.guest("web-1")
	require.Equal(t, "none,media=cdrom", g.Config["ide2"], "the seed was taken out")
	snapshot, err := json.Marshal(s.host.Snapshot())
	require.NoError(t, err)
	report, err := json.Marshal(r)
	require.NoError(t, err)
	signature := of.Token[strings.IndexByte(of.Token, '.')+1:]
	for what, text := range map[string]string{"host": string(snapshot), "report": string(report), "log": s.read("/var/log/cloud-init-output.log")} {
		require.NotContains(t, text, signature, what)
	}
	require.NotContains(t, fmt.Sprint(s.host.Snapshot().Volumes), "homestak-seed", "its image was deleted")

	r = s.pass("plan")
	require.True(t, r.Plan.InSync(), describe(r))
	require.Empty(t, r.Plan.Pending)

	s.story.pass("destroy", func(p *engine.Pass) {
		p.Load = func(context.Context) engine.Desired { return s.desired() }
		p.Manifest, p.Destroy = "web", true
	})
	require.Nil(t, s.guests.Machine("10000"))
	require.Empty(t, s.ours())
}

// pulledOnly are lines about what only a node in mode pull has, and what only a pushed one has: a disc
// and a key of PVE's cloud-init.
var pulledOnly = regexp.MustCompile(`homestak-gitops-pull|^(spec|spec\.prev|fetched|config-complete)\.json$|^homestak-gitops$`)

// The same spec by push and by pull makes the same machine.
func TestST01ST02SimulatedPushAndPullAreEqual(t *testing.T) {
	s := beginPulling(t, specOf())
	s.deploy("more", vm("web-2", `spec = spec.base`, `nic "lan" {`, `  ip = "192.0.2.51/24"`, `}`, `disk "data" {`, `  size = 1`, `}`))
	r := s.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	of := func(name string) string {
		out, _ := s.guests.Machine(fmt.Sprint(s.vmidOf(name))).Shell(state)
		kept := []string{}
		for line := range strings.SplitSeq(out, "\n") {
			if !pulledOnly.MatchString(line) {
				kept = append(kept, strings.NewReplacer(name, "web", "192.0.2.51", "192.0.2.50").Replace(line))
			}
		}
		return strings.Join(kept, "\n")
	}
	pushed := of("web-2")
	require.Contains(t, pushed, "port 2222")
	sameLines(t, pushed, of("web-1"))
}

// What the site says as user_data is done as well.
func TestST01SimulatedPullWithUserData(t *testing.T) {
	s := beginPulling(t, specOf())
	s.edit("manifests/web.hcl", "spec = spec.base", "spec = spec.base\n    user_data = \"#cloud-config\\nruncmd: [[touch, /srv/site-was-here]]\\nwrite_files: [{path: /srv/site-file, content: ü}]\\n\"")
	r := s.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	s.holds("[ -e /srv/site-was-here ] && [ \"$(cat /srv/site-file)\" = ü ]", "user_data of the site")
	s.holds(simulatedFields[0].effect, "the spec")
}

// A guest that is created again gets to know its parent, too.
func TestST01SimulatedPullIsRecreated(t *testing.T) {
	s := beginPulling(t, specOf())
	require.Equal(t, engine.Done, s.pass("apply").Outcome)
	s.holds("touch /srv/mine", "by hand")
	s.host.Edit(func(e *pve.Edit) { e.Delete(10000) })
	r := s.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	s.holds("[ ! -e /srv/mine ] && [ -s /var/lib/homestak-gitops/config-complete.json ]", "another machine")
}

// A spec that cannot be applied is in the report of the node, and the pass says so.
func TestST01SimulatedPullThatFails(t *testing.T) {
	s := beginPulling(t, "spec \"base\" {\n  platform {\n    packages = [\"no-such-package\"]\n  }\n}\n")
	stop := make(chan struct{})
	var once *health.Progress
	r := s.pass("apply", func(p *engine.Pass) {
		p.Stop = stop
		p.Health.Notify = func(w health.Progress) {
			if once == nil && strings.Contains(w.Saw, "it reported") { // nobody has to wait for the next one
				once = &w
				close(stop)
			}
		}
	})
	require.Equal(t, engine.Interrupted, r.Outcome, describe(r))
	require.ErrorContains(t, r.Results[1].Err, "check report")
	_, err := s.parent.Reported("web-1")
	require.ErrorContains(t, err, "no-such-package")
}

// Where nobody serves specs, such a node is not created, and the plan says what to do.
func TestST01SimulatedPullWithoutAServer(t *testing.T) {
	s := beginPulling(t, specOf())
	s.parent = nil
	s.deploy("more", vm("web-2"))
	r := s.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Equal(t, []string{"web-2"}, s.names(), "everything else is done")
	require.Contains(t, r.Findings[0].Summary, "vm.web-1 is not created: it is in mode pull")
	require.Contains(t, r.Findings[0].Detail, "listen")
}

// While the seed cannot be deleted, or requests fail, later passes go on.
func TestST14SimulatedPullThatIsInterrupted(t *testing.T) {
	for n := int32(2); n <= 8; n++ { // the first one is that of the image
		t.Run(fmt.Sprintf("request %d", n), func(t *testing.T) {
			s := beginPulling(t, specOf())
			var seen atomic.Int32
			fault := func(r *http.Request) (int, bool) {
				if r.Method != http.MethodGet && seen.Add(1) == n {
					return -1, n%2 == 0
				}
				return 0, false
			}
			s.fault.Store(&fault)
			for range 4 {
				if r := s.pass("apply"); r.Outcome == engine.Done {
					break
				}
			}
			_, err := s.parent.Reported("web-1")
			require.NoError(t, err)
			s.pass("apply") // it has reported by now
			require.Len(t, s.ours(), 1)
			require.NotContains(t, fmt.Sprint(s.host.Snapshot().Volumes), "homestak-seed")
		})
	}
}
