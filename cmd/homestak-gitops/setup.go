package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/setup"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// setupRun is how setup runs this time.
type setupRun struct {
	setup.Setup
	print, undo, yes bool
}

func setupVerb(a *app) *cobra.Command {
	f := &setupRun{}
	c := &cobra.Command{
		Use:   "setup",
		Short: "Prepare this Proxmox VE node for an agent, or undo that",
		Long: `As root, it creates a PVE user with least roles and a token, a first site in a repository,
secrets, and the service of the agent. It shows each command first, and asks once. The
first site has no guests, so the agent changes nothing until you push.

Run again, it does only what is missing. It refuses to change what it did not make, and
says what to do. /etc/homestak-gitops/setup.json records what was there before; --undo
goes back by it, and keeps what was changed since.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runSetup(c.Context(), a, f) },
	}
	fs := c.Flags()
	fs.BoolVar(&f.print, "print", false, "print the commands as a script, and change nothing")
	fs.BoolVar(&f.undo, "undo", false, "remove what setup made, and restore what it changed")
	fs.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	fs.StringVar(&f.API, "api", "", "`URL`: API in the site (default: the address of the node)")
	fs.StringVar(&f.Disks, "disks", "", "`STORAGE`: disks of guests (default: local-lvm, local-zfs or the one with most room)")
	fs.StringVar(&f.Images, "images", "", "`STORAGE`: images (default: local)")
	fs.StringVar(&f.Bridge, "bridge", "", "`BRIDGE`: bridge of guests (default: that of the default route)")
	fs.StringVar(&f.Repository, "repo", "", "`URL`: empty repository (default: one on this host)")
	c.MarkFlagsMutuallyExclusive("print", "undo")
	c.MarkFlagsMutuallyExclusive("print", "repo") // the owner has to add the deploy key in between
	return c
}

func runSetup(ctx context.Context, a *app, f *setupRun) error {
	var err error
	if f.Files, err = siteFiles(); err != nil {
		return err
	}
	if f.Program, err = os.Executable(); err == nil {
		f.Program, err = filepath.EvalSymlinks(f.Program)
	}
	if err != nil {
		return err
	}
	f.Run = setup.Programs{}
	f.Say = func(format string, args ...any) { a.ui.Printf("%s\n", diag.Clean(fmt.Sprintf(format, args...))) }
	if os.Geteuid() != 0 {
		return errors.New("setup must run as root, on a Proxmox VE node")
	}
	soon, cancel := a.stopping.Soon(ctx) // a command that runs is not cut off by the first signal
	defer cancel()
	f.Stop = func() error { return context.Cause(soon) }
	syscall.Umask(0o022) // the agent is another user, and reads what is made here
	if f.undo {
		return runUndo(ctx, soon, a, f)
	}
	p, err := f.Read(soon)
	if err != nil {
		return err
	}
	w, _ := a.ui.Text()
	switch {
	case f.print:
		p.Script(w)
		return nil
	case p.Steps() == 0:
		a.ui.Printf("host %s is set up; nothing to do\n", p.Host())
		return nil
	}
	p.Show(w)
	a.ui.Printf("\n")
	if !f.yes {
		if err := a.ui.Agree(soon, fmt.Sprintf("Do this on host %s?", p.Host()), "read the commands above, then run it with --yes"); err != nil {
			return err
		}
	}
	if err := f.Do(ctx, p); err != nil {
		return fmt.Errorf("%w\nwhat is done is recorded: run setup again to go on, or setup --undo", err)
	}
	a.ui.Printf("\n%s", p.Next())
	if _, err := exec.LookPath("git"); err != nil && p.Local {
		a.ui.Printf("git is not installed on this host, and clone and push need it: apt install git\n")
	}
	return nil
}

func runUndo(ctx, soon context.Context, a *app, f *setupRun) error {
	n, err := f.Recorded()
	switch {
	case err != nil:
		return err
	case n == 0:
		a.ui.Printf("setup has no record of this host; nothing to undo\n")
		return nil
	case !f.yes:
		question := fmt.Sprintf("Undo %s of setup? Guests stay. Without the ownership key in secrets.yaml they cannot be managed again: keep a copy.", diag.Count(n, "step"))
		if err := a.ui.Agree(soon, question, "run it with --yes"); err != nil {
			return err
		}
	}
	if err := f.Undo(ctx); err != nil {
		return ui.ExitFailed.With(fmt.Errorf("%w\nrun setup --undo again to go on", err))
	}
	return nil
}
