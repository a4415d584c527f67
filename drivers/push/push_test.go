package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// fleet is what is inside of guests, in memory, in place of package converge: of each its packages.
// Steps come from many goroutines.
type fleet struct {
	mu      sync.Mutex
	holds   map[string][]string
	broken  map[string]error // by node: the error of entering it
	lose    map[string]bool  // the next answer is lost, after the work was done
	applied []string
}

type found struct{ want, have *spec.Spec }

func (f *fleet) Observe(_ context.Context, _ guest.Machine, want *spec.Spec) (state, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.broken[want.Node]; err != nil {
		return nil, err
	}
	have := model.Clone(want).(*spec.Spec)
	have.Platform.Packages = slices.Clone(f.holds[want.Node])
	return found{want, have}, nil
}

func (f *fleet) Apply(_ context.Context, _ guest.Machine, want *spec.Spec, _ converge.Options) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applied = append(f.applied, want.Node)
	f.holds[want.Node] = slices.Clone(want.Platform.Packages)
	if f.lose[want.Node] {
		f.lose[want.Node] = false
		return fmt.Errorf("install nginx: %w", guest.ErrOutcomeLost)
	}
	return f.broken[want.Node]
}

func (s found) Observed() model.Observed {
	addr := converge.Address(s.want.Node)
	return model.Observed{State: model.State{addr: {Addr: addr, Spec: s.have, Node: s.want.Node}}}
}

func (s found) Unplanned(planned []plan.Change) (plan.Change, bool) {
	if slices.Equal(s.want.Platform.Packages, s.have.Platform.Packages) || len(planned) > 0 && slices.Equal(planned[0].Before.([]string), s.have.Platform.Packages) {
		return plan.Change{}, false
	}
	return plan.Change{Path: "platform.packages"}, true
}

// world is a site with boxes that are entered by the guest agent.
type world struct {
	*fleet
	site *model.Site
	host *enginetest.Inn
	keys *KnownHosts
}

func newWorld(names ...string) *world {
	sizes := map[string]int{}
	for _, name := range names {
		sizes[name] = 1
	}
	w := &world{site: enginetest.InsideSite(sizes), host: enginetest.NewInn(), keys: &KnownHosts{}}
	w.fleet = &fleet{holds: map[string][]string{}, broken: map[string]error{}, lose: map[string]bool{}}
	w.site.Specs["base"].Access = &model.Access{Via: model.ViaAgent}
	w.site.Kinds = append(enginetest.Kinds(), Config{}.Kind())
	return w
}

func (w *world) pass() *engine.Pass {
	p := w.host.Pass(w.site)
	cfg := Config{Inside: w.fleet, HostKeys: w.keys}
	p.Open = func(d engine.Desired, h *model.Host) (engine.Driver, error) { return cfg.Over(w.host, d.Site, h), nil }
	return p
}

func (w *world) run(t *testing.T) engine.Report { t.Helper(); return w.pass().Run(t.Context()) }

func actions(p *plan.Plan) []string {
	var out []string
	for _, s := range p.Steps {
		out = append(out, fmt.Sprintf("%s %s", s.Action, s.Address))
	}
	return out
}

func TestAPassAppliesSpecs(t *testing.T) {
	w := newWorld("a", "b")
	r := w.run(t)
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	require.Equal(t, "a:completed b:completed", enginetest.Statuses(r))
	require.Equal(t, map[string][]string{"a": {"nginx"}, "b": {"nginx"}}, w.holds)

	r = w.run(t)
	require.Equal(t, engine.Done, r.Outcome)
	require.Empty(t, r.Plan.Steps)

	w.holds["b"] = nil
	r = w.run(t)
	require.Equal(t, []string{"update guest.b"}, actions(r.Plan))
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	require.Equal(t, []string{"nginx"}, w.holds["b"])
}

