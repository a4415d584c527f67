package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Who is held back for one change hears which other ones are with it.
func TestWhatIsHeldBackWithARefusedChange(t *testing.T) {
	disk := func(gib int) []Disk { return []Disk{{Name: "root", Size: gib}} }
	const shrinks = "error (guard) vm.a is not changed: a disk does not shrink"
	for name, c := range map[string]struct {
		want, have VM
		obstacle   *model.PreflightProblem
		finding    string
	}{
		"nothing else":    {want: VM{Disks: disk(5)}, have: VM{Disks: disk(9)}, finding: shrinks},
		"one":             {want: VM{Disks: disk(5), Memory: 4096}, have: VM{Disks: disk(9), Memory: 2048}, finding: shrinks + "; and with it: memory 2048 → 4096"},
		"a secret":        {want: VM{Disks: disk(5), Password: "new"}, have: VM{Disks: disk(9), Password: "old"}, finding: shrinks + "; and with it: password (sensitive) → (sensitive)"},
		"many":            {want: VM{Disks: disk(5), Memory: 2, Cores: 2, Image: "b", Description: "x", Tags: []string{"a"}}, have: VM{Disks: disk(9), Memory: 1, Cores: 1, Image: "b"}, finding: shrinks + `; and with it: cores 1 → 2, memory 1 → 2, tags +a, description "" → x`},
		"too many":        {want: VM{Disks: disk(5), Memory: 2, Cores: 2, Password: "x", Description: "x", Tags: []string{"a"}}, have: VM{Disks: disk(9), Memory: 1, Cores: 1}, finding: shrinks + "; and with it: cores 1 → 2, memory 1 → 2, tags +a, 2 more"},
		"recreated":       {want: VM{Disks: disk(5), Machine: "q35", Memory: 2}, have: VM{Disks: disk(9), Machine: "pc", Memory: 1}, finding: "error (guard) vm.a is not replaced: a disk does not shrink"},
		"for an obstacle": {want: VM{Description: "x", Cores: 2}, have: VM{Cores: 1}, obstacle: &model.PreflightProblem{Path: "description", Severity: diag.Error, Summary: "no room for it"}, finding: "error (guard) vm.a is not changed: no room for it; and with it: cores 1 → 2"},
		"a warning":       {want: VM{Description: "x", Cores: 2}, have: VM{Cores: 1}, obstacle: &model.PreflightProblem{Path: "description", Severity: diag.Warning, Summary: "no room for it"}, finding: "warning (guard) vm.a: no room for it"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(state(guest("vm.a", 0, &c.want)), state(guest("vm.a", 100, &c.have)))
			if c.obstacle != nil {
				c.obstacle.Address = addr("vm.a")
				in.Have.Preflight = []model.PreflightProblem{*c.obstacle}
			}
			require.Equal(t, []string{c.finding}, findings(plan.Make(in)))
		})
	}
}
