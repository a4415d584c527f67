package engine_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
)

// card is a network card of a roomy box.
type card struct {
	Name string `hcl:"name,label"`
	IP   string `hcl:"ip,optional"`
}

// roomy is a box with network cards.
type roomy struct {
	Size  int    `hcl:"size"`
	Power string `hcl:"power,optional"`
	Nics  []card `hcl:"nic,block"`
}

// probed is a site of one roomy box with a check over the network and one inside.
func probed(edit func(*roomy)) *model.Site {
	s := enginetest.Site(map[string]int{"a": 1})
	box := &roomy{Size: 1, Power: "running", Nics: []card{{Name: "lan", IP: "192.0.2.7"}}}
	edit(box)
	s.Kinds[0].New = func() any { return &roomy{} }
	s.Kinds[0].Claims = func(spec any) (out []model.Claim) {
		for _, c := range spec.(*roomy).Nics {
			if c.IP != "" {
				out = append(out, model.Claim{What: "address", Value: c.IP})
			}
		}
		return out
	}
	n := s.Manifests["web"].Nodes[0]
	n.Checks = []model.Check{{Name: "web", TCP: "80", Every: "off"}, {Name: "up", Agent: true}}
	n.Resource.Spec = box
	return s
}

// left is what a pass over it leaves, after the guest was as changed by others.
func left(t *testing.T, i *enginetest.Inn, s *model.Site, changed func(*model.Guest)) engine.Probe {
	t.Helper()
	if r := i.Holds[enginetest.Addr("box", "a")]; r != nil {
		changed(r.Guest)
		i.Asked = map[string]int{}
	}
	r := i.Pass(s).Run(t.Context())
	require.Len(t, r.Probes, 1, "%v", r.Err)
	return r.Probes[0]
}

func TestWhyChecksCannotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		same := func(*model.Guest) {}
		refuse := health.Prober{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }}
		for name, c := range map[string]struct {
			edit    func(*roomy)
			changed func(*model.Guest)
			unknown []model.Unknown
			want    string
		}{
			"runs":      {func(*roomy) {}, same, nil, ""},
			"stopped":   {func(b *roomy) { b.Power = "stopped" }, same, nil, "it is switched off"},
			"off":       {func(b *roomy) { b.Power = "" }, func(g *model.Guest) { g.Running = false }, nil, "it is switched off"},
			"foreign":   {func(*roomy) {}, func(g *model.Guest) { g.Adoptable = true }, nil, "it is not adopted yet"},
			"dark node": {func(*roomy) {}, func(g *model.Guest) { g.Node = "pve2" }, []model.Unknown{{Scope: "node pve2", Why: "offline", Node: "pve2"}}, "its node pve2 is not seen"},
		} {
			i, s := enginetest.NewInn(), probed(c.edit)
			p := i.Pass(s)
			p.Health = refuse
			p.Health.Simulated = func(netip.Addr) error { return nil }
			made := p.Run(t.Context())
			require.Equal(t, engine.Done, made.Outcome, "%s: %v", name, made.Err)
			require.True(t, made.Probes[0].New)
			i.Unknown = c.unknown
			got := left(t, i, s, c.changed)
			require.Equal(t, c.want, got.Idle, name)
			require.False(t, got.New)
			if c.want != "" {
				rows := engine.RunChecks(t.Context(), refuse, []engine.Probe{got}, 2)
				require.Equal(t, []engine.CheckRun{got.Skipped("up", c.want), got.Skipped("web", c.want)}, rows)
			}
		}
	})
}

// The host is asked for an address only where the files do not say it, and again only after a failure.
func TestWhereAGuestIsReachedBetweenPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			nics  []card
			at    string
			asked int // by two runs that fail
		}{
			"declared":   {[]card{{Name: "lan", IP: "192.0.2.7"}}, "192.0.2.7:80", 0},
			"lease":      {[]card{{Name: "lan"}}, "192.0.2.99:80", 2},
			"several":    {[]card{{Name: "lan"}, {Name: "san", IP: "192.0.2.8"}}, "192.0.2.99:80", 1}, // the host says that it is declared
			"both cards": {[]card{{Name: "lan", IP: "192.0.2.7"}, {Name: "san", IP: "192.0.2.8"}}, "192.0.2.99:80", 1},
		} {
			i, s := enginetest.NewInn(), probed(func(b *roomy) { b.Nics = c.nics })
			i.Lease = name == "lease"
			p := i.Pass(s)
			p.Health.Simulated = func(netip.Addr) error { return nil }
			require.Equal(t, engine.Done, p.Run(t.Context()).Outcome)

			first := left(t, i, s, func(*model.Guest) {})
			var dialled []string
			by := health.Prober{Dial: func(_ context.Context, _, address string) (net.Conn, error) {
				dialled = append(dialled, address)
				return nil, errors.New("refused")
			}}
			for range 2 {
				r := first.Check(t.Context(), by, first.Checks[0])
				require.Equal(t, health.Result{Name: "web", Detail: c.at + ": refused", Tries: 1}, r, name)
			}
			require.Equal(t, []string{c.at, c.at}, dialled, name)
			require.Equal(t, c.asked, i.Times("address of a"), name)

			second := left(t, i, s, func(*model.Guest) {})
			second.Keep(&first)
			second.Check(t.Context(), by, second.Checks[0])
			require.Equal(t, map[string]int{"declared": 0, "lease": 1, "several": 0, "both cards": 0}[name], i.Times("address of a"), "what was learned is kept: %s", name)
			third := left(t, i, s, func(g *model.Guest) { g.VMID = 101 })
			third.Keep(&second)
			third.Check(t.Context(), by, third.Checks[0])
			require.Equal(t, map[string]int{"declared": 0, "lease": 1, "several": 1, "both cards": 1}[name], i.Times("address of a"), "of another guest it is not: %s", name)
		}
	})
}

func TestRunChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		require.Equal(t, engine.Done, i.Pass(enginetest.CheckedSite("stop")).Run(t.Context()).Outcome)
		i.Set("db", true)
		r := i.Pass(enginetest.CheckedSite("stop")).Run(t.Context())
		require.Len(t, r.Probes, 3)
		v := engine.Verified{Checks: engine.RunChecks(t.Context(), health.Prober{}, r.Probes, 1)}
		require.Equal(t, 1, v.Failed())
		require.Equal(t, engine.CheckRun{Address: "box.db", Node: "db", Check: "up", Status: engine.RunFailed, Detail: "db does not answer"}, v.Checks[0])
		require.Equal(t, engine.RunPassed, v.Checks[2].Status)
		one := engine.Matches([]string{"box.web"}, "web")
		require.Equal(t, []bool{false, false, true}, []bool{one(&r.Probes[0]), one(&r.Probes[1]), one(&r.Probes[2])})
		require.False(t, engine.Matches(nil, "other")(&r.Probes[0]))
	})
}
