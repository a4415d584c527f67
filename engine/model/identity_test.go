package model_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/model"
)

// In a random site of several hosts and trees of any depth, every deployed node has one agent, by the name
// of its parent or of the host, and no recipe has one.
func TestEveryDeployedNodeHasOneAgent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &model.Site{
			Name: "home", Hosts: map[string]*model.Host{}, Manifests: map[string]*model.Manifest{},
			Kinds: model.Kinds{
				{Name: "vm", Block: "node", Guest: true, New: func() any { return &thing{} }},
				{Name: "pve", Block: "node", Guest: true, New: func() any { return &thing{} }},
				{Name: "image", Block: "image", Everywhere: true, New: func() any { return &lid{} }},
			},
			Objects: model.State{},
		}
		for h := range rapid.IntRange(1, 3).Draw(t, "hosts") {
			s.Hosts[fmt.Sprintf("h%d", h)] = &model.Host{Name: fmt.Sprintf("h%d", h)}
		}
		for i := range 3 {
			addr := model.Address{Kind: "image", Name: fmt.Sprint(i)}
			s.Objects[addr] = &model.Resource{Addr: addr, Spec: &lid{}}
		}
		agent := map[string]string{} // node → the agent that it shall have
		depth := 0
		for k := range rapid.IntRange(1, 4).Draw(t, "manifests") {
			m := &model.Manifest{Name: fmt.Sprintf("m%d", k), Host: fmt.Sprintf("h%d", rapid.IntRange(0, len(s.Hosts)-1).Draw(t, "host"))}
			if rapid.IntRange(0, 4).Draw(t, "recipe") == 0 {
				m.Host = ""
			}
			s.Manifests[m.Name] = m
			var parents []*model.Node
			level := map[*model.Node]int{}
			for i := range rapid.IntRange(1, 15).Draw(t, "nodes") {
				name := fmt.Sprintf("%s-n%d", m.Name, i)
				n := &model.Node{Name: name, Type: rapid.SampledFrom([]string{"vm", "pve"}).Draw(t, "type"), Manifest: m}
				n.Resource = &model.Resource{
					Addr: model.Address{Kind: n.Type, Name: name}, Spec: &thing{}, Manifest: m.Name, Node: name, Guest: &model.Guest{},
					Needs: []model.Address{{Kind: "image", Name: fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "image"))}},
				}
				if p := rapid.IntRange(-1, len(parents)-1).Draw(t, "parent"); p >= 0 {
					n.Parent = parents[p].Name
					parents[p].Children = append(parents[p].Children, name)
					level[n] = level[parents[p]] + 1
				}
				depth = max(depth, level[n])
				if n.Type == "pve" {
					parents = append(parents, n)
				}
				m.Nodes = append(m.Nodes, n)
				if m.Host != "" {
					agent[name] = m.Host
					if n.Parent != "" {
						agent[name] = n.Parent
					}
				}
			}
		}

		got := map[string]string{}
		for _, identity := range s.Identities() {
			w, found := s.Want(identity)
			require.False(t, found.HasErrors())
			require.Equal(t, identity, w.Host.Name)
			for addr, r := range w.State {
				if addr.Kind == "image" {
					require.True(t, slices.ContainsFunc(w.State.Addresses(), func(a model.Address) bool { return slices.Contains(w.State[a].Needs, addr) }), "%s needs no %s", identity, addr)
					continue
				}
				require.Empty(t, got[addr.Name], "%s has two agents", addr)
				got[addr.Name] = identity
				require.Equal(t, w.Host.PVENode(), r.Guest.Node)
				require.NotNil(t, w.State[r.Needs[0]], "what a node needs belongs to its own host")
			}
			require.Equal(t, s.Hosts[identity] == nil, w.Host.Local)
		}
		require.Equal(t, agent, got)
		for _, m := range s.Manifests {
			for _, n := range m.Nodes {
				require.Equal(t, m.Host != "" && n.Type == "pve", s.HostFor(n.Name) != nil)
			}
		}
	})
}

func TestTheHostOfAChild(t *testing.T) {
	s := site()
	inner := s.Manifests["web"].Nodes[1]
	inner.Hyper = &model.HyperDecl{Node: "pve", Storage: "zfs", Bridge: "vmbr1"}
	h := s.HostFor("inner")
	require.Equal(t, model.LocalAPI, h.API)
	require.Equal(t, "pve", h.PVENode())
	require.Equal(t, "zfs", h.Storage.Disks)
	require.Equal(t, "local", h.Storage.Images)
	require.Equal(t, "vmbr1", h.Bridge)
	require.True(t, h.Local)
	require.Empty(t, h.APIToken, "it is made on that machine")

	w, _ := s.Want("inner")
	require.Equal(t, []string{"image.used", "vm.child"}, names(w.State))
	require.Empty(t, w.Suspended)
	_, found := s.Want("iner")
	require.Contains(t, found[0].Detail, `did you mean "inner"?`)
	require.Nil(t, s.HostFor("child"), "a VM has no agent")

	c := s.Suspend("web")
	w, _ = c.Want("inner")
	require.Empty(t, names(w.State))
	require.True(t, w.Suspended["web"], "what is below a child of a suspended manifest stays as well")
	require.False(t, w.Suspended["rest"], "it has nothing on this child")

	_, err := s.Bind("recipe", "inner")
	require.ErrorContains(t, err, "inner is a node")
	s.Manifests["web"].Host = ""
	require.Nil(t, s.HostFor("inner"), "a recipe is nowhere")
}

// What moves with its parent is made again there, without its data: it is lost as what left the site is.
func TestLost(t *testing.T) {
	site := func(host string, suspended ...string) *model.Site {
		m := &model.Manifest{Name: "tree", Host: host}
		add := func(name, kind, parent string) {
			m.Nodes = append(m.Nodes, &model.Node{Name: name, Type: kind, Parent: parent, Manifest: m, Resource: &model.Resource{Addr: model.Address{Kind: kind, Name: name}}})
		}
		add("inner", "pve", "")
		add("leaf", "pve", "inner")
		add("app", "vm", "leaf")
		add("beside", "vm", "")
		return &model.Site{Manifests: map[string]*model.Manifest{"tree": m}, Suspended: suspended}
	}
	lost := func(now, before *model.Site) (out []string) {
		for _, a := range now.Lost(before) {
			out = append(out, a.String())
		}
		return out
	}
	require.Equal(t, map[model.Address]string{{Kind: "pve", Name: "inner"}: "father", {Kind: "pve", Name: "leaf"}: "father/inner", {Kind: "vm", Name: "app"}: "father/inner/leaf", {Kind: "vm", Name: "beside"}: "father"}, site("father").Deployed())
	require.Empty(t, lost(site("father"), site("father")))
	require.Equal(t, []string{"pve.inner", "pve.leaf", "vm.app", "vm.beside"}, lost(site("mother"), site("father")))
	require.Empty(t, lost(site("mother", "tree"), site("father")), "what is suspended loses nothing")
	require.Empty(t, lost(site("father"), site("")), "a recipe had nothing")
	flat := site("father")
	for _, n := range flat.Manifests["tree"].Nodes {
		if n.Name == "leaf" {
			n.Parent = ""
		}
	}
	require.Equal(t, []string{"pve.leaf", "vm.app"}, lost(flat, site("father")))
}
