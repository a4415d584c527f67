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
	"github.com/homestak/homestak-gitops/engine/guest/spec"
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
	var dry, fetch bool
	from := &parentFlags{}
	c := &cobra.Command{
		Use:   "apply",
		Short: "Make this machine what its spec says",
		Long: `Reads this machine, compares it with the spec that was fetched last (or with --spec FILE), and
changes what differs: packages, services, users, keys, sudo, sshd, files. What an earlier spec
put here and this one lacks is withdrawn; what was here before stays. It must run as root. A
second run changes nothing. With --dry-run it only shows what would change.

With --fetch the parent is asked for the spec first. While it does not answer, the spec that is
here is applied all the same, and the exit code says that the parent did not answer.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if fetch && (file != "" || dry) {
				return errors.New("--fetch stands alone: --spec applies another spec, and --dry-run keeps none (run config fetch first)")
			}
			if !fetch {
				from = nil
			}
			return runConfigApply(c.Context(), a, pull.Folder{Path: folder}, from, file, dry)
		},
	}
	c.Flags().StringVar(&file, "spec", "", "apply the resolved spec in `FILE`, and keep it")
	c.Flags().BoolVar(&fetch, "fetch", false, "fetch the spec from the parent of this machine first")
	from.add(c)
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

// runConfigApply applies a spec; from is the parent to ask for it first, nil for none.
func runConfigApply(ctx context.Context, a *app, folder pull.Folder, from *parentFlags, file string, dry bool) error {
	done := applied{}
	a.ui.document = func(err error) any {
		done.Error = err.Error()
		return done
	}
	var source pull.Server
	var want *spec.Spec
	var err error
	if from != nil {
		source, err = from.source(a, nil)
	} else {
		want, err = folder.Wanted(file, !dry)
	}
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("config apply reads and changes the whole system: run it as root")
	}
	if dry {
		return a.dryRun(ctx, want)
	}
	unlock, err := folder.Lock(ctx, a.waiting)
	if err != nil {
		return err
	}
	defer unlock()
	node := pull.Node{
		Folder: folder, Machine: local.New(), Seen: a.showState,
		Options: converge.Options{Started: func(s aspect.Step) { a.ui.notef("%s", s.Text) }},
	}
	if from != nil {
		want, done.Changed, err = node.Run(ctx, source)
	} else {
		done.Changed, err = node.Apply(ctx, want)
	}
	if want != nil {
		done.Node, done.Spec = want.Node, want.Name
	}
	if err != nil {
		return err
	}
	return a.ui.show(done, fmt.Sprintf("spec %s is applied to %s\n", want.Name, want.Node))
}

// dryRun shows what a spec would change.
func (a *app) dryRun(ctx context.Context, want *spec.Spec) error {
	seen, err := converge.Observe(ctx, local.New(), want)
	if err != nil {
		return err
	}
	if !a.ui.json {
		a.showState(seen)
		return nil
	}
	p := pull.Plan(seen, time.Now())
	a.ui.findings(p.Findings)
	return a.ui.emit(p)
}

// showState shows what differs on this machine.
func (a *app) showState(s *converge.State) {
	p := pull.Plan(s, time.Now())
	a.ui.findings(p.Findings)
	a.ui.plan(p)
}
