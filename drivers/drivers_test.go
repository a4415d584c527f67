package drivers_test

import (
	"net/http"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A transport stands for the network, and its token for that of the host.
func TestAccess(t *testing.T) {
	site, host := &model.Site{Name: "home"}, &model.Host{Name: "father", API: "https://192.0.2.10:8006"}
	_, err := drivers.Access{}.Open(engine.Desired{Site: site}, host)
	require.ErrorContains(t, err, "no API token for host father")

	a := drivers.Access{Owner: "cli:me@here", Files: fstest.MapFS{}, Transport: func(s *model.Site, h *model.Host) (http.RoundTripper, string) {
		require.Same(t, site, s)
		return http.DefaultTransport, "root@pam!sim=" + h.Name
	}}
	d, err := a.Open(engine.Desired{Site: site}, host)
	require.NoError(t, err)
	require.NotNil(t, d)
	cfg := a.Proxmox(site, host)
	require.Equal(t, "cli:me@here", cfg.Owner)
	require.Equal(t, "root@pam!sim=father", cfg.Token)
	require.Equal(t, "father", drivers.Access{}.Proxmox(site, host).Owner)
	require.NotEmpty(t, drivers.Kinds())

	require.Nil(t, drivers.Kinds().Get("guest"), "no block declares it")
	require.Nil(t, a.Kinds().Get("guest"), "a simulated machine has no guests to enter")
	require.NotNil(t, drivers.Access{}.Kinds().Get("guest").Inside)
}

// The driver gets the keys of an owner from the secrets of the site, and learns where the site has a key whose value is not
// known. The simulations of this process have one of their own where that would be none.
func TestS1KeysForTheDriver(t *testing.T) {
	host := &model.Host{Name: "father", API: "https://192.0.2.10:8006"}
	way := func(*model.Site, *model.Host) (http.RoundTripper, string) { return http.DefaultTransport, "token" }
	of := func(auth map[string]string) *model.Site {
		return &model.Site{Name: "home", Secrets: &model.Secrets{Values: map[string]map[string]string{"auth": auth}}}
	}
	known := of(map[string]string{model.OwnershipKey: model.NewOwnershipKey()})
	for name, c := range map[string]struct {
		site            *model.Site
		keys, simulated int
		missing         bool
	}{
		"no secrets":   {&model.Site{Name: "home"}, 0, 1, false},
		"no key":       {of(nil), 0, 1, false},
		"known":        {known, 1, 1, false},
		"rotated":      {of(map[string]string{model.OwnershipKey: model.NewOwnershipKey(), model.PreviousOwnershipKey: model.NewOwnershipKey()}), 2, 2, false},
		"not known":    {of(map[string]string{model.OwnershipKey: ""}), 0, 1, true},
		"of the owner": {of(known.Secrets.DerivedOwnershipKeys("home", "father")), 1, 1, false},
		"of another":   {of(known.Secrets.DerivedOwnershipKeys("home", "mother")), 0, 1, true},
	} {
		cfg := drivers.Access{}.Proxmox(c.site, host)
		require.Len(t, cfg.Keys("father"), c.keys, name)
		require.Equal(t, c.missing, cfg.KeyMissing, name)
		cfg = drivers.Access{Transport: way}.Proxmox(c.site, host)
		require.Len(t, cfg.Keys("father"), c.simulated, name)
		require.False(t, cfg.KeyMissing, name)
	}
	below := of(map[string]string{model.OwnershipKey: ""})
	below.Secrets.Above = true
	cfg := drivers.Access{Transport: way}.Proxmox(below, host)
	require.True(t, cfg.KeyMissing, "the simulation has no key in place of one that its parent has")
	require.Empty(t, cfg.Keys("father"))
	cfg = drivers.Access{Owner: "cli:me@here"}.Proxmox(known, host)
	require.Equal(t, known.Secrets.OwnershipKeys("home", "cli:me@here"), cfg.Keys("cli:me@here"))
	require.NotEqual(t, cfg.Keys("cli:me@here"), cfg.Keys("father"))
	simulated := drivers.Access{Transport: way}
	first := simulated.Proxmox(of(nil), host).Keys("father")
	require.Equal(t, first, simulated.Proxmox(of(nil), host).Keys("father"), "the same in all passes of a process")
}

// An observation asks for the keys with every guest, so they are derived once for each owner.
func TestOwnershipKeysAreDerivedOnce(t *testing.T) {
	host := &model.Host{Name: "father", API: "https://192.0.2.10:8006"}
	site := &model.Site{Name: "home", Secrets: &model.Secrets{Values: map[string]map[string]string{"auth": {model.OwnershipKey: model.NewOwnershipKey()}}}}
	keys := drivers.Access{}.Proxmox(site, host).Keys
	require.Equal(t, site.Secrets.OwnershipKeys("home", "father"), keys("father"))
	require.Equal(t, site.Secrets.OwnershipKeys("home", "mother"), keys("mother"))
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = keys("father") }))
}

// A host with a spec may have no token yet: its spec makes it a host.
func TestAHostWithASpecOpensWithoutAToken(t *testing.T) {
	site, host := &model.Site{Name: "home"}, &model.Host{Name: "father", API: "https://192.0.2.10:8006", Spec: "pve"}
	d, err := drivers.Access{}.Open(engine.Desired{Site: site}, host)
	require.NoError(t, err)
	_, err = d.Observe(t.Context(), &model.Want{Host: host})
	require.ErrorContains(t, err, "no API token for host father")
}
