// Package ledger is the memory of an agent: what it did (receipts), and the little
// it wants to know again after a restart (State). None of it is needed to be right:
// who loses the folder loses history, and never a guest.
package ledger

import (
	"errors"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Receipt is what one pass changed, or tried to: one JSON file. It holds no secret:
// a sensitive change is named, its values are not.
type Receipt struct {
	Version  int       `json:"version"`  // 1
	Previous string    `json:"previous"` // sha256 of the receipt before, "" for the first
	ID       string    `json:"id"`       // name of the file without .json
	Verb     string    `json:"verb"`     // agent, apply, destroy, test
	By       string    `json:"by"`       // identity of the agent, or cli:USER@HOST
	Host     string    `json:"host"`
	Site     string    `json:"site"`
	Commit   string    `json:"commit"`
	Subject  string    `json:"subject"` // of the commit, "" if not known
	Author   string    `json:"author"`
	Plan     string    `json:"plan"`
	Began    time.Time `json:"began"`
	Seconds  float64   `json:"duration_seconds"`
	Outcome  string    `json:"outcome"`
	Drift    bool      `json:"drift"` // put back what was changed on the host
	Steps    []Step    `json:"steps"`
	Findings diag.List `json:"findings"`
}

// Step is one step of a receipt.
type Step struct {
	Address string    `json:"address"`
	VMID    int       `json:"vmid"` // 0 for what is no guest
	Action  string    `json:"action"`
	Class   string    `json:"class"`
	Reason  string    `json:"reason"`
	Changes []Change  `json:"changes"`
	Tasks   []string  `json:"upids"` // tasks of PVE that it was done by
	Status  string    `json:"status"`
	Error   string    `json:"error"`
	Began   time.Time `json:"began"`
	Seconds float64   `json:"duration_seconds"`
}

// Change is one attribute that a step set.
type Change struct {
	Path      string `json:"path"`
	Before    any    `json:"before"`
	After     any    `json:"after"`
	Sensitive bool   `json:"sensitive"`
}

// Suspension is somebody's word that nothing shall be converged for a while.
type Suspension struct {
	Manifest string     `json:"manifest"` // "" for everything
	Reason   string     `json:"reason"`
	By       string     `json:"by"`
	Since    time.Time  `json:"since"`
	Until    *time.Time `json:"until"` // null: until it is resumed
}

// State is what an agent knows again after a restart.
type State struct {
	Version   int          `json:"version"` // 1
	Identity  string       `json:"identity"`
	Head      Mark         `json:"head"`
	Good      Mark         `json:"good"`
	Converged Mark         `json:"converged"`
	Spent     int          `json:"spent"` // removals that trailers since Converged granted and passes used up
	Suspended []Suspension `json:"suspended"`
}

// Mark is a commit and when it came to its place.
type Mark struct {
	ID    string    `json:"id"` // "" for none
	Since time.Time `json:"since"`
}

// Ledger is a folder of receipts and one file of state. One process writes it.
type Ledger struct{ dir string }

var errNotBuilt = errors.New("not built")

// Open opens a folder, making it (mode 0700) if need be.
func Open(dir string) (*Ledger, error) { return &Ledger{dir}, errNotBuilt }

// Write keeps a receipt: its Version, Previous and ID are set here. It is whole on
// disk, or not there. The oldest go where there are more than the folder keeps.
func (l *Ledger) Write(r Receipt) (Receipt, error) { return r, errNotBuilt }

// Last gives the newest n receipts that match, newest first; n 0 gives all, match
// nil takes every one. Files that cannot be read are named in the error, beside all
// others.
func (l *Ledger) Last(n int, match func(*Receipt) bool) ([]Receipt, error) { return nil, errNotBuilt }

// Usual is the median time that steps of this kind and action took, by the newest
// receipts; 0 if there is none. It reads no files: it is cheap enough for every event.
func (l *Ledger) Usual(kind, action string) time.Duration { return 0 }

// Verify reads the chain of receipts, and says how many hold and which do not.
func (l *Ledger) Verify() (held int, broken []string, err error) { return 0, nil, errNotBuilt }

// State reads the state; the zero State if there is none. One that cannot be read is
// an error, and the caller goes on with the zero State.
func (l *Ledger) State() (State, error) { return State{}, errNotBuilt }

// SetState keeps the state, whole or not at all.
func (l *Ledger) SetState(s State) error { return errNotBuilt }
