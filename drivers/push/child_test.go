package push

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/debian"
	simmachine "github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// The agent of a child is wanted in each node of type pve that can be entered by SSH, with and without a spec.
func TestWhereAnAgentIsWanted(t *testing.T) {
	served := Config{PrivateKeys: []string{"key"}, Children: func() Children { return nil }}
	machine := &enginetest.Box{}
	of := func(c Config, kind, typ string, access *model.Access, withSpec bool) *model.Resource {
		s := &model.Site{Name: "home", Secrets: &model.Secrets{}, Specs: map[string]*model.Spec{"base": {Name: "base", Access: access}}}
		n := &model.Node{Name: "inner", Type: typ, Mode: model.ModePush}
		if withSpec {
			n.Spec = "base"
		}
		r, l := c.AgentKind().Inside(&model.Resource{Addr: model.Address{Kind: kind, Name: "inner"}, Spec: machine}, model.Scope{Site: s, Host: &model.Host{Name: "father"}, Node: n, Name: n.Name})
		require.Empty(t, l)
		return r
	}
	for _, withSpec := range []bool{true, false} {
		r := of(served, "box", model.PVEType, nil, withSpec)
		require.Empty(t, r.Deferred)
		require.Equal(t, WantedAgent("inner"), r.Spec)
		require.True(t, r.Reports)
		require.Equal(t, []model.Address{converge.Address("inner")}, r.Needs)
	}
	require.Nil(t, of(served, "vm", "vm", nil, true), "another type of node")

	without := func(change func(*Config)) Config {
		c := served
		change(&c)
		return c
	}
	for want, r := range map[string]*model.Resource{
		"only the agent of father installs it":                               of(without(func(c *Config) { c.Children = nil }), "box", model.PVEType, nil, true),
		"with --sim nothing does":                                            of(without(func(c *Config) { c.Children, c.Unserved = nil, "with --sim nothing does" }), "box", model.PVEType, nil, true),
		"no SSH key to log in with":                                          of(without(func(c *Config) { c.PrivateKeys = nil }), "box", model.PVEType, nil, true),
		`spec base says via = "exec"`:                                        of(served, "box", model.PVEType, &model.Access{Via: model.ViaExec}, true),
		"no address is known: set ip in the first nic":                       of(served, model.PVEType, model.PVEType, nil, true),
		"only guests from images of Debian 12 or 13 have a simulated system": of(without(func(c *Config) { c.Runs = func(string) bool { return false } }), "box", model.PVEType, nil, true),
	} {
		require.Contains(t, r.Deferred, "not installed, since "+want)
	}
}

// A node of type pve whose image is one of Debian gets a warning, unless its spec installs Proxmox VE.
func TestANodeWithoutProxmoxVE(t *testing.T) {
	type image struct {
		URL string `hcl:"url,optional" plan:"-"`
	}
	type machine struct {
		Image string `hcl:"image,optional"`
	}
	address := map[string]string{
		"debian-12": "https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2",
		"pve-9":     "https://images.home.example/pve-9-on-debian.qcow2",
		"host":      "https://images.home.example/host.qcow2",
		"debian-hv": "https://images.home.example/proxmox.qcow2",
	}
	pve := &model.Spec{Name: "pve", Config: &model.Config{PVE: &model.PVEConfig{}}}
	for _, c := range []struct {
		image string
		spec  *model.Spec
		want  string
	}{
		{"debian-12", nil, `site.hcl:7:5: warning: node "inner" has no Proxmox VE`},
		{"debian-12", &model.Spec{Name: "base"}, `site.hcl:7:5: warning: node "inner" has no Proxmox VE`},
		{"debian-12", pve, ""},
		{"pve-9", nil, ""},
		{"host", nil, ""},
		{"debian-hv", nil, ""},
	} {
		s := &model.Site{Name: "home", Secrets: &model.Secrets{}, Specs: map[string]*model.Spec{}, Objects: model.State{}}
		for name, url := range address {
			s.Objects[model.Address{Kind: "image", Name: name}] = &model.Resource{Spec: &image{URL: url}}
		}
		n := &model.Node{Name: "inner", Type: model.PVEType, Mode: model.ModePush}
		if c.spec != nil {
			n.Spec, s.Specs[c.spec.Name] = c.spec.Name, c.spec
		}
		of := &model.Resource{Addr: model.Address{Kind: "pve", Name: "inner"}, Spec: &machine{Image: c.image}, Ranges: []model.AttrRange{{Path: "image", At: diag.Range{File: "site.hcl", Start: diag.Pos{Line: 7, Column: 5}}}}}
		_, found := Config{}.AgentKind().Inside(of, model.Scope{Site: s, Host: &model.Host{Name: "father"}, Node: n, Name: n.Name})
		if c.want == "" {
			require.Empty(t, found)
			continue
		}
		require.Len(t, found, 1)
		require.Equal(t, c.want, found[0].At.String()+": "+string(found[0].Severity)+": "+found[0].Summary)
	}
}

