package integration_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers/drivertest"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/debian"
	simmachine "github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// nursery is the server of a parent as far as an installation goes: keys, a program, and what children reported. Programs of
// machines and passes use it side by side.
type nursery struct {
	mu      sync.Mutex
	keys    keys.Keys
	pin     string
	program []byte
	version string
	reports map[string]string // version by child
	minted  int
}

const childProgram = "/usr/lib/simulated/agent"

func newNursery() *nursery {
	n := &nursery{keys: keys.Keys{keys.NewKey()}, pin: strings.Repeat("1", 64), reports: map[string]string{}}
	n.release("1.0")
	return n
}

// release makes another version of the program that of the parent.
func (n *nursery) release(version string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.version, n.program = version, []byte("#!"+childProgram+"\n"+version+"\n")
}

// lose is that the parent lost its data folder.
func (n *nursery) lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keys, n.pin, n.reports = keys.Keys{keys.NewKey()}, strings.Repeat("2", 64), map[string]string{}
}

func (n *nursery) Known() (wire.Parent, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	pins, err := wire.ParsePins([]string{n.pin})
	return wire.Parent{Server: "https://192.0.2.10:44443", Pins: pins}, err
}

func (n *nursery) Parent(node, spec string) (wire.Parent, error) {
	p, err := n.Known()
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.reports, node)
	n.minted++
	p.Identity = node
	if err == nil {
		p.Token, err = n.keys[0].MintToken(keys.Claims{Node: node, Spec: spec, Issued: time.Now().Unix(), Expires: time.Now().Add(time.Hour).Unix()})
	}
	return p, err
}

func (n *nursery) Accepts(node, text string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, err := n.keys.Verify(text, node, time.Now())
	return err
}

func (n *nursery) Forget(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.reports, node)
}

func (n *nursery) Runs(node string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reports[node]
}

func (n *nursery) Reported(node string) (string, error) {
	if n.Runs(node) == "" {
		return "", errors.New("it has not reported yet")
	}
	return "its agent reported", nil
}

func (n *nursery) Program() (sum, version string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := sha256.Sum256(n.program)
	return hex.EncodeToString(h[:]), n.version, nil
}

func (n *nursery) OpenProgram() (io.ReadCloser, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return io.NopCloser(bytes.NewReader(n.program)), nil
}

// programs are those of the machine of a child: the agent, which reports as soon as it runs if it finds its parent, and a stand-in for Proxmox
// VE. A version with "broken" in it never reports.
func (n *nursery) programs() map[string]debian.Program {
	script := func(name, text string) debian.Program {
		return func(m *debian.Machine, p *simmachine.Process) int {
			if err := m.K.FS.WriteFile(name, text, 0o644, 0, 0); err != nil {
				return p.Failf("%v", err)
			}
			code, _ := p.Run(append([]string{"sh", name}, p.Args[1:]...))
			return code
		}
	}
	return map[string]debian.Program{
		childProgram: func(_ *debian.Machine, p *simmachine.Process) int {
			program, _ := p.ReadFile("/usr/local/bin/homestak-gitops")
			settings, _ := p.ReadFile("/etc/homestak-gitops/agent.hcl")
			secret, _ := p.ReadFile("/etc/homestak-gitops/parent.token")
			p.Ready()
			version := strings.TrimSpace(strings.TrimPrefix(program, "#!"+childProgram))
			_, rest, _ := strings.Cut(settings, "\nidentity = \"")
			name, _, _ := strings.Cut(rest, "\"")
			n.mu.Lock()
			known := strings.Contains(settings, n.pin)
			n.mu.Unlock()
			if known && n.Accepts(name, strings.TrimSpace(secret)) == nil && !strings.Contains(version, "broken") {
				n.mu.Lock()
				n.reports[name] = version
				n.mu.Unlock()
			}
			<-p.Killed()
			return 0
		},
		"/usr/bin/pveum":            script("/usr/lib/pveum.sh", drivertest.PVEum),
		"/usr/bin/systemd-sysusers": script("/usr/lib/sysusers.sh", "useradd --uid 990 --shell /usr/sbin/nologin homestak-gitops\n"),
	}
}

// tree is a story with a node of type pve, whose parent is a nursery.
type tree struct {
	*simulated
	*nursery
	upgrade time.Duration
	alone   bool // no server for children
}

