package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Outcome is how a pass ended.
type Outcome string

// The ends of a pass.
const (
	Done        Outcome = "done"        // the host is as the site says, within the scope
	Planned     Outcome = "planned"     // a plan was made, and not carried out
	Invalid     Outcome = "invalid"     // the site must not converge, or not all of it could
	Refused     Outcome = "refused"     // a guard kept something back; all else is done
	Partly      Outcome = "partly"      // something is done, something is not
	Failed      Outcome = "failed"      // nothing was done
	Interrupted Outcome = "interrupted" // somebody asked to stop; what ran was finished, or left
)

// Report is how a pass went: the document of apply, destroy and test.
type Report struct {
	Verb     string    `json:"verb"`
	Success  bool      `json:"success"`
	Commit   string    `json:"commit"`
	Seconds  float64   `json:"duration_seconds"`
	Nodes    []Node    `json:"nodes"`
	Findings diag.List `json:"findings"`

	Host    string         `json:"-"`
	Outcome Outcome        `json:"-"`
	Err     error          `json:"-"` // why it did not come to its end, or what went wrong with the steps
	Plan    *plan.Plan     `json:"-"` // nil if it did not come so far
	Have    model.Observed `json:"-"` // what the plan was made from
	Aside   int            `json:"-"` // differences that were told and left, since only looking was asked for
	Results []apply.Result `json:"-"`

	// Checks is what became of the checks of guests, as far as they were tried.
	Checks map[model.Address]health.Report `json:"-"`

	// Unchecked are those of Pass.Failing of which the site asks no check any more.
	Unchecked []model.Address `json:"-"`

	// Denied: the site, or a rule about the plan, forbids all of it; nothing was changed. Without it an Outcome
	// of Invalid or Refused means that single steps were withheld, and everything else was done.
	Denied bool `json:"-"`

	Accepted bool          `json:"-"` // a plan was made of what could be seen, and no rule denies it
	Began    time.Time     `json:"-"`
	About    *model.Commit `json:"-"` // Pass.Commit
	Want     *model.Want   `json:"-"` // nil if the site did not load, or does not have the host

	pass  *Pass
	kinds model.Kinds
	ruled diag.List // what the rules said: it withholds no single step
}

// NotObserved reports whether the host could not be observed at all, so that the error says all that
// there is in the plan.
func (r Report) NotObserved() bool {
	return r.Err != nil && r.Plan != nil && len(r.Plan.Unknown) == 1 && r.Plan.Unknown[0].All && r.Plan.Unknown[0].Why == r.Err.Error()
}

// Failure is the report of a verb that could not even begin its pass.
func Failure(verb, commit string, found diag.List) Report {
	return Report{Verb: verb, Commit: commit, Findings: found, Outcome: Failed}
}

// report says how a pass went that came to this, and ended before its steps for err.
func (p *Pass) report(ctx context.Context, began time.Time, c course, err error) Report {
	r := Report{
		Verb: p.Verb, Commit: c.desired.Commit, Findings: c.findings, Host: p.Host,
		Plan: c.plan, Have: c.have, Aside: c.aside, Results: c.results, Checks: c.checks,
		Unchecked: p.unchecked(c), Accepted: c.accepted, Began: began.Add(c.thinking), About: p.Commit, Want: c.want,
		pass: p, ruled: c.ruled,
	}
	if c.desired.Site != nil {
		r.kinds = c.desired.Site.Kinds
	}
	if end := (*ending)(nil); errors.As(err, &end) {
		r.Outcome, r.Err, r.Denied = end.outcome, end.err, end.denied
	} else {
		r.Outcome, r.Err = r.outcome(ctx)
	}
	if errors.Is(r.Err, ErrInterrupted) {
		r.Outcome = Interrupted
	}
	r.Success = r.Outcome == Done || r.Outcome == Planned
	r.Seconds = seconds(time.Since(r.Began))
	r.Nodes = r.nodes()
	return r
}

// distinct adds findings to others; what was found at the same place before is not
// repeated.
func distinct(found, more diag.List) diag.List {
	for _, f := range more {
		if !slices.ContainsFunc(found, func(g diag.Finding) bool { return same(f, g) }) {
			found = append(found, f)
		}
	}
	return found
}

// same compares findings without the source line, which only the loader knows.
func same(f, g diag.Finding) bool {
	return f.At.String() == g.At.String() && f.Severity == g.Severity && f.Summary == g.Summary && f.Detail == g.Detail
}

// isUnchanged reports whether an address is that of an object beside the guests which is on
// the host, and has nothing done to it. What the site warns of such a one (an image without a
// checksum) is about the getting of it: validate goes on to warn, a plan without that does not.
func isUnchanged(address string, p *plan.Plan, have model.Observed) bool {
	addr, err := model.ParseAddress(address)
	if h := have.State[addr]; err != nil || h == nil || h.Guest != nil {
		return false
	}
	return !slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return s.Address == addr })
}

// beside are the findings about steps that failed and belong to no node: of a node it
// says so itself.
func beside(results []apply.Result) diag.List {
	var found diag.List
	for _, res := range results {
		if res.Status == apply.Failed && res.Step.Node == "" {
			found = append(found, diag.Finding{
				Severity: diag.Error, Source: diag.FromGuard, Address: res.Step.Address.String(), At: res.Step.At,
				Summary: fmt.Sprintf("%s: %s went wrong", res.Step.Address, res.Step.Action), Detail: res.Err.Error(),
			})
		}
	}
	return found
}