// A node that lost its spec is entered as the spec said at the commit that the host converged to, and the spec is withdrawn. After
// that it is not entered. If that commit is unknown, a warning says what stays.
func TestANodeThatLosesItsSpec(t *testing.T) {
	w := newWorld("a", "b")
	require.Equal(t, engine.Done, w.run(t).Outcome)
	was := w.site
	const alias = "home/father/box.b"
	enter := func() { require.NoError(t, w.keys.Learn(alias, Known{Keys: []string{"ssh-ed25519 AAAA"}})) }
	enter()
	lose := func() {
		w.site = enginetest.InsideSite(map[string]int{"a": 1, "b": 1})
		w.site.Kinds, w.site.Specs = was.Kinds, was.Specs
		for _, n := range w.site.Manifests["web"].Nodes {
			if n.Name == "b" {
				n.Spec = ""
			}
		}
	}
	lose()
	r := w.run(t)
	require.Empty(t, r.Plan.Steps)
	require.Len(t, r.Findings, 1)
	require.Equal(t, "box.b has no spec any more, and what its last spec configured stays", r.Findings[0].Summary)
	require.Contains(t, r.Findings[0].Detail, "give the node a spec with the access of that one and no other items")
	require.Equal(t, []string{"nginx"}, w.holds["b"])

	pass := func(earlier *model.Site) engine.Report {
		p := w.pass()
		p.History = enginetest.History{Site: earlier}
		return p.Run(t.Context())
	}
	r = pass(was)
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	require.Equal(t, []string{"update guest.b"}, actions(r.Plan))
	require.Empty(t, r.Findings)
	require.Empty(t, w.holds["b"])
	known, err := w.keys.Of(alias)
	require.NoError(t, err)
	require.Empty(t, known.Keys, "it is not entered any more")

	enter() // a pass that died behind its last step
	r = pass(was)
	require.Empty(t, r.Plan.Steps)
	for _, earlier := range []*model.Site{nil, w.site} {
		r = pass(earlier)
		require.Empty(t, r.Plan.Steps)
		require.Empty(t, r.Findings)
	}

	// A guest that shall be off cannot be entered yet.
	k := w.site.Kinds.Get("guest")
	b := w.site.Manifests["web"].Node("b").Resource
	r2, found := k.Inside(&model.Resource{Addr: b.Addr, Spec: &struct {
		Power string `hcl:"power"`
	}{"stopped"}}, model.Scope{Site: w.site, Host: w.site.Hosts["father"], Node: w.site.Manifests["web"].Node("b"), Name: "b", Earlier: &model.Earlier{Site: was, Host: was.Hosts["father"], Node: was.Manifests["web"].Node("b")}})
	require.Empty(t, found)
	require.Equal(t, "the guest is declared off", r2.Deferred)

	// One that cannot be entered as its spec said: a warning says what stays.
	was.Specs = map[string]*model.Spec{"base": {Name: "base", Access: &model.Access{Via: model.ViaExec}}}
	r = pass(was)
	require.Empty(t, r.Plan.Steps)
	require.Contains(t, r.Findings[0].Detail, "Spec base is not withdrawn: box.b cannot be entered by exec.")
}

// TestN7AGuestThatCannotBeEntered: such a guest is unknown, and no other one. One that is off was not compared, so it is not completed.
func TestN7AGuestThatCannotBeEntered(t *testing.T) {
	w := newWorld("a", "b", "off")
	require.Equal(t, engine.Done, w.run(t).Outcome)
	w.broken["a"] = errors.New("ssh: no route to host")
	w.host.Holds[enginetest.Addr("box", "off")].Guest.Running = false
	w.holds["b"], w.holds["off"] = nil, nil
	r := w.run(t)
	require.Equal(t, []string{"update guest.b"}, actions(r.Plan))
	require.Equal(t, engine.Partly, r.Outcome)
	require.Equal(t, "a:skipped b:completed off:skipped", enginetest.Statuses(r))
	var why []string
	for _, u := range r.Have.Unknown {
		why = append(why, u.Scope+": "+u.Why)
	}
	require.Equal(t, []string{"inside of box.a: ssh: no route to host"}, why)
	require.Equal(t, []model.Deferred{{Address: "guest.off", Why: "not compared, since box.off is off; a pass that finds it running does that", Differs: true}}, r.Plan.Deferred)
}

