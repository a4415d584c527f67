package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// withholding is a step that was taken out of the plan.
type withholding struct {
	action     Action
	not        string // what it is not, in words of its kind; "" for those of the action
	stuck      bool   // because nothing can be done to the guest for now
	postponed  bool   // because it is not known that nothing is left in a child; a later pass does it
	forGood    bool   // no later pass does it, unless it is allowed
	incomplete bool   // because of a failed observation; else because of a problem to fix
	unknowns   []int  // what could not be seen, as indexes into Input.Have.Unknown
}

// guard takes steps out of the draft, and keeps which and why, and what hangs together.
type guard struct {
	*draft
	ids        vmids
	withheld   map[model.Address]withholding     // taken out of steps, and why
	fresh      []model.Address                   // withheld, but what follows from it is not drawn yet
	wantedBy   map[model.Address][]model.Address // who shall need it
	observedBy map[model.Address][]model.Address // who needs it now, by its ownership tag
	reuse      map[model.Address]model.Address   // step → the step that frees its VMID
	reusedBy   map[model.Address]model.Address   // the same, the other way round
	gives      map[model.Address][]taking        // who gives something up in this plan → who takes it over
	takes      map[model.Address][]taking        // the same, the other way round
	full       map[string][]*Step                // ranges of VMIDs, in words → those for whom nothing is left there
}

func newGuard(d *draft, ids vmids) *guard {
	return &guard{
		draft: d, ids: ids, withheld: map[model.Address]withholding{},
		wantedBy: needers(d.want), observedBy: needers(d.have),
		reuse: map[model.Address]model.Address{}, reusedBy: map[model.Address]model.Address{},
		gives: map[model.Address][]taking{}, takes: map[model.Address][]taking{}, full: map[string][]*Step{},
	}
}

// check takes out the steps that must not be done: of what may exist already, what is
// unmanaged, what could not be seen, what misses a secret, what others still need; and
// then those that would depend on a step taken out.
func (g *guard) check() {
	claims := map[model.Address][]model.Unmanaged{}
	for _, f := range g.plan.Unmanaged {
		claims[f.Claims] = append(claims[f.Claims], f)
	}
	g.guardAdoptedElsewhere()
	g.each(g.guardRemoved)
	g.each(func(s *Step) { guardReferenced(g, s) })
	g.each(func(s *Step) { guardServices(g, s) })
	g.each(func(s *Step) { g.guardIdentity(s, claims[s.Address]) })
	g.each(g.guardAdoption)
	g.checkPreflight()
	g.each(g.guardUnproven)
	g.each(g.guardUnknown)
	g.each(g.guardSite)
	g.each(g.guardKind)
	g.each(g.guardLocked)
	g.each(g.guardChild)
	g.each(func(s *Step) {
		if s.Want != nil {
			g.guardVMID(s)
		}
	})
	g.guardRanges()
	g.guardClaims()
	g.each(g.guardNeeded)
	g.follow()
}

func needers(s model.State) map[model.Address][]model.Address {
	by := map[model.Address][]model.Address{}
	for _, addr := range s.Addresses() {
		for _, n := range s[addr].Needs {
			if n != addr {
				by[n] = append(by[n], addr)
			}
		}
	}
	return by
}

// each calls a check for every step that is still planned, by address.
func (d *draft) each(check func(*Step)) {
	for _, addr := range d.addrs {
		if s := d.steps[addr]; s != nil {
			check(s)
		}
	}
}

