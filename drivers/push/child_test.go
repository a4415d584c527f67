package push_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/model"
)

// The agent of a child is wanted in each node of type pve that can be entered by SSH, with and without a spec.
func TestWhereAnAgentIsWanted(t *testing.T) {
	served := push.Config{PrivateKeys: []string{"key"}, Children: func() push.Children { return nil }}
	machine := &enginetest.Box{}
	of := func(c push.Config, kind, typ string, access *model.Access, withSpec bool) *model.Resource {
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
		require.Equal(t, push.WantedAgent("inner"), r.Spec)
		require.True(t, r.Reports)
		require.Equal(t, []model.Address{converge.Address("inner")}, r.Needs)
	}
	require.Nil(t, of(served, "vm", "vm", nil, true), "another type of node")

	without := func(change func(*push.Config)) push.Config {
		c := served
		change(&c)
		return c
	}
	for want, r := range map[string]*model.Resource{
		"only the agent of father installs it":                        of(without(func(c *push.Config) { c.Children = nil }), "box", model.PVEType, nil, true),
		"with --sim nothing does":                                     of(without(func(c *push.Config) { c.Children, c.Unserved = nil, "with --sim nothing does" }), "box", model.PVEType, nil, true),
		"there is no SSH key to log in with":                          of(without(func(c *push.Config) { c.PrivateKeys = nil }), "box", model.PVEType, nil, true),
		`spec base says via = "exec"`:                                 of(served, "box", model.PVEType, &model.Access{Via: model.ViaExec}, true),
		"the guest's address is unknown: set agent":                   of(served, model.PVEType, model.PVEType, nil, true),
		"no system is simulated in a guest that is made from another": of(without(func(c *push.Config) { c.Runs = func(string) bool { return false } }), "box", model.PVEType, nil, true),
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
		_, found := push.Config{}.AgentKind().Inside(of, model.Scope{Site: s, Host: &model.Host{Name: "father"}, Node: n, Name: n.Name})
		if c.want == "" {
			require.Empty(t, found)
			continue
		}
		require.Len(t, found, 1)
		require.Equal(t, c.want, found[0].At.String()+": "+string(found[0].Severity)+": "+found[0].Summary)
	}
}
