package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/specserve/node"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

func configVerb(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Run pull mode by hand, on the node itself",
		Long:  `In pull mode a node fetches and applies its own spec.`,
		Args:  cobra.NoArgs,
	}
	c.AddCommand(configFetchVerb(a), configApplyVerb(a), configWaitVerb(a))
	return c
}

// nodeFlags adds the flags that all verbs of config have: where the spec is kept, and who the parent is. From gets the parent.
func (a *app) nodeFlags(c *cobra.Command, from *node.Source) *node.Run {
	r := &node.Run{Note: a.ui.Notef, Seen: a.showState}
	c.Flags().StringVar(&r.Folder, "state", node.DefaultFolder, "`DIR`: folder of the spec and the outcome")
	c.Flags().StringVar(&from.File, "parent", wire.ParentFile, "`FILE`: file that names the parent")
	ui.Must(c.MarkFlagDirname("state"))
	ui.Must(c.MarkFlagFilename("parent"))
	return r
}

func configApplyVerb(a *app) *cobra.Command {
	var file string
	var dry, fetch bool
	from := &node.Source{}
	c := &cobra.Command{
		Use:   "apply",
		Short: "Make this machine match its spec",
		Long: `Must run as root. It changes what differs from the last fetched spec, and removes what an
earlier spec added and this one does not have; everything else stays.

If the parent does not answer --fetch, the stored spec is applied, and the exit code
reports the missing answer. A machine with a token then sends a report to the parent.`,
		Args: cobra.NoArgs,
	}
	r := a.nodeFlags(c, from)
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case fetch && (file != "" || dry):
			return errors.New("--fetch cannot be combined with --spec, which applies another spec, or --dry-run, which stores none (run config fetch first)")
		case dry:
			return runConfigDry(c.Context(), a, r, file)
		case !fetch:
			from = nil
		}
		return runConfigApply(c.Context(), a, r, from, file)
	}
	c.Flags().StringVar(&file, "spec", "", "`FILE`: resolved spec to apply and store")
	c.Flags().BoolVar(&fetch, "fetch", false, "fetch the spec from the parent first")
	c.Flags().BoolVar(&dry, "dry-run", false, "only show what would change")
	a.ui.JSONFlag(c)
	return c
}

// applied is the document of config apply --json.
type applied struct {
	Node    string `json:"node"`
	Spec    string `json:"spec"`
	Changed int    `json:"changed"` // settings that differed
	Error   string `json:"error"`
}

func runConfigApply(ctx context.Context, a *app, r *node.Run, from *node.Source, file string) error {
	done := applied{}
	a.ui.Document = func(err error) any { // with what was done before the error
		done.Error = err.Error()
		return done
	}
	want, changed, err := r.Apply(ctx, from, file)
	if want != nil {
		done.Node, done.Spec, done.Changed = want.Node, want.Name, changed
	}
	if err != nil {
		return err
	}
	if want.Run != nil && want.Run.Pushed && from != nil {
		return a.ui.Show(done, fmt.Sprintf("spec %s is applied to %s by push: only commands were asked for\n", want.Name, want.Node))
	}
	return a.ui.Show(done, fmt.Sprintf("spec %s is applied to %s\n", want.Name, want.Node))
}

func runConfigDry(ctx context.Context, a *app, r *node.Run, file string) error {
	a.ui.Document = func(err error) any { return applied{Error: err.Error()} }
	seen, err := r.Observe(ctx, file)
	if err != nil {
		return err
	}
	if !a.ui.JSON {
		a.showState(seen)
		return nil
	}
	p := node.Plan(seen, time.Now())
	a.ui.Findings(p.Findings)
	return a.ui.Emit(p)
}

// showState shows what differs on this machine.
func (a *app) showState(s *converge.State) {
	p := node.Plan(s, time.Now())
	a.ui.Findings(p.Findings)
	a.ui.Plan(p)
}

func configWaitVerb(a *app) *cobra.Command {
	from := &node.Source{}
	c := &cobra.Command{
		Use:   "wait",
		Short: "Apply the spec whenever the parent has a new one",
		Long: `Waits for a new spec or a reconcile request, starts homestak-gitops-pull.service, and
waits again. homestak-gitops-wait.service runs it on nodes with trigger = "git" or
"webhook".`,
		Args: cobra.NoArgs,
	}
	r := a.nodeFlags(c, from)
	r.Seen = nil // the unit that it starts shows what it does
	c.RunE = a.soon(func(ctx context.Context, _ []string) error { return r.Wait(ctx, *from) })
	return c
}