// A guest that was just started is not ready yet, unless another one answers in its place.
func TestAGuestThatWasJustStarted(t *testing.T) {
	w := newWorld("a", "b")
	require.Equal(t, engine.Done, w.run(t).Outcome)
	w.host.Holds[enginetest.Addr("box", "a")].Guest.Starting = true
	r := w.run(t)
	require.Equal(t, engine.Done, r.Outcome, "it answers: %v", r.Err)

	w.broken["a"] = errors.New("ssh: no route to host")
	r = w.run(t)
	require.Len(t, r.Have.Unknown, 1)
	require.True(t, r.Have.Unknown[0].Starting)
	require.EqualError(t, r.Err, "some guests are not ready yet, and a later pass continues: inside of box.a: not ready yet, since it was just started: ssh: no route to host (holds back guest.a)")

	w.broken["a"] = &ssh.HostKeyError{}
	r = w.run(t)
	require.False(t, r.Have.Unknown[0].Starting)
	require.ErrorContains(t, r.Err, "part of the host could not be inspected")

	w.broken["a"] = errors.New("ssh: no route to host")
	w.host.Holds[enginetest.Addr("box", "a")].Guest.Starting = false
	require.ErrorContains(t, w.run(t).Err, "part of the host could not be inspected")
}

// A step that dies is resumed by the next pass; one whose answer is lost by this one.
func TestAStepThatDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a", "b")
		for _, m := range w.site.Manifests {
			m.OnError = "continue" // which of the two ends first is not known
		}
		w.lose["a"], w.broken["b"] = true, errors.New("the disk is full")
		r := w.run(t)
		require.Equal(t, "a:completed b:failed", enginetest.Statuses(r))
		require.Equal(t, []string{"nginx"}, w.holds["a"])
		w.broken, w.holds["b"] = nil, []string{"half"}
		r = w.run(t)
		require.Equal(t, engine.Done, r.Outcome)
		require.Equal(t, []string{"update guest.b"}, actions(r.Plan))
	})
}

// A change that was not shown is not made.
func TestAChangeThatWasNotPlanned(t *testing.T) {
	w := newWorld("a")
	require.Equal(t, engine.Done, w.run(t).Outcome)
	w.holds["a"], w.applied = nil, nil
	p := w.pass()
	p.Verdict = func(context.Context, *plan.Plan) (bool, error) {
		w.holds["a"] = []string{"apache2"}
		return true, nil
	}
	r := p.Run(t.Context())
	require.EqualError(t, r.Err, "update guest.a: guest.a: platform.packages has changed since it was planned: plan again")
	require.Empty(t, w.applied)
}

// The host key of a guest that is recreated or removed is forgotten, and no other.
func TestHostKeysGoWithTheGuest(t *testing.T) {
	w := newWorld("a", "b")
	for _, name := range []string{"a", "b", "left"} {
		require.NoError(t, w.keys.Learn("home/father/box."+name, Known{Keys: []string{"ssh-ed25519 OLD"}}))
	}
	w.host.Holds[enginetest.Addr("box", "b")] = &model.Resource{
		Addr: enginetest.Addr("box", "b"), Spec: &enginetest.Box{Size: 1, IP: enginetest.IPOf("b")}, Manifest: "web", Node: "b",
		Guest: &model.Guest{VMID: 150, Running: true}, Needs: []model.Address{enginetest.Addr("disk", "base")},
	}
	left := *w.host.Holds[enginetest.Addr("box", "b")]
	left.Addr, left.Node, left.Guest = enginetest.Addr("box", "left"), "left", &model.Guest{VMID: 151, Running: true}
	w.host.Holds[left.Addr] = &left
	require.Equal(t, engine.Done, w.run(t).Outcome)
	for _, name := range []string{"a", "left"} { // recreated, and removed since it left the files
		gone, err := w.keys.Of("home/father/box." + name)
		require.NoError(t, err)
		require.Empty(t, gone, name)
	}
	stays, err := w.keys.Of("home/father/box.b")
	require.NoError(t, err)
	require.Equal(t, []string{"ssh-ed25519 OLD"}, stays.Keys)
}

