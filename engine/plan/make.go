package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Make plans the steps from the observed to the desired state. Forbidden steps, and those that depend on them, are
// left out and reported in Findings (a person can fix it) or in Unknown (it could not be observed).
func Make(in Input) *Plan {
	d := newDraft(in)
	p := newProposal(d)
	if d.mayPlan() {
		d.limit()
		ids := d.chooseVMIDs()
		d.place()
		p.compare()
		p.compareInside()
		p.compareJobs()
		if len(d.steps) > 0 {
			g := newGuard(d, ids)
			g.check()
			d.leaveRemoved()
			o := ordering{guard: g, circle: map[model.Address]model.Address{}, inside: d.inside()}
			o.order()
			g.suggestMoves()
		}
	}
	if in.Want != nil {
		for _, r := range d.plan.Planned {
			p.id.text(r.Address.String() + r.text())
		}
		for _, w := range d.plan.Deferred[len(in.Want.Deferred):] { // by the guard
			p.id.text(w.Address)
		}
	}
	return d.document(p.id.sum(in))
}

// draft is the plan in the making: what is wanted and observed, and the steps between them
// that are still planned. It belongs to one call of Make.
type draft struct {
	in    Input
	plan  *Plan
	kinds map[string]*model.Kind
	want  model.State            // as in the input; guests are copies that have their VMID
	have  model.State            // as observed
	addrs []model.Address        // of both, in order
	scope map[model.Address]bool // what the plan is limited to; nil for everything
	steps map[model.Address]*Step

	placed   map[model.Address]string // why a guest is created where it is
	crowded  map[model.Address]string // that it is created beside a guest that it is to be apart from
	homeless map[model.Address]string // why it can be created nowhere

	undeclared []model.Setting
}

func newDraft(in Input) *draft {
	unmanaged := slices.Clone(in.Have.Unmanaged)
	sort.SliceStable(unmanaged, func(i, j int) bool {
		return cmp.Or(cmp.Compare(unmanaged[i].VMID, unmanaged[j].VMID), cmp.Compare(unmanaged[i].Name, unmanaged[j].Name)) < 0
	})
	in.Have.Unmanaged = unmanaged
	in.Have.Unknown = slices.SortedStableFunc(slices.Values(in.Have.Unknown), byScope)
	d := &draft{
		in: in, kinds: make(map[string]*model.Kind, len(in.Kinds)), have: in.Have.State, steps: map[model.Address]*Step{}, placed: map[model.Address]string{}, crowded: map[model.Address]string{}, homeless: map[model.Address]string{},
		plan: &Plan{
			FormatVersion: FormatVersion, Site: in.Site, Commit: in.Commit, Host: in.Host,
			ObservedAt: in.Have.At.UTC().Truncate(time.Second),
			Unmanaged:  in.Have.Unmanaged,
			Unknown:    slices.Clone(in.Have.Unknown), Findings: slices.Clone(in.Have.Findings),
		},
	}
	for _, k := range in.Kinds {
		d.kinds[k.Name] = k
	}
	if in.Want != nil {
		d.plan.Deferred = slices.Clone(in.Want.Deferred)
		d.want = in.Want.State
	}
	for a := range d.have {
		d.addrs = append(d.addrs, a)
	}
	for a := range d.want {
		if d.have[a] == nil {
			d.addrs = append(d.addrs, a)
		}
	}
	slices.SortFunc(d.addrs, model.Address.Compare)
	d.remark()
	return d
}

// remark takes in what kinds have to report of what is there.
func (d *draft) remark() {
	var host *model.Host
	if d.in.Want != nil {
		host = d.in.Want.Host
	}
	for _, addr := range d.addrs {
		have := d.have[addr]
		if have == nil {
			continue
		}
		if have.Guest != nil && have.Guest.Backup != nil {
			d.plan.Backups = append(d.plan.Backups, backup{addr, have.Guest.Backup})
		}
		k := d.kinds[addr.Kind]
		if k == nil || k.Remarks == nil {
			continue
		}
		r := k.Remarks(host, d.want[addr], have)
		d.plan.Pending = append(d.plan.Pending, r.Pending...)
		d.undeclared = append(d.undeclared, r.Undeclared...)
		d.plan.Findings = append(d.plan.Findings, r.Findings...)
	}
	sort.SliceStable(d.plan.Pending, func(i, j int) bool {
		return cmp.Or(d.plan.Pending[i].Address.Compare(d.plan.Pending[j].Address), cmp.Compare(d.plan.Pending[i].Path, d.plan.Pending[j].Path)) < 0
	})
}