func beginTree(t *testing.T, lines ...string) *tree {
	t.Helper()
	n := newNursery()
	s := &tree{nursery: n, simulated: &simulated{guests: &sim.Guests{Installed: n.programs()}, hosts: &push.KnownHosts{}}}
	_, key, err := sim.GuestKey()
	require.NoError(t, err)
	s.key = key
	t.Cleanup(s.guests.Close)
	s.story = begin(t, pve.Config{BootTime: time.Nanosecond, Systems: s.guests})
	s.write("specs.hcl", "spec \"base\" {\n  platform {\n    packages = [\"jq\"]\n  }\n}\n")
	node := vm("inner", append(lines, `nic "lan" {`, `  ip = "192.0.2.50/24"`, `}`)...)
	s.deploy("web", strings.Replace(node, `"vm"`, `"pve"`, 1))
	return s
}

// run makes a pass as an agent with a server does.
func (s *tree) run(verb string, edits ...func(*engine.Pass)) engine.Report {
	s.t.Helper()
	cfg := push.Config{HostKeys: s.hosts, Dial: s.dial, PrivateKeys: []string{s.key}, Upgrade: s.upgrade}
	if !s.alone {
		cfg.Children = func() push.Children { return s.nursery }
	}
	return s.story.pass(verb, func(pass *engine.Pass) {
		s.enter(pass, cfg)
		pass.Health.Reported = s.Reported
		for _, edit := range edits {
			edit(pass)
		}
	})
}

// works makes a pass that has to succeed, after which nothing is left to do.
func (s *tree) works(when string) engine.Report {
	s.t.Helper()
	r := s.run("apply")
	require.Equal(s.t, engine.Done, r.Outcome, "%s: %s", when, describe(r))
	again := s.run("plan")
	require.True(s.t, again.Plan.InSync(), "%s: %s", when, describe(again))
	require.Empty(s.t, again.Plan.Unknown, when)
	return r
}

// changesOf are those of a step.
func changesOf(p *plan.Plan, address string) []string {
	var out []string
	for _, s := range p.Steps {
		for _, c := range s.Changes {
			if s.Address.String() == address {
				out = append(out, c.String())
			}
		}
	}
	return out
}

// A machine of type pve gets its agent after its spec, and is ready when that has reported. What the agent is given is nowhere else.
func TestST03SimulatedAgentIsInstalled(t *testing.T) {
	s := beginTree(t, "spec = spec.base")
	require.Equal(t, []string{"create image.debian-12", "create pve.inner", "create guest.inner", "create agent.inner"}, actions(s.run("plan").Plan))
	r := s.works("install")
	require.Equal(t, []string{"cloud-init", "report"}, []string{r.Nodes[0].Checks[0].Name, r.Nodes[0].Checks[1].Name})
	require.Equal(t, "1.0", s.Runs("inner"))
	require.Equal(t, 1, s.minted)
	s.holds("jq; systemctl is-active homestak-gitops && [ \"$(stat -c '%a %U' /etc/homestak-gitops/parent.token)\" = '600 homestak-gitops' ] && grep -q canary /etc/homestak-gitops/api.token", "installed")
	secret, _ := s.inside("cat /etc/homestak-gitops/parent.token")
	report, err := json.Marshal(r)
	require.NoError(t, err)
	snapshot, err := json.Marshal(s.host.Snapshot())
	require.NoError(t, err)
	for what, text := range map[string]string{"report": string(report), "host": string(snapshot)} {
		require.NotContains(t, text, strings.TrimSpace(secret)[strings.IndexByte(secret, '.'):], what)
		require.NotContains(t, text, "canary", what)
	}

	s.holds("systemctl stop homestak-gitops; echo '# mine' >>/etc/homestak-gitops/agent.hcl", "by hand")
	r = s.run("plan")
	require.Equal(t, []string{"update agent.inner"}, actions(r.Plan))
	require.Equal(t, []string{`settings changed → "as shipped"`, `service "enabled, inactive" → "enabled, running"`}, changesOf(r.Plan, "agent.inner"))
	s.works("after a change by hand")

	r = s.story.pass("destroy", func(p *engine.Pass) {
		p.Load = s.load
		p.Manifest, p.Destroy = "web", true
	})
	require.Equal(t, engine.Refused, r.Outcome, describe(r))
	require.Equal(t, ui.ExitRefused, ui.ExitCode(ui.ExitOfPass(r)))
	requireFinding(t, r.Findings, "pve.inner", "nodes of the site may be in it", "Take manifest web out of the site and push that", "--allow-orphans inner")
	require.NotEmpty(t, s.managed(), "only its agent knows what is in it")
	s.story.pass("destroy", func(p *engine.Pass) {
		p.Load = s.load
		p.Manifest, p.Destroy, p.AllowOrphans = "web", true, []string{"inner"}
	})
	require.Empty(t, s.managed(), "it goes with its guest")
}

