package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/complete"
	"github.com/homestak/homestak-gitops/drivers/local"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/pull"
)

func configVerb(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Run pull mode by hand, on the node itself",
		Long: `A node in pull mode fetches its spec and applies it by itself. These verbs do the same
by hand. The spec and what came of it are in ` + pull.DefaultFolder + `.`,
		Args: cobra.NoArgs,
	}
	c.AddCommand(configFetchVerb(a), configApplyVerb(a))
	return c
}

func stateFlag(c *cobra.Command, folder *string) {
	c.Flags().StringVar(folder, "state", pull.DefaultFolder, "keep the spec and what came of it in `DIR`")
	complete.Must(c.MarkFlagDirname("state"))
}

func configApplyVerb(a *app) *cobra.Command {
	var file, folder string
	var dry bool
	c := &cobra.Command{
		Use:   "apply",
		Short: "Make this machine what its spec says",
		Long: `Reads this machine, compares it with the spec that was fetched last (or with --spec FILE), and
changes what differs: packages, services, users, keys, sudo, sshd, files. What an earlier spec
put here and this one lacks is withdrawn; what was here before stays. It must run as root. A
second run changes nothing. With --dry-run it only shows what would change.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runConfigApply(c.Context(), a, pull.Folder{Path: folder}, file, dry)
		},
	}
	c.Flags().StringVar(&file, "spec", "", "apply the resolved spec in `FILE`, and keep it")
	c.Flags().BoolVar(&dry, "dry-run", false, "only show what would change")
	stateFlag(c, &folder)
	a.ui.jsonFlag(c)
	return c
}

// applied is the document of config apply --json.
type applied struct {
	Node    string `json:"node"`
	Spec    string `json:"spec"`
	Changed int    `json:"changed"` // settings that differed
	Error   string `json:"error"`
}

func runConfigApply(ctx context.Context, a *app, folder pull.Folder, file string, dry bool) error {
	done := applied{}
	a.ui.document = func(err error) any {
		done.Error = err.Error()
		return done
	}
	want, err := folder.Wanted(file, !dry)
	if err != nil {
		return err
	}
	done.Node, done.Spec = want.Node, want.Name
	if os.Geteuid() != 0 {
		return errors.New("config apply reads and changes the whole system: run it as root")
	}
	here := local.New()
	show := func(s *converge.State) {
		p := pull.Plan(s, time.Now())
		a.ui.findings(p.Findings)
		a.ui.plan(p)
	}
	if dry {
		seen, err := converge.Observe(ctx, here, want)
		if err != nil {
			return err
		}
		if a.ui.json {
			p := pull.Plan(seen, time.Now())
			a.ui.findings(p.Findings)
			return a.ui.emit(p)
		}
		show(seen)
		return nil
	}
	done.Changed, err = pull.Apply(ctx, folder, here, want, show, converge.Options{Started: func(s aspect.Step) { a.ui.notef("%s", s.Text) }})
	if err != nil {
		return err
	}
	return a.ui.show(done, fmt.Sprintf("spec %s is applied to %s\n", want.Name, want.Node))
}