// NotObservedError ends a pass that did all it could on a host of which not all could be seen, or where
// guests were just started and do not answer yet.
type NotObservedError struct{ Parts []model.Unknown }

// Error names the parts, but no more of them than a line bears.
func (e *NotObservedError) Error() string {
	const most = 3
	var parts []string
	for _, u := range e.Parts[:min(len(e.Parts), most)] {
		text := u.Scope + ": " + u.Why
		if n := len(u.Withheld); n == 1 {
			text += fmt.Sprintf(" (holds back %s)", u.Withheld[0])
		} else if n > 1 {
			text += fmt.Sprintf(" (holds back %s and %d more)", u.Withheld[0], n-1)
		}
		parts = append(parts, text)
	}
	if more := len(e.Parts) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	why := "not all of the host could be seen, so nothing is said about the rest: "
	if !slices.ContainsFunc(e.Parts, func(u model.Unknown) bool { return !u.Starting }) {
		why = "not all guests are ready, so a later pass says more: "
	}
	return why + strings.Join(parts, "; ")
}

// notObserved lists what of the host could not be seen, without the steps that were left
// out for it, unless that is all that is known.
func (r *Report) notObserved() []model.Unknown {
	var out []model.Unknown
	for _, u := range r.Plan.Unknown {
		if slices.ContainsFunc(r.Have.Unknown, func(h model.Unknown) bool { return h.Scope == u.Scope && h.Why == u.Why }) {
			out = append(out, u)
		}
	}
	if len(out) == 0 {
		return r.Plan.Unknown
	}
	return out
}

// Decisive are the findings, those by which rules deny all of the plan before those that
// only withhold single steps.
func (r *Report) Decisive() diag.List {
	denies := func(f diag.Finding) bool {
		return f.Severity == diag.Error && slices.ContainsFunc(r.ruled, func(g diag.Finding) bool { return same(f, g) })
	}
	out, rest := diag.List{}, diag.List{}
	for _, f := range r.Findings {
		if denies(f) {
			out = append(out, f)
		} else {
			rest = append(rest, f)
		}
	}
	return append(out, rest...)
}

// outcome classifies the results of a plan that was carried out.
func (r *Report) outcome(ctx context.Context) (Outcome, error) {
	done := 0
	var errs []error
	for _, res := range r.Results {
		switch res.Status {
		case apply.Done:
			done++
		case apply.Failed:
			errs = append(errs, fmt.Errorf("%s %s: %w", res.Step.Action, res.Step.Address, res.Err))
		default: // skipped or rolled back, because of another
		}
	}
	failedChecks := r.failedChecks()
	errs = append(errs, failedChecks...)
	unfinished := done < len(r.Results)
	switch refused := OutcomeOf(r.Plan.Findings); {
	case isClosed(r.pass.Stop):
		return Interrupted, errors.Join(append([]error{ErrInterrupted}, errs...)...)
	case ctx.Err() != nil && unfinished:
		errs = append([]error{context.Cause(ctx)}, errs...)
	case !unfinished && len(failedChecks) > 0:
		return Partly, errors.Join(errs...) // it is there, and that is not all that was asked for
	case !unfinished && refused != "":
		return refused, nil
	case !unfinished && len(r.Plan.Unknown) > 0:
		errs = []error{&NotObservedError{r.notObserved()}}
	case !unfinished:
		return Done, nil
	}
	if done > 0 {
		return Partly, errors.Join(errs...)
	}
	return Failed, errors.Join(errs...)
}

// OutcomeOf says by the errors among findings how a pass must end that did all it
// could: Refused by a guard, or Invalid by the site; "" if there are none.
func OutcomeOf(l diag.List) Outcome {
	var out Outcome
	for _, f := range l {
		switch {
		case f.Severity != diag.Error:
		case f.Source == diag.FromGuard:
			return Refused
		default:
			out = Invalid
		}
	}
	return out
}

// MarshalJSON writes the document: lists are never null, and why a pass did not come
// to its steps is a finding.
func (r Report) MarshalJSON() ([]byte, error) {
	type document Report
	doc := document(r)
	doc.Nodes = append([]Node{}, r.Nodes...)
	doc.Findings = append(diag.List{}, r.Findings...)
	for _, f := range FindingOf(r.Err) {
		if len(r.Results) == 0 && !slices.ContainsFunc(r.Findings, func(g diag.Finding) bool { return same(f, g) }) {
			doc.Findings = append(doc.Findings, f)
		}
	}
	return json.Marshal(doc)
}

// FindingOf makes of an error the finding that stands for it in a document: what
// kept the program from looking or acting at all. Nil makes none.
func FindingOf(err error) diag.List {
	if err == nil {
		return nil
	}
	summary, detail, _ := strings.Cut(err.Error(), "\n")
	return diag.List{{Severity: diag.Error, Source: diag.FromGuard, Summary: summary, Detail: detail}}
}

// seconds rounds to milliseconds, which is more than anybody needs.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
