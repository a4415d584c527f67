package engine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
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