// The host keys of a guest whose node was renamed have the new name; a former name has none left for another guest.
func TestHostKeysGoWithARenamedNode(t *testing.T) {
	w := newWorld("a", "b")
	w.site.Moved = map[model.Address]model.Address{enginetest.Addr("box", "was-a"): enginetest.Addr("box", "a"), enginetest.Addr("box", "was-b"): enginetest.Addr("box", "b")}
	require.Equal(t, engine.Done, w.run(t).Outcome)
	learned := Known{Keys: []string{"ssh-ed25519 OLD"}, Port: 2222}
	newer := Known{Keys: []string{"ssh-ed25519 NEW"}, Port: 22}
	require.NoError(t, w.keys.Learn("home/father/box.was-a", learned))
	require.NoError(t, w.keys.Learn("home/father/box.was-b", learned))
	require.NoError(t, w.keys.Learn("home/father/box.b", newer))
	require.Equal(t, engine.Done, w.run(t).Outcome)
	for name, want := range map[string]Known{"a": learned, "was-a": {}, "b": newer, "was-b": {}} {
		is, err := w.keys.Of("home/father/box." + name)
		require.NoError(t, err)
		require.Equal(t, want, is, name)
	}
}

const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHN0b3J5c3RvcnlzdG9yeXN0b3J5c3RvcnlzdG9yeXN0 ops@home"

