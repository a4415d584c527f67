package policy_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/policy"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name string, doc any) {
	t.Helper()
	b, err := json.MarshalIndent(doc, "", "  ")
	require.NoError(t, err)
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(file, append(b, '\n'), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), string(b)+"\n")
}

// everything is a plan with an entry in each of its lists: what is read of the world
// is made up, so that nothing is missing.
func everything(t *testing.T, s *model.Site) *plan.Plan {
	t.Helper()
	host := inSync(s)
	host[0].Spec.(*VM).Memory = 1024
	p := planned(t, s, append(host, guest("old", 10100, true))...)
	p.ID = "7c1e04b2f00d" // how it is made is no concern of policies
	p.Unmanaged = []model.Unmanaged{{VMID: 999, Name: "scratch", Kind: "vm", Why: "no ownership tag"}}
	p.Pending = []model.Pending{{Address: model.Address{Kind: "vm", Name: "web-1"}, Path: "cores", Before: 2, After: 4, Why: "set; takes effect at the next full restart"}}
	p.Undeclared = []model.Setting{{Address: model.Address{Kind: "vm", Name: "web-1"}, Path: "options.tablet", Value: "0"}}
	p.Unknown = []model.Unknown{{Scope: "node pve2", Why: "offline", Withheld: []model.Address{{Kind: "vm", Name: "web-2"}}}}
	p.Findings = diag.List{
		{Severity: diag.Warning, Source: diag.FromGuard, Summary: "drift", Address: "vm.web-1", At: at("manifests/web.hcl", 5), Code: `node "web" {`},
		{Severity: diag.Error, Source: diag.FromSite, Summary: "a target that is nowhere"},
	}
	return p
}

func TestInput(t *testing.T) {
	s := site()
	doc, err := policy.Input(s, everything(t, s), request())
	require.NoError(t, err)
	golden(t, "input.json", doc)
}

// What was resolved before is not resolved again, and nothing else may come of it.
func TestInputOfAHostThatWasResolved(t *testing.T) {
	s, r := site(), request()
	s.Manifests["web"].Nodes[1].Parent = "elsewhere" // not on the host itself
	want, err := policy.Input(s, nil, r)
	require.NoError(t, err)
	r.Want, _ = s.Want("father")
	require.NotEmpty(t, r.Want.State)
	got, err := policy.Input(s, nil, r)
	require.NoError(t, err)
	require.Equal(t, want, got)

	r.Want.State[model.Address{Kind: "vm", Name: "web-1"}].Spec.(*VM).Memory = 4096
	got, err = policy.Input(s, nil, r)
	require.NoError(t, err)
	require.NotEqual(t, want, got, "it is really used")

	s.Resolved, r.Want = map[string]*model.Want{"father": r.Want}, nil
	again, err := policy.Input(s, nil, r)
	require.NoError(t, err)
	require.Equal(t, got, again, "and so is what the loader resolved")
}

func TestInputWithoutAPlanOrACommit(t *testing.T) {
	doc, err := policy.Input(&model.Site{Name: "empty"}, nil, policy.Request{Now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600)), OwnedCount: 12})
	require.NoError(t, err)
	golden(t, "empty.json", doc)
}

func TestSecretsAreNotInTheInput(t *testing.T) {
	s := site()
	doc, err := policy.Input(s, planned(t, s), request())
	require.NoError(t, err)
	b, err := json.Marshal(doc)
	require.NoError(t, err)
	require.NotContains(t, string(b), "hunter2")
	require.Contains(t, string(b), "(sensitive)")
	require.Equal(t, "hunter2", s.Manifests["web"].Nodes[0].Resource.Spec.(*VM).Password, "the site itself stays as it is")
}

// Rules are checked against what the documents are said to hold, so both must agree, to
// the last field.
func TestShapesAreThoseOfTheDocuments(t *testing.T) {
	s := site()
	s.MaxDeletes = new(int)
	s.Hosts["father"].Storage, s.Hosts["father"].SSH = &model.Storage{}, &model.HostSSH{}
	s.Postures["dev"].Sudo, s.Postures["dev"].Fail2ban = &model.Sudo{}, &model.Fail2ban{}
	spec := s.Specs["base"]
	spec.Identity, spec.Run, spec.Checks = &model.Identity{}, &model.Run{Interval: time.Hour}, []model.Check{{Name: "web", TCP: "80"}}
	spec.Config.PVE, spec.Config.Sysctl = &model.PVEConfig{}, map[string]string{"vm.swappiness": "10"}
	node := s.Manifests["web"].Nodes[0]
	node.Decomm, node.Hyper, node.Checks = &model.Decomm{}, &model.HyperDecl{}, spec.Checks
	s.Manifests["web"].Nodes = s.Manifests["web"].Nodes[:1] // the other kind has other attributes, and the shape those of both

	doc, err := policy.Input(s, everything(t, s), request())
	require.NoError(t, err)
	b, err := json.Marshal(doc)
	require.NoError(t, err)
	var plain any
	require.NoError(t, json.Unmarshal(b, &plain))
	misfits := slices.DeleteFunc(policy.Misfits(kinds(), plain, false), func(m string) bool {
		return m == "input.site.nodes[_].attributes.template is in the shape only" // of a ct
	})
	require.Empty(t, misfits)

	require.Empty(t, policy.Misfits(kinds(), good().Document(), true))
}
