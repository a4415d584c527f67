// Package guest defines Machine, the access to a guest. The packages below apply specs (packages, users, services,
// …) through it, independent of the transport.
package guest

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Machine is the access to one guest: through its host, over the network, or from within. It may be used
// repeatedly, and by several goroutines at once; an error that is Hopeless is permanent.
//
// Files are read and written by scripts on the stdin of sh, many in one round trip, so that it needs no method for
// them: see docs/decisions/0014-ways-into-guests.md.
type Machine interface {
	// Address chooses where the guest is reached.
	Address(ctx context.Context) (Address, error)
	// Ping asks for a sign of life.
	Ping(ctx context.Context) error
	// Run runs a command inside the guest as root and waits for its end. A command that fails is not an error:
	// Output has its exit status. A missing program is an error, or exit code 127 as shells return it (POSIX, XCU
	// 2.8.2).
	//
	// An error wraps ErrOutcomeLost if the command may have run. When ctx ends, Run returns; the command itself may
	// continue if it cannot be ended through this access.
	Run(ctx context.Context, c Command) (Output, error)
}

// Address is the address of a guest.
type Address struct {
	IP       netip.Addr
	Why      string // 10.0.12.7 on net0 by the guest agent
	Declared bool   // in the files; it does not change otherwise
}

// Command is a program to run inside a guest.
type Command struct {
	// Args are the program, with or without its folder, and its arguments. No shell comes
	// in between. They show in the guest's list of processes and in logs: secrets belong
	// into Stdin.
	Args []string
	// Stdin is the input of the program; without any it reads the end of file at once.
	Stdin []byte
}

// Check reports what no machine can run: no program, or an argument with a NUL byte
// (execve(2) takes strings that end there). The error says Hopeless.
func (c Command) Check() error {
	switch {
	case len(c.Args) == 0 || c.Args[0] == "":
		return &commandError{"the command names no program"}
	case slices.ContainsFunc(c.Args, func(arg string) bool { return strings.ContainsRune(arg, 0) }):
		return &commandError{"an argument of " + c.Args[0] + " has a NUL byte in it"}
	}
	return nil
}

// commandError is a command that no machine can run.
type commandError struct{ text string }

func (e *commandError) Error() string { return e.text }

// Hopeless is true; see Machine.
func (*commandError) Hopeless() bool { return true }

// Hopeless reports whether an error says that waiting does not fix it.
func Hopeless(err error) bool {
	var h interface{ Hopeless() bool }
	return errors.As(err, &h) && h.Hopeless()
}

// ErrOutcomeLost says that a command may have run, completely or in part, with an unknown result. It is never
// retried automatically: a caller that retries reads the current state first.
var ErrOutcomeLost = errors.New("the outcome of the command is unknown")

// OutputLimit is the number of bytes of each of its two outputs that a command returns.
const OutputLimit = 1 << 20

// Output is the result of a command inside a guest. Its output is byte for byte, even if it is not UTF-8.
type Output struct {
	Code     int
	Signal   int // that killed it; 0 if it exited
	Out, Err string
	Cut      bool // Out or Err ends at OutputLimit, and the command wrote more
}

// Limited returns an output whose texts end at OutputLimit.
func (o Output) Limited() Output {
	for _, text := range []*string{&o.Out, &o.Err} {
		if len(*text) > OutputLimit {
			*text, o.Cut = (*text)[:OutputLimit], true
		}
	}
	return o
}

// Excerpt returns the last 1,500 bytes of what a guest printed, where programs name the cause, without characters that are
// unsafe to show.
func Excerpt(text string) string {
	const most = 1500
	text = diag.Clean(strings.TrimSpace(text))
	if len(text) > most {
		text = "…" + strings.ToValidUTF8(text[len(text)-most:], "")
	}
	return text
}
