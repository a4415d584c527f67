package model

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Observed has what is on a host, as far as it could be observed. State has the managed resources; the other fields
// name the rest, so that it is not mistaken for absent.
type Observed struct {
	At        time.Time
	State     State // ours, by ownership tag and identity
	Unmanaged []Unmanaged
	Unknown   []Unknown
	Taken     map[int]string // every VMID in use on the host or its cluster, and by what
	Findings  diag.List      // about the host; what is to be said of one resource are the remarks of its kind

	// Only says that this has only the guests of Want.Changed, and all of these, or the ones that Want.StartFirst
	// asks for. The rest of the host is neither here nor in Unknown: nothing may be concluded of it.
	Only bool

	// Rest completes an observation with Only to that of the whole host. Nil: the host must be observed again.
	Rest func(context.Context) (Observed, error)

	// ReadEdits reads who changed these resources on the host, as far as its logs show it. Nil: no log does.
	ReadEdits func(ctx context.Context, of []Address) map[Address][]Edit
	// Edits is what ReadEdits returned, the newest edit of each first. Make names them in the steps.
	Edits map[Address][]Edit

	// Places are the PVE nodes of the host, in any order; none with Only.
	Places []Place

	// Preflight lists what about the host would make a step fail.
	Preflight []PreflightProblem

	// Further is desired state that shows only when the host is observed: verifications of backups that are due, and inside
	// children that left the site that they can
	// still report to their parent. State has the observed resources.
	Further []*Resource

	// SweepHints go into the next Want.SweepHints: where to look for things to remove that nothing else may lead to
	// by then. They are in words of the driver's own, and may get lost. Nil: nothing is known of them.
	SweepHints []string
}

// Together puts parts of one observation together. No resource and no VMID is in two of them. At is the earliest.
// ReadEdits is that of the first part that has one: the host's own.
func Together(parts ...Observed) Observed {
	guests, taken := 0, 0
	for _, p := range parts {
		guests, taken = guests+len(p.State), taken+len(p.Taken)
	}
	all := Observed{State: make(State, guests), Taken: make(map[int]string, taken), SweepHints: []string{}}
	for _, p := range parts {
		if all.At.IsZero() || !p.At.IsZero() && p.At.Before(all.At) {
			all.At = p.At
		}
		maps.Copy(all.State, p.State)
		maps.Copy(all.Taken, p.Taken)
		all.Unmanaged = append(all.Unmanaged, p.Unmanaged...)
		all.Unknown = append(all.Unknown, p.Unknown...)
		all.Findings = append(all.Findings, p.Findings...)
		all.Preflight = append(all.Preflight, p.Preflight...)
		if all.ReadEdits == nil {
			all.ReadEdits = p.ReadEdits
		}
		if all.Edits == nil {
			all.Edits = p.Edits
		} else {
			maps.Copy(all.Edits, p.Edits)
		}
		all.Places = append(all.Places, p.Places...)
		all.SweepHints = append(all.SweepHints, p.SweepHints...)
		all.Further = append(all.Further, p.Further...)
		all.Only = all.Only || p.Only
	}
	return all
}

// NotObserved is the observation of a host that could not be seen: nothing is known of it, so
// nothing follows from it.
func NotObserved(host string, why error) Observed {
	return Observed{
		At:      time.Now().UTC(),
		State:   State{},
		Unknown: []Unknown{{Scope: "host " + host, Why: why.Error(), All: true}},
	}
}

// NothingSeen reports whether the host could not be seen at all.
func (o *Observed) NothingSeen() bool {
	return slices.ContainsFunc(o.Unknown, func(u Unknown) bool { return u.All })
}

// PreflightProblem is something about the host for which a step could not succeed, such as a storage that is not there.
// It is reported where the plan has a step that it concerns, and nowhere else.
type PreflightProblem struct {
	Address Address
	Node    string // the PVE node where it is so, if the guest may be created on others; "" for all
	// Path is the attribute that asks for what is amiss: steps that make or replace the resource, or change this
	// attribute or a part of it, are concerned.
	Path  string
	Power bool // and those that start it
	Any   bool // and all others
	// Severity is that of the finding. An error withholds the step, for it is certain that it would fail, and forbids
	// the plan. With Withhold the step is withheld, and everything else is done.
	Severity        diag.Severity
	Withhold        bool
	Summary, Detail string
	// At is the line that asks for it; Path's if zero. A finding on one line is reported once for all of its
	// resources.
	At diag.Range
}

