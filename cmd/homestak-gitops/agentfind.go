package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/view"
)

// agentRecord answers about an agent: the agent itself, or what the last one left behind.
type agentRecord interface {
	Status(ctx context.Context) (agent.Status, error)
	History(ctx context.Context, n int, address string) (control.History, error)
	Verify(ctx context.Context) (control.Chain, error)
	Why(ctx context.Context, address string) (control.Reasons, error)
}

// socketOf says where an agent of this configuration is to listen.
func (a *app) socketOf(f *agentFlags, c *agentConfig) string {
	switch dir := a.env("RUNTIME_DIRECTORY"); {
	case f.socket != "":
		return f.socket
	case a.env("HOMESTAK_SOCKET") != "":
		return a.env("HOMESTAK_SOCKET")
	case dir != "":
		dir, _, _ = strings.Cut(dir, ":")
		return filepath.Join(dir, "agent.sock")
	case os.Geteuid() == 0 && c.from["data_dir"] == "default":
		return control.StandardSocket
	default:
		return filepath.Join(c.DataDir, "agent.sock")
	}
}

// search says where the agent that the flags are about may listen.
func (a *app) search(f *agentFlags, c *agentConfig) control.Search {
	s := control.Search{Socket: f.socket, DataDir: c.DataDir, Given: c.from["data_dir"] != "default"}
	if s.Socket == "" {
		s.Socket = a.env("HOMESTAK_SOCKET")
	}
	return s
}

// agentHere finds the agent that the flags are about, and what is known of it by
// configuration; control.ErrNoAgent if none runs.
func (a *app) agentHere(ctx context.Context, f *agentFlags) (*control.Client, *agentConfig, error) {
	cfg, found := a.agentConfig(f)
	if f.config != "" && cfg.file == "" {
		if _, _, err := a.agentFile(f); err != nil {
			return nil, cfg, err
		}
	}
	c, err := a.search(f, cfg).Find(ctx)
	if errors.Is(err, control.ErrNoAgent) && cfg.file != "" {
		// Perhaps that is why it does not run, and then its data folder is a guess.
		a.ui.findings(slices.DeleteFunc(found, func(f diag.Finding) bool { return f.Severity != diag.Error }))
	}
	return c, cfg, err
}

// runningAgent finds an agent that must be there.
func (a *app) runningAgent(ctx context.Context, f *agentFlags) (*control.Client, error) {
	c, cfg, err := a.agentHere(ctx, f)
	if errors.Is(err, control.ErrNoAgent) {
		return nil, fmt.Errorf("%w (data folder %s)\nstart it: systemctl start homestak-gitops, or homestak-gitops agent; another one is named by --socket or --data-dir", err, cfg.DataDir)
	}
	return c, err
}

// recordOf finds the agent, or what the last one left behind.
func (a *app) recordOf(ctx context.Context, f *agentFlags) (agentRecord, error) {
	c, cfg, err := a.agentHere(ctx, f)
	if errors.Is(err, control.ErrNoAgent) {
		return control.ReadOffline(cfg.DataDir)
	}
	return c, err
}

// noteOffline says that a record is the last agent's, if it is.
func (u *ui) noteOffline(ctx context.Context, r agentRecord) {
	if o, ok := r.(*control.Offline); ok {
		s, _ := o.Status(ctx) // it is read already
		u.notef("no agent is running here; this is what it knew at %s", view.When(s.At))
	}
}
