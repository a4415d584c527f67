package ssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"

	"github.com/homestak/homestak-gitops/engine/guest"
)

// configError is a configuration that cannot work.
type configError struct{ text string }

func (e *configError) Error() string { return e.text }

// Hopeless is true; see guest.Machine.
func (*configError) Hopeless() bool { return true }

// HostKeyError is a machine with a wrong or unknown host key.
type HostKeyError struct {
	Machine string   // user@host:port
	Pinned  []string // fingerprints with types; none: no key was pinned
	Shown   string   // fingerprint with type; "" if it has none of a pinned type
	Err     error    // why the key was not learned; nil: learning was not requested
}

// Error says what was pinned, what was seen, and what to do.
func (e *HostKeyError) Error() string {
	const compare = "compare it with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the machine's console"
	switch {
	case len(e.Pinned) == 0 && e.Err != nil:
		return fmt.Sprintf("ssh to %s: its host key %s was not accepted: %v", e.Machine, e.Shown, e.Err)
	case len(e.Pinned) == 0:
		return fmt.Sprintf("ssh to %s: its host key is not known: it shows %s; %s, then pin it", e.Machine, e.Shown, compare)
	case e.Shown == "":
		return fmt.Sprintf("ssh to %s: its host key has changed: pinned is %s, and it has none of that type; if the machine was reinstalled, pin its new key", e.Machine, strings.Join(e.Pinned, " or "))
	default:
		return fmt.Sprintf("ssh to %s: its host key has changed: pinned is %s, it shows %s; the connection may be intercepted. If the machine was reinstalled, %s and pin it",
			e.Machine, strings.Join(e.Pinned, " or "), e.Shown, compare)
	}
}

// Unwrap gives why the key was not learned.
func (e *HostKeyError) Unwrap() error { return e.Err }

// Hopeless is true, except where the key could not be stored; see guest.Machine.
func (e *HostKeyError) Hopeless() bool { return e.Err == nil }

// ViaError is a jump host that cannot be entered. Its problem is not one of the machines behind it, so it does not
// unwrap to its reason.
type ViaError struct {
	Machine string // user@host:port
	Err     error
}

// Error returns the reason, which names the machine.
func (e *ViaError) Error() string { return e.Err.Error() }

// Hopeless is that of the reason; see guest.Machine.
func (e *ViaError) Hopeless() bool {
	var h interface{ Hopeless() bool }
	return errors.As(e.Err, &h) && h.Hopeless()
}

// LoginError is a machine that rejects all of our keys. It is not Hopeless: a machine that boots
// for the first time has its sshd before its keys.
type LoginError struct {
	Machine string
	Offered []string // fingerprints with types
	Reason  string   // what else is known
}

// Error says which keys were offered.
func (e *LoginError) Error() string {
	text := fmt.Sprintf("ssh to %s: it accepts none of these keys: %s", e.Machine, strings.Join(e.Offered, ", "))
	if len(e.Offered) == 0 {
		text = fmt.Sprintf("ssh to %s: there was no key to offer", e.Machine)
	}
	if e.Reason != "" {
		text += " (" + e.Reason + ")"
	}
	return text + "; is one of them in ~/.ssh/authorized_keys of that user, and does sshd let the user log in?"
}

// Hopeless is false; see guest.Machine.
func (*LoginError) Hopeless() bool { return false }

// sudoError is a user that cannot become root.
type sudoError struct {
	Machine string
	Reason  string // what sudo says; "" if it is missing
}

// Error says what to do.
func (e *sudoError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("ssh to %s: this user is not root, and sudo is not installed: install it, or log in as root", e.Machine)
	}
	return fmt.Sprintf("ssh to %s: this user cannot become root: %s; add `USER ALL=(ALL) NOPASSWD: ALL` to a file in /etc/sudoers.d, or log in as root", e.Machine, e.Reason)
}

// Hopeless is false: the rule of a machine that boots for the first time comes after its sshd.
func (*sudoError) Hopeless() bool { return false }

// machineError is any other reason why a machine cannot be reached or used.
type machineError struct {
	Machine string
	Err     error
	Lasting bool
}

// Error says what was attempted, and why it failed.
func (e *machineError) Error() string {
	return fmt.Sprintf("ssh to %s: %s", e.Machine, guest.Excerpt(e.Err.Error()))
}

// Unwrap returns the reason.
func (e *machineError) Unwrap() error { return e.Err }

// Hopeless reports whether waiting resolves nothing; see guest.Machine.
func (e *machineError) Hopeless() bool { return e.Lasting }

// failed says of an error what it means.
func (m *Machine) failed(err error) error {
	if err == nil || errors.As(err, new(interface{ Hopeless() bool })) {
		return err // it says so itself
	}
	e := &machineError{Machine: m.name(), Err: err}
	var open *ssh.OpenChannelError
	var dns *net.DNSError
	var netErr net.Error
	switch text := err.Error(); {
	case errors.As(err, &open) && m.cfg.Via != nil && open.Reason == ssh.Prohibited:
		e.Err, e.Lasting = fmt.Errorf("%s forwards no connections (AllowTcpForwarding in its sshd_config): %w", m.cfg.Via.name(), err), true
	case errors.As(err, &open) && m.cfg.Via != nil:
		e.Err = fmt.Errorf("%s cannot connect to it: %w", m.cfg.Via.name(), err)
	case errors.As(err, &dns) && dns.IsNotFound:
		e.Err = fmt.Errorf("no such name: %w", err)
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Err = fmt.Errorf("nothing listens there: does sshd run, and on this port? %w", err)
	case errors.As(err, new(*ssh.AlgorithmNegotiationError)):
		e.Err, e.Lasting = fmt.Errorf("it offers only algorithms that are no longer safe, or unknown here: %w", err), true
	case strings.Contains(text, "overflow reading version string"), strings.Contains(text, "invalid version"):
		e.Err, e.Lasting = fmt.Errorf("what listens there does not speak ssh; is the port right? %w", err), true
	case errors.Is(err, errRefused):
		e.Lasting = true
	case strings.HasSuffix(text, "handshake failed: EOF"):
		e.Err = fmt.Errorf("it closed the connection at once: is the port right, and does it block this machine for a while (MaxStartups, fail2ban)? %w", err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
	case errors.As(err, &netErr) && netErr.Timeout():
		e.Err = fmt.Errorf("no answer; is the address right, and does a firewall drop it? %w", err)
	}
	return e
}
