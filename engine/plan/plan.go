// Package plan compares the desired state of a host with the observed one, and computes the steps between them. It
// is pure: values in, a value out; no clock, no host, no file. The same input gives the same plan, byte for byte.
//
// Read in this order: Input, Plan and Step (the document of `plan --json`), Make (from one to the other):
//
//	vmid.go   assigns VMIDs
//	life.go   reserves what planned nodes will have, and derives the phase of a node
//	place.go  chooses the PVE nodes of new guests
//	diff.go   finds differences, and their cost
//	adopt.go  takes over guests that exist, and finds renames
//	guard.go  withholds steps for what may exist unmanaged, was not observed, or is still needed
//	order.go  computes the dependencies of steps
//	id.go     derives the plan's ID from its input
//
// Text and Markdown render the document; read loads it from a file, and Moved reports whether the host has changed
// since.
package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// FormatVersion is the version of the plan document. Its first number changes when a reader of an older document
// would misread it.
const FormatVersion = "1.0"

// Action is the action of a step.
type Action string

// The actions of the plan document.
const (
	Create  Action = "create"
	Update  Action = "update"
	Replace Action = "replace" // delete and create under the same address, as one step
	Delete  Action = "delete"
	Adopt   Action = "adopt"  // write the ownership tag on a guest that exists, and change nothing else
	Forget  Action = "forget" // take the ownership tag away from a guest, and change nothing else
)

// Symbol is the sign that stands for the action in text.
func (a Action) Symbol() rune {
	switch a {
	case Create:
		return '+'
	case Update:
		return '~'
	case Replace:
		return '±'
	case Delete:
		return '-'
	case Adopt:
		return '='
	case Forget:
		return '.'
	default:
		return '?'
	}
}

// not says what did not happen to a resource whose step was withheld.
func (a Action) not() string {
	switch a {
	case Create:
		return "not created"
	case Replace:
		return "not replaced"
	case Delete:
		return "not deleted"
	case Adopt:
		return "not adopted"
	case Forget:
		return "not given up"
	default:
		return "not changed"
	}
}

// Change is one attribute that a step sets. Before and After are plain values as
// in model.Attr, nil where the attribute is not there. Of a sensitive change the
// true values are for the driver only: text and JSON say "(sensitive)".
type Change struct {
	Path      string
	Before    any
	After     any
	Sensitive bool
	Class     model.Class
}

// Step is one thing to do to one resource; a plan has at most one for an address.
type Step struct {
	Address  model.Address   `json:"address"`
	Node     string          `json:"node"`     // manifest node it comes from; "" for what is none
	Manifest string          `json:"manifest"` // "" for what stands beside the manifests
	Place    string          `json:"place"`    // PVE node that was chosen for a new guest; "" where there is no choice
	VMID     int             `json:"vmid"`     // 0, in JSON null, if it is not a guest
	Action   Action          `json:"action"`
	Class    model.Class     `json:"class"` // what doing it now disrupts: the worst of its changes
	Reason   string          `json:"reason"`
	Changes  []Change        `json:"changes"`
	After    []model.Address `json:"after"` // steps of this plan that must have succeeded first
	At       diag.Range      `json:"at"`
	Edits    []model.Edit    `json:"edits"` // the last change on the host of each attribute that differs, if its log has it

	// Want is the resource with its VMID chosen, nil for a deletion; Have is as observed, nil for a creation. Both
	// are shared with the input and other steps, and read-only. A plan from a file has neither: it can be shown and
	// compared, not applied.
	Want  *model.Resource `json:"-"`
	Have  *model.Resource `json:"-"`
	Brief string          `json:"-"` // of a creation, in a few words
	// Inside is the guest that the step works in, with the VMID that this plan gives it; nil for all other steps.
	Inside *model.Guest `json:"-"`
}

// Has reports whether a resource as observed has a text already for which the step replaces its own, such as its image.
func (s *Step) Has(r *model.Resource) bool {
	for _, a := range model.Attrs(r.Spec) {
		for _, c := range s.Changes {
			if text, _ := a.Value.(string); text != "" && c.Path == a.Path && c.After == a.Value && (c.Class == model.ClassReplace || c.Class == model.ClassDataLoss) {
				return true
			}
		}
	}
	return false
}

// Summary counts a plan. The first six add up to the steps.
type Summary struct {
	Create    int `json:"create"`
	Update    int `json:"update"`
	Replace   int `json:"replace"`
	Delete    int `json:"delete"`
	Adopt     int `json:"adopt"`
	Forget    int `json:"forget"`
	Unchanged int `json:"unchanged"` // wanted, there, and just as wanted
	Unmanaged int `json:"unmanaged"`
}

