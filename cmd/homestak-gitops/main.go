// How many processors there are is asked at the start. Go would ask the kernel again with every second in which anything
// runs, in an agent that has nothing to do as often as it does something.
//
//go:debug updatemaxprocs=0

// Command homestak-gitops makes Proxmox VE hosts match a site repository.
//
// Start with main.go, the command tree. simulated.go implements --sim. Every other file is one verb: its flags and
// output. Shared code of the verbs is in packages ui (output) and session (site, hosts and agent).
package main

import (
	"context"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
)

func main() {
	boundMemory()
	os.Exit(int(run(context.Background(), os.Args[1:], ui.ThisProcess())))
}

// boundMemory lets the garbage collector run as often as needed for a very large site. Below that it keeps Go's
// default: half as often would save a twentieth of the CPU of a plan, and take a quarter more memory. GOMEMLIMIT
// takes precedence.
func boundMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(256 << 20)
	}
}

// run is the program: it returns the exit code.
func run(ctx context.Context, args []string, p ui.Process) ui.Exit {
	ctx, stopping := p.Watch(ctx)
	defer stopping.Close()
	out := ui.New(p)
	a := &app{stopping: stopping, ui: out, sites: &session.Opener{UI: out, Stopping: stopping, Simulated: simulatedNetwork, Twins: twinNetwork}}
	root := a.root() //nolint:contextcheck // cobra hands the context to the verbs
	root.SetArgs(args)
	root.SetIn(p.Stdin)
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	err := ui.ExplainUsage(root, root.ExecuteContext(ctx))
	if code := ui.ExitCode(err); code != ui.ExitDone {
		a.ui.Failure(err)
		return code
	}
	return ui.ExitDone
}

// app is shared by all verbs.
type app struct {
	stopping *ui.Stopping
	ui       *ui.UI
	sites    *session.Opener
}

// soon is the RunE of a verb that has nothing to finish, such as one that asks an agent: the first signal ends it.
func (a *app) soon(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		ctx, cancel := a.stopping.Soon(c.Context())
		defer cancel()
		return do(ctx, args)
	}
}

// root makes the command tree. It must stay cheap: version pays for it too.
func (a *app) root() *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "homestak-gitops",
		Short: "GitOps for Proxmox VE",
		Long: `homestak-gitops makes Proxmox VE hosts match a site: a folder of HCL files, normally
a git repository. Start with "homestak-gitops demo" or "homestak-gitops init my-site".`,
		SilenceUsage:       true,
		SilenceErrors:      true,
		DisableSuggestions: true, // ui.ExplainUsage does it
		RunE: func(c *cobra.Command, _ []string) error {
			if version {
				return runVersion(a)
			}
			return c.Help()
		},
	}
	root.Flags().BoolVar(&version, "version", false, "print the version of this program")
	root.SetHelpCommand(helpVerb())
	root.SetHelpFunc(showHelp)
	root.SetFlagErrorFunc(ui.ExplainFlag)
	a.ui.Flags(root.PersistentFlags())
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return a.ui.Check() }
	root.AddGroup(
		&cobra.Group{ID: "site", Title: "A site:"},
		&cobra.Group{ID: "host", Title: "A host:"},
		&cobra.Group{ID: "agent", Title: "An agent:"},
		&cobra.Group{ID: "try", Title: "Trying things:"},
	)
	add := func(group string, verbs ...*cobra.Command) {
		for _, v := range verbs {
			v.GroupID = group
			root.AddCommand(v)
		}
	}
	add("site", initVerb(a), importVerb(a), convertVerb(a), fmtVerb(a), validateVerb(a), policyVerb(a), outputVerb(a))
	add("host", setupVerb(a), joinVerb(a), upgradeVerb(a), doctorVerb(a), observeVerb(a), planVerb(a), applyVerb(a), destroyVerb(a), testVerb(a), verifyNodesVerb(a))
	add("agent", agentVerb(a), configVerb(a), serveVerb(a), tokenVerb(a), statusVerb(a), treeVerb(a), eventsVerb(a), historyVerb(a), whyVerb(a), webVerb(a), reconcileVerb(a), suspendVerb(a), resumeVerb(a), execVerb(a), jobsVerb(a), notifyVerb(a))
	add("try", simVerb(a), demoVerb(a))
	add("", versionVerb(a), docsVerb(), exitCodesTopic(), sandboxVerb(), hostHelperVerb(a))
	return root
}