// guardIdentity creates nothing a second time: an unmanaged guest that stands where
// the new one would is first to be explained by its owner.
func (g *guard) guardIdentity(s *Step, claims []model.Unmanaged) {
	if s.Action != Create || len(claims) == 0 {
		return
	}
	if i := slices.IndexFunc(claims, func(f model.Unmanaged) bool { return f.Refused }); i >= 0 {
		s.Action = Adopt
		g.refuseAt(s, "adopt", claims[i].Why, claims[i].Fix)
		return
	}
	if !slices.ContainsFunc(claims, func(f model.Unmanaged) bool { return !f.Duplicate }) {
		g.withhold(s, false) // the observation reports them
		return
	}
	var who, fix []string
	for _, f := range claims {
		what := fmt.Sprintf("%s %d %q", f.Kind, f.VMID, f.Name)
		if f.VMID == 0 { // a pool has none
			what = fmt.Sprintf("%s %q", f.Kind, f.Name)
		}
		who = append(who, fmt.Sprintf("%s exists already and is unmanaged (%s)", what, f.Why))
		if f.Fix != "" && !slices.Contains(fix, f.Fix) {
			fix = append(fix, f.Fix)
		}
	}
	g.refuse(s, diag.FromGuard, strings.Join(who, "; "), strings.Join(fix, "\n"))
}

// guardUnproven changes nothing of a guest that only claims to be ours, except to prove that it is. It removes, replaces and
// renames none that is not proved to be ours.
func (g *guard) guardUnproven(s *Step) {
	if s.Have == nil || s.Have.Guest == nil || s.Have.Guest.Unproven.Why == "" {
		return
	}
	is := s.Have.Guest.Unproven
	signs := !slices.ContainsFunc(s.Changes, func(c Change) bool { return !isOfTag(c.Path) })
	renames := slices.ContainsFunc(s.Changes, func(c Change) bool { return c.Path == "name" || c.Path == "hostname" })
	renumbered := s.Have.Guest.Renumbered.Why != "" && s.Want != nil && s.Want.Guest.VMID != 0 && s.Want.Guest.VMID != s.Have.Guest.VMID
	if renumbered && s.Action != Update {
		return // guardVMID says more
	}
	if s.Action == Forget && is.MayChange { // it only loses the tag, which proves nothing
		return
	}
	if !renumbered && s.Action == Update && (is.MayChange && !renames || signs) && s.Class != model.ClassReplace {
		return
	}
	g.refuse(s, diag.FromGuard, is.Why, is.Fix)
}

// isOfTag reports whether a change is written into the ownership tag and nowhere else, or into the description beside it.
func isOfTag(path string) bool {
	return path == "mark" || path == "description" || strings.HasPrefix(path, "disk.") && strings.HasSuffix(path, ".remove")
}

// guardUnknown keeps the law that an incomplete view is never evidence of absence.
func (g *guard) guardUnknown(s *Step) {
	var unknowns []int
	why := ""
	for i, u := range g.in.Have.Unknown {
		if text := g.hides(u, s); text != "" {
			why = cmp.Or(why, text)
			unknowns = append(unknowns, i)
		}
	}
	if why != "" {
		g.withholdUnknown(s, why, unknowns)
	}
}

// hides says why a step cannot be taken while a part of the host cannot be seen; "" if it can.
func (d *draft) hides(u model.Unknown, s *Step) string {
	guest := s.Want != nil && s.Want.Guest != nil || s.Have != nil && s.Have.Guest != nil
	switch {
	case u.Node != "" && s.on(u.Node):
		return fmt.Sprintf("%s: %s", u.Scope, u.Why)
	case s.Action == Update || s.Action == Adopt:
	case u.Kind != "" && len(u.Only) > 1 && slices.Contains(u.Only, s.Address):
		return u.Scope + " cannot be seen" // the line about that says why, once for all of them
	case u.Kind != "" && u.Kind == s.Address.Kind && (u.Only == nil || slices.Contains(u.Only, s.Address)):
		return fmt.Sprintf("%s cannot be read (%s)", u.Scope, u.Why)
	case ofGuests(u) && u.Creating && guest && s.Action == Create && mayBe(u, s.Want):
		return fmt.Sprintf("%s %s, and may be this guest", u.Scope, u.Why)
	case ofGuests(u) && guest && s.Action == Create && mayBe(u, s.Want):
		return fmt.Sprintf("%s cannot be read (%s) and may be this guest", u.Scope, u.Why)
	case ofGuests(u) && !guest && s.Action != Create && (!u.Creating || d.neededBy(s.Address, u.Only)):
		return fmt.Sprintf("%s cannot be read (%s) and may need it", u.Scope, u.Why)
	}
	return ""
}

