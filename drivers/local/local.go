// Package local runs commands on the local machine.
package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/engine/guest"
)

// Machine is this machine. Commands run as the user of the program, who is root where a
// spec is applied. Safe for concurrent use: it has no state.
type Machine struct{ grace time.Duration }

// New returns this machine.
func New() Machine { return Machine{defaultGrace} }

// defaultGrace limits the time that a command that has to end may take to clean up, and that an
// output may stay open after its command has ended, by a process that it left behind.
const defaultGrace = 5 * time.Second

// Environment returns the environment of commands: nothing of the program's own, where the service
// manager puts its sockets and credentials, but who became root by sudo: what is taken from
// that user may lock them out.
func Environment() []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	if user := os.Getenv("SUDO_USER"); user != "" {
		env = append(env, "SUDO_USER="+user)
	}
	return env
}

// Address is the loopback address.
func (Machine) Address(context.Context) (guest.Address, error) {
	return guest.Address{IP: netip.AddrFrom4([4]byte{127, 0, 0, 1}), Why: "this machine", Declared: true}, nil
}

// Ping implements guest.Machine: the local machine is always reachable.
func (Machine) Ping(ctx context.Context) error { return context.Cause(ctx) }

// Run implements guest.Machine. The command has a process group of its own. When ctx ends, the
// group gets SIGTERM, and what is left of it after a grace of 5 s SIGKILL.
func (m Machine) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	if err := c.Check(); err != nil {
		return guest.Output{}, err
	}
	name := c.Args[0]
	cmd := exec.CommandContext(ctx, name, c.Args[1:]...)
	var out, errs guest.Capture
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &errs, Environment()
	if len(c.Stdin) > 0 {
		cmd.Stdin = bytes.NewReader(c.Stdin)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = m.grace
	if err := cmd.Start(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return guest.Output{}, fmt.Errorf("%s did not start: %w", name, err)
	}
	err := cmd.Wait()
	if ctx.Err() != nil && err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		// The number cannot have been given to another group yet: numbers are given in turn.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return guest.Output{}, fmt.Errorf("%w: %s was ended: %w", guest.ErrOutcomeLost, name, context.Cause(ctx))
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok {
		return guest.Output{}, fmt.Errorf("%w: %s: %w", guest.ErrOutcomeLost, name, err)
	}
	if status.Signaled() {
		return out.Output(0, int(status.Signal()), &errs), nil
	}
	return out.Output(status.ExitStatus(), 0, &errs), nil
}
