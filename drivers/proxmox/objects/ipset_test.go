package objects_test

import (
	"net/url"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

var admins = model.Address{Kind: "ipset", Name: "admins"}

// members are the entries of the set as PVE has them, those that are excepted with ! before.
func members(t *testing.T, w *proxmoxtest.World) []string {
	t.Helper()
	var list []struct {
		CIDR    string `json:"cidr"`
		NoMatch int    `json:"nomatch"`
	}
	require.NoError(t, w.Driver.Client().Get(t.Context(), "/cluster/firewall/ipset/admins", &list))
	out := []string{}
	for _, e := range list {
		if e.NoMatch == 1 {
			e.CIDR = "!" + e.CIDR
		}
		out = append(out, e.CIDR)
	}
	slices.Sort(out)
	return out
}

func TestIPSetLife(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		w.Root("POST", "/cluster/firewall/aliases", url.Values{"name": {"office"}, "cidr": {"192.0.2.128/25"}})
		spec := &objects.IPSet{Host: "father", Entries: []string{"192.0.2.7/24", "! 192.0.2.9", "2001:DB8::1/128", "192.0.2.7/24", "dc/office"}}
		w.Site.Objects[admins] = &model.Resource{Addr: admins, Spec: spec}
		w.Apply()
		require.Equal(t, []string{"!192.0.2.9", "192.0.2.0/24", "2001:db8::1", "dc/office"}, members(t, w))
		w.Converged()

		spec.Entries = []string{"192.0.2.0/24", "192.0.2.9", "!198.51.100.1"} // one is excepted no more, two leave, one is new
		p := w.Apply()
		require.Len(t, p.Steps, 1)
		require.Equal(t, []string{"entries"}, proxmoxtest.Paths(p.Steps[0]))
		require.Equal(t, []string{"!198.51.100.1", "192.0.2.0/24", "192.0.2.9"}, members(t, w))
		w.Converged()

		w.Root("POST", "/cluster/firewall/ipset/admins", url.Values{"cidr": {"203.0.113.0/24"}})
		w.Root("DELETE", "/cluster/firewall/ipset/admins/192.0.2.9", nil)
		w.Apply() // by hand: drift
		require.Equal(t, []string{"!198.51.100.1", "192.0.2.0/24", "192.0.2.9"}, members(t, w))
		w.Converged()

		delete(w.Site.Objects, admins)
		require.Len(t, w.Apply().Steps, 1)
		var sets []any
		require.NoError(t, w.Driver.Client().Get(t.Context(), "/cluster/firewall/ipset", &sets))
		require.Empty(t, sets)
		w.Converged()
	})
}

// TestUnmanagedIPSetIsNotChanged: neither one of the same name that never was ours, nor one
// whose ownership tag goes between plan and apply.
func TestUnmanagedIPSetIsNotChanged(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		w.Root("POST", "/cluster/firewall/ipset", url.Values{"name": {"admins"}, "comment": {"by hand"}})
		spec := &objects.IPSet{Host: "father", Entries: []string{"192.0.2.7"}}
		w.Site.Objects[admins] = &model.Resource{Addr: admins, Spec: spec}
		p := w.Plan()
		require.Empty(t, p.Steps)
		require.True(t, p.Findings.HasErrors())
		require.Contains(t, p.Findings[0].Detail, ipsetLine)
		require.Empty(t, members(t, w))

		w.Root("DELETE", "/cluster/firewall/ipset/admins", nil)
		w.Apply()
		w.Converged()
		for _, edit := range []func(){func() { spec.Entries = nil }, func() { delete(w.Site.Objects, admins) }} {
			edit()
			p = w.Plan()
			require.Len(t, p.Steps, 1)
			w.Root("POST", "/cluster/firewall/ipset", url.Values{"name": {"admins"}, "rename": {"admins"}, "comment": {"taken over"}})
			require.ErrorContains(t, w.Run(p)[admins], "not managed any more")
			require.Equal(t, []string{"192.0.2.7"}, members(t, w))
			w.Root("POST", "/cluster/firewall/ipset", url.Values{"name": {"admins"}, "rename": {"admins"}, "comment": {ipsetLine}})
		}
	})
}

// ipsetLine is the tag of the set admins.
const ipsetLine = `homestak-gitops: {"v":1,"site":"home","type":"ipset","node":"admins","owner":"father"}`

func ipset(entries ...string) *model.Resource {
	return &model.Resource{Addr: admins, Spec: &objects.IPSet{Entries: entries}}
}

// TestBadIPSets are reported at their line, before anything is done.
func TestBadIPSets(t *testing.T) {
	for entry, detail := range map[string]string{
		"0.0.0.0/0":      "PVE accepts no network of all addresses",
		"192.0.2.7/33":   "write an address",
		"192.0.2":        "write an address",
		"fe80::1%eth0":   "write an address",
		"guest/internal": "write an address",
		"":               "write an address",
	} {
		problems := objects.IPSetKind.Model.Resolve(ipset("192.0.2.1", entry), model.Scope{Name: "admins"})
		require.Len(t, problems, 1, entry)
		require.Equal(t, "entries", problems[0].Path)
		require.Contains(t, problems[0].Detail, detail, entry)
	}
	for _, name := range []string{"a", "Admins", "1st", "a.b"} {
		require.Len(t, objects.IPSetKind.Model.Resolve(ipset(), model.Scope{Name: name}), 1, name)
	}
	both := ipset("192.0.2.1", "!192.0.2.1")
	require.Len(t, objects.IPSetKind.Model.Resolve(both, model.Scope{Name: "admins"}), 1, "PVE holds an address once")
}
