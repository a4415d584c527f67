package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/ledger"
)

// Absent is the state of an agent that does not run.
const Absent agent.State = "absent"

// Offline is the stored state of an agent that is not running. It answers like a Client, and is
// read-only.
type Offline struct {
	receipts receipts
	status   agent.Status
}

// Status returns the last known status.
func (o *Offline) Status(context.Context) (agent.Status, error) { return o.status, nil }

// History lists receipts as Client.History does.
func (o *Offline) History(_ context.Context, n int, address string) (History, error) {
	return historyOf(o.receipts, n, address), nil
}

// Verify checks the chain of receipts.
func (o *Offline) Verify(context.Context) (ledger.Proof, error) {
	return o.receipts.Verify(ledger.Expect{})
}

// Why explains an address from the receipts alone.
func (o *Offline) Why(_ context.Context, address string) (Reasons, error) {
	r := (&Facts{}).Reasons(address, o.status, o.receipts)
	if r.NotFound {
		r.Hint = strings.TrimSpace(r.Hint + "\nwithout an agent only its receipts are known: systemctl start homestak-gitops" + planInstead)
	}
	return r, nil
}

// planInstead names what needs no agent.
const planInstead = "; or compare a clone of the site with the host: homestak-gitops plan"

// ReadOffline reads the stored state of the last agent.
func (f Folder) ReadOffline() (*Offline, error) {
	dir := f.Ledger()
	const start = "start one: homestak-gitops agent --repository URL --identity NAME, or systemctl start homestak-gitops" + planInstead
	_, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("no agent is running here, and none ever ran: there is no %s\nname its folder with --data-dir, or %s", dir, start)
	case errors.Is(err, fs.ErrPermission):
		return nil, deniedf("no agent is running here, and there is no permission to read the state of the last one: %w\nrun this as root or as the agent's user", err)
	case err != nil:
		return nil, fmt.Errorf("no agent is running here: %w", err)
	}
	l := ledger.Read(dir)
	s, err := l.State()
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, deniedf("no agent is running here, and there is no permission to read the state of the last one: %w\n%s", err, f.Hint(err))
	case err != nil:
		return nil, fmt.Errorf("no agent is running here, and the state of the last one cannot be read: %w", err)
	}
	last, _ := l.Last(1, func(r *ledger.Receipt) bool { return r.Verb != ledger.VerbVerify }) // what cannot be read is for history to report
	return &Offline{l, LastStatus(s, last)}, nil
}

// LastStatus derives the status of a stopped agent from its state and its last receipt.
func LastStatus(s ledger.State, last []ledger.Receipt) agent.Status {
	out := agent.Status{
		Version: 1, Identity: s.Identity, State: Absent, Suspended: append([]ledger.Suspension{}, s.Suspended...),
		Head: commitStatus(s.Head), InForce: commitStatus(s.Good), Converged: commitStatus(s.Converged), Nodes: []engine.NodeStatus{}, Checks: []agent.CheckStatus{}, Notify: []agent.NotifyStatus{},
	}
	for _, c := range s.FailingChecks {
		out.Checks = append(out.Checks, agent.CheckStatus{
			Address: c.Address, Check: c.Check, State: agent.CheckFailing, Since: c.Since, Error: c.Error, Idle: "no agent is running here",
		})
	}
	latest := func(t time.Time) {
		if t.After(out.At) {
			out.At = t
		}
	}
	for _, m := range []ledger.CommitRef{s.Head, s.Good, s.Converged} {
		latest(m.Since)
	}
	for _, r := range last {
		ended := r.Began.Add(time.Duration(r.Seconds * float64(time.Second)))
		latest(ended)
		out.Last = &agent.PassStatus{
			Commit: r.Commit, Plan: r.Plan, Outcome: engine.Outcome(r.Outcome), Ended: ended, Seconds: r.Seconds, Drift: r.Drift, Findings: r.Findings,
		}
		for _, st := range r.Steps {
			out.Last.Summary.Count(st.Action)
		}
		for _, c := range []*agent.CommitStatus{out.Head, out.InForce, out.Converged} {
			if c != nil && c.ID == r.Commit {
				c.Subject, c.Author = r.Subject, r.Author
			}
		}
	}
	return out
}

func commitStatus(m ledger.CommitRef) *agent.CommitStatus {
	if m.ID == "" {
		return nil
	}
	return &agent.CommitStatus{ID: m.ID, Since: m.Since}
}