func TestWantedInside(t *testing.T) {
	kind, host := Config{}.Kind(), &model.Host{Name: "father"}
	of := func(s *model.Site, addr string) (*model.Resource, diag.List) {
		a, err := model.ParseAddress(addr)
		require.NoError(t, err)
		n := &model.Node{Name: a.Name, Spec: "base", Mode: model.ModePush}
		return kind.Inside(&model.Resource{Addr: a, Spec: &enginetest.Box{}}, model.Scope{Site: s, Host: host, Node: n, Name: a.Name})
	}
	site := func(access *model.Access) *model.Site {
		return &model.Site{Name: "home", Secrets: &model.Secrets{}, Specs: map[string]*model.Spec{"base": {Name: "base", Access: access}}}
	}
	for _, access := range []*model.Access{nil, {}} {
		r, l := of(site(access), "ct.a")
		require.Empty(t, l)
		require.Equal(t, "not applied, no SSH key to log in with: set key in ssh of host father, or via in access of the spec", r.Deferred)
	}
	// Unset, a spec is applied by SSH where that can work.
	kind = Config{PrivateKeys: []string{"key"}}.Kind()
	r, l := of(site(nil), "ct.a")
	require.Empty(t, l)
	require.Empty(t, r.Deferred)
	require.Equal(t, "a", r.Spec.(*spec.Spec).Identity.Hostname)
	r, _ = of(site(nil), "vm.a")
	require.Equal(t, "not applied, no address is known: set ip in the first nic, or agent = true", r.Deferred)
	all := site(&model.Access{Users: []model.User{{Name: "ops"}}})
	all.Secrets = nil
	r, _ = of(all, "ct.a")
	require.Equal(t, "not applied, since the value of secret.ssh_keys is not known here: provide it with --secrets FILE", r.Deferred)
	all.Secrets = &model.Secrets{Values: map[string]map[string]string{"ssh_keys": {"ops": "ssh-ed25519 PUT-IT-HERE ops"}}}
	r, l = of(all, "ct.a")
	require.Empty(t, l)
	require.Equal(t, `not applied, since secret.ssh_keys["ops"] is not a public key: put in the one line of the .pub file`, r.Deferred)
	kind, host = Config{}.Kind(), &model.Host{Name: "father", SSH: &model.HostSSH{Key: "key"}}
	r, _ = of(site(nil), "ct.a")
	require.Empty(t, r.Deferred, "the block of the host has a key")
	host = &model.Host{Name: "father"}
	kind = Config{AgentSocket: "/run/agent"}.Kind()
	r, _ = of(site(nil), "ct.a")
	require.Empty(t, r.Deferred, "an ssh-agent has keys")
	kind = Config{}.Kind()
	ssh := &model.Access{Via: model.ViaSSH}
	r, l = of(site(ssh), "vm.a")
	require.Empty(t, l)
	require.Equal(t, "a", r.Spec.(*spec.Spec).Identity.Hostname)

	_, l = of(site(&model.Access{Via: model.ViaExec}), "vm.a")
	require.Equal(t, "vm.a cannot be entered by exec", l[0].Summary)
	_, l = of(site(&model.Access{Via: model.ViaAgent}), "ct.a")
	require.Equal(t, "ct.a cannot be entered by agent", l[0].Summary)
	_, l = of(site(&model.Access{Via: model.ViaExec}), "ct.a")
	require.Empty(t, l)

	// Without the secrets the wanted keys are unknown. That is not an error of the site, but
	// nothing may be applied.
	named := []string{"ops"}
	s := site(&model.Access{Via: model.ViaSSH, Users: []model.User{{Name: "ops", SSHKeys: &named}, {Name: "all"}}})
	s.Secrets = nil
	r, l = of(s, "vm.a")
	require.Empty(t, l)
	require.Equal(t, []string{"secret.ssh_keys", "secret.ssh_keys.ops"}, r.Missing)

	// So it is where the names of the keys are known, and not all of their values.
	s.Secrets = &model.Secrets{Values: map[string]map[string]string{"ssh_keys": {"ops": publicKey, "boss": ""}}}
	r, l = of(s, "vm.a")
	require.Empty(t, l)
	require.Equal(t, []string{"secret.ssh_keys.boss"}, r.Missing)
	require.Equal(t, []string{publicKey}, r.Spec.(*spec.Spec).Access.Users[0].Keys)
	s.Secrets.Values["ssh_keys"]["boss"] = publicKey
	r, l = of(s, "vm.a")
	require.Empty(t, l)
	require.Empty(t, r.Missing)

	s = site(ssh)
	s.Specs["base"].Missing = []string{"secret.passwords.motd"}
	r, l = of(s, "vm.a")
	require.Empty(t, l)
	require.Equal(t, []string{"secret.passwords.motd"}, r.Missing)

	s = site(ssh)
	s.Specs["base"].Config = &model.Config{Drift: "report"}
	r, _ = of(s, "vm.a")
	require.True(t, r.Report)
}

func TestKnownHosts(t *testing.T) {
	name := filepath.Join(t.TempDir(), "state", "known_hosts")
	for what, keys := range map[string]*KnownHosts{"file": {Path: name}, "memory": {}} {
		t.Run(what, func(t *testing.T) {
			got, err := keys.Of("home/father/vm.a")
			require.NoError(t, err)
			require.Empty(t, got)
			require.NoError(t, keys.Forget("home/father/vm.a"))
			require.NoError(t, keys.Learn("home/father/vm.a", Known{Keys: []string{"ssh-ed25519 AAAA comment"}}))
			require.NoError(t, keys.Learn("home/father/vm.ab", Known{Keys: []string{"ssh-ed25519 CCCC"}}))
			learned := Known{Keys: []string{"ssh-ed25519 AAAA", "ssh-rsa BBBB"}, Port: 2222, IP: netip.MustParseAddr("10.0.0.6")}
			require.NoError(t, keys.Learn("home/father/vm.a", learned))
			got, err = keys.Of("home/father/vm.a")
			require.NoError(t, err)
			require.Equal(t, learned, got)
			require.NoError(t, keys.Forget("home/father/vm.a"))
			got, err = keys.Of("home/father/vm.ab")
			require.NoError(t, err)
			require.Equal(t, Known{Keys: []string{"ssh-ed25519 CCCC"}}, got)
		})
	}
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "home/father/vm.ab ssh-ed25519 CCCC\n", string(text))
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

