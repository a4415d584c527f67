package agent

import (
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// State is the state of an agent, in a word.
type State string

// The states of an agent.
const (
	Starting   State = "starting"
	Idle       State = "idle"       // waits for the next look
	Checking   State = "looking"    // at the repository or the host
	Converging State = "converging" // carries out a plan
	Waiting    State = "waiting"    // another process holds the host's write lock
	Stopping   State = "stopping"   // finishes running steps, starts no new ones
)

// Status is the report of an agent about itself. Fields about events that never happened are null.
type Status struct {
	Version  int       `json:"version"` // of this document: 1
	Agent    string    `json:"agent"`   // version of the program
	Identity string    `json:"identity"`
	PID      int       `json:"pid"`
	Started  time.Time `json:"started"`
	At       time.Time `json:"at"`
	State    State     `json:"state"`
	Healthy  bool      `json:"healthy"` // the last pass came to its end, nothing is refused, and the repository answers
	Summary  string    `json:"summary"` // all of it in one sentence, for people

	Repository RepositoryStatus `json:"repository"`
	Head       *CommitStatus    `json:"head"`      // the newest that was fetched
	InForce    *CommitStatus    `json:"in_force"`  // the one that is converged to: the last good one
	Converged  *CommitStatus    `json:"converged"` // the last that the host came to be as it says
	Refused    *Refusal         `json:"refused"`   // why head is not in force, if it is not

	Running   *Running            `json:"running"` // the pass under way
	Last      *PassStatus         `json:"last"`    // the last that ended
	Drifted   *PassStatus         `json:"drifted"` // the last since the start that found the host changed by hand; null: none did
	Suspended []ledger.Suspension `json:"suspended"`
	NextCheck *time.Time          `json:"next_look"` // when the repository is asked next
	NextFull  *time.Time          `json:"next_full"` // when the host is checked next, also without a commit
	Nodes     []engine.NodeStatus `json:"nodes"`     // of the subtree, after the last pass that could see
	Checks    []CheckStatus       `json:"checks"`    // of these nodes, as they ran between passes

	Outputs []OutputStatus `json:"outputs,omitempty"` // that the agent writes

	Hosts  []HostBelow   `json:"hosts"`  // that have this agent as their parent, or had it until they left the site
	Server *ServerStatus `json:"server"` // for nodes and children; null: there is none
	Parent *ParentStatus `json:"parent"` // the agent above; null: there is none
	Watch  *WatchStatus  `json:"watch"`  // of changes between two full checks; null: there is none

	Notify []NotifyStatus `json:"notify"` // the notifiers of the site; empty for an agent with a parent
}

// CheckStatus is the state of a check that is run between passes.
type CheckStatus struct {
	Address string     `json:"address"`
	Check   string     `json:"check"`
	State   CheckState `json:"state"`
	Since   time.Time  `json:"since"`          // of the first run with this result
	Error   string     `json:"error"`          // what the last run saw, "" if it passed
	Ran     *time.Time `json:"ran"`            // last run; null: none since the agent started
	Idle    string     `json:"idle,omitempty"` // why it is not run now
}

// CheckState is the state of a check. One run alone does not turn it.
type CheckState string

// The states of a check.
const (
	CheckUnknown CheckState = "unknown" // it did not pass yet, and did not fail twice
	CheckPassing CheckState = "passing"
	CheckFailing CheckState = "failing"
)

// FailingChecks lists the checks that fail, by the runs between passes.
func (s Status) FailingChecks() []CheckStatus {
	var out []CheckStatus
	for _, c := range s.Checks {
		if c.State == CheckFailing {
			out = append(out, c)
		}
	}
	return out
}

// Unseen reports whether the nodes are not known: no pass since the start saw the host.
func (s Status) Unseen() bool {
	return s.Last == nil || len(s.Nodes) == 0 && s.Last.Outcome != engine.Done && s.Last.Outcome != engine.Planned
}

// driftTime is how long a host counts as changed by hand. What was changed is usually reverted by the pass that finds it.
const driftTime = 5 * time.Minute

// RecentDrift is the last pass that found the host changed by hand, if that was not long ago, else nil.
func (s Status) RecentDrift() *PassStatus {
	if s.Drifted == nil || s.At.Sub(s.Drifted.Ended) >= driftTime {
		return nil
	}
	return s.Drifted
}

// HostBelow is a host that has this agent as its parent. All but the first two members are by its last report.
type HostBelow struct {
	Name     string     `json:"name"`
	Leaving  bool       `json:"leaving"`  // the site lacks it, and it is not known to be empty
	Ready    bool       `json:"ready"`    // and all below it
	Stale    bool       `json:"stale"`    // no report came for three periods
	Reported *time.Time `json:"reported"` // null: it has not reported
	Commit   string     `json:"commit"`   // that its agent works from
	Error    string     `json:"error"`    // why it is not ready
}

// NotifyStatus is the state of a notifier.
type NotifyStatus struct {
	Name    string           `json:"name"`
	Type    model.NotifyType `json:"type"`
	Open    int              `json:"open"`    // incidents that fired and last
	Queued  int              `json:"queued"`  // messages that are not sent yet
	Dropped int              `json:"dropped"` // messages that never will be, until a day after the last of them
	Sent    *time.Time       `json:"sent"`    // last message since the agent started; null: none
	Error   string           `json:"error"`   // of the last try, "" if it succeeded
	Failing *time.Time       `json:"failing"` // since when
}

// WatchStatus says how changes of guests are noticed at once.
type WatchStatus struct {
	Error string `json:"error"` // why they are not, so that only full checks find them; "" if they are
}

// ServerStatus is the state of the server for nodes and children.
type ServerStatus struct {
	Address string     `json:"address"` // that it listens on, or tries to
	URL     string     `json:"url"`     // where nodes and children reach it; "" where that is not known
	Pins    []string   `json:"pins"`    // of its key and the next one
	Commit  string     `json:"commit"`  // that it serves, "" for none yet
	Nodes   int        `json:"nodes"`   // that it serves
	Error   string     `json:"error"`   // why it does not serve what it should, "" if it does
	Failing *time.Time `json:"failing"` // since when
	// Waiting are machines that joined under names that the site does not have.
	Waiting []WaitingHost `json:"waiting"`
}

// WaitingHost is a machine that joined, and waits for a commit with its name.
type WaitingHost struct {
	Name  string    `json:"name"`
	From  string    `json:"from"` // its address
	Since time.Time `json:"since"`
}

// ParentStatus is the state of the connection to the parent.
type ParentStatus struct {
	URL      string     `json:"url"`
	Reported *time.Time `json:"reported"` // last report that it took
	Error    string     `json:"error"`    // of the last try, "" if it went well
	Failing  *time.Time `json:"failing"`  // since when it does not answer
}

// CommitStatus names a commit.
type CommitStatus struct {
	ID      string    `json:"id"`
	Subject string    `json:"subject"`
	Author  string    `json:"author"`
	Since   time.Time `json:"since"` // when it took this place here
}

// RepositoryStatus is the state of the connection to the repository.
type RepositoryStatus struct {
	URL     string     `json:"url"` // without credentials
	Branch  string     `json:"branch"`
	Path    string     `json:"path"`
	Checked *time.Time `json:"checked"` // last answer
	Error   string     `json:"error"`   // of the last try, "" if it went well
	Failing *time.Time `json:"failing"` // since when it does not answer
	// Condition names what people should know of it; Rewritten is the sentence for the last of them.
	Condition Condition `json:"condition"`
	Rewritten string    `json:"rewritten"` // "history of main was rewritten: …", "" if the head came after the one before it
}

// Condition is a state of the repository that people should know.
type Condition string

// The conditions of a repository. With one of the first two the agent is not healthy.
const (
	NotAnswering     Condition = "not-answering"     // three polls in a row had no answer
	BranchMissing    Condition = "branch-missing"    // it answers, and has no such branch any more
	HistoryRewritten Condition = "history-rewritten" // the head is not a descendant of the one before it
)

// Refusal is why a commit did not converge.
type Refusal struct {
	Commit   string         `json:"commit"`
	Outcome  engine.Outcome `json:"outcome"` // invalid or refused
	Since    time.Time      `json:"since"`
	Findings diag.List      `json:"findings"`
}

// Running is a pass under way.
type Running struct {
	Commit  string    `json:"commit"`
	Since   time.Time `json:"since"`
	Steps   int       `json:"steps"` // of the plan, 0 before there is one
	Done    int       `json:"done"`
	Now     []StepNow `json:"now"`
	Next    []string  `json:"next"`         // addresses of the steps not begun, in order
	Seconds float64   `json:"seconds_left"` // by what such steps usually take; 0 if not known
}

// StepNow is a step that runs.
type StepNow struct {
	Address string      `json:"address"`
	Action  plan.Action `json:"action"`
	Since   time.Time   `json:"since"`
	Usually float64     `json:"usually_seconds"` // median of the receipts; 0 if there is none
	Waits   string      `json:"waits,omitempty"` // for which check, and what that saw last
}

// PassStatus is the outcome of a pass.
type PassStatus struct {
	Commit  string         `json:"commit"`
	Plan    string         `json:"plan"` // its id, "" if there was none
	Outcome engine.Outcome `json:"outcome"`
	Ended   time.Time      `json:"ended"`
	Seconds float64        `json:"seconds"`
	Error   string         `json:"error"`
	Drift   bool           `json:"drift"` // the commit was converged to before: what differed was changed on the host
	Summary plan.Summary   `json:"summary"`
	Unknown int            `json:"unknown"`
	Pending int            `json:"pending"`
	// Unmanaged is the number of guests on the host that are not managed, as far as they were seen.
	Unmanaged int       `json:"unmanaged"`
	Findings  diag.List `json:"findings"`
}
