package control

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// The name of a node with a spec means the node.
func TestWhatIsInsideIsNoNode(t *testing.T) {
	site, vm := load(t, enginetest.TwoNodes), model.Address{Kind: "vm", Name: "one"}
	want, _ := site.Want("father")
	want.State[model.Address{Kind: "config", Name: "one"}] = &model.Resource{Node: "one", Inside: vm}
	k := NewFacts("father")
	site.Resolved = map[string]*model.Want{"father": want}
	k.Site(engine.Desired{Site: site, Commit: "a"})
	_, nodes, objects, _ := k.declared("a", "")
	require.NotContains(t, nodes, "config.one")
	found, err := model.FindAmong("one", nodes, objects)
	require.NoError(t, err)
	require.Equal(t, "vm.one", found)
}

func TestFactsKeepsTwoCommits(t *testing.T) {
	site := load(t, enginetest.TwoNodes)
	k := NewFacts("father")
	_, manifests := k.host()
	require.Nil(t, manifests, "nothing is known before a site was read")
	bad := diag.List{diag.Errorf(diag.Range{}, "bad", "")}
	k.Site(engine.Desired{Site: site, Commit: "0", Findings: bad})
	api, manifests := k.host()
	require.Equal(t, "https://192.0.2.10:8006", api)
	require.Nil(t, manifests, "that needs a site that rules agree to")
	for _, id := range []string{"a", "b", "a", "c"} {
		k.Site(engine.Desired{Site: site, Commit: id})
	}
	k.Site(engine.Desired{Site: site, Commit: "d", Findings: bad})
	api, manifests = k.host()
	require.Equal(t, "https://192.0.2.10:8006", api)
	require.Equal(t, []string{"web"}, manifests)
	k.Site(engine.Desired{Site: load(t, strings.ReplaceAll(enginetest.TwoNodes, "192.0.2.10", "192.0.2.11")), Commit: "e", Findings: bad})
	k.Site(engine.Desired{})
	api, _ = k.host()
	require.Equal(t, "https://192.0.2.10:8006", api)
	at, nodes, objects, ok := k.declared("a", "vm.one")
	require.True(t, ok, "the one that came again is kept")
	require.Equal(t, "site.hcl:14:3", at.At.String())
	require.ElementsMatch(t, []string{"vm.one", "vm.two"}, nodes)
	require.Equal(t, []string{"image.debian"}, objects)
	_, _, _, ok = k.declared("b", "vm.one")
	require.False(t, ok)
	_, _, _, ok = k.declared("d", "vm.one")
	require.False(t, ok, "what does not converge is not known")
	k.Observed(model.Observed{Unmanaged: []model.Unmanaged{{VMID: 7, Name: "x", Kind: "vm", Why: "no mark"}}})
	unmanaged, _ := k.beyond()
	require.Equal(t, []model.Unmanaged{{VMID: 7, Name: "x", Kind: "vm", Why: "no mark"}}, unmanaged)
}

func load(t *testing.T, text string) *model.Site {
	t.Helper()
	site, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(text)}}, hcl.Options{Kinds: proxmox.Kinds()})
	require.Zero(t, found.Errors(), "%v", found)
	return site
}