const interpreter = "/usr/lib/simulated/agent"

// programOf is the file of a program of some version.
func programOf(version string) []byte { return []byte("#!" + interpreter + "\n" + version + "\n") }

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// childMachine is a simulated Debian with a stand-in for Proxmox VE, which is entered from within.
type childMachine struct {
	*debian.Machine
	t    *testing.T
	runs int
	seen strings.Builder // scripts and their outputs
	// instead replaces a command before it runs. May be nil.
	instead func(guest.Command) guest.Command
	// installs is what a program does that installs itself. May be nil.
	installs func(program []byte) error
}

func begin(t *testing.T) *childMachine {
	t.Helper()
	m := &childMachine{t: t}
	run := func(_ *debian.Machine, p *simmachine.Process) int {
		if len(p.Args) > 3 && p.Args[3] == "--install" {
			program, err := p.ReadFile(p.Args[1])
			if err == nil {
				err = m.installs([]byte(program))
			}
			if err != nil {
				return p.Failf("%v", err)
			}
			return 0
		}
		p.Ready()
		<-p.Killed()
		return 0
	}
	m.Machine = debian.NewDisk(debian.Options{Programs: map[string]debian.Program{interpreter: run}}).Begin(debian.Birth{Instance: "1", Hostname: "inner"})
	t.Cleanup(m.Halt)
	m.put("/usr/bin/pveum", drivertest.PVEum)
	m.put("/usr/local/sbin/systemd-sysusers", "#!/bin/sh\nuseradd --shell /usr/sbin/nologin homestak-gitops\n")
	return m
}

func (m *childMachine) put(name, text string) {
	m.t.Helper()
	require.NoError(m.t, m.K.FS.WriteFile(name, text, 0o755, 0, 0))
}

func (m *childMachine) Run(_ context.Context, c guest.Command) (guest.Output, error) {
	m.runs++
	if m.instead != nil {
		c = m.instead(c)
	}
	var out, errs bytes.Buffer
	s := m.Root(c.Args...)
	s.In, s.Out, s.Err = bytes.NewReader(c.Stdin), &out, &errs
	p, err := m.K.Start(s)
	if err != nil {
		return guest.Output{}, err
	}
	code, signal := p.Ended()
	fmt.Fprintln(&m.seen, c.Args, string(c.Stdin), out.String(), errs.String())
	return guest.Output{Code: code, Signal: int(signal), Out: out.String(), Err: errs.String()}, nil
}

func (m *childMachine) sh(line string) string {
	m.t.Helper()
	out, code := m.Shell(line)
	require.Zero(m.t, code, "%s\n%s", line, out)
	return out
}

const ownPin, otherPin = "sha256:1111111111111111111111111111111111111111111111111111111111111111", "sha256:2222222222222222222222222222222222222222222222222222222222222222"

func pins(t *testing.T, texts ...string) []wire.Pin {
	t.Helper()
	all, err := wire.ParsePins(texts)
	require.NoError(t, err)
	return all
}

