package control

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Reasons explains the state of an object: the document of why.
type Reasons struct {
	Address   string              `json:"address"`
	Running   bool                `json:"running"`   // an agent answered; otherwise only receipts are known
	InForce   *agent.CommitStatus `json:"in_force"`  // the commit that is converged to
	Known     bool                `json:"known"`     // whether Declared says anything: the site in force was read
	Declared  *declaration        `json:"declared"`  // where the commit in force declares it; null if it does not
	Node      *engine.NodeStatus  `json:"node"`      // its state; null if it is not a node of the subtree
	Checks    []agent.CheckStatus `json:"checks"`    // of the node, as they ran between passes
	Removed   *removal            `json:"removed"`   // how it left the host, if it did
	Unmanaged []model.Unmanaged   `json:"unmanaged"` // guests of that name that the agent does not own
	Unknown   []model.Unknown     `json:"unknown"`   // parts of the host that could not be seen
	Receipts  []ledger.Receipt    `json:"receipts"`  // the last that touched it, newest first, with that step only
	NotFound  bool                `json:"not_found"`
	Hint      string              `json:"hint"` // the nearly right address
}

// removal is the pass that removed something.
type removal struct {
	Commit  string `json:"commit"`
	Subject string `json:"subject"`
	Author  string `json:"author"`
	Receipt string `json:"receipt"`
}

const (
	touchesShown = 5   // receipts that it lists
	touchesRead  = 100 // receipts that are searched for an address of that name
)

// Reasons collects what is known about an address. The name of a node or a VMID also works.
func (k *Facts) Reasons(address string, s agent.Status, from receipts) Reasons {
	r := Reasons{Address: address, Running: s.PID != 0, InForce: s.InForce, Checks: []agent.CheckStatus{}, Unmanaged: []model.Unmanaged{}, Unknown: []model.Unknown{}, Receipts: []ledger.Receipt{}}
	id := ""
	if s.InForce != nil {
		id = s.InForce.ID
	}
	_, nodes, objects, known := k.declared(id, "")
	r.Known = known
	var past []string
	for _, n := range s.Nodes {
		nodes = append(nodes, n.Address)
		if strconv.Itoa(n.VMID) == address {
			r.Address = n.Address
		}
	}
	for _, rec := range historyOf(from, touchesRead, "").Receipts {
		for _, st := range rec.Steps {
			past = append(past, st.Address)
		}
	}
	found, err := model.FindAmong(address, nodes, objects, past)
	if err != nil {
		r.NotFound, r.Hint = true, err.Error()
		return r
	}
	r.Address = cmp.Or(found, r.Address)
	r.Declared, _, _, _ = k.declared(id, r.Address)
	for _, n := range s.Nodes {
		if n.Address == r.Address {
			r.Node = &n
		}
	}
	for _, c := range s.Checks {
		if c.Address == r.Address {
			r.Checks = append(r.Checks, c)
		}
	}
	unmanaged, unknown := k.beyond()
	for _, f := range unmanaged {
		if f.Kind+"."+f.Name == r.Address || f.Name == address || strconv.Itoa(f.VMID) == address {
			r.Unmanaged = append(r.Unmanaged, f)
		}
	}
	r.Unknown = append(r.Unknown, unknown...)
	r.Receipts = historyOf(from, touchesShown, r.Address).Receipts
	for i := range r.Receipts {
		r.Receipts[i].Findings = nil
		r.Receipts[i].Steps = slices.DeleteFunc(slices.Clone(r.Receipts[i].Steps), func(st ledger.Step) bool { return st.Address != r.Address })
	}
	r.Removed = removed(r)
	if r.Declared == nil && r.Node == nil && len(r.Unmanaged) == 0 && len(r.Receipts) == 0 {
		r.NotFound = true
		all := slices.Concat(nodes, objects, past)
		slices.Sort(all)
		r.Hint = diag.DidYouMean(address, slices.Compact(all))
	}
	return r
}

// removed finds the pass that removed something that is no longer declared.
func removed(r Reasons) *removal {
	if r.Declared != nil || len(r.Receipts) == 0 || len(r.Receipts[0].Steps) == 0 {
		return nil
	}
	last := r.Receipts[0]
	if st := last.Steps[len(last.Steps)-1]; st.Action != "delete" || st.Status != "done" && (st.Status != ledger.Unknown || r.Node != nil) {
		return nil
	}
	return &removal{last.Commit, last.Subject, last.Author, last.ID}
}