// mayPlan reports whether the input allows any step at all. A host that the site
// does not know has nothing wanted, which must never be read as "remove it all".
func (d *draft) mayPlan() bool {
	switch {
	case d.in.Want == nil || d.in.Want.Host == nil:
		d.find(model.Address{}, diag.Finding{
			Severity: diag.Error, Source: diag.FromSite,
			Summary: fmt.Sprintf("host %q is not declared in the site, so nothing is planned", d.in.Host),
			Detail:  "declare it in a host block, or choose another with --host",
		})
		return false
	case d.in.Destroy && d.in.Manifest == "":
		d.find(model.Address{}, diag.Finding{
			Severity: diag.Error, Source: diag.FromGuard,
			Summary: "destroy needs the name of a manifest", Detail: "name it with -M",
		})
		return false
	default:
		return !slices.ContainsFunc(d.in.Have.Unknown, func(u model.Unknown) bool { return u.All })
	}
}

// proposal makes the steps by which the host becomes what the site says, and names the plan
// by what it was made from.
type proposal struct {
	*draft
	id      fingerprint
	attrs   []model.Attr // of the resource that is being compared; the list is made once
	pending map[model.Address][]model.Pending
}

func newProposal(d *draft) *proposal {
	p := &proposal{draft: d, pending: map[model.Address][]model.Pending{}}
	for _, w := range d.plan.Pending {
		p.pending[w.Address] = append(p.pending[w.Address], w)
	}
	return p
}

// compare makes a step for every difference within the limits, be it allowed or
// not: guard takes out again what must not be done.
func (p *proposal) compare() {
	for _, addr := range p.addrs {
		if !p.within(addr) {
			continue
		}
		want, have := p.want[addr], p.have[addr]
		switch {
		case have != nil && have.Guest != nil && have.Guest.Adoptable:
			p.adopt(want, have)
		case p.in.Destroy:
			if have != nil && have.Guest != nil {
				p.remove(have, fmt.Sprintf("manifest %s is destroyed", p.in.Manifest))
			}
		case have == nil && want.Inborn && p.have[want.Inside] == nil: // it comes with its guest
		case have == nil:
			p.create(want)
		case want != nil:
			p.update(want, have)
		case p.isGivenUp(have):
			p.forget(have)
		case !p.in.Want.Declared[addr] && !p.in.Want.Suspended[have.Manifest]:
			p.remove(have, cmp.Or(p.in.Want.Elsewhere[addr], "left the site"))
		}
	}
}

// compareInside completes the steps inside of guests, when all is known of the guests: one that is
// replaced has nothing inside yet, and nothing is known of what is inside of one that is off.
func (p *proposal) compareInside() {
	for _, addr := range p.addrs {
		want, have := p.want[addr], p.have[addr]
		if want == nil || want.Inside == (model.Address{}) || !p.within(addr) || p.in.Destroy {
			continue
		}
		if of := p.steps[want.Inside]; have != nil && !want.Inborn && of != nil && of.Action == Replace {
			if p.steps[addr] == nil {
				p.plan.Summary.Unchanged--
			}
			p.create(want)
			p.steps[addr].Reason = fmt.Sprintf("%s is replaced", want.Inside)
		}
		s := p.steps[addr]
		if s == nil {
			continue
		}
		if of := p.have[want.Inside]; of != nil && of.Guest != nil && of.Guest.Adoptable {
			delete(p.steps, addr)
			p.plan.Deferred = append(p.plan.Deferred, model.Deferred{Address: addr.String(), Why: fmt.Sprintf("not compared before %s is adopted", want.Inside), Differs: true})
			continue
		}
		s.Inside = p.guestAt(want.Inside)
		if !p.isOff(s) {
			continue
		}
		if of := p.steps[want.Inside]; want.Report || of == nil || !wakes(of) {
			p.deferOff(s)
			continue
		}
		s.Reason = fmt.Sprintf("%s is off: what is inside is compared and changed once it runs", want.Inside)
		s.Brief += fmt.Sprintf(", entered once %s runs, which is off", want.Inside)
	}
}

// compareJobs adds guests that are replaced to their backup jobs again: Proxmox VE takes a guest that it destroys out of them.
func (p *proposal) compareJobs() {
	for _, addr := range p.addrs {
		want, have := p.want[addr], p.have[addr]
		if want == nil || have == nil || p.steps[addr] != nil || !p.within(addr) || p.in.Destroy {
			continue
		}
		job, ok := want.Spec.(*model.BackupJob)
		if !ok {
			continue
		}
		left, why := job.VMIDs, ""
		for _, guest := range job.Guests {
			if of := p.steps[guest]; of != nil && of.Action == Replace {
				left = slices.DeleteFunc(slices.Clone(left), func(id string) bool { return id == strconv.Itoa(of.VMID) })
				why = cmp.Or(why, fmt.Sprintf("%s is replaced, which takes it out of the job", guest))
			}
		}
		if why != "" {
			s := stepOf(want, Update, why)
			s.Want, s.Have, s.Class = want, have, model.ClassNone
			s.Changes = []Change{{Path: "vmid", Before: left, After: job.VMIDs, Class: model.ClassNone}}
			p.steps[addr] = s
			p.plan.Summary.Unchanged--
		}
	}
}