func want(t *testing.T) AgentWant {
	t.Helper()
	return AgentWant{
		Identity: "inner", Server: "https://192.0.2.10:44443", Pins: pins(t, ownPin, otherPin),
		Program: Program{Sum: sumOf(programOf("1")), System: "linux-amd64", Version: "1"},
		Accepts: func(token string) error {
			if !strings.HasPrefix(token, "good") {
				return errors.New("the token was signed by a key that this server does not have")
			}
			return nil
		},
		Roles: []kind.ChildRole{{Name: "R", Path: "/vms", Privs: []string{"VM.Audit", "VM.Allocate"}, Or: [][]string{{"VM.GuestAgent.Audit"}, {"VM.Monitor"}}}},
	}
}

// changes observes the machine, by one command, and lists what differs.
func (m *childMachine) changes(w AgentWant) []string {
	m.t.Helper()
	runs := m.runs
	f, err := w.Observe(m.t.Context(), m)
	require.NoError(m.t, err)
	require.Equal(m.t, 1, m.runs-runs, "commands of an observation")
	var out []string
	for _, c := range plan.Differences(WantedAgent(w.Identity), f.Agent()) {
		out = append(out, fmt.Sprintf("%s: %v", c.Path, c.Before))
	}
	return out
}

// install makes the machine what it has to be, as a driver does.
func (m *childMachine) install(w AgentWant, program []byte, token string) error {
	f, err := w.Observe(m.t.Context(), m)
	if err != nil {
		return err
	}
	if err := f.Check(); err != nil {
		return err
	}
	if f.Outdated() {
		if err := SendProgram(m.t.Context(), m, w.Program.Sum, program); err != nil {
			return err
		}
	}
	var given *wire.Parent
	if !f.Connects() {
		given = &wire.Parent{Identity: w.Identity, Server: w.Server, Pins: w.Pins, Token: token}
	}
	upgrade := f.Upgrades()
	if err := f.Change(m.t.Context(), m, given, f.Outdated()); err != nil {
		return err
	}
	if err := StartAgent(m.t.Context(), m); err != nil || !upgrade {
		return err
	}
	return FinishAgent(m.t.Context(), m)
}

func TestAnAgentIsInstalled(t *testing.T) {
	m, w := begin(t), want(t)
	f, err := w.Observe(t.Context(), m)
	require.NoError(t, err)
	require.True(t, f.None())
	require.NoError(t, m.install(w, programOf("1"), "good-1"))
	require.Empty(t, m.changes(w))
	m.sh("systemctl is-enabled homestak-gitops && systemctl is-active homestak-gitops && systemctl cat homestak-gitops >/dev/null || systemctl is-active homestak-gitops")
	require.Equal(t, "755 root\n", m.sh("stat -c '%a %U' "+programFile))
	require.Equal(t, "600 homestak-gitops\n600 homestak-gitops\n", m.sh("stat -c '%a %U' /etc/homestak-gitops/parent.token /etc/homestak-gitops/api.token"))
	require.Equal(t, "644 root\n", m.sh("stat -c '%a %U' /etc/homestak-gitops/agent.hcl"))
	require.Equal(t, "homestak@pve!agent=canary-1\n", m.sh("cat /etc/homestak-gitops/api.token"))
	require.Equal(t, "/vms homestak@pve R\n", m.sh("cat /etc/pve/acl"))
	require.Equal(t, "VM.Audit,VM.Allocate\nVM.Monitor\n", m.sh("cat /etc/pve/roles/R"))
	require.Contains(t, m.sh("cat /etc/systemd/system/homestak-gitops.service.d/child.conf"), "SupplementaryGroups=www-data\n")
	require.NotContains(t, m.seen.String(), "canary", "the token for the API stays on the machine")
	require.Empty(t, m.sh("ls -A /usr/local/bin | grep -v '^homestak-gitops$' || :"), "nothing is left beside the program")
}

