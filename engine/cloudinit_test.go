package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// A new VM in which commands are run as checks waits for cloud-init first, and so does one whose checks failed.
func TestANewVMWaitsForCloudInit(t *testing.T) {
	vm, ct := model.Address{Kind: "vm", Name: "a"}, model.Address{Kind: "ct", Name: "a"}
	inside, ping, port := model.Check{Name: "up", Command: "true"}, model.Check{Name: "ping", Agent: true}, model.Check{Name: "port", TCP: "22"}
	for name, c := range map[string]struct {
		addr           model.Address
		check          model.Check
		fresh, failing bool
		want           []string
	}{
		"new":                   {vm, inside, true, false, []string{"cloud-init", "up"}},
		"failed before":         {vm, inside, false, true, []string{"cloud-init", "up"}},
		"there already":         {vm, inside, false, false, []string{"up"}},
		"without a guest agent": {vm, port, true, false, []string{"port"}},
		"a ping alone":          {vm, ping, true, false, []string{"ping"}},
		"a container":           {ct, inside, true, false, []string{"up"}},
	} {
		t.Run(name, func(t *testing.T) {
			k := &checker{site: &model.Site{}, fresh: map[model.Address]bool{c.addr: c.fresh}, want: &model.Want{
				Nodes: map[model.Address]*model.Node{c.addr: {Name: "a", Checks: []model.Check{c.check}}},
				State: model.State{c.addr: {Addr: c.addr, Spec: &struct{}{}, Guest: &model.Guest{VMID: 100}}},
			}}
			if c.failing {
				k.failing = []model.Address{c.addr}
			}
			var got []string
			for _, check := range k.checks(c.addr) {
				got = append(got, check.Name)
			}
			require.Equal(t, c.want, got)
		})
	}
}

// The exit codes of cloud-init status: 0 done, 1 failed, 2 done with warnings. An image may lack the program.
func TestWhatCloudInitSays(t *testing.T) {
	for name, c := range map[string]struct{ says, want int }{"done": {0, 0}, "failed": {1, 1}, "with warnings": {2, 0}, "not there": {-1, 0}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.says >= 0 {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "cloud-init"), fmt.Appendf(nil, "#!/bin/sh\nexit %d\n", c.says), 0o700)) //nolint:gosec // it is run
			}
			run := exec.CommandContext(t.Context(), "/bin/sh", "-c", cloudInit().Command)
			run.Env = []string{"PATH=" + dir}
			code := 0
			if exit, failed := errors.AsType[*exec.ExitError](run.Run()); failed {
				code = exit.ExitCode()
			}
			require.Equal(t, c.want, code)
		})
	}
}

// A VM that gets its spec pushed has cloud-init's result among its checks, whether it has others or not: a receipt shows those. One in which
// cloud-init failed is tried again by the next pass, which waits for cloud-init once more.
func TestCloudInitOfAPushedVMIsEvidence(t *testing.T) {
	for name, c := range map[string]struct {
		exit int
		want string
		err  string
	}{"done": {0, "cloud-init true exit 0", ""}, "failed": {1, "cloud-init false exit 1", "cloud-init of vm.a did not complete"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				addr := model.Address{Kind: "vm", Name: "a"}
				inside := plan.Step{
					Address: model.Address{Kind: "guest", Name: "a"}, Action: plan.Create, Inside: &model.Guest{VMID: 100},
					Want: &model.Resource{Inside: addr, Guest: &model.Guest{}},
				}
				p := &Pass{}
				k := p.checker(progress{desired: Desired{Site: &model.Site{}}, want: &model.Want{}, plan: &plan.Plan{Steps: []plan.Step{{Address: addr, Action: plan.Create}, inside}}}, booted(c.exit))
				k.now = func(s plan.Step) plan.Step { return s }
				err := k.login(t.Context(), inside)
				if c.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.err)
				}
				report := k.all()[addr]
				require.Len(t, report.Results, 1)
				require.Contains(t, fmt.Sprintf("%s %t %s", report.Results[0].Name, report.Results[0].OK, report.Results[0].Detail), c.want)
				require.Equal(t, err != nil, report.Err != nil, "its checks failed, so it is not validated")
			})
		})
	}
}

// booted is the driver of a guest that answers, and in which each command ends with an exit code.
type booted int

func (booted) Observe(context.Context, *model.Want) (model.Observed, error) {
	return model.Observed{}, nil
}
func (booted) Apply(context.Context, plan.Step) error { return nil }
func (b booted) Machine(model.Address, model.Guest, []netip.Addr) guest.Machine {
	return b
}
func (booted) Address(context.Context) (guest.Address, error) { return guest.Address{}, nil }
func (booted) Ping(context.Context) error                     { return nil }
func (b booted) Run(context.Context, guest.Command) (guest.Output, error) {
	return guest.Output{Code: int(b)}, nil
}
