package push

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/debian"
	simulated "github.com/homestak/homestak-gitops/sim/machine"
)

// thisMachine says who runs the program, and on which machine.
type thisMachine struct {
	guest.Machine
	says string
}

func (m thisMachine) Run(context.Context, guest.Command) (guest.Output, error) {
	return guest.Output{Out: m.says}, nil
}

// hostWorld is a site whose host has the spec base, seen from a machine.
func hostWorld(says string, names ...string) (*world, func() *engine.Pass) {
	w := newWorld(names...)
	w.site.Hosts["father"].Spec = "base"
	return w, func() *engine.Pass {
		p, cfg := w.pass(), Config{Inside: w.fleet, HostKeys: w.keys, Locally: thisMachine{says: says}}
		p.Open = func(d engine.Desired, h *model.Host) (engine.Driver, error) { return cfg.Over(w.host, d.Site, h), nil }
		return p
	}
}

func TestAHostWithASpec(t *testing.T) {
	w, pass := hostWorld("0\nfather.home.example\n", "a")
	r := pass().Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome, "%v %v", r.Err, r.Findings)
	require.Equal(t, map[string][]string{"a": {"nginx"}, "father": {"nginx"}}, w.holds)
	require.Equal(t, "a:completed", enginetest.Statuses(r), "the host is no node of a manifest")
	require.Empty(t, pass().Run(t.Context()).Plan.Steps)

	w.holds["father"] = nil // drift
	r = pass().Run(t.Context())
	require.Equal(t, []string{"update guest.father"}, actions(r.Plan))
	require.Equal(t, []string{"nginx"}, w.holds["father"])

	w.site.Specs["base"].Config = &model.Config{Drift: "report"}
	w.holds["father"] = nil
	r = pass().Run(t.Context())
	require.Empty(t, r.Plan.Steps)
	require.Nil(t, w.holds["father"])
}

// Without a way into the host the plan says so, and all other steps are done.
func TestAHostThatCannotBeEntered(t *testing.T) {
	for says, why := range map[string]string{
		"0\nlaptop\n":   "this machine is laptop, not father, and host father has no ssh block with a key: apply as root on the machine itself, or add ssh",
		"998\nfather\n": "the program does not run as root, and host father has no ssh block with a key: apply as root on the machine itself, or add ssh",
	} {
		w, pass := hostWorld(says, "a")
		r := pass().Run(t.Context())
		require.Equal(t, map[string][]string{"a": {"nginx"}}, w.holds)
		require.Equal(t, "host.father", r.Plan.Unknown[1].Scope)
		require.Equal(t, why, r.Plan.Unknown[1].Why)
		require.Equal(t, []model.Address{{Kind: "guest", Name: "father"}}, r.Plan.Unknown[1].Withheld)
		require.NotEqual(t, engine.Done, r.Outcome)
	}
}

// A machine that is not a host yet has no API. Its spec makes it one, and nothing else is done before.
func TestAMachineThatIsToBecomeAHost(t *testing.T) {
	w, pass := hostWorld("0\nfather\n", "a")
	w.host.ObserveErr = errors.New("connection refused")
	r := pass().Run(t.Context())
	require.Equal(t, []string{"create guest.father"}, firstActions(r.Plan))
	require.Equal(t, map[string][]string{"father": {"nginx"}}, w.holds)
	require.NotEqual(t, engine.Done, r.Outcome)

	r = pass().Run(t.Context())
	require.ErrorContains(t, r.Err, "connection refused", "the spec does not help any more")
	w.host.ObserveErr = nil
	r = pass().Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	require.Equal(t, []string{"nginx"}, w.holds["a"])
}

// firstActions are those of a plan; a step about the inside of an existing guest is an update.
func firstActions(p *plan.Plan) []string {
	out := actions(p)
	for i, a := range out {
		if a == "update guest.father" {
			out[i] = "create guest.father"
		}
	}
	return out
}

func TestAHostThatLosesItsSpec(t *testing.T) {
	w, pass := hostWorld("0\nfather\n", "a")
	require.Equal(t, engine.Done, pass().Run(t.Context()).Outcome)
	before := *w.site
	before.Hosts = map[string]*model.Host{"father": {Name: "father", Spec: "base"}}
	w.site.Hosts["father"].Spec = ""
	p := pass()
	p.History = enginetest.History{Site: &before}
	r := p.Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	require.Equal(t, []string{"update guest.father"}, actions(r.Plan))
	require.Empty(t, w.holds["father"])
	require.Equal(t, []string{"nginx"}, w.holds["a"])

	p = pass()
	p.History = enginetest.History{Err: errors.New("it is not here any more")}
	r = p.Run(t.Context())
	require.Empty(t, r.Plan.Steps)
	require.Equal(t, "host.father has no spec any more, and what its last spec configured stays", r.Findings[0].Summary)
}

// A host that left the site is given back without what its spec configured, whether the site still has the spec or not.
func TestAHostWithASpecLeaves(t *testing.T) {
	for _, has := range []bool{true, false} {
		w, pass := hostWorld("0\nfather\n", "a")
		require.Equal(t, engine.Done, pass().Run(t.Context()).Outcome)
		before := *w.site
		now := before
		now.Hosts, now.Manifests = map[string]*model.Host{}, map[string]*model.Manifest{}
		if !has {
			now.Specs = nil
		}
		*w.site = *now.Leave(before.Hosts["father"])
		p := pass()
		p.History = enginetest.History{Site: &before}
		r := p.Run(t.Context())
		require.Empty(t, r.Plan.Unknown)
		require.Contains(t, actions(r.Plan), "update guest.father")
		require.Empty(t, w.holds["father"])
	}
}