// Every change on the machine is named, and reverted.
func TestDifferencesOfAChildAreReverted(t *testing.T) {
	for what, c := range map[string]struct {
		line string
		want []string
	}{
		"program":      {"echo other >/usr/local/bin/homestak-gitops", []string{"program: another (7e4fa2eb8c7a)"}},
		"no program":   {"rm /usr/local/bin/homestak-gitops", []string{"program: missing"}},
		"unit":         {"echo '# mine' >>/usr/local/lib/systemd/system/homestak-gitops.timer", []string{"units: homestak-gitops.timer differs"}},
		"group":        {"rm /etc/systemd/system/homestak-gitops.service.d/child.conf", []string{"units: child.conf differs"}},
		"stopped":      {"systemctl stop homestak-gitops", []string{"service: enabled, inactive"}},
		"disabled":     {"systemctl disable homestak-gitops", []string{"service: disabled, active"}},
		"settings":     {"echo 'drift_every = \"1h\"' >>/etc/homestak-gitops/agent.hcl", []string{"settings: changed"}},
		"writable":     {"chmod 0666 /etc/homestak-gitops/agent.hcl", []string{"identity: missing", "parent: missing", "pins: missing", "settings: missing"}},
		"identity":     {"sed -i 's/inner/outer/' /etc/homestak-gitops/agent.hcl", []string{"identity: outer"}},
		"parent":       {"sed -i 's/192.0.2.10/192.0.2.11/' /etc/homestak-gitops/agent.hcl", []string{"parent: https://192.0.2.11:44443"}},
		"pins":         {"sed -i -e 's/1111/3333/g' -e 's/2222/3333/g' /etc/homestak-gitops/agent.hcl", []string{"pins: of another server"}},
		"token":        {"echo bad >/etc/homestak-gitops/parent.token", []string{"token: of another server"}},
		"no token":     {"rm /etc/homestak-gitops/parent.token", []string{"token: missing"}},
		"open token":   {"chmod 0644 /etc/homestak-gitops/parent.token", []string{"token: not for the agent alone"}},
		"no api token": {"rm /etc/homestak-gitops/api.token", []string{"api_token: missing"}},
		"other token":  {"echo 'homestak@pve!agent=else' >/etc/homestak-gitops/api.token", []string{"api_token: missing"}},
		"PVE's token":  {"pveum user token remove homestak@pve agent", []string{"api_token: missing"}},
		"no key":       {"rm /etc/homestak-gitops/ssh_key", []string{"ssh_key: missing"}},
		"half a key":   {"rm /etc/homestak-gitops/ssh_key.pub", []string{"ssh_key: missing"}},
		"open key":     {"chmod 0644 /etc/homestak-gitops/ssh_key", []string{"ssh_key: not for the agent alone"}},
		"no role":      {"pveum role delete R", []string{"api_rights: role R lacks VM.Audit, VM.Allocate, VM.GuestAgent.Audit or VM.Monitor"}},
		"less rights":  {"sed -i 's/VM.Audit,//' /etc/pve/roles/R; sed -i 's/VM.Audit,//' /etc/pve/user.cfg", []string{"api_rights: role R lacks VM.Audit"}},
		"no grant":     {"pveum acl delete /vms --users homestak@pve --roles R", []string{"api_rights: role R is not granted on /vms"}},
		"not below":    {"sed -i 's/^acl:1:/acl:0:/' /etc/pve/user.cfg", []string{"api_rights: role R is not granted on /vms"}},
		"no user":      {"rm /etc/pve/users/homestak@pve; sed -i '/^user:/d' /etc/pve/user.cfg", []string{"api_rights: user homestak@pve is missing"}},
		"no list":      {"rm /etc/pve/priv/token.cfg", []string{"api_token: missing"}},
	} {
		t.Run(what, func(t *testing.T) {
			m, w := begin(t), want(t)
			require.NoError(t, m.install(w, programOf("1"), "good-1"))
			m.sh(c.line)
			require.Equal(t, c.want, m.changes(w))
			require.NoError(t, m.install(w, programOf("1"), "good-2"))
			require.Empty(t, m.changes(w))
		})
	}
}

