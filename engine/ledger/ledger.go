// Package ledger stores what an agent did (receipts), and the state that it needs after a restart (State). None of
// it is needed for correctness: if you lose the folder, you lose history, but never a guest.
//
// The folder has state.json, and receipts/TIME-PLAN.json, one for each pass that changed something, or for a series
// of passes that failed in the same way. Receipts sort by name in the order of writing, and each has the hash of
// the previous one, and a signature by the key in chain/receipt.key. begun.json has the receipt of a pass that is not
// recorded yet, and below/NAME the chain of a child. Every file is replaced atomically. Writers take turns: the holder of
// the host's write lock writes its receipt before it releases the lock.
//
//	receipts.go  writing, reading, and the limits
//	sign.go      the key, and signatures
//	dropped.go   which receipts go over the limit, and the record of that
//	verify.go    proof of a chain, in a folder or an exported file
//	begun.go     the receipt of a pass that is cut off
//	upward.go    what a parent keeps of its children
package ledger

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/durable"
)

// ReceiptsDir is the folder of the receipts in that of a ledger.
const ReceiptsDir = "receipts"

// Receipt records what one pass changed, or tried to: one JSON file. It has no secrets: a sensitive
// change has no values. Passes in a row that fail in the same way have one receipt: that of the last one, with their number.
type Receipt struct {
	Version  int       `json:"version"`  // 1
	Previous string    `json:"previous"` // sha256 of the receipt before, "" for the first
	ID       string    `json:"id"`       // name of the file without .json
	Verb     string    `json:"verb"`     // agent, apply, destroy, test, verify
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
	Drift    bool      `json:"drift"` // the pass reverted changes on the host
	Steps    []Step    `json:"steps"`
	Findings diag.List `json:"findings"`

	Run *Run `json:"run,omitempty"` // the command, for the verbs exec and job

	Reason  string  `json:"reason,omitempty"`      // text of the commit
	Signer  string  `json:"signer,omitempty"`      // SHA256 fingerprint of the SSH key that signed the commit, verified; "" for none
	Reverts *Revert `json:"reverts,omitempty"`     // the commit that this one takes back
	Digest  string  `json:"plan_sha256,omitempty"` // of the plan, as plan --json has it
	Checks  []Check `json:"checks,omitempty"`      // that ran

	Passes int        `json:"passes,omitempty"` // that failed in this way, one after the other; 0 for a single one
	First  *time.Time `json:"first,omitempty"`  // when the first of them began; nil for a single one

	Key       string `json:"key,omitempty"`       // that signed it; "" for receipts of earlier versions
	Signature string `json:"signature,omitempty"` // of the text of the file before it; the last member
}

// Revert links a commit to the one that it reverts.
type Revert struct {
	Commit string `json:"commit"` // as its text says it
	Exact  bool   `json:"exact"`  // it takes back exactly the changes of that one
}

// Check is the result of a check of a node.
type Check struct {
	Address string  `json:"address"`
	Check   string  `json:"check"`
	OK      bool    `json:"ok"`
	Saw     string  `json:"saw"`
	Seconds float64 `json:"duration_seconds"`
}

// Run is a command on a node.
type Run struct {
	ID      string   `json:"id"`  // of its task
	Job     string   `json:"job"` // of the site; "" if a person asked
	Node    string   `json:"node"`
	Command []string `json:"command"`
	Code    int      `json:"exit_code"`     // -1: there is none
	Output  string   `json:"output"`        // the end of it
	Cut     bool     `json:"cut,omitempty"` // there was more before that
	Error   string   `json:"error,omitempty"`
}

// Step is one step of a receipt.
type Step struct {
	Address  string    `json:"address"`
	VMID     int       `json:"vmid"` // 0 for resources other than guests
	Action   string    `json:"action"`
	Class    string    `json:"class"`
	Reason   string    `json:"reason"`
	Changes  []Change  `json:"changes"`
	Tasks    []string  `json:"upids"`               // its tasks on PVE
	EditedBy []string  `json:"edited_by,omitempty"` // the users whose changes on the host it reverted, if the log of the host names them
	Status   string    `json:"status"`
	Error    string    `json:"error"`
	Began    time.Time `json:"began"`
	Seconds  float64   `json:"duration_seconds"`
}

// Change is one attribute that a step set.
type Change struct {
	Path      string `json:"path"`
	Before    any    `json:"before"`
	After     any    `json:"after"`
	Sensitive bool   `json:"sensitive"`
}

// Suspension is a request to converge nothing for a while.
type Suspension struct {
	Manifest string     `json:"manifest"` // "" for everything
	Reason   string     `json:"reason"`
	By       string     `json:"by"`
	Since    time.Time  `json:"since"`
	Until    *time.Time `json:"until"` // null: until it is resumed
}