// runs keeps the commands that it gets.
type runs struct {
	guest.Machine
	args []string
	uid  string // of this program; root unless set
}

func (r *runs) Run(_ context.Context, c guest.Command) (guest.Output, error) {
	r.args = c.Args
	if len(c.Args) > 2 && strings.HasPrefix(c.Args[2], "id -u") {
		return guest.Output{Out: cmp.Or(r.uid, "0") + "\n"}, nil
	}
	return guest.Output{}, nil
}

// A container of this machine is entered by pct, under the VMID that it has.
func TestMachineByExec(t *testing.T) {
	w, here := newWorld("a"), &runs{}
	d := Config{Inside: w.fleet, Locally: here}.Over(w.host, nil, w.site.Hosts["father"])
	w.site.Specs["base"].Access.Via = model.ViaExec
	want, found := w.site.Want("father")
	require.Len(t, found, 1, "a box is no container, which is reported; here it does")
	_, err := d.Observe(t.Context(), want)
	require.NoError(t, err)
	require.NoError(t, d.Machine(converge.Address("a"), model.Guest{VMID: 107}, nil).Ping(t.Context()))
	require.Subset(t, here.args, []string{"/usr/sbin/pct", "exec", "107"})
}

// Where this program may not run pct, the plan says so before there is a container.
func TestR9ExecTakesRoot(t *testing.T) {
	w := newWorld("a")
	d := Config{Inside: w.fleet, Locally: &runs{uid: "998"}}.Over(w.host, nil, w.site.Hosts["father"])
	w.site.Specs["base"].Access.Via = model.ViaExec
	want, _ := w.site.Want("father")
	have, err := d.Observe(t.Context(), want)
	require.NoError(t, err)
	require.Equal(t, []model.Unknown{{
		Scope: "inside of box.a", Kind: "guest", Only: []model.Address{converge.Address("a")},
		Why: `pct exec needs root, and this program runs as user 998, as the agent of the installed unit does: set via = "ssh" in access of the spec, or apply as root on the node`,
	}}, have.Unknown)
	made := plan.Make(plan.Input{Want: want, Have: have})
	require.Equal(t, []string{"create disk.base", "create box.a"}, actions(made), "the container is created, and nothing is done inside")
}

func TestMachine(t *testing.T) {
	w := newWorld("a")
	require.Equal(t, "guest", Config{}.Kinds()[0].Name)
	d := Config{Inside: w.fleet}.Over(w.host, nil, w.site.Hosts["father"])
	require.Nil(t, d.Machine(converge.Address("a"), model.Guest{VMID: 100}, nil), "nothing was observed yet")
	want, _ := w.site.Want("father")
	_, err := d.Observe(t.Context(), want)
	require.NoError(t, err)
	require.NoError(t, d.Machine(converge.Address("a"), model.Guest{VMID: 100}, nil).Ping(t.Context()))
	require.Equal(t, 1, w.host.Times("a"))

	w.site.Specs["base"].Access.Via = model.ViaSSH
	want, _ = w.site.Want("father")
	_, err = d.Observe(t.Context(), want)
	require.NoError(t, err)
	m := d.Machine(converge.Address("a"), model.Guest{VMID: 100}, nil)
	require.ErrorContains(t, m.Ping(t.Context()), "there is no key to log in with")
	require.Same(t, m, d.Machine(converge.Address("a"), model.Guest{VMID: 100}, nil), "one connection for a guest")
	require.NotSame(t, m, d.Machine(converge.Address("a"), model.Guest{VMID: 101}, nil))
	d.Release()
	require.NotSame(t, m, d.Machine(converge.Address("a"), model.Guest{VMID: 100}, nil))
}