// A child that keeps its program keeps the units of that program: they go with it, and a change would start the agent again.
func TestUnitsStayWithTheProgram(t *testing.T) {
	const unit = "/usr/local/lib/systemd/system/homestak-gitops.service"
	m, w := begin(t), want(t)
	require.NoError(t, m.install(w, programOf("1"), "good-1"))
	m.sh("echo '# of version 1' >>" + unit)
	w.Program.Sum, w.Keeps = sumOf(programOf("2")), true
	require.Empty(t, m.changes(w))
	m.sh("echo bad >/etc/homestak-gitops/parent.token")
	require.NoError(t, m.install(w, nil, "good-2"))
	require.Empty(t, m.changes(w))
	require.Equal(t, "# of version 1\n", m.sh("tail -n1 "+unit), "another change of the agent leaves them alone")
	m.sh("rm " + unit)
	require.Contains(t, m.changes(w), "units: homestak-gitops.service differs", "it cannot start without")
	require.NoError(t, m.install(w, nil, "good-2"))
	require.Empty(t, m.changes(w))
	m.sh("echo '# of version 1' >>" + unit)
	w.Keeps = false
	require.Len(t, m.changes(w), 2)
	require.NoError(t, m.install(w, programOf("2"), "good-2"))
	require.Empty(t, m.changes(w))
}

// Pins and tokens that the agent renewed count, as long as they come from the written ones.
func TestRenewedPinsAndToken(t *testing.T) {
	m, w := begin(t), want(t)
	require.NoError(t, m.install(w, programOf("1"), "bad-by-now"))
	require.Equal(t, []string{"token: of another server"}, m.changes(w))
	given := client.ParentSum(wire.Parent{Identity: "inner", Server: w.Server, Pins: w.Pins, Token: "bad-by-now"})
	m.put("/var/lib/homestak-gitops/parent.json", fmt.Sprintf(`{"version":1,"given":%q,"pins":[%q],"token":"good-renewed","tag":"\"x\"","config":{"secrets":{"api":{"canary":"canary-of-secrets"}},"token":"nonsense"}}`+"\n", given, otherPin))
	require.Empty(t, m.changes(w))
	require.NotContains(t, m.seen.String(), "canary-of-secrets")

	w.Pins = pins(t, ownPin)
	require.Equal(t, []string{"pins: of another server"}, m.changes(w), "those that are written count no more")
	m.sh("echo good-by-hand >/etc/homestak-gitops/parent.token")
	require.Empty(t, m.changes(w), "another token was written, so renewed ones do not count")
	m.put("/var/lib/homestak-gitops/parent.json", "{\n")
	require.Empty(t, m.changes(w))
}

func TestMachinesThatCannotBeAChild(t *testing.T) {
	m, w := begin(t), want(t)
	other := w
	other.Program.System = "plan9-mips"
	require.ErrorContains(t, m.install(other, programOf("1"), "good"), "the program of this agent is for plan9-mips: run an agent for that system")
	m.sh("rm /usr/bin/pveum")
	require.ErrorContains(t, m.install(w, programOf("1"), "good"), "make it from an image with Proxmox VE, or give the node a spec with a pve block")
	require.Empty(t, m.sh("ls -A /etc/homestak-gitops 2>/dev/null || :; ls /usr/local/bin"))
	m = begin(t)
	require.ErrorContains(t, m.install(w, []byte("cut"), "good"), "did not arrive as it was sent")
	require.Empty(t, m.sh("ls -A /usr/local/bin"))
}

// begins matches the lines of a script at which a command begins that is not part of another one.
var begins = regexp.MustCompile(`(?m)^(?:[a-z\[])`)

// cutAt cuts off what is run from now on before its nth command, observations not counted. Nothing is run after that.
func (m *childMachine) cutAt(n int) {
	const libraryEnds = "base64 -w0; echo; }\n"
	m.instead = func(c guest.Command) guest.Command {
		text := &c.Args[len(c.Args)-1]
		switch {
		case n <= 0:
			return guest.Command{Args: []string{"sh", "-c", "exit 99"}}
		case len(c.Args) > 2 && c.Args[2] == "--install": // it runs commands of its own
			return c
		}
		body := string(c.Stdin)
		if *text != "-s" { // the program is its standard input
			body = *text
		}
		if strings.Contains(body, "frame() {") {
			return c
		}
		at := max(strings.Index(body, libraryEnds), 0)
		head, rest := body[:at], body[at:]
		for _, l := range begins.FindAllStringIndex(rest, -1) {
			line, _, _ := strings.Cut(rest[l[0]:], "\n")
			if line == "fi" || line == "done" || strings.HasPrefix(line, "base64") {
				continue
			}
			if n--; n == 0 {
				rest = rest[:l[0]] + "exit 99\n" + rest[l[0]:]
				break
			}
		}
		if *text != "-s" {
			c.Args = []string{"sh", "-c", head + rest}
		} else {
			c.Stdin = []byte(head + rest)
		}
		return c
	}
}