// A node without a spec has an agent, too.
func TestST03SimulatedAgentWithoutASpec(t *testing.T) {
	s := beginTree(t)
	require.Equal(t, []string{"create image.debian-12", "create pve.inner", "create agent.inner"}, actions(s.run("plan").Plan))
	s.works("install")
	require.Equal(t, "1.0", s.Runs("inner"))
}

// Without a server for children, or if the machine cannot be entered by SSH, the plan says what to do.
func TestST03SimulatedAgentThatIsNotInstalled(t *testing.T) {
	s := beginTree(t, "spec = spec.base")
	s.alone = true
	why := func(r engine.Report) string {
		for _, d := range r.Plan.Deferred {
			if d.Address == "agent.inner" {
				return d.Why
			}
		}
		return ""
	}
	r := s.run("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Equal(t, "not installed, since only the agent of father installs it, and only while it serves (listen in agent.hcl)", why(r))
	s.alone = false
	s.edit("specs.hcl", "platform {", "access {\n    via = \"agent\"\n  }\n  platform {")
	require.Contains(t, why(s.run("plan")), `via = "agent", and the program is sent by SSH`)
	s.edit("specs.hcl", `via = "agent"`, `via = "ssh"`)
	s.works("once it can be")
}

// A machine without Proxmox VE is not made a child, and the step says what to do.
func TestST03SimulatedMachineWithoutProxmoxVE(t *testing.T) {
	s := beginTree(t)
	delete(s.guests.Installed, "/usr/bin/pveum")
	r := s.run("apply")
	require.Equal(t, engine.Partly, r.Outcome, describe(r))
	require.ErrorContains(t, r.Err, "make it from an image with Proxmox VE, or give the node a spec with a pve block")
}

// dying is a driver whose process dies with a context.
type dying struct {
	engine.Driver
	dies context.Context //nolint:containedctx // it is the life of the process
}

func (d dying) Apply(ctx context.Context, s plan.Step) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-d.dies.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	return d.Driver.Apply(ctx, s)
}

// A parent that lost its data folder has new keys: it gives its child the pins and a token over SSH.
func TestST18SimulatedParentThatLostItsKeys(t *testing.T) {
	s := beginTree(t, "spec = spec.base")
	s.works("install")
	s.lose()
	r := s.run("plan")
	require.Equal(t, []string{"update agent.inner"}, actions(r.Plan))
	require.Equal(t, []string{`pins "of another server" → valid`, `token "of another server" → valid`}, changesOf(r.Plan, "agent.inner"))
	s.works("after the loss")
	require.Equal(t, "1.0", s.Runs("inner"), "it reports to the parent with the new keys")
	require.Equal(t, 2, s.minted)
}

// The same for a child that left the site meanwhile: it has to hear that it left, and its report is what its removal waits for. It
// keeps its program, and a child that reports is not entered at all.
func TestST18SimulatedLeavingChildOfAParentThatLostItsKeys(t *testing.T) {
	s := beginTree(t, "spec = spec.base")
	s.works("install")
	s.release("2.0")
	s.remove("manifests/web.hcl")
	allow := func(p *engine.Pass) { p.AllowDeletes = 1 }
	said := s.writes.Load()
	r := s.run("plan", allow)
	require.Empty(t, r.Plan.Steps, describe(r))
	require.Len(t, r.Plan.Deferred, 1)
	require.Equal(t, said, s.writes.Load(), "it reports")

	s.lose()
	s.holds("systemctl stop homestak-gitops", "nor does it run")
	r = s.run("apply", allow)
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Equal(t, []string{"update agent.inner"}, actions(r.Plan))
	require.Equal(t, []string{`pins "of another server" → valid`, `token "of another server" → valid`, `service "enabled, inactive" → "enabled, running"`}, changesOf(r.Plan, "agent.inner"))
	require.Equal(t, "pve.inner", r.Plan.Deferred[0].Address)
	require.Eventually(t, func() bool { return s.Runs("inner") == "1.0" }, 5*time.Minute, time.Millisecond, "it reports, with the program that it had")

	// Nodes in a child that is being removed are not repaired any more.
	s.lose()
	r = s.run("plan", func(p *engine.Pass) { p.AllowOrphans, p.AllowDeletes = []string{"inner"}, 1 })
	require.Equal(t, []string{"delete pve.inner"}, actions(r.Plan))

	// One that cannot be entered delays no other.
	s.holds("systemctl stop ssh", "by hand")
	r = s.run("apply", allow)
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Empty(t, r.Plan.Steps)
	require.Empty(t, r.Plan.Unknown)
	require.Contains(t, describe(r), "inner left the site, does not report, and cannot be entered to see why")
}

