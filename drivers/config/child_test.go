package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/config"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/guest/child"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/model"
)

// The agent of a child is wanted in each node of type pve that can be entered by SSH, with and without a spec.
func TestWhereAnAgentIsWanted(t *testing.T) {
	served := config.Config{PrivateKeys: []string{"key"}, Children: func() config.Children { return nil }}
	machine := &enginetest.Box{}
	of := func(c config.Config, kind, typ string, access *model.Access, withSpec bool) *model.Resource {
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
		require.Equal(t, child.Wanted("inner"), r.Spec)
		require.True(t, r.Reports)
		require.Equal(t, []model.Address{converge.Address("inner")}, r.Needs)
	}
	require.Nil(t, of(served, "vm", "vm", nil, true), "another type of node")

	without := func(change func(*config.Config)) config.Config {
		c := served
		change(&c)
		return c
	}
	for want, r := range map[string]*model.Resource{
		"nothing here serves children: the agent of father does":      of(without(func(c *config.Config) { c.Children = nil }), "box", model.PVEType, nil, true),
		"there is no SSH key to log in with":                          of(without(func(c *config.Config) { c.PrivateKeys = nil }), "box", model.PVEType, nil, true),
		`spec base says via = "exec"`:                                 of(served, "box", model.PVEType, &model.Access{Via: model.ViaExec}, true),
		"nothing says at which address the guest is: set agent":       of(served, model.PVEType, model.PVEType, nil, true),
		"no system is simulated in a guest that is made from another": of(without(func(c *config.Config) { c.Runs = func(string) bool { return false } }), "box", model.PVEType, nil, true),
	} {
		require.Contains(t, r.Deferred, "not installed, since "+want)
	}
}