func TestASimulatedHostIsLeftAlone(t *testing.T) {
	w, pass := hostWorld("0\nfather\n", "a")
	p := pass()
	p.Open = func(d engine.Desired, h *model.Host) (engine.Driver, error) {
		return Config{Inside: w.fleet, HostKeys: w.keys, Direct: true}.Over(w.host, d.Site, h), nil
	}
	w.site.Kinds = append(enginetest.Kinds(), Config{Direct: true}.Kind())
	r := p.Run(t.Context())
	require.Equal(t, []model.Deferred{{Address: "host.father", Why: "not applied, since the host is simulated"}}, r.Plan.Deferred)
	require.NotContains(t, w.holds, "father")
}

// unhelpful is a helper that is not enabled.
type unhelpful struct{ hostHelper }

func (unhelpful) Ready() error { return errors.New("the helper is not enabled") }

func TestAnAgentWithoutItsHelper(t *testing.T) {
	w, pass := hostWorld("998\nfather\n", "a")
	w.site.Hosts["father"].SSH = &model.HostSSH{User: "root"} // as the loader makes it, without a key
	p := pass()
	p.Open = func(d engine.Desired, h *model.Host) (engine.Driver, error) {
		return Config{Inside: w.fleet, HostKeys: w.keys, Helper: unhelpful{}}.Over(w.host, d.Site, h), nil
	}
	r := p.Run(t.Context())
	require.Equal(t, "the helper is not enabled", r.Plan.Unknown[1].Why)
	require.Equal(t, map[string][]string{"a": {"nginx"}}, w.holds)
}

// A host that is not this machine is entered by SSH, before and after the spec moves its sshd to another port. A spec that
// takes the way in is taken back.
func TestAHostOverSSH(t *testing.T) { synctest.Test(t, hostOverSSH) }

func hostOverSSH(t *testing.T) {
	t.Helper()
	private, public, err := ssh.NewKey("push")
	require.NoError(t, err)
	m := debian.NewDisk(debian.Options{}).Begin(debian.Birth{Instance: "1", Hostname: "father", User: "root", Keys: []string{public}})
	defer m.Halt()
	file := func(name string) string {
		text, err := m.K.FS.ReadFile(name)
		require.NoError(t, err)
		return text
	}
	machineConfig := &model.Config{Files: []model.File{{Path: "/etc/motd", Content: "welcome\n"}}}
	site := &model.Site{
		Name: "home", Kinds: append(enginetest.Kinds(), Config{}.Kind()),
		Hosts:    map[string]*model.Host{"father": {Name: "father", API: "https://192.0.2.10:8006", Spec: "pve", SSH: &model.HostSSH{Key: private, Port: 22}}},
		Postures: map[string]*model.Posture{"prod": {Name: "prod", SSH: &model.SSHD{Port: 2222}}},
		Specs:    map[string]*model.Spec{"pve": {Name: "pve", Config: machineConfig, Access: &model.Access{Posture: "prod"}}},
	}
	keys := &KnownHosts{}
	inn := enginetest.NewInn()
	pass := func() engine.Report {
		p := inn.Pass(site)
		cfg := Config{HostKeys: keys, Locally: thisMachine{says: "0\nlaptop\n"}, Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
			to, err := netip.ParseAddrPort(address)
			require.NoError(t, err)
			if !slices.Contains(m.SSHD().Ports, int(to.Port())) {
				return nil, syscall.ECONNREFUSED
			}
			near, far := simulated.Pipe(netip.MustParseAddrPort("192.0.2.1:50000"), to)
			go debian.Server{Machine: m}.Serve(context.WithoutCancel(ctx), far)
			return near, nil
		}}
		p.Open = func(d engine.Desired, h *model.Host) (engine.Driver, error) { return cfg.Over(inn, d.Site, h), nil }
		return p.Run(t.Context())
	}
	r := pass()
	require.Equal(t, engine.Done, r.Outcome, "%v %v %v", r.Err, r.Findings, r.Plan.Unknown)
	require.Equal(t, "welcome\n", file("/etc/motd"))
	require.Equal(t, []int{2222}, m.SSHD().Ports)
	known, err := keys.Of("192.0.2.10")
	require.NoError(t, err)
	require.Len(t, known.Keys, 1)
	r = pass()
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Plan.Unknown)
	require.Empty(t, r.Plan.Steps)

	site.Specs["pve"].Access.Users = []model.User{{Name: "root", SSHKeys: &[]string{}}}
	site.Postures["prod"].SSH.PermitRootLogin = "no"
	r = pass()
	require.NotEqual(t, engine.Done, r.Outcome)
	require.Contains(t, r.Results[0].Err.Error(), "so the old state is restored")
	site.Specs["pve"].Access.Users, site.Postures["prod"].SSH.PermitRootLogin = nil, ""
	r = pass()
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Plan.Unknown)
}