// A child that is rebuilt is another machine: it gets another token, and what the old one reported counts no more.
func TestST18SimulatedChildThatIsRebuilt(t *testing.T) {
	s := beginTree(t, "spec = spec.base")
	s.works("install")
	s.host.Edit(func(e *pve.Edit) { e.Delete(10000) })
	forgotten := false
	s.reports["inner"] = "of the machine before"
	r := s.run("apply", func(p *engine.Pass) {
		p.Health.Reported = func(node string) (string, error) {
			require.NotEqual(t, "of the machine before", s.Runs(node))
			forgotten = true
			return s.Reported(node)
		}
	})
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.True(t, forgotten)
	require.Equal(t, 2, s.minted)
	token, _ := s.inside("cat /etc/homestak-gitops/parent.token")
	require.NotEmpty(t, token)
}

// The parent hands down its program. One that does not report is taken back, and is not tried again at once.
func TestST20SimulatedUpgrade(t *testing.T) {
	s := beginTree(t, "spec = spec.base")
	s.works("install")
	s.release("2.0")
	r := s.run("plan")
	require.Len(t, changesOf(r.Plan, "agent.inner"), 1)
	require.Regexp(t, `^program "another \([0-9a-f]{12}\)" → "this agent's"$`, changesOf(r.Plan, "agent.inner")[0])
	s.works("upgrade")
	require.Equal(t, "2.0", s.Runs("inner"))
	require.Equal(t, 1, s.minted, "its token is good")
	s.holds("[ \"$(ls -A /usr/local/bin)\" = homestak-gitops ]", "nothing is left")

	s.release("3.0-broken")
	s.upgrade = 300 * time.Millisecond
	r = s.run("apply")
	require.Equal(t, engine.Failed, r.Outcome, describe(r))
	require.ErrorContains(t, r.Err, "version 3.0-broken of the program does not work on inner, so the previous one is restored: it did not report within 300ms")
	require.ErrorContains(t, r.Err, "journalctl -u homestak-gitops on inner")
	s.holds("grep -q 2.0 /usr/local/bin/homestak-gitops && systemctl is-active homestak-gitops", "the one before runs")
	require.Eventually(t, func() bool { return s.Runs("inner") == "2.0" }, 5*time.Minute, time.Millisecond)

	r = s.run("apply")
	require.ErrorContains(t, r.Err, "this is retried after an hour, or at once if you remove /usr/local/bin/.homestak-gitops.refused there")
	require.Equal(t, "2.0", s.Runs("inner"), "it was not stopped")
	s.release("3.1")
	s.upgrade = 0
	s.works("a version that works")
	require.Equal(t, "3.1", s.Runs("inner"))

	// The parent dies while it waits for the report: the next pass goes on.
	s.release("4.0-broken")
	dies, die := context.WithCancel(t.Context())
	r = s.run("apply", func(p *engine.Pass) {
		p.Observer = engine.StepFunc(func(e apply.Event) {
			if strings.Contains(e.Text, "waiting for a report") {
				die()
			}
		})
		open := p.Open
		p.Open = func(loaded engine.Desired, h *model.Host) (engine.Driver, error) {
			d, err := open(loaded, h)
			return dying{d, dies}, err
		}
	})
	die()
	require.NotEqual(t, engine.Done, r.Outcome)
	s.release("4.1")
	s.works("the next pass")
	require.Equal(t, "4.1", s.Runs("inner"))
	s.holds("[ \"$(ls -A /usr/local/bin)\" = homestak-gitops ]", "nothing is left")
}

