package policy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/policy"
)

// fleet is the site with n nodes more, and a plan that changes every tenth of them.
func fleet(b *testing.B, n int) (*model.Site, *plan.Plan) {
	b.Helper()
	s := site()
	s.VMIDRanges = append(s.VMIDRanges, model.VMIDRange{Name: "fleet", From: 100_000, To: 200_000})
	m := deploy(s, "fleet", "father")
	var have []*model.Resource
	for i := range n {
		spec := func(memory int) *VM {
			return &VM{
				Preset: "vm-small", Image: "debian-12", Memory: memory, Tags: []string{"homestak", "web"},
				Options: map[string]string{"cpu": "host"}, NICs: []NIC{{Name: "lan"}},
			}
		}
		node := add(m, fmt.Sprintf("app-%05d", i), "vm", 100_000+i, spec(0), i)
		node.Spec = "base"
		r, _ := s.Resolve(node.Resource, s.Hosts["father"], node)
		h := *r
		if i%10 == 0 {
			h.Spec = spec(1024)
		}
		have = append(have, &h)
	}
	return s, planned(b, s, have...)
}

// bare is one prepared query over the whole input by OPA alone, over the same rules:
// the floor of P14.
func bare(b *testing.B, query string) rego.PreparedEvalQuery {
	b.Helper()
	options := []func(*rego.Rego){rego.Query(query)}
	for name, text := range policy.Shipped() {
		if !strings.HasSuffix(name, "_test.rego") {
			options = append(options, rego.Module(name, text))
		}
	}
	q, err := rego.New(options...).PrepareForEval(b.Context())
	require.NoError(b, err)
	return q
}

func BenchmarkJudge(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		s, p := fleet(b, n)
		r := request()
		r.OwnedCount = n
		ours := set(b)
		input, err := policy.Input(s, p, r)
		require.NoError(b, err)
		floors := map[string]rego.PreparedEvalQuery{
			"site": bare(b, "x := data.homestak.site.deny"),
			"plan": bare(b, `x := {"plan": data.homestak.plan.deny, "guard": data.homestak.guard.deny}`),
		}
		for name, judge := range map[string]func(context.Context) int{
			"site": func(ctx context.Context) int { return len(lines(ours.Site(ctx, s, r))) },
			"plan": func(ctx context.Context) int { return len(lines(ours.Plan(ctx, s, p, r))) },
		} {
			perNode := func(b *testing.B) {
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
			}
			b.Run(fmt.Sprintf("%s/%d/ours", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					require.Zero(b, judge(b.Context()))
				}
				perNode(b)
			})
			b.Run(fmt.Sprintf("%s/%d/bare", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					rs, err := floors[name].Eval(b.Context(), rego.EvalInput(input))
					require.NoError(b, err)
					require.Len(b, rs, 1)
				}
				perNode(b)
			})
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		_, found := policy.Compile(b.Context(), policy.Options{Kinds: kinds()})
		require.Empty(b, found)
	}
}