// Unmanaged is a guest without an ownership tag of this site, or one that could not be shown to have it.
type Unmanaged struct {
	VMID int    `json:"vmid"`
	Name string `json:"name"`
	Kind string `json:"kind"` // vm or ct
	Why  string `json:"why"`

	Node string `json:"-"`
	// Claims is the resource that it may be: it has the same name or VMID, or an ownership tag that does not agree.
	// As long as it stands there, that resource is not created a second time.
	Claims Address `json:"-"`
	Fix    string  `json:"-"` // what its owner can do about it, if Claims is set
	// Duplicate: it is one of several with the same identity, which an error finding about Claims names.
	Duplicate bool `json:"-"`
	// Refused: adopt of Claims names the VMID of this guest, and Why says why it is not adopted.
	Refused bool `json:"-"`
	// Unfinished: its creation is running, or was interrupted. Why says which.
	Unfinished bool `json:"-"`
}

// PendingRestart is the Why of a pending change that needs a full restart and nothing else.
const PendingRestart = "set; takes effect at the next full restart"

// Pending is a change that PVE holds already and applies at the next full restart.
type Pending struct {
	Address Address `json:"address"`
	Path    string  `json:"path"`
	Before  any     `json:"before"`
	After   any     `json:"after"`
	Why     string  `json:"why"`
}

// Edit is a change of a resource that the log of its host shows.
type Edit struct {
	Path string    `json:"path"` // the attribute, or the block around it; "" for all of them
	User string    `json:"user"` // user@realm, with !token for an API token; "" for this program itself
	At   time.Time `json:"at"`
	Task string    `json:"task,omitempty"` // UPID; "" if it was not a task
}

// Setting is one value of a resource, at the path that it would have in the files.
type Setting struct {
	Address Address `json:"address"`
	Path    string  `json:"path"`
	Value   string  `json:"value"`
}

// Unknown is a part of the host that could not be seen. It withholds what it may be about, since an
// incomplete view is never evidence of absence, and nothing else: see docs/decisions/0008-removal-caps-and-policy-input.md.
type Unknown struct {
	Scope    string    `json:"scope"` // "host father", "node pve2", "vm 105"
	Why      string    `json:"why"`
	Withheld []Address `json:"holds,omitempty"` // what a plan withholds because of it, sorted; none in an observation

	Denied   bool `json:"-"` // a privilege is missing
	Starting bool `json:"-"` // it is a guest that was just started: the next passes will see it

	All   bool   `json:"-"` // nothing at all is known for sure: no step may be taken on this host
	VMID  int    `json:"-"` // of a guest that could not be read
	Guest string `json:"-"` // what that guest is, vm or ct; it may be either if empty
	Name  string `json:"-"` // its name, if that much is known; it may then be any guest if empty
	Node  string `json:"-"` // PVE node that is down or dark: no guest is created, changed or removed there
	Kind  string `json:"-"` // kind of resources that cannot be judged ("image", "pool"), if not guests

	// Only lists the wanted resources that it can be about: none but these are withheld from being created or
	// replaced. Nil: not known, and the other fields decide. Empty: it can be none of them.
	Only []Address `json:"-"`
	// Creating: another process is creating this guest. Nothing on the host must stay for it except what those of
	// Only need.
	Creating bool `json:"-"`
}

// UnusableVMIDError is a guest that could not be created because something of a former guest with its VMID is left,
// such as a volume. Creating it under the same VMID fails until that is removed.
type UnusableVMIDError struct {
	VMID int
	Err  error
}

// Error is the text of the cause.
func (e *UnusableVMIDError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *UnusableVMIDError) Unwrap() error { return e.Err }
