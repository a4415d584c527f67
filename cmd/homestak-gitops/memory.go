package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/ledger"
)

// What an agent keeps in its data folder, beside the locks of hosts.
const (
	agentLock = "agent.lock" // held as long as an agent runs; says where it is spoken to
	ledgerDir = "ledger"     // receipts, and what the agent wants to know after a restart
	cloneDir  = "repository"
)

// absent is the state of an agent that does not run.
const absent agent.State = "absent"

// memory is what an agent that does not run any more left behind. It is only read.
type memory struct {
	ledger *ledger.Ledger
	status agent.Status
}

// recall reads what the last agent of a data folder knew.
func (*app) recall(c *agentConfig) (*memory, error) {
	dir := filepath.Join(c.DataDir, ledgerDir)
	const start = "start one: homestak-gitops agent --repository URL --identity NAME, or systemctl start homestak-gitops"
	_, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("no agent is running here, and none was: there is no %s\nname its folder with --data-dir, or %s", dir, start)
	case errors.Is(err, fs.ErrPermission):
		return nil, &ending{exitDenied, fmt.Errorf("no agent is running here, and what the last one knew may not be read: %w\nrun this as root or as the agent's user", err)}
	case err != nil:
		return nil, fmt.Errorf("no agent is running here: %w", err)
	}
	l := ledger.Read(dir)
	m := &memory{ledger: l}
	s, err := l.State()
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, &ending{exitDenied, fmt.Errorf("no agent is running here, and what the last one knew may not be read: %w\n%s", err, folderHint(c.DataDir, err))}
	case err != nil:
		return nil, fmt.Errorf("no agent is running here, and what the last one knew cannot be read: %w", err)
	}
	last, _ := l.Last(1, nil) // what cannot be read is for history to tell
	m.status = left(s, last)
	return m, nil
}

// left makes a status of what was left.
func left(s ledger.State, last []ledger.Receipt) agent.Status {
	out := agent.Status{
		Version: 1, Identity: s.Identity, State: absent, Suspended: append([]ledger.Suspension{}, s.Suspended...),
		Head: markStatus(s.Head), InForce: markStatus(s.Good), Converged: markStatus(s.Converged), Nodes: []engine.NodeStatus{},
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
			switch st.Action {
			case "create":
				out.Last.Summary.Create++
			case "update":
				out.Last.Summary.Update++
			case "replace":
				out.Last.Summary.Replace++
			case "delete":
				out.Last.Summary.Delete++
			}
		}
		for _, c := range []*agent.CommitStatus{out.Head, out.InForce, out.Converged} {
			if c != nil && c.ID == r.Commit {
				c.Subject, c.Author = r.Subject, r.Author
			}
		}
	}
	return out
}

func markStatus(m ledger.CommitRef) *agent.CommitStatus {
	if m.ID == "" {
		return nil
	}
	return &agent.CommitStatus{ID: m.ID, Since: m.Since}
}
