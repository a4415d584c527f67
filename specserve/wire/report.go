package wire

// A child sends a report to its parent after every pass: its commit, the state of its nodes, and whether
// its subtree is empty. A report includes those of the child's own children.
//
// Read in this order: Report (the document), Read (validation of a received one), Store (the last report of each
// child, and which are stale), Fold.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// ReportVersion is the version of the document.
const ReportVersion = 1

// Limits of a report. Fold cuts what exceeds them, and Read refuses it.
const (
	MaxReport         = 4 << 20
	maxNodes          = 20_000
	maxReportFindings = 1_000
	maxText           = 2_000 // bytes of one text
	maxWord           = 64    // bytes of a phase or an address
	maxFailing        = 200   // bytes of ReportNode.Failing
)

// MaxReportEvery is the longest time between two reports: a child that reports less often is stale, whatever it says.
const MaxReportEvery = 24 * time.Hour

// maxAhead is the time by which the clock of a child may be ahead of this one.
const maxAhead = 5 * time.Minute

// Report is the state of one child with its subtree.
type Report struct {
	Version  int       `json:"version"`
	Identity string    `json:"identity"`
	Agent    string    `json:"agent"`     // version of the program
	Commit   string    `json:"commit"`    // that the child works from; "" before the first
	LastGood string    `json:"last_good"` // the last that it converged to
	At       time.Time `json:"at"`
	// Every is the longest time between two of its reports, in seconds; 0: as the parent assumes.
	Every int   `json:"every_seconds,omitempty"`
	Phase Phase `json:"phase"`
	Ready bool  `json:"ready"`
	// Refused is the commit that the child refuses, and Drifted says that its last pass found the host changed by hand.
	Refused string `json:"refused,omitempty"`
	Drifted bool   `json:"drifted,omitempty"`
	// Failed says that a step of its last pass failed, or the pass.
	Failed bool `json:"failed,omitempty"`
	// Unseen says that no pass of the child saw its host since it started: Nodes lacks what is on it.
	Unseen bool `json:"unseen,omitempty"`
	// Empty says that the child manages nothing any more, as Commit has it. A parent waits for
	// that before it destroys the child.
	Empty    bool         `json:"empty"`
	Findings diag.List    `json:"findings"`
	Nodes    []ReportNode `json:"nodes"`         // of the whole subtree, each child before its own nodes
	Cut      int          `json:"cut,omitempty"` // nodes that had no room
}

// ReportNode is one node of the subtree.
type ReportNode struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"`   // vm, ct or pve
	Parent string    `json:"parent"` // the identity of the agent that manages it
	Phase  Phase     `json:"phase"`
	Ready  bool      `json:"ready"`
	Drift  int       `json:"drift"` // attributes that differ
	Since  time.Time `json:"since"` // when Ready last changed
	Error  string    `json:"error"`
	// Failing names the checks of the node that fail, and what one of them saw. Ready does not depend on them.
	Failing string `json:"failing,omitempty"`
	// Reported is the time at which the node itself, or the agent that manages it, reported last where that is
	// not the reporting child; zero for the child's own nodes.
	Reported time.Time `json:"reported,omitzero"`
	Stale    bool      `json:"stale,omitempty"`  // that was too long ago: the state since then is unknown
	Commit   string    `json:"commit,omitempty"` // that a child works from
	Refused  string    `json:"refused,omitempty"`
	Drifted  bool      `json:"drifted,omitempty"` // as of Report, as are the next two
	Failed   bool      `json:"failed,omitempty"`
	Unseen   bool      `json:"unseen,omitempty"`

	Life string `json:"life,omitempty"` // where it is in its life, such as operating
	VMID int    `json:"vmid,omitempty"` // of its guest, 0 for none
	IP   string `json:"ip,omitempty"`   // where it was found
}

// Phase is the progress of a node.
type Phase string

// The phases.
const (
	PhaseCreate  Phase = "create"
	PhaseConfig  Phase = "config"
	PhaseRun     Phase = "run"
	PhaseDestroy Phase = "destroy"
)

func (p Phase) known() bool {
	return p == PhaseCreate || p == PhaseConfig || p == PhaseRun || p == PhaseDestroy
}

var (
	reportLabel = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`) })
	commit      = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})?$`) })
)

// ReportError is a document that breaks a rule, or is beyond a limit.
type ReportError struct {
	TooLarge bool // it is beyond a limit
	Why      string
}

func (e *ReportError) Error() string {
	if e.TooLarge {
		return "the report is too large: " + e.Why
	}
	return "the report is not valid: " + e.Why
}

func invalid(format string, args ...any) error {
	return &ReportError{Why: fmt.Sprintf(format, args...)}
}

func tooLarge(format string, args ...any) error {
	return &ReportError{TooLarge: true, Why: fmt.Sprintf(format, args...)}
}

