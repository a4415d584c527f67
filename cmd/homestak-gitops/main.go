// Command homestak-gitops makes Proxmox VE hosts become what a site repository says.
//
// main.go has the process and the command tree, ui.go the rules of all output, flags.go and
// agentfind.go what verbs have in common, session.go how a verb opens a site and its host.
// Every other file is one verb: flags and printing. What it does is in other packages.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/usage"
)

// process is what the program sees of the world around it. Tests make their own.
type process struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            func(string) string
	signals        <-chan os.Signal // nil: none ever comes

	// subscribe gives the signals of another sort from now on, until the returned
	// function is called. Nil: none ever comes.
	subscribe func(os.Signal) (<-chan os.Signal, func())

	inTerminal, outTerminal, errTerminal bool
	width                                int // columns of the terminal, 0 if unknown
}

func main() {
	boundMemory()
	// Twice is a request to leave (see stopping); from then on the third one kills.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	p := process{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, env: os.Getenv, signals: signals, subscribe: subscribe,
		inTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		outTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		errTerminal: term.IsTerminal(int(os.Stderr.Fd())),
	}
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && p.width == 0 {
			p.width = w
		}
	}
	os.Exit(run(context.Background(), os.Args[1:], p))
}

// boundMemory lets the garbage collector run as often as needed where a site is so
// large that memory counts. Below that the pace stays Go's own: half as often would save
// a twentieth of the CPU of a plan, and take a quarter more memory. Who sets GOMEMLIMIT
// knows better.
func boundMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(256 << 20)
	}
}

func subscribe(s os.Signal) (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, s)
	return c, func() { signal.Stop(c) }
}

// run is the program: it gives the exit code.
func run(ctx context.Context, args []string, p process) int {
	ctx, s := watch(ctx, p)
	defer s.close()
	a := &app{process: p, stopping: s, ui: &ui{process: p, reported: map[string]bool{}}}
	root := a.root() //nolint:contextcheck // cobra hands the context to the verbs
	root.SetArgs(args)
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	err := usage.Explain(root, root.ExecuteContext(ctx))
	if code := exit.Code(err); code != exit.Done {
		a.ui.failure(err)
		return code
	}
	return exit.Done
}

// app is what every verb has.
type app struct {
	process
	stopping *stopping
	ui       *ui
	opened   *session // the site that was opened last, for documents; nil: none
}

// root makes the command tree. It must stay cheap: version pays for it too.
func (a *app) root() *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "homestak-gitops",
		Short: "GitOps for Proxmox VE",
		Long: `homestak-gitops makes Proxmox VE hosts become what a site says: a folder of HCL
files, in use a git repository. Begin with "homestak-gitops demo", or with
"homestak-gitops init my-site".`,
		SilenceUsage:       true,
		SilenceErrors:      true,
		DisableSuggestions: true, // usage.Explain does it
		RunE: func(c *cobra.Command, _ []string) error {
			if version {
				return runVersion(a)
			}
			return c.Help()
		},
	}
	root.Flags().BoolVar(&version, "version", false, "print the version of this program")
	root.SetHelpCommand(helpVerb())
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w\nsee: %s --help", err, c.CommandPath())
	})
	a.ui.flags(root.PersistentFlags())
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return a.ui.check() }
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
	add("site", initVerb(a), fmtVerb(a), validateVerb(a), policyVerb(a))
	add("host", doctorVerb(a), planVerb(a), applyVerb(a), destroyVerb(a), testVerb(a))
	add("agent", agentVerb(a), configVerb(a), serveVerb(a), tokenVerb(a), statusVerb(a), treeVerb(a), eventsVerb(a), historyVerb(a), whyVerb(a), reconcileVerb(a), suspendVerb(a), resumeVerb(a))
	add("try", simVerb(a), demoVerb(a))
	add("", versionVerb(a), docsVerb(), exitCodesTopic())
	return root
}

// helpVerb is "help VERB", which is an error where there is no such verb.
func helpVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "help [VERB]",
		Short: "Show help about a verb",
		Long:  `Shows help about a verb, or with "help exit-codes" about the exit codes.`,
		RunE: func(c *cobra.Command, args []string) error {
			about, _, err := c.Root().Find(args)
			if err != nil {
				return err
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return usage.Verbs(c.Root()), cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// exitCodesTopic is what "help exit-codes" prints: a command that cannot be run.
func exitCodesTopic() *cobra.Command {
	topic := &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean"}
	topic.SetHelpFunc(func(c *cobra.Command, _ []string) {
		fmt.Fprintln(c.OutOrStdout(), "Exit codes:")
		exit.Write(c.OutOrStdout())
	})
	return topic
}