// ofGuests reports whether it is guests that could not be read.
func ofGuests(u model.Unknown) bool { return u.VMID > 0 || u.Only != nil && u.Kind == "" }

// on reports whether a step is about a guest on a PVE node, or one that is to be created there.
func (s *Step) on(node string) bool {
	return slices.ContainsFunc([]*model.Resource{s.Want, s.Have}, func(r *model.Resource) bool {
		if r == nil || r.Guest == nil || r == s.Want && (s.Action == Update || s.Action == Adopt) { // which is where it is
			return false
		}
		return r.Guest.Node == node
	})
}

// neededBy reports whether one of some wanted resources needs another one.
func (d *draft) neededBy(addr model.Address, by []model.Address) bool {
	return slices.ContainsFunc(by, func(b model.Address) bool {
		w := d.want[b]
		return w != nil && slices.Contains(w.Needs, addr)
	})
}

// mayBe reports whether a guest that could not be read may be a wanted one.
func mayBe(u model.Unknown, want *model.Resource) bool {
	switch {
	case u.Only != nil:
		return slices.Contains(u.Only, want.Addr)
	case u.Guest != "" && (u.Guest == "ct") != (want.Addr.Kind == "ct"):
		return false
	}
	return u.Name == "" || u.Name == want.Addr.Name || u.VMID == want.Guest.VMID
}

// guardSite holds what the site itself keeps from being done.
func (g *guard) guardSite(s *Step) {
	if s.Want == nil {
		return
	}
	node, missing := g.in.Want.Nodes[s.Address], s.Want.Missing
	if s.Action == Create || s.Action == Replace {
		missing = slices.Concat(missing, s.Want.MissingToCreate)
	}
	switch {
	case s.Want.Guest != nil && s.Want.Guest.NoOrigin && (s.Action == Create || s.Action == Replace):
		g.refuseOrigin(s)
	case s.Have != nil && s.Action != Adopt && !s.changesTagAlone(g.isMoved(s.Address)) && (node != nil && node.Drift == "report" || s.Want.Report):
		g.find(s.Address, diag.Finding{
			Severity: diag.Warning, Source: diag.FromGuard,
			Summary: fmt.Sprintf("drift: %s: %s is left as it is (drift = report)%s", s.Address, shown(s.Changes), editsNote(s.Edits)),
		})
		g.plan.Drift = append(g.plan.Drift, s.Address)
		g.withhold(s, false)
	case len(missing) > 0:
		g.refuse(s, diag.FromSite, "the value of "+strings.Join(missing, ", ")+" is not known here", "give it with --secrets FILE, or the age identity that decrypts secrets.sops.yaml")
	case s.Action == Replace && g.in.Manifest != "" && s.Want.Manifest != g.in.Manifest:
		g.warn(s, fmt.Sprintf("a plan for manifest %s replaces nothing outside of it", g.in.Manifest), "plan the whole host to do that")
	}
}

// changesTagAlone reports whether a step changes the ownership tag of a guest, and nothing else but the name of one that
// was moved.
func (s *Step) changesTagAlone(moved bool) bool {
	paths := s.paths()
	return s.Action == Update && s.Have.Guest != nil && slices.Contains(paths, "mark") && !slices.ContainsFunc(paths, func(path string) bool {
		return path != "mark" && (path != "name" && path != "hostname" || !moved)
	})
}

