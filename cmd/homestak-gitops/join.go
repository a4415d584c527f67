package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

func joinVerb(a *app) *cobra.Command {
	j, look := &push.Join{}, false
	c := &cobra.Command{
		Use:   "join [URL]",
		Short: "Make this machine a host below another one",
		Long: `Run it as root on Debian or Proxmox VE, with the values that "token mint NAME --join"
printed on the parent. It installs program, units, user, agent.hcl, token and SSH key, on
Proxmox VE also the user homestak@pve with its token. From then on the agent gets
everything from its parent. It may be repeated, also to replace a lost parent.

Without URL it reads url, pin and token from the JSON object in
/etc/homestak-gitops/join.json, and removes it when it is done: so a script of the first
boot can run it.`,
		Args: ui.TakesArgs(0, 1),
		RunE: a.soon(func(ctx context.Context, args []string) error { return runJoin(ctx, a, j, args, look) }),
	}
	fs := c.Flags()
	fs.StringVar(&j.Pin, "pin", "", "`PIN`: the server's key, such as sha256:…; comma-separated")
	fs.StringVar(&j.Token, "token", "", "`TOKEN`: token for joining")
	fs.BoolVar(&j.Upgrades, "upgrades", false, "take later programs of the parent every hour")
	fs.BoolVar(&look, "print", false, "print what it would do, and change nothing")
	return c
}

func runJoin(ctx context.Context, a *app, j *push.Join, args []string, look bool) error {
	file := len(args) == 0
	switch {
	case file && (j.Pin != "" || j.Token != ""):
		return errors.New("--pin and --token are of no use without URL")
	case file:
		var err error
		if j.JoinFile, err = wire.ReadJoinFile(wire.JoinFileName); err != nil {
			return err
		}
	default:
		j.URL = args[0]
	}
	if os.Geteuid() != 0 {
		return errors.New("join must run as root")
	}
	program, err := os.ReadFile(service.ProgramFile())
	if err != nil {
		return fmt.Errorf("read this program: %w", err)
	}
	syscall.Umask(0o022) // the agent is another user, and reads what is made here
	j.Machine, j.System, j.Arch, j.Program, j.Version = push.OwnMachine(), runtime.GOOS, runtime.GOARCH, program, thisBuild().Version
	j.Say = func(format string, args ...any) { a.ui.Printf("%s\n", diag.Clean(fmt.Sprintf(format, args...))) }
	switch {
	case look:
		return j.Do(ctx, true)
	case !file:
		return j.Do(ctx, false)
	}
	if err := j.DoPatiently(ctx); err != nil {
		return err
	}
	return os.Remove(wire.JoinFileName)
}
