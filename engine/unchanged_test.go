package engine_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// TestWhatIsSettledIsNotWarnedOf: a warning of the site about an object beside the guests
// is told by a plan only as long as the object is not there as it is wanted. All others stay.
func TestWhatIsSettledIsNotWarnedOf(t *testing.T) {
	warning := func(address, source string) diag.Finding {
		return diag.Finding{Severity: diag.Warning, Source: source, Address: address, Summary: "of " + address + " by " + source}
	}
	of := func(s *model.Site, h *enginetest.Host) []string {
		p := enginetest.Pass(s, h)
		p.Verdict = nil
		p.Load = func(context.Context) engine.Desired {
			return engine.Desired{Site: s, Commit: "c0ffee", Findings: diag.List{
				warning("disk.base", diag.FromSite), warning("disk.base", diag.FromPolicy),
				warning("box.a", diag.FromSite), warning("", diag.FromSite), warning("disk.other", diag.FromSite),
			}}
		}
		r := p.Run(t.Context())
		require.Equal(t, engine.Planned, r.Outcome, "%v", r.Err)
		var out []string
		for _, f := range r.Findings {
			out = append(out, f.Summary)
		}
		slices.Sort(out)
		return out
	}
	others := []string{"of  by site", "of box.a by site", "of disk.base by policy", "of disk.other by site"}
	all := append(slices.Clone(others[:3]), "of disk.base by site", "of disk.other by site")

	s, h := enginetest.Site(map[string]int{"a": 1}), &enginetest.Host{}
	require.Equal(t, all, of(s, h), "it is to be got")
	h.Unknown = []model.Unknown{{Scope: "disks", Kind: "disk", Why: "403"}}
	require.Equal(t, all, of(s, h), "it may be there, and nothing is done")
	h.Unknown = nil
	require.Equal(t, engine.Done, enginetest.Pass(s, h).Run(t.Context()).Outcome)
	require.Equal(t, others, of(s, h), "it is there")
	h.Holds[enginetest.Addr("disk", "other")] = &model.Resource{Addr: enginetest.Addr("disk", "other"), Spec: &enginetest.Box{Size: 1}}
	require.Equal(t, others, of(s, h), "one that is to go")
	s.Objects[enginetest.Addr("disk", "base")].Spec.(*enginetest.Box).Size = 2
	require.Equal(t, all, of(s, h), "it is to be got anew")
}