// The site orders upgrades: the canary comes first, and where the program does not work on it, no other child is touched. The
// next version goes on from there.
func TestST20SimulatedUpgradeInOrder(t *testing.T) {
	s := beginTree(t, "spec = spec.base")
	s.deploy("more", strings.Replace(vm("other", "spec = spec.base", `nic "lan" {`, `  ip = "192.0.2.51/24"`, `}`), `"vm"`, `"pve"`, 1))
	s.works("install")
	order := func(version string) {
		s.edit("site.hcl", "site \"home\" {", "site \"home\" {\n  upgrade {\n    version = \""+version+"\"\n    canary  = [\"other\"]\n  }\n")
	}
	order("2.0-broken")
	s.release("2.0-broken")
	s.upgrade = 300 * time.Millisecond
	require.Equal(t, []string{"update agent.other"}, actions(s.run("plan").Plan))
	r := s.run("apply")
	require.Equal(t, engine.Failed, r.Outcome, describe(r))
	require.ErrorContains(t, r.Err, "version 2.0-broken of the program does not work on other, so the previous one is restored")
	require.Eventually(t, func() bool { return s.Runs("other") == "1.0" }, 5*time.Minute, time.Millisecond)
	r = s.run("apply")
	require.ErrorContains(t, r.Err, "this is retried after an hour")
	require.Contains(t, describe(r), "agent.inner keeps the program that it has: other is upgraded before it, and runs 1.0")
	require.Equal(t, "1.0", s.Runs("inner"), "halted")

	s.edit("site.hcl", "2.0-broken", "2.1")
	s.release("2.1")
	s.upgrade = 0
	for _, want := range []string{"update agent.other", "update agent.inner"} {
		r = s.run("apply")
		require.Equal(t, engine.Done, r.Outcome, describe(r))
		require.Equal(t, []string{want}, actions(r.Plan))
	}
	s.works("nothing is left")
	require.Equal(t, "2.1", s.Runs("inner"))

	// A version that the site does not name is not sent.
	s.release("3.0")
	r = s.run("plan")
	require.True(t, r.Plan.InSync(), describe(r))
	require.Contains(t, describe(r), "agent.inner keeps the program that it has: upgrade of the site is for version 2.1, and father runs 3.0")
}

// hurried is a driver whose steps have little time.
type hurried struct {
	engine.Driver
	time time.Duration
}

func (d hurried) Apply(ctx context.Context, s plan.Step) error {
	ctx, cancel := context.WithTimeout(ctx, d.time)
	defer cancel()
	return d.Driver.Apply(ctx, s)
}

// A step that has no time to wait for a program that does not report leaves that to the next one, which ends it: it puts the program back
// also where it has no more time.
func TestST20SimulatedUpgradeWithoutTime(t *testing.T) {
	s := beginTree(t, "spec = spec.base")
	s.works("install")
	s.release("2.0-broken")
	short := func(p *engine.Pass) {
		open := p.Open
		p.Open = func(loaded engine.Desired, h *model.Host) (engine.Driver, error) {
			d, err := open(loaded, h)
			return hurried{d, time.Minute}, err
		}
	}
	r := s.run("apply", short)
	require.Equal(t, engine.Failed, r.Outcome, describe(r))
	require.ErrorContains(t, r.Err, "version 2.0-broken of the program was installed on inner, and this step has too little time left to wait for its report: the next pass continues")
	s.holds("grep -q 2.0-broken /usr/local/bin/homestak-gitops && systemctl is-active homestak-gitops", "the new one has its chance")
	r = s.run("apply", short)
	require.Equal(t, engine.Failed, r.Outcome, describe(r))
	require.ErrorContains(t, r.Err, "version 2.0-broken of the program does not work on inner, so the previous one is restored")
	s.holds("grep -q 1.0 /usr/local/bin/homestak-gitops && systemctl is-active homestak-gitops", "the one before runs")
	require.Eventually(t, func() bool { return s.Runs("inner") == "1.0" }, 5*time.Minute, time.Millisecond)

	s.release("2.1")
	s.works("a version that works")
}

// A node of type pve that loses its spec keeps its agent, and the spec is withdrawn from the machine over the same
// connection, wherever the spec let sshd listen. If the spec is unknown, a warning says what stays.
func TestST03SimulatedAgentOutlivesTheSpec(t *testing.T) {
	s := beginTree(t, "spec = spec.base")
	s.write("specs.hcl", "posture \"tight\" {\n  ssh {\n    port = 2222\n  }\n}\nspec \"base\" {\n  access {\n    posture = posture.tight\n  }\n  platform {\n    packages = [\"jq\"]\n  }\n}\n")
	s.works("install")
	was := s.load(t.Context()).Site
	require.NotNil(t, was)

	s.edit("manifests/web.hcl", "spec = spec.base", "")
	r := s.run("plan")
	require.True(t, r.Plan.InSync(), describe(r))
	require.Contains(t, describe(r), "pve.inner has no spec any more, and what its last spec configured stays")

	before := func(p *engine.Pass) {
		p.History = enginetest.History{Site: was}
	}
	r = s.run("apply", before)
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Equal(t, []string{"update guest.inner"}, actions(r.Plan))
	s.holds("! command -v jq && systemctl is-active homestak-gitops", "without the spec")
	for _, edits := range [][]func(*engine.Pass){{before}, nil} {
		r = s.run("plan", edits...)
		require.True(t, r.Plan.InSync(), describe(r))
		require.Empty(t, r.Plan.Unknown)
		require.NotContains(t, describe(r), "has no spec any more")
	}
}