// guardKind holds what the kind itself knows to be impossible or dangerous.
func (g *guard) guardKind(s *Step) {
	kind := g.kinds[s.Address.Kind]
	if s.Have == nil || kind == nil || kind.Refuse == nil || s.Action == Adopt || s.Action == Forget {
		return
	}
	problems := kind.Refuse(s.Want, s.Have)
	for i, problem := range problems {
		f := diag.Finding{
			Severity: diag.Error, Source: diag.FromGuard, Detail: problem.Detail,
			Summary: fmt.Sprintf("%s is %s: %s", s.Address, cmp.Or(problem.Not, s.Action.not()), problem.Summary),
		}
		if i == 0 {
			paths := make([]string, len(problems))
			for i, other := range problems {
				paths[i] = other.Path
			}
			f.Summary += s.alsoWithheld(paths...)
		}
		if s.Want != nil {
			f.At = s.Want.RangeOf(problem.Path)
		}
		g.find(s.Address, f)
		if g.steps[s.Address] != nil {
			g.withhold(s, false)
			h := g.withheld[s.Address]
			h.not = problem.Not
			g.withheld[s.Address] = h
		}
	}
}

// alsoWithheld names the changes of a step that are withheld together with those that are refused.
func (s *Step) alsoWithheld(refused ...string) string {
	if s.Action != Update {
		return ""
	}
	var others []string
	for _, c := range s.Changes {
		if !slices.ContainsFunc(refused, func(path string) bool {
			return path == "" || c.Path == path || strings.HasPrefix(c.Path, path+".")
		}) {
			others = append(others, c.String())
		}
	}
	if n := len(others); n > 4 {
		others = append(others[:3], fmt.Sprintf("%d more", n-3))
	}
	if len(others) == 0 {
		return ""
	}
	return "; and with it: " + strings.Join(others, ", ")
}

// guardLocked leaves out what is to be done to a guest that is locked. It would fail, and
// with it the rest of its manifest would stop, or be made and taken back in every pass.
func (g *guard) guardLocked(s *Step) {
	if s.Have == nil || s.Have.Guest == nil {
		return
	}
	why := s.Have.Guest.Locked
	if why == "" && !wakes(s) {
		why = s.Have.Guest.Hibernated
	}
	if why == "" {
		return
	}
	g.plan.Findings = slices.DeleteFunc(g.plan.Findings, func(f diag.Finding) bool { // this finding replaces it
		return f.Address == s.Address.String() && f.Severity == diag.Warning && f.Detail == why
	})
	g.refuse(s, diag.FromGuard, why, "")
	g.withheld[s.Address] = withholding{action: s.Action, stuck: true}
}

// wakes reports whether a step starts its guest before it changes it.
func wakes(s *Step) bool {
	return s.Action == Update && slices.ContainsFunc(s.Changes, func(c Change) bool { return c.Path == "power" && c.After == "running" })
}

// guardNeeded keeps what others still need when its turn to go would come.
func (g *guard) guardNeeded(s *Step) {
	if s.Action != Delete && s.Action != Replace {
		return
	}
	for _, y := range g.observedBy[s.Address] {
		if g.releases(y, s.Address) {
			continue
		}
		switch h, withheld := g.withheld[y]; {
		case h.incomplete:
			g.withholdUnknown(s, fmt.Sprintf("%s still needs it", y), h.unknowns)
		case h.postponed:
			g.postpone(s, fmt.Sprintf("%s: %s still needs it", s.Action.not(), y), h.forGood)
		case s.Action == Replace:
			g.refuse(s, diag.FromGuard, fmt.Sprintf("%s lives on it", y), "remove what needs it first, or declare the new one under another name")
		case g.in.Destroy && !withheld:
			g.refuse(s, diag.FromGuard, fmt.Sprintf("%s still needs it", y), "destroy that first")
		default:
			g.warn(s, fmt.Sprintf("%s still needs it", y), "")
		}
		return
	}
}

// releases reports whether y, which needs x by its ownership tag, will do so no more once
// the steps of this plan that x waits for are done.
func (g *guard) releases(y, x model.Address) bool {
	if s := g.steps[y]; s != nil && s.Action == Delete {
		return true
	}
	_, withheld := g.withheld[y]
	w := g.want[y]
	return w != nil && !withheld && g.within(y) && !slices.Contains(w.Needs, x)
}

