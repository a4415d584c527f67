package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"runtime"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/service"
)

func upgradeVerb(a *app) *cobra.Command {
	install := ""
	c := &cobra.Command{
		Use:   "upgrade",
		Short: "Take the program of the parent on this host",
		Long: `Run it as root on a host with a parent. It fetches a later version, verifies its checksum,
and starts the agent with it; an older version is never taken. If the agent has not
reported to the parent within five minutes, the program from before comes back, and this
one is tried again after an hour.

homestak-gitops-upgrade.timer runs it every hour, if it is enabled.`,
		Args: cobra.NoArgs,
		RunE: a.soon(func(ctx context.Context, _ []string) error { return runUpgrade(ctx, a, install) }),
	}
	c.Flags().StringVar(&install, "install", "", "put this program with that `SHA256`, which was sent, in the place of the one before")
	_ = c.Flags().MarkHidden("install")
	return c
}

func runUpgrade(ctx context.Context, a *app, install string) error {
	if os.Geteuid() != 0 {
		return errors.New("upgrade must run as root")
	}
	syscall.Umask(0o022) // the agent is another user, and reads what is made here
	u := &push.Upgrade{
		Machine: push.OwnMachine(), OS: runtime.GOOS, Arch: runtime.GOARCH, Version: thisBuild().Version, Reported: hasReported,
		Say: func(format string, args ...any) { a.ui.Printf("%s\n", diag.Clean(fmt.Sprintf(format, args...))) },
	}
	if install != "" {
		return u.Install(ctx, install)
	}
	cfg, uid, err := configOfAgent(a)
	if err != nil {
		return err
	}
	folder := cmp.Or(a.ui.Env("STATE_DIRECTORY"), "/var/lib/homestak-gitops-host") // as the unit of the helper has it
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	log := service.NewLog(a.ui.Stderr, a.ui.Env("JOURNAL_STREAM"), cfg.Log.Level, cfg.Log.Format)
	u.Parent, err = service.Helper{Config: cfg, UID: uid, Folder: folder, Log: log}.RootsParent(ctx)
	if err != nil {
		return err
	}
	return u.Do(ctx)
}

// hasReported reports whether the parent took a report of the agent that runs.
func hasReported(ctx context.Context) error {
	c, err := control.Dial(ctx, control.StandardSocket)
	if err != nil {
		return err
	}
	s, err := c.Status(ctx)
	switch {
	case err != nil:
		return err
	case s.Parent == nil || s.Parent.Reported == nil:
		return errors.New("it did not report")
	}
	return nil
}

// configOfAgent is the configuration of the agent of this machine, for what runs as root beside it, and the user of the agent.
func configOfAgent(a *app) (*service.Config, int, error) {
	who, err := user.Lookup(agentUser)
	if err != nil {
		return nil, 0, fmt.Errorf("find the user of the agent: %w", err)
	}
	uid, err := strconv.Atoi(who.Uid)
	if err != nil {
		return nil, 0, fmt.Errorf("find the user of the agent: %w", err)
	}
	// The folder of the unit is not that of the agent.
	cfg, found := service.Flags{}.ReadConfig(func(name string) string {
		if name == "STATE_DIRECTORY" {
			return ""
		}
		return a.ui.Env(name)
	})
	if a.ui.Findings(found); found.HasErrors() {
		return nil, 0, fmt.Errorf("agent.hcl cannot be used: %s", diag.Count(found.Errors(), "configuration error"))
	}
	return cfg, uid, nil
}
