package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// failure is the denial by policies that could not be evaluated, in the name of the
// rule that was at work.
func (rs *ruleset) failure(packages []string, err error) diag.Finding {
	why := diag.FirstLine(err.Error())
	stop, isStopped := errors.AsType[*stopped](err)
	if isStopped {
		why = stop.why
	}
	var at *ast.Location
	culprit, fix := rule{pkg: packages[0]}, "A policy that cannot be evaluated denies: fix it, or remove it from the site."
	if failed, ok := errors.AsType[*topdown.Error](err); ok {
		if !isStopped {
			first, rest, _ := strings.Cut(clip(failed.Message), "\n") // of a conflict, the values follow
			why, fix = diag.Line(strings.TrimSuffix(first, ":")), strings.TrimLeft(cleanLines(rest)+"\n"+fix, "\n")
		}
		culprit, at = rs.culprit(failed, culprit)
	}
	source := diag.FromPolicy
	if slices.Contains(packages, culprit.pkg) {
		source = sourceOf(culprit.pkg)
	}
	if culprit.at == nil {
		return rs.unlocated(packages, source, why, fix)
	}
	f := denial(source, fmt.Sprintf("%s denies (rule %s): %s", culprit.at.File, culprit.title(), why), fix+"\n("+culprit.String()+")")
	f.At, f.Code = rs.locate(at)
	return f
}

// unlocated is the denial if it is unknown which rule failed, because the evaluation did not notice
// that it was stopped. It names the possible files.
func (rs *ruleset) unlocated(packages []string, source diag.Source, why, fix string) diag.Finding {
	var names []string
	for _, r := range rs.rules {
		if !r.shipped && slices.Contains(packages, r.pkg) && !slices.Contains(names, r.at.File) {
			names = append(names, r.at.File)
		}
	}
	const most = 5
	who := strings.Join(names, " or ")
	if len(names) == 0 || len(names) > most {
		who = "some rule of " + strings.Join(packages, ", ")
	}
	f := denial(source, who+" denies: "+why, fix)
	if len(names) == 1 {
		f.At, f.Code = rs.locate(ast.NewLocation(nil, names[0], 1, 1))
	}
	return f
}

// culprit finds the rule whose evaluation failed, and the position of the failure.
func (rs *ruleset) culprit(failed *topdown.Error, unknown rule) (rule, *ast.Location) {
	locations := []*ast.Location{failed.Location} // innermost first
	for _, frame := range failed.StackTrace {
		locations = append(locations, frame.Location)
	}
	found, at := unknown, (*ast.Location)(nil)
	for _, l := range locations {
		if l == nil {
			continue
		}
		for _, r := range rs.rules {
			if r.at.File == l.File && r.at.Row <= l.Row && l.Row <= r.end {
				found = r // the outermost stays
				if at == nil && !r.shipped {
					at = l
				}
			}
		}
	}
	if found.shipped && failed.Code == topdown.ConflictErr {
		for _, r := range rs.rules {
			if !r.shipped && r.pkg == found.pkg && r.name == found.name {
				return r, r.at // shipped rules do not contradict each other
			}
		}
	}
	if found.at != nil && at == nil {
		at = found.at
	}
	return found, at
}

// findingsOf converts errors of the compiler to denials. The compiler repeats itself: it reports a rule of Rego v0 for each
// word that it lacks, and an undeclared variable at each use. So a line has one finding, and a message only the first in a file.
func (s sources) findingsOf(errs ast.Errors) diag.List {
	var out diag.List
	seen := map[[2]string]bool{}
	errs = slices.Clone(errs)
	errs.Sort()
	for _, e := range errs {
		name, line := "a policy", ""
		if e.Location != nil && e.Location.File != "" {
			name, line = e.Location.File, strconv.Itoa(e.Location.Row)
		}
		if seen[[2]string{name, line}] && line != "" || seen[[2]string{name, e.Message}] {
			continue
		}
		seen[[2]string{name, line}], seen[[2]string{name, e.Message}] = true, true
		detail := "A policy that does not compile denies everything: fix it, or remove it from the site."
		if fn, ok := strings.CutPrefix(e.Message, "undefined function "); ok && ast.BuiltinMap[fn] != nil {
			detail = "Policies see only their input: no network, clock, random numbers or environment, and no function that can return huge results.\n" + detail
		}
		f := denial(diag.FromPolicy, fmt.Sprintf("%s does not compile: %s", name, diag.Line(clip(diag.FirstLine(e.Message)))), detail)
		f.At, f.Code = s.locate(e.Location)
		out = append(out, f)
	}
	return out
}