// ReadReport reads and checks the report of a child with this identity, which has proved that it is the
// child. Members that a newer child adds are left out; a newer version is refused. The error is a
// ReportError, or that of the reader.
func ReadReport(from io.Reader, identity string, now time.Time) (Report, error) {
	data, err := io.ReadAll(io.LimitReader(from, MaxReport+1))
	switch {
	case err != nil:
		return Report{}, err
	case len(data) > MaxReport:
		return Report{}, tooLarge("more than %d bytes", MaxReport)
	case !utf8.Valid(data):
		return Report{}, invalid("it is not UTF-8")
	}
	var r Report
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&r); err != nil {
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			return Report{}, invalid("it is not JSON at byte %d", syntax.Offset)
		case errors.As(err, &kind):
			return Report{}, invalid("%s is a %s", kind.Field, kind.Value)
		}
		return Report{}, invalid("it is not a JSON object as expected")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Report{}, invalid("something follows it")
	}
	return r, r.check(identity, now)
}

// check holds a report against the rules.
func (r *Report) check(identity string, now time.Time) error {
	switch {
	case r.Version != ReportVersion:
		return invalid("its version is %d, this server reads %d", r.Version, ReportVersion)
	case r.Identity != identity:
		return invalid("it is of %.80q, and was sent as %s", r.Identity, identity)
	case !commit().MatchString(r.Commit) || !commit().MatchString(r.LastGood) || !commit().MatchString(r.Refused):
		return invalid("commit, last_good and refused are object names of git")
	case !r.Phase.known():
		return invalid("phase %.80q is not known", r.Phase)
	case r.At.IsZero():
		return invalid("it has no time (at)")
	case r.At.After(now.Add(maxAhead)):
		return invalid("its clock is %s ahead of this machine's: set the clock of %s", r.At.Sub(now).Round(time.Second), identity)
	case r.Every < 0 || r.Every > int(MaxReportEvery/time.Second):
		return invalid("it comes every %d seconds, a day is the most", r.Every)
	case r.Cut < 0:
		return invalid("cut is %d", r.Cut)
	case r.Empty && (len(r.Nodes) > 0 || r.Cut > 0):
		return invalid("it is empty, and has nodes")
	case r.Empty && r.Commit == "":
		return invalid("it is empty, and names no commit at which it is")
	case len(r.Nodes) > maxNodes:
		return tooLarge("%d nodes of at most %d", len(r.Nodes), maxNodes)
	case len(r.Findings) > maxReportFindings:
		return tooLarge("%d findings of at most %d", len(r.Findings), maxReportFindings)
	case len(r.Agent) > 100:
		return tooLarge("its version of the program is longer than 100 bytes")
	}
	for i, f := range r.Findings {
		switch {
		case f.Severity != diag.Error && f.Severity != diag.Warning:
			return invalid("finding %d has the severity %.80q", i+1, f.Severity)
		case max(len(f.Summary), len(f.Detail), len(f.Address), len(f.Code), len(f.At.File), len(f.Source), len(f.Rule), len(f.Waiver)) > maxText:
			return tooLarge("finding %d has a text of more than %d bytes", i+1, maxText)
		}
	}
	return r.checkNodes()
}

// checkNodes checks the nodes: each has its parent before it, so that they are one tree.
func (r *Report) checkNodes() error {
	above := map[string]bool{r.Identity: true}
	for i, n := range r.Nodes {
		switch {
		case !reportLabel().MatchString(n.Name):
			return invalid("node %d has the name %.80q", i+1, n.Name)
		case above[n.Name]:
			return invalid("node %s is listed twice", n.Name)
		case n.Type != "vm" && n.Type != "ct" && n.Type != "pve":
			return invalid("node %s is of type %.80q", n.Name, n.Type)
		case !above[n.Parent]:
			return invalid("the parent of node %s, %.80q, is not before it", n.Name, n.Parent)
		case !n.Phase.known():
			return invalid("phase %.80q of node %s is not known", n.Phase, n.Name)
		case !commit().MatchString(n.Commit) || !commit().MatchString(n.Refused):
			return invalid("commit and refused of node %s are object names of git", n.Name)
		case n.Drift < 0:
			return invalid("node %s has a drift of %d", n.Name, n.Drift)
		case len(n.Life) > maxWord || len(n.IP) > maxWord || n.VMID < 0:
			return invalid("node %s has a phase, a VMID or an address that is not valid", n.Name)
		case len(n.Error) > maxText:
			return tooLarge("the error of node %s has more than %d bytes", n.Name, maxText)
		case len(n.Failing) > maxFailing:
			return tooLarge("the failing checks of node %s have more than %d bytes", n.Name, maxFailing)
		}
		above[n.Name] = true
	}
	return nil
}