// ST-21 at a child: its data folder is lost, with its clone, its certificate and its signing keys. It finds its guests again, enters
// them by the key that they know, and its own child learns its new keys.
func TestST21AChildThatLostItsDataFolder(t *testing.T) {
	t.Parallel()
	l := grow(t)
	files := tiered(machine("inner", "pve", ""), machine("deep", "pve", "inner"), machine("app", "vm", "inner"), machine("low", "vm", "deep"))
	const want = "inner below father, deep below inner, low below deep, app below inner"
	l.push(files, "three levels", want)
	made := l.history.List()
	m := l.inside("father", "inner")
	shell := func(line string) string {
		t.Helper()
		out, code := m.Shell(line)
		require.Zero(t, code, "%s: %s", line, out)
		return strings.TrimSpace(out)
	}
	pins := l.world.Running("inner").Status().Server.Pins
	shell("systemctl stop homestak-gitops && rm -rf /var/lib/homestak-gitops && systemctl start homestak-gitops")
	l.until("it has new keys", func() bool {
		s := l.world.Running("inner")
		return s != nil && s.Status().Server != nil && len(s.Status().Server.Pins) > 0
	})
	require.NotEqual(t, pins, l.world.Running("inner").Status().Server.Pins)

	// Whatever is done in its guests from now on needs its key.
	files["site.hcl"] = strings.Replace(levelsSite, `["htop"]`, `["htop", "jq"]`, 1)
	l.push(files, "one more package", want)
	require.Equal(t, made, l.history.List(), "the same guests, and none doubled")
	for host, guest := range map[string]string{"inner": "app", "deep": "low"} {
		out, code := l.inside(host, guest).Shell("command -v jq")
		require.Zero(t, code, "%s: %s", guest, out)
	}
	l.remove()
	require.Empty(t, l.father.Tree().Nodes)
}

// ST-21 at a host whose child leaves the site at the same time: the child learns the new keys although no file declares it any
// more, hears that it left, and is removed when it is empty.
func TestST21AParentThatLostItsDataFolderAndAChildThatLeaves(t *testing.T) {
	t.Parallel()
	l := grow(t)
	stay := machine("stay", "vm", "")
	l.push(tiered(stay, machine("inner", "pve", ""), machine("app", "vm", "inner")), "two levels", "inner below father, app below inner, stay below father")
	l.stop()
	require.NoError(t, os.RemoveAll(l.data))
	l.repo.Commit(tiered(stay), "Farewell\n\nAllow-Deletes: 2")
	l.drift = "5s"
	l.start()
	l.until("the child is gone", func() bool { return len(l.world.Hosts["father"].Snapshot().Guests) == 1 })
	require.Equal(t, []string{"-inner", "-father"}, l.history.List()[3:])
}

// ST-11 and ST-21: a child without nodes lost its data folder, and leaves the site at the same time. No commit with it is known
// there, but its host is empty, so it needs no operator.
func TestST21AChildWithoutNodesThatLostItsDataFolderLeaves(t *testing.T) {
	t.Parallel()
	l := grow(t)
	stay := machine("stay", "vm", "")
	l.push(tiered(stay, machine("inner", "pve", "")), "one level", "inner below father, stay below father")
	m := l.inside("father", "inner")
	out, code := m.Shell("systemctl stop homestak-gitops && rm -rf /var/lib/homestak-gitops")
	require.Zero(t, code, out)
	l.repo.Commit(tiered(stay), "Farewell")
	l.father.Agent.CheckNow()
	l.until("the parent waits for its child", func() bool {
		return l.father.Status().Last.Commit != "" && len(l.father.Tree().Nodes) == 2 && l.father.Tree().Nodes[0].Phase == "destroy"
	})
	out, code = m.Shell("systemctl start homestak-gitops")
	require.Zero(t, code, out)
	l.until("the child is gone", func() bool { return len(l.world.Hosts["father"].Snapshot().Guests) == 1 })
}