// What is wanted inside of a guest beside its spec uses the same connection, also while the last spec is withdrawn, which let
// sshd listen elsewhere.
func TestOneConnectionForAllThatIsInside(t *testing.T) {
	w := newWorld("a")
	cfg := Config{Inside: w.fleet, PrivateKeys: []string{"key"}, Children: func() Children { return nil }}
	site := func(spec string) *model.Site {
		s := enginetest.InsideSite(map[string]int{"a": 1})
		s.Kinds = append(enginetest.Kinds(), cfg.Kinds()...)
		s.Postures = map[string]*model.Posture{"tight": {Name: "tight", SSH: &model.SSHD{Port: 2222}}}
		s.Specs["base"].Access = &model.Access{Via: model.ViaSSH, Posture: "tight"}
		n := s.Manifests["web"].Nodes[0]
		n.Spec, n.Type = spec, model.PVEType
		return s
	}
	was, now := site("base"), site("")
	want, _ := now.Want("father")
	own := *want
	require.Empty(t, now.Withdraw(&own, func(model.Address) (*model.Site, error) { return was, nil }))
	require.Len(t, own.State, 4, "%v", own.State.Addresses())
	d := cfg.Over(w.host, now, now.Hosts["father"])
	_, err := d.Observe(t.Context(), &own)
	require.NoError(t, err)
	at := model.Guest{VMID: 100}
	require.Same(t, d.Machine(converge.Address("a"), at, nil), d.Machine(model.Address{Kind: kindName, Name: "a"}, at, nil))
}

// A guest that nothing proves to be ours is not entered: it would get the secrets of the spec.
func TestS1AGuestWithoutProofIsNotEntered(t *testing.T) {
	w := newWorld("a", "b")
	require.Equal(t, engine.Done, w.run(t).Outcome)
	w.holds["a"], w.holds["b"] = nil, nil
	w.host.Holds[enginetest.Addr("box", "a")].Guest.Unproven = model.Unproven{Why: "its ownership tag has no valid signature", Fix: "remove the tag"}
	r := w.run(t)
	require.Equal(t, []string{"update guest.b"}, actions(r.Plan))
	require.Nil(t, w.holds["a"], "nothing was put into it")
	require.Len(t, r.Have.Unknown, 1)
	require.Equal(t, "its ownership tag has no valid signature", r.Have.Unknown[0].Why)
}

// A guest that is not adopted yet is not entered, not even to look: its adoption may be refused.
func TestAnAdoptableGuestIsNotEntered(t *testing.T) {
	w := newWorld("a", "b")
	require.Equal(t, engine.Done, w.run(t).Outcome)
	w.host.Holds[enginetest.Addr("box", "a")].Guest.Adoptable = true
	w.broken["a"] = errors.New("it was entered")
	r := w.run(t)
	require.Empty(t, r.Have.Unknown)
	require.Nil(t, r.Have.State[converge.Address("a")])
	require.NotNil(t, r.Have.State[converge.Address("b")])
	require.Equal(t, []string{"guest.a"}, deferred(r.Plan))
}

func deferred(p *plan.Plan) []string {
	var out []string
	for _, d := range p.Deferred {
		out = append(out, d.Address)
	}
	return out
}

// The key for guests is made on the machine, and stays when the agent loses its data folder.
func TestTheKeyForGuests(t *testing.T) {
	m, w := begin(t), want(t)
	require.NoError(t, m.install(w, programOf("1"), "good"))
	require.Equal(t, "600 homestak-gitops\n644 root\n", m.sh("stat -c '%a %U' /etc/homestak-gitops/ssh_key /etc/homestak-gitops/ssh_key.pub"))
	key := m.sh("cat /etc/homestak-gitops/ssh_key")
	require.Regexp(t, `^ssh-ed25519 \S+ homestak-gitops agent of inner\n$`, m.sh("cat /etc/homestak-gitops/ssh_key.pub"))
	line := strings.Split(key, "\n")[2]
	require.NotEmpty(t, line)
	m.sh("rm -rf /var/lib/homestak-gitops; rm /etc/homestak-gitops/parent.token")
	require.NoError(t, m.install(w, programOf("1"), "good"))
	require.Equal(t, key, m.sh("cat /etc/homestak-gitops/ssh_key"))
	m.sh("rm /etc/homestak-gitops/ssh_key.pub")
	require.NoError(t, m.install(w, programOf("1"), "good"))
	require.Equal(t, key, m.sh("cat /etc/homestak-gitops/ssh_key"), "its public half is made from it")
	require.NotContains(t, m.seen.String(), line, "the parent never sees it")
}

