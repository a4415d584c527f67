package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/local"
	"github.com/homestak/homestak-gitops/engine/service"
)

// agentUser is the user of the agent's unit.
const agentUser = "homestak-gitops"

func hostHelperVerb(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "host-helper",
		Short:  "Apply the spec of a host for its agent; homestak-gitops-host.service runs this",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(c *cobra.Command, _ []string) error { return runHostHelper(c.Context(), a) },
	}
}

func runHostHelper(ctx context.Context, a *app) error {
	folder := a.ui.Env("STATE_DIRECTORY")
	if os.Geteuid() != 0 || folder == "" {
		return errors.New("the helper applies the spec of a host as root, when the agent asks for it: systemctl enable --now homestak-gitops-host.socket")
	}
	cfg, uid, err := configOfAgent(a)
	if err != nil {
		return err
	}
	log := service.NewLog(a.ui.Stderr, a.ui.Env("JOURNAL_STREAM"), cfg.Log.Level, cfg.Log.Format)
	return service.Helper{
		Config: cfg, UID: uid, Folder: folder, Program: thisBuild().Version, Kinds: drivers.Access{}.Kinds(), Sandbox: sandbox(), Machine: local.New(), Log: log,
	}.Run(ctx, a.stopping.Once)
}