// isOff reports whether a step is about the inside of a guest that stays, is off, and so could not be entered.
func (d *draft) isOff(s *Step) bool {
	if s.Want == nil || s.Want.Inside == (model.Address{}) || d.have[s.Address] != nil {
		return false
	}
	is, of := d.have[s.Want.Inside], d.steps[s.Want.Inside]
	return is != nil && is.Guest != nil && !is.Guest.Running && (of == nil || of.Action != Replace)
}

// deferOff leaves out what is inside of a guest that is off and stays so, or whose drift inside is only reported.
func (d *draft) deferOff(s *Step) {
	delete(d.steps, s.Address)
	d.plan.Deferred = append(d.plan.Deferred, model.Deferred{
		Address: s.Address.String(), Why: fmt.Sprintf("not compared, since %s is off; a pass that finds it running does that", s.Want.Inside), Differs: true,
	})
}

func (p *proposal) create(want *model.Resource) {
	kind := p.kind(want)
	attrs := model.Attrs(want.Spec)
	p.id.wanted(want, attrs)
	s := stepOf(want, Create, "declared, and does not exist yet")
	s.Class, s.Want = model.ClassNone, want
	for _, a := range attrs {
		if a.Value != nil {
			s.Changes = append(s.Changes, Change{a.Path, nil, a.Value, a.Secret || sensitive(want, a.Path), model.ClassNone})
		}
	}
	if kind.Brief != nil {
		s.Brief = kind.Brief(want)
	}
	if why := p.placed[want.Addr]; why != "" {
		s.Place = want.Guest.Node
		s.Reason += "; " + why
	}
	p.steps[want.Addr] = s
}

func (p *proposal) update(want, have *model.Resource) {
	p.attrs = model.AppendAttrs(p.attrs[:0], want.Spec)
	attrs := p.attrs
	changes := p.changes(want, have, attrs)
	p.id.wanted(want, attrs)
	p.id.observed(have, changes)
	if len(changes) == 0 {
		p.plan.Summary.Unchanged++
		return
	}
	p.plan.Differing = append(p.plan.Differing, want.Addr)
	s := stepOf(want, Update, "")
	s.Changes, s.Want, s.Have, s.Class = changes, want, have, model.ClassNone
	var rebuilt []Change
	for _, c := range changes {
		if c.Class.Worse(s.Class) {
			s.Class = c.Class
		}
		if c.Class == model.ClassReplace || c.Class == model.ClassDataLoss {
			rebuilt = append(rebuilt, c)
		}
	}
	s.Reason = paths(changes) + differs(changes) + "from the site"
	if note := p.kind(want).Note; note != nil && len(rebuilt) == 0 {
		if text := note(want, have, s.paths()); text != "" {
			s.Reason += "; " + text
		}
	}
	if len(rebuilt) > 0 {
		s.Action = Replace
		s.Reason = withRemovalNote(have, paths(rebuilt)+differs(rebuilt)+"from the site and cannot be changed in place")
	}
	s.Edits = lastEdits(p.in.Have.Edits[want.Addr], changes)
	s.Reason += editsNote(s.Edits)
	p.steps[want.Addr] = s
}

func (p *proposal) remove(have *model.Resource, reason string) {
	p.id.observed(have, nil)
	p.id.attrs(have, model.Attrs(have.Spec))
	s := stepOf(have, Delete, withRemovalNote(have, reason))
	s.Have, s.Class, s.Manifest = have, model.ClassNone, p.manifest(have.Addr)
	if have.Guest != nil {
		s.Class = model.ClassDataLoss
	}
	p.steps[have.Addr] = s
}

// leaveRemoved leaves out what would be done inside of guests that are removed.
func (d *draft) leaveRemoved() {
	maps.DeleteFunc(d.steps, func(_ model.Address, s *Step) bool {
		if s.Want == nil || s.Want.Inside == (model.Address{}) {
			return false
		}
		of := d.steps[s.Want.Inside]
		return of != nil && (of.Action == Delete || of.Action == Forget)
	})
}