// A child that was installed by an earlier version has its key in the data folder: it goes on with that.
func TestTheKeyOfAnEarlierVersion(t *testing.T) {
	m, w := begin(t), want(t)
	require.NoError(t, m.install(w, programOf("1"), "good"))
	m.sh("mkdir -p /var/lib/homestak-gitops; mv /etc/homestak-gitops/ssh_key /etc/homestak-gitops/ssh_key.pub /var/lib/homestak-gitops; chown -R homestak-gitops /var/lib/homestak-gitops")
	const both = "cat /etc/homestak-gitops/ssh_key /etc/homestak-gitops/ssh_key.pub"
	before := m.sh(strings.ReplaceAll(both, "/etc/", "/var/lib/"))
	require.Equal(t, []string{"ssh_key: missing"}, m.changes(w))
	next := w
	next.Program.Sum, next.Program.Version = sumOf(programOf("2")), "2"
	require.NoError(t, m.install(next, programOf("2"), "good"))
	require.Empty(t, m.changes(next))
	require.Equal(t, before, m.sh(both))
	require.Empty(t, m.sh("ls -A /var/lib/homestak-gitops"), "once the new version has reported, that is the only one")

	// The agent may put a link there, which leads to what only root may read.
	m.sh("rm /etc/homestak-gitops/ssh_key*; echo canary-of-root >/root/secret; chmod 600 /root/secret; ln -s /root/secret /var/lib/homestak-gitops/ssh_key; chown -h homestak-gitops /var/lib/homestak-gitops/ssh_key")
	require.NoError(t, m.install(next, programOf("2"), "good"))
	require.NotContains(t, m.sh(both), "canary-of-root")
	require.Empty(t, m.changes(next))
	require.Equal(t, "canary-of-root\n", m.sh("cat /root/secret"))
}

// If the parent is cut off while it has stopped the agent of a child, the agent starts without it.
func TestAStoppedAgentIsStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, w := begin(t), want(t)
		defer m.Halt()
		require.NoError(t, m.install(w, programOf("1"), "good"))
		pid := m.sh("systemctl show -p MainPID --value homestak-gitops")
		require.Equal(t, "inactive\n", m.sh("systemctl is-active homestak-gitops-resume.timer || :"), "it was called off")
		m.sh("rm /etc/homestak-gitops/parent.token")
		m.instead = func(c guest.Command) guest.Command {
			script := string(c.Stdin)
			if before, _, ok := strings.Cut(script, "systemctl stop homestak-gitops.service || :\n"); ok {
				c.Stdin = []byte(before + "systemctl stop homestak-gitops.service\nexit 99\n" + script[len(before):])
			}
			return c
		}
		require.Error(t, m.install(w, programOf("1"), "good"))
		require.Equal(t, "inactive\n", m.sh("systemctl is-active homestak-gitops || :"))
		<-time.After(3 * time.Minute)
		synctest.Wait()
		m.sh("systemctl is-active homestak-gitops")

		// It reads what was changed in the meantime, when the step goes on.
		m.instead = nil
		require.NoError(t, m.install(w, programOf("1"), "good"))
		require.NotEqual(t, pid, m.sh("systemctl show -p MainPID --value homestak-gitops"))
		require.Empty(t, m.changes(w))
		require.Equal(t, "inactive\n", m.sh("systemctl is-active homestak-gitops-resume.timer || :"))
	})
}
