// Package health runs the checks of a guest: it tries the check blocks of its node and spec until each passes or
// times out, and reports the results.
//
// Read in this order:
//
//	health.go   the checks of a guest, and their results
//	wait.go     when a check is tried, and when it is given up
//	try.go      one try, by the type of the check
//	conn.go     a connection with three deadlines that records its progress
//	http.go, ssh.go  the protocols
//	text.go     what may be shown of a response
//
// It knows nothing about hosts. The caller provides a guest.Machine for access to a guest; connections start from
// this machine, unless Prober has another network.
package health

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Subject is the guest to check, with everything that its checks need.
type Subject struct {
	Address model.Address
	Machine guest.Machine
	User    string   // of a login by SSH
	Keys    []string // public keys that it accepts, as in authorized_keys
	Key     string   // private key to log in with, in PEM form; "" for none
	Secrets []string // values that no text may repeat
	// Dial connects to the guest, where the network of the prober does not lead to it; else nil.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Prober tries checks. The zero value uses the network of this machine.
type Prober struct {
	// Dial connects; net.Dialer unless set. The deadline of its context is Connect.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Simulated is set for guests in a simulator, which has no network: it returns an error if the
	// guest with an address is not up; otherwise a check over the network passes, whatever it
	// expects. The simulator runs commands, and their output is not checked.
	Simulated func(ip netip.Addr) error

	// Reported returns the last report of a node in mode pull: that it is ready, or an error. Nil: there is no
	// server for reports, so checks do not wait for them.
	Reported func(node string) (saw string, err error)

	Every   time.Duration // between two tries, where the check does not say it; 5 s unless set
	Connect time.Duration // how long a connection may take; 5 s unless set
	Idle    time.Duration // how long no byte may come; 10 s unless set
	Total   time.Duration // how long one try may take; 30 s unless set

	// Notify gets every try that failed, and of the first that did not after such ones,
	// from the goroutine of Run; may be nil.
	Notify func(Progress)
}

// Progress is the progress of a check that does not pass yet, or has just passed.
type Progress struct {
	Address model.Address
	For     model.Address // whose step waits, where that is another guest's; zero if not
	Check   string
	Saw     string
	Tries   int
	Waited  time.Duration
	Timeout time.Duration
	Passed  bool // it passed
}

// Step is whose step waits for the check.
func (p *Progress) Step() model.Address { return cmp.Or(p.For, p.Address) }

// String says in one line which check has not passed yet, and its last result; "" when it passed.
func (p *Progress) String() string {
	if p.Passed {
		return ""
	}
	return fmt.Sprintf("waiting for check %s of %s: %s (%d s of %s)", p.Check, p.Address, p.Saw, int(p.Waited.Seconds()), whole(p.Timeout))
}

// whole writes a duration without the units that are zero: 5m, not 5m0s.
func whole(d time.Duration) string {
	switch {
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= time.Minute && d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	default:
		return d.String()
	}
}

// Result is the result of one check.
type Result struct {
	Name    string  `json:"name"`
	OK      bool    `json:"ok"`
	Detail  string  `json:"detail"` // what was seen last
	Tries   int     `json:"tries"`  // 0: an earlier one failed
	Seconds float64 `json:"duration_seconds"`
}

// Report has the results of the checks of one guest.
type Report struct {
	IP      string // where it was reached, "" if that was not needed
	Results []Result
	Err     error // of the first that failed, an *Error
}

// Error is a failed check.
type Error struct {
	Check string
	At    diag.Range
	Saw   string
	Tries int
	Since time.Time // when it was tried first; zero for a single try
	Err   error     // why it was given up before its time; may be nil

	// Waiting: nothing is wrong so far, as where a new node has not reported yet.
	Waiting bool
}

// Error says which check, what it saw, how often it was tried and since when.
func (e *Error) Error() string {
	if e.Waiting {
		return e.Saw
	}
	where := ""
	if !e.At.IsZero() {
		where = " (" + e.At.String() + ")"
	}
	text := fmt.Sprintf("check %s%s failed: %s", e.Check, where, e.Saw)
	if e.Tries > 1 {
		text += fmt.Sprintf("; tried %d times since %s", e.Tries, e.Since.UTC().Format("15:04:05 UTC"))
	}
	if e.Err != nil {
		text += fmt.Sprintf("; given up: %v", e.Err)
	}
	return text
}

// Unwrap gives why it was given up.
func (e *Error) Unwrap() error { return e.Err }

// HopelessError is an error that waiting does not fix.
type HopelessError struct{ Text string }

// Error is the text.
func (e *HopelessError) Error() string { return e.Text }

// Hopeless is true.
func (*HopelessError) Hopeless() bool { return true }