// guestAt returns the place of a guest now or after the plan; nil if neither is known.
func (d *draft) guestAt(guest model.Address) *model.Guest {
	want, have := d.want[guest], d.have[guest]
	switch {
	case want != nil && want.Guest != nil && (have == nil || have.Guest == nil || d.steps[guest] != nil && d.steps[guest].Action == Replace):
		return want.Guest
	case have != nil:
		return have.Guest
	}
	return nil
}

// withRemovalNote adds to a reason what the removal of a guest brings with it.
func withRemovalNote(have *model.Resource, reason string) string {
	if have.Guest == nil || have.Guest.RemovalNote == "" {
		return reason
	}
	return reason + "; " + have.Guest.RemovalNote
}

func stepOf(r *model.Resource, do Action, reason string) *Step {
	s := &Step{
		Address: r.Addr, Node: r.Node, Manifest: r.Manifest, Action: do, Reason: reason, At: r.At,
		Changes: []Change{}, After: []model.Address{},
	}
	if r.Guest != nil {
		s.VMID = r.Guest.VMID
	}
	return s
}

// paths lists what a step changes.
func (s *Step) paths() []string {
	out := make([]string, len(s.Changes))
	for i, c := range s.Changes {
		out[i] = c.Path
	}
	return out
}

// paths names what changes, for the sentence of a reason.
func paths(changes []Change) string {
	if len(changes) > 3 {
		return fmt.Sprintf("%d attributes", len(changes))
	}
	names := make([]string, len(changes))
	for i, c := range changes {
		names[i] = c.Path
	}
	if len(names) == 1 {
		return names[0]
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

func differs(changes []Change) string {
	if len(changes) == 1 {
		return " differs "
	}
	return " differ "
}

// inside lists what is wanted inside guests, by guest.
func (d *draft) inside() map[model.Address][]model.Address {
	out := map[model.Address][]model.Address{}
	for _, addr := range d.addrs {
		if r := d.want[addr]; r != nil && r.Inside != (model.Address{}) {
			out[r.Inside] = append(out[r.Inside], addr)
		}
	}
	return out
}

// kind finds what is known of a resource's sort; of an unknown one nothing is, and
// its attributes alone decide.
func (d *draft) kind(r *model.Resource) *model.Kind {
	if k := d.kinds[r.Addr.Kind]; k != nil {
		return k
	}
	return &model.Kind{Name: r.Addr.Kind}
}

// find adds a finding about an address (the zero one for none), with its place in
// the files where it has one.
func (d *draft) find(addr model.Address, f diag.Finding) {
	if addr != (model.Address{}) {
		f.Address = addr.String()
	}
	if r := d.want[addr]; r != nil && f.At.IsZero() {
		f.At = r.At
	}
	d.plan.Findings = append(d.plan.Findings, f)
}

// document finishes the plan: everything counted, and each list in its order.
func (d *draft) document(id string) *Plan {
	p := d.plan
	gone := map[model.Address]bool{}
	for i := range p.Steps {
		p.Summary.Count(string(p.Steps[i].Action))
		gone[p.Steps[i].Address] = p.Steps[i].Action == Delete || p.Steps[i].Action == Forget
	}
	// A deletion or revert makes a pending restart obsolete.
	p.Pending = slices.DeleteFunc(p.Pending, func(w model.Pending) bool { return gone[w.Address] || p.reverts(w) })
	for _, s := range d.undeclared {
		if d.want[s.Address] != nil && d.within(s.Address) && !gone[s.Address] {
			p.Undeclared = append(p.Undeclared, s)
		}
	}
	p.Summary.Unmanaged = len(p.Unmanaged)
	for i := range p.Unknown {
		slices.SortFunc(p.Unknown[i].Withheld, model.Address.Compare)
	}
	slices.SortStableFunc(p.Unknown, byScope)
	for i := range p.Pending {
		d.hide(&p.Pending[i])
	}
	p.Findings = p.Findings.Sorted()
	p.ID = id
	return p.listed()
}

// reverts reports whether a step of the plan takes back what waits for a restart: such a
// change costs nothing, since it never took effect.
func (p *Plan) reverts(w model.Pending) bool {
	i := slices.IndexFunc(p.Steps, func(s Step) bool { return s.Address == w.Address && s.Action == Update })
	return i >= 0 && slices.ContainsFunc(p.Steps[i].Changes, func(c Change) bool {
		return isWithin(c.Path, w.Path) && c.Class == model.ClassNone
	})
}

func byScope(a, b model.Unknown) int {
	return cmp.Or(model.CompareNames(a.Scope, b.Scope), cmp.Compare(a.Why, b.Why))
}