// State is the state of an agent that survives a restart.
type State struct {
	Version       int          `json:"version"` // 1
	Identity      string       `json:"identity"`
	Head          CommitRef    `json:"head"`
	Good          CommitRef    `json:"good"`
	Converged     CommitRef    `json:"converged"`
	Member        string       `json:"member,omitempty"` // the last commit with the agent in it that was in force; "": as Converged
	Aside         []string     `json:"aside"`            // manifests that were suspended when Converged was set
	Unknown       CommitRef    `json:"unknown"`          // the commit that took the identity out of the site; none while it is in it
	Consumed      int          `json:"spent"`            // removals that trailers since Converged granted and passes used up
	Counted       []string     `json:"counted"`          // commits whose trailers those were
	UsedTrailers  []string     `json:"void"`             // commits whose trailers count no more, wherever the branch goes
	Suspended     []Suspension `json:"suspended"`
	Failing       []string     `json:"unwell,omitempty"`    // addresses whose checks failed when they were tried last; a hint, to try them again
	UnusableVMIDs []int        `json:"leftovers,omitempty"` // VMIDs under which no guest could be made for what is left there; a hint, to draw others
	// Withdrawn are the children on the host that left the site: the first commit that each was seen to lack.
	Withdrawn map[string]string `json:"withdrawn,omitempty"`
	// Hosts are those that have or had this agent as their parent, and that no guest shows.
	Hosts map[string]HostBelow `json:"hosts,omitempty"`
	// Specs are the guests inside of which a spec was applied: the commit of the last one, until nothing of it is left.
	Specs map[string]string `json:"specs,omitempty"`
	// Orphaned are the children that went with what was in them since Converged, as a trailer allowed: it counts once for each.
	Orphaned   []string `json:"orphaned,omitempty"`
	SweepHints []string `json:"recall,omitempty"` // where to look for things to remove, from the last observation of the host; a hint
	// Harmful are the commits whose evaluation was ended because it takes too much, the newest at the end.
	Harmful []Harmful `json:"harmful,omitempty"`
	// Restores are the verifications of backups, by the guest's address. Losing them repeats verifications.
	Restores map[string]Restore `json:"restores,omitempty"`
	// Validated are the nodes whose checks held once since their guests were created, by their addresses.
	Validated map[string]Validation `json:"validated,omitempty"`
	// FailingChecks are the checks that failed between passes. Losing them repeats events.
	FailingChecks []FailingCheck `json:"failing_checks,omitempty"`
}

// Validation says when the checks of a node held first.
type Validation struct {
	VMID int       `json:"vmid"`
	At   time.Time `json:"at"`
}

// FailingCheck is a check that fails since a time.
type FailingCheck struct {
	Address string    `json:"address"`
	VMID    int       `json:"vmid"`
	Check   string    `json:"check"`
	Since   time.Time `json:"since"`
	Error   string    `json:"error"`
}

// Restore is the verification of a guest's backups by restore.
type Restore struct {
	Tried   time.Time `json:"tried"`
	Proved  time.Time `json:"proved"`  // the last one that succeeded; zero for none
	Archive string    `json:"archive"` // of the last attempt
	Error   string    `json:"error"`   // of the last attempt
}

// HostBelow is a host that has or had an agent as its parent.
type HostBelow struct {
	Left  string `json:"left,omitempty"`  // the first commit that the site was seen to lack it in; "": the site has it
	Moved bool   `json:"moved,omitempty"` // the site has it below another parent, or below none
}

// Harmful is a commit that is not evaluated again by this version of the program.
type Harmful struct {
	ID       string    `json:"id"`
	Program  string    `json:"program"`
	Findings diag.List `json:"findings"`
}

// CommitRef is a commit and since when it has its role.
type CommitRef struct {
	ID    string    `json:"id"` // "" for none
	Since time.Time `json:"since"`
}

// Ledger is a folder of receipts and one file of state. One process writes it; any number may read it.
//
// Its methods may be called from any goroutine: receipts come from the one that runs passes, the state also from
// requests to suspend. write serializes changes of the folder. usual guards the medians, which are read at every
// event of a pass and must not wait for a disk.
type Ledger struct {
	dir      string
	o        options
	readOnly bool
	key      ed25519.PrivateKey // nil of one for reading

	write   sync.Mutex
	checked bool // at the state that was there before; under write
	usual   medians
}

// options limit what is stored. The zero value is ready for use.
type options struct {
	Files int   // receipts; 1,000 unless set
	Bytes int64 // of all receipts together; 64 MiB unless set
}

// errReadOnly is returned by writes to a ledger opened with Read.
var errReadOnly = errors.New("the ledger is open for reading only")

// Open opens a folder with the default limits; it creates the folder (mode 0700) if necessary.
func Open(dir string) (*Ledger, error) { return options{}.Open(dir) }

// Open opens a folder; it creates the folder (mode 0700) if necessary, and removes incomplete files
// of dead writers.
func (o options) Open(dir string) (*Ledger, error) {
	if o.Files <= 0 {
		o.Files = 1000
	}
	if o.Bytes <= 0 {
		o.Bytes = 64 << 20
	}
	l := &Ledger{dir: dir, o: o}
	for _, d := range []string{l.receipts(), l.chain()} {
		err := os.MkdirAll(d, 0o700)
		if err == nil {
			err = errors.Join(durable.HandOver(filepath.Dir(dir), dir), durable.HandOver(dir, d))
		}
		if err != nil {
			return nil, fmt.Errorf("open ledger: %w", err)
		}
	}
	if err := l.openKey(); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	for _, d := range []string{dir, l.receipts()} {
		if err := sweep(d); err != nil {
			return nil, fmt.Errorf("open ledger: %w", err)
		}
	}
	return l, nil
}

// Read returns a read-only ledger, also while another process writes: it creates and changes
// nothing, and needs no permission to. A folder that does not exist is an empty ledger.
func Read(dir string) *Ledger { return &Ledger{dir: dir, readOnly: true} }

func (l *Ledger) receipts() string { return filepath.Join(l.dir, ReceiptsDir) }