// follow withholds what depends on the steps withheld so far, and on those that
// follow, until nothing does. Every turn takes a step out, so it ends.
func (g *guard) follow() {
	for len(g.fresh) > 0 {
		addr := g.fresh[0]
		g.fresh = g.fresh[1:]
		h := g.withheld[addr]
		for _, y := range g.wantedBy[addr] {
			s := g.steps[y]
			if s == nil || s.Action == Delete || h.action == Replace && s.Action != Create {
				continue
			}
			if h.action == Adopt && s.Action != Create && s.Action != Replace {
				continue // that exists, and so it did without the guest
			}
			off := h.action == Update && s.Want.Inside == addr && g.isOff(s)
			if off && !h.incomplete {
				g.deferOff(s)
				g.withhold(s, false)
				continue
			}
			if h.action == Update && !off && (!h.stuck || s.Action != Create) {
				continue
			}
			g.because(s, h, fmt.Sprintf("it needs %s, which is %s", addr, cmp.Or(h.not, h.action.not())))
		}
		if r := g.have[addr]; r != nil {
			for _, x := range r.Needs {
				if s := g.steps[x]; s != nil && x != addr {
					g.guardNeeded(s)
				}
			}
		}
		if s := g.steps[g.reusedBy[addr]]; s != nil {
			if why := fmt.Sprintf("VMID %d is still that of %s", s.VMID, addr); h.postponed {
				g.postpone(s, s.Action.not()+": "+why, h.forGood)
			} else {
				g.refuse(s, diag.FromGuard, why, "")
			}
		}
		for _, t := range g.gives[addr] {
			g.stillHad(t)
		}
	}
}

// because withholds a step for the reason another one was withheld.
func (g *guard) because(s *Step, h withholding, why string) {
	switch {
	case h.incomplete:
		g.withholdUnknown(s, why, h.unknowns)
	case h.postponed:
		g.postpone(s, s.Action.not()+": "+why, h.forGood)
	default:
		g.warn(s, why, "")
	}
}

// refuse takes a step out with an error for a person to fix.
func (g *guard) refuse(s *Step, source diag.Source, why, fix string) {
	g.refused(s, source, diag.Range{}, why, fix)
}

// refuseAt is refuse at an attribute of a wanted resource.
func (g *guard) refuseAt(s *Step, path, why, fix string) {
	g.refused(s, diag.FromGuard, s.Want.RangeOf(path), why, fix)
}

func (g *guard) refused(s *Step, source diag.Source, at diag.Range, why, fix string) {
	g.find(s.Address, diag.Finding{
		Severity: diag.Error, Source: source, Detail: fix, At: at,
		Summary: fmt.Sprintf("%s is %s: %s", s.Address, s.Action.not(), why),
	})
	g.withhold(s, false)
}

// warn takes a step out with a warning: it is so on purpose, or follows from an error.
func (g *guard) warn(s *Step, why, fix string) {
	g.find(s.Address, diag.Finding{
		Severity: diag.Warning, Source: diag.FromGuard, Detail: fix,
		Summary: fmt.Sprintf("%s is %s: %s", s.Address, s.Action.not(), why),
	})
	g.withhold(s, false)
}

// withholdUnknown takes a step out because the view is incomplete. Unknowns are indexes into Input.Have.Unknown: each
// names what it withholds.
func (g *guard) withholdUnknown(s *Step, why string, unknowns []int) {
	g.plan.Unknown = append(g.plan.Unknown, model.Unknown{Scope: s.Address.String(), Why: s.Action.not() + ": " + why})
	for _, i := range unknowns {
		g.plan.Unknown[i].Withheld = append(g.plan.Unknown[i].Withheld, s.Address)
	}
	g.withhold(s, true)
	h := g.withheld[s.Address]
	h.unknowns = unknowns
	g.withheld[s.Address] = h
}

func (g *guard) withhold(s *Step, incomplete bool) {
	delete(g.steps, s.Address)
	g.withheld[s.Address] = withholding{action: s.Action, incomplete: incomplete}
	g.fresh = append(g.fresh, s.Address)
}
