package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Moved says in sentences how a new plan differs from this one, which was reviewed; none means that it may be
// applied as shown. Findings are not compared: those of the new plan count.
func (p *Plan) Moved(fresh *Plan) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, v := range [][3]string{
		{"the site", p.Site, fresh.Site}, {"the host", p.Host, fresh.Host}, {"the commit", p.Commit, fresh.Commit},
	} {
		if v[1] != v[2] {
			say("%s is %s now, was %s", v[0], name(v[2]), name(v[1]))
		}
	}
	old, now := stepsByAddress(p), stepsByAddress(fresh)
	for _, a := range addresses(old, now) {
		was, is := old[a], now[a]
		switch {
		case is == nil:
			say("%s: nothing to do now, was %s", a, was.Action)
		case was == nil:
			say("%s: %s is new", a, is.Action)
		default:
			for _, d := range was.moved(is) {
				say("%s: %s", a, d)
			}
		}
	}
	out = append(out, p.movedAround(fresh)...)
	if len(out) == 0 && p.ID != fresh.ID {
		say("the site or the host changed outside the listed steps: the plan is %s now, was %s", name(fresh.ID), name(p.ID))
	}
	return out
}

// moved compares two steps of one address.
func (s *Step) moved(now *Step) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if s.Action != now.Action {
		say("%s now, was %s", now.Action, s.Action)
		return out // and with that everything else about it
	}
	if s.VMID != now.VMID {
		say("VMID is %d now, was %d", now.VMID, s.VMID)
	}
	if s.Manifest != now.Manifest {
		say("manifest is %s now, was %s", name(now.Manifest), name(s.Manifest))
	}
	if s.Class != now.Class {
		say("class is %s now, was %s", name(string(now.Class)), name(string(s.Class)))
	}
	old := map[string]Change{}
	for _, c := range s.Changes {
		old[c.Path] = c
	}
	for _, c := range now.Changes {
		was, known := old[c.Path]
		delete(old, c.Path)
		switch path := diag.Escape(c.Path); {
		case !known:
			say("%s changes as well now", path)
		case !same(was.seen(was.Before), c.seen(c.Before)):
			say("%s is %s now, was %s", path, value(c.seen(c.Before)), value(was.seen(was.Before)))
		case !same(was.seen(was.After), c.seen(c.After)):
			say("%s becomes %s now, was to become %s", path, value(c.seen(c.After)), value(was.seen(was.After)))
		case was.Class != c.Class:
			say("%s costs %s now, was %s", path, name(string(c.Class)), name(string(was.Class)))
		}
	}
	for _, c := range s.Changes {
		if _, gone := old[c.Path]; gone {
			say("%s needs no change now", diag.Escape(c.Path))
		}
	}
	if !slices.Equal(s.After, now.After) {
		say("depends on %s now, was %s", nameAll(now.After), nameAll(s.After))
	}
	return out
}

// seen is a value as the document shows it.
func (c Change) seen(v any) any {
	if c.Sensitive {
		return masked(v)
	}
	return v
}

// movedAround compares what a plan lists beside its steps.
func (p *Plan) movedAround(fresh *Plan) []string {
	var out []string
	out = append(out, listMoved(p.Unmanaged, fresh.Unmanaged, func(f model.Unmanaged) string {
		return fmt.Sprintf("unmanaged %s %d", diag.Escape(f.Kind), f.VMID)
	})...)
	out = append(out, listMoved(p.Unknown, fresh.Unknown, func(u model.Unknown) string {
		return "unknown: " + diag.Escape(u.Scope)
	})...)
	return append(out, listMoved(p.Pending, fresh.Pending, func(d model.Pending) string {
		return fmt.Sprintf("pending: %s %s", diag.Escape(d.Address.String()), Change{Path: d.Path, Before: d.Before, After: d.After})
	})...)
}

func listMoved[E any](old, now []E, name func(E) string) []string {
	var out []string
	was, is := map[string]bool{}, map[string]bool{}
	for _, e := range old {
		was[name(e)] = true
	}
	for _, e := range now {
		is[name(e)] = true
		if !was[name(e)] {
			out = append(out, name(e)+" is new")
		}
	}
	for _, e := range old {
		if !is[name(e)] {
			out = append(out, name(e)+" is gone")
		}
	}
	return out
}

func stepsByAddress(p *Plan) map[model.Address]*Step {
	by := make(map[model.Address]*Step, len(p.Steps))
	for i := range p.Steps {
		by[p.Steps[i].Address] = &p.Steps[i]
	}
	return by
}

func addresses(maps ...map[model.Address]*Step) []model.Address {
	var out []model.Address
	for _, m := range maps {
		for a := range m {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, model.Address.Compare)
	return slices.Compact(out)
}

func name(s string) string {
	if s == "" {
		return "none"
	}
	return diag.Escape(limited(s, 40))
}

func nameAll(l []model.Address) string {
	if len(l) == 0 {
		return "nothing"
	}
	texts := make([]string, len(l))
	for i, a := range l {
		texts[i] = diag.Escape(a.String())
	}
	return strings.Join(texts, ", ")
}