// However often and wherever an installation or an upgrade is cut off, the next one ends in the same state.
func TestCutOffAtEveryCommand(t *testing.T) {
	const state = "find /etc/homestak-gitops /etc/pve /usr/local /etc/systemd/system -type f | grep -v tokens-made | sort; ls -A /usr/local/bin; sha256sum </usr/local/bin/homestak-gitops; cat /etc/pve/acl /etc/pve/roles/R; systemctl is-active homestak-gitops"
	w := want(t)
	next := w
	next.Program.Sum, next.Program.Version = sumOf(programOf("2")), "2"
	for name, c := range map[string]struct {
		before bool
		w      AgentWant
		text   string
		least  int
	}{"install": {false, w, "1", 25}, "upgrade": {true, next, "2", 25}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := func() *childMachine {
				m := begin(t)
				if c.before {
					require.NoError(t, m.install(w, programOf("1"), "good"))
				}
				return m
			}
			quiet := start()
			require.NoError(t, quiet.install(c.w, programOf(c.text), "good"))
			end := quiet.sh(state)
			n := 1
			for ; ; n++ {
				m := start()
				m.cutAt(n)
				if err := m.install(c.w, programOf(c.text), "good"); err == nil {
					break
				}
				m.instead = nil
				require.NoError(t, m.install(c.w, programOf(c.text), "good"), "cut %d", n)
				require.Empty(t, m.changes(c.w), "cut %d", n)
				require.Equal(t, end, m.sh(state), "cut %d", n)
				m.Halt()
			}
			require.Greater(t, n, c.least, "places where it is cut off")
		})
	}
}

// A program that does not report goes back, and is not tried again at once.
func TestAProgramThatGoesBack(t *testing.T) {
	m, w := begin(t), want(t)
	require.NoError(t, m.install(w, programOf("1"), "good"))
	next := w
	next.Program.Sum, next.Program.Version = sumOf(programOf("2")), "2"
	f, err := next.Observe(t.Context(), m)
	require.NoError(t, err)
	require.True(t, f.Upgrades())
	require.NoError(t, SendProgram(t.Context(), m, next.Program.Sum, programOf("2")))
	require.NoError(t, f.Change(t.Context(), m, nil, true))
	require.NoError(t, StartAgent(t.Context(), m))
	require.Equal(t, []string{"upgrade: interrupted"}, m.changes(next))
	require.NoError(t, f.Back(t.Context(), m))
	require.Empty(t, m.changes(w))
	f, err = next.Observe(t.Context(), m)
	require.NoError(t, err)
	require.ErrorContains(t, f.Refused(), "version 2 of the program did not report")
	m.sh("touch -d '2 hours ago' /usr/local/bin/.homestak-gitops.refused || rm /usr/local/bin/.homestak-gitops.refused")
	f, err = next.Observe(t.Context(), m)
	require.NoError(t, err)
	require.NoError(t, f.Refused())
	require.NoError(t, m.install(next, programOf("2"), "good"))
	require.Empty(t, m.changes(next))
}

// The error of an agent that does not start is what it wrote last, in one line, and says where it cannot run at all.
func TestN8AnAgentThatDoesNotStart(t *testing.T) {
	for name, c := range map[string]struct{ program, says string }{
		"it complains": {"#!/bin/sh\necho starting >&2\necho 'error: agent.hcl: no such identity' >&2\nexit 1\n", "starting error: agent.hcl: no such identity"},
		"no simulated program": {
			"\x7fELF of this machine",
			"Failed to execute homestak-gitops: exec format error (this machine is simulated, and runs no program that was copied to it: agents of children run in simulations with --sim, and not behind the verb sim)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, w := begin(t), want(t)
			w.Program.Sum = sumOf([]byte(c.program))
			err := m.install(w, []byte(c.program), "good")
			require.EqualError(t, err, "homestak-gitops.service does not start: "+c.says+" (journalctl -u homestak-gitops.service has more)")
		})
	}
}