// Count adds a step with an action.
func (s *Summary) Count(action string) {
	switch Action(action) {
	case Create:
		s.Create++
	case Update:
		s.Update++
	case Replace:
		s.Replace++
	case Delete:
		s.Delete++
	case Adopt:
		s.Adopt++
	case Forget:
		s.Forget++
	}
}

// Text is the count of the steps in words: 1 add, 2 change, 0 destroy.
func (s Summary) Text() string {
	text := fmt.Sprintf("%d add, %d change, %d destroy", s.Create, s.Update, s.Delete)
	if s.Adopt > 0 {
		text = fmt.Sprintf("%d adopt, ", s.Adopt) + text
	}
	if s.Replace > 0 {
		text += fmt.Sprintf(", %d replace", s.Replace)
	}
	if s.Forget > 0 {
		text += fmt.Sprintf(", %d give up", s.Forget)
	}
	return text
}

// Rules counts the rules that a plan and its site were checked by, each once, by
// the worst that it said.
type Rules struct {
	OK      int // said nothing
	Warning int // warned, and did not deny
	Denied  int
}

// Plus adds up two counts.
func (r Rules) Plus(more Rules) Rules {
	return Rules{r.OK + more.OK, r.Warning + more.Warning, r.Denied + more.Denied}
}

// Plan is the plan document. Steps are in an order in which they can be carried
// out one by one; peers, which may go side by side, by address.
type Plan struct {
	FormatVersion string                  `json:"format_version"`
	Site          string                  `json:"site"`
	Commit        string                  `json:"commit"`
	Host          string                  `json:"host"`
	ObservedAt    time.Time               `json:"observed_at"`
	ID            string                  `json:"id"` // hash of desired and observed, without times
	Steps         []Step                  `json:"steps"`
	Unmanaged     []model.Unmanaged       `json:"unmanaged"`
	Pending       []model.Pending         `json:"pending"`    // what PVE holds already and applies at a restart
	Undeclared    []model.Setting         `json:"undeclared"` // set by hand, and named in no file: no drift
	Unknown       []model.Unknown         `json:"unknown"`    // what could not be seen, and what is withheld for it
	Deferred      []model.Deferred        `json:"deferred"`   // declared, but not done by this kind of pass
	Planned       []reservation           `json:"planned"`    // nodes with planned = true, for which nothing is created
	Phases        map[model.Address]Phase `json:"phases"`     // of the nodes that do not operate, as far as facts are known
	Outputs       []OutputChange          `json:"outputs"`    // that change with it
	Places        []Place                 `json:"places"`     // PVE nodes, by name, with what is left of them; none if they were not looked at
	Backups       []backup                `json:"backups"`    // of guests whose nodes say how old they may be, or that they are verified
	Findings      diag.List               `json:"findings"`
	Summary       Summary                 `json:"summary"`

	Differing []model.Address `json:"-"` // existing resources that differ, in order, whether a step follows or not
	Drift     []model.Address `json:"-"` // of these, what is only reported, since drift = "report"
	Rules     *Rules          `json:"-"` // set by the policy check; nil: not checked
}

// backup is what is known of the backups of a guest.
type backup struct {
	Address model.Address `json:"address"`
	*model.BackupState
}

// Input has everything that a plan depends on. Make only reads it.
type Input struct {
	Site, Commit, Host string
	Kinds              model.Kinds
	Want               *model.Want
	Have               model.Observed

	// Manifest limits the plan to the nodes of one manifest and to what they need, which is made or changed for
	// them but never removed. Empty means the whole host.
	Manifest string
	// Targets limits it to these addresses and what they need. Empty means all.
	Targets []model.Address
	// Avoid are VMIDs under which a guest could not be created, though none has them: a hint of earlier passes. They
	// are drawn where no other is free; who declares one gets it.
	Avoid []int
	// Children has what is known of guests that contain nodes of the site, by the names of their nodes. AllowOrphans
	// names those that may be removed with their nodes.
	Children     map[string]model.ChildReport
	AllowOrphans []string
	// Referenced says of guests what still refers to them, so that they are not removed. Failing lists guests whose checks failed.
	Referenced map[model.Address]string
	Failing    []model.Address
	// Destroy plans the removal of every guest of Manifest instead, wanted or not, suspended or not.
	Destroy bool
}

// InSync reports whether the host is as the site says, as far as this plan looked:
// nothing to do, nothing withheld or postponed, nothing unknown. A warning of how the
// host is (diag.FromHost), such as a lock, changes nothing about that.
func (p *Plan) InSync() bool {
	for _, f := range p.Findings {
		if f.Severity == diag.Error || f.Source == diag.FromGuard {
			return false
		}
	}
	return len(p.Steps) == 0 && len(p.Unknown) == 0 && !slices.ContainsFunc(p.Deferred, func(d model.Deferred) bool { return d.Differs })
}
