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

// Outcome is the outcome of a pass.
type Outcome string

// The ends of a pass.
const (
	Done        Outcome = "done"        // the scope is converged
	Planned     Outcome = "planned"     // the plan was not applied
	Invalid     Outcome = "invalid"     // the site, or a part of it, has errors
	Refused     Outcome = "refused"     // a guard withheld steps; everything else is done
	Partly      Outcome = "partly"      // some steps are done, others are not
	Failed      Outcome = "failed"      // no step is done
	Interrupted Outcome = "interrupted" // Pass.Stop was closed, or the context ended for that
)

// Report is the result of a pass: the document of apply, destroy and test.
type Report struct {
	Verb     string    `json:"verb"`
	Success  bool      `json:"success"`
	Commit   string    `json:"commit"`
	Seconds  float64   `json:"duration_seconds"`
	Nodes    []Node    `json:"nodes"`
	Findings diag.List `json:"findings"`

	Host    string         `json:"-"`
	Outcome Outcome        `json:"-"`
	Err     error          `json:"-"` // why it ended early, or the errors of its steps
	Plan    *plan.Plan     `json:"-"` // nil if it ended before there was one
	Have    model.Observed `json:"-"` // that the plan is made from
	Omitted int            `json:"-"` // differences for which RefreshOnly made no step
	Results []apply.Result `json:"-"`

	// Checks has the results of the checks that ran.
	Checks map[model.Address]health.Report `json:"-"`

	// Probes has the guests with checks that the pass was about, sorted by address; nil if it did not come to its steps.
	Probes []Probe `json:"-"`

	// Unchecked lists those of Pass.Failing that have no checks in the site any more.
	Unchecked []model.Address `json:"-"`

	// Denied means that the site, or a policy, forbids the whole plan: nothing was changed. Without it, an Outcome
	// of Invalid or Refused means that single steps were withheld, and the others are done.
	Denied bool `json:"-"`

	Accepted bool          `json:"-"` // something of the host could be observed, and no policy denies the plan
	Began    time.Time     `json:"-"`
	About    *model.Commit `json:"-"` // Pass.Commit
	Want     *model.Want   `json:"-"` // nil if the site did not load, or does not have the host

	pass     *Pass
	desired  Desired
	kinds    model.Kinds
	verdicts diag.List // findings of the policies, which are about the whole plan
}

// NotObserved reports whether nothing of the host could be observed, so that the plan says no more than
// the error does.
func (r Report) NotObserved() bool {
	return r.Err != nil && r.Plan != nil && len(r.Plan.Unknown) == 1 && r.Plan.Unknown[0].All && r.Plan.Unknown[0].Why == r.Err.Error()
}

// Attributes lists the attributes of resources, as declared and as observed; see plan.Attributes.
func (r Report) Attributes(of ...model.Address) []plan.Attribute {
	out := []plan.Attribute{}
	for _, addr := range of {
		var want *model.Resource
		if r.Want != nil {
			want = r.Want.State[addr]
		}
		if have := r.Have.State[addr]; want != nil || have != nil {
			out = append(out, plan.Attributes(r.kinds.Get(addr.Kind), want, have)...)
		}
	}
	return out
}

// Failure is the report of a verb that failed before its pass.
func Failure(verb, commit string, found diag.List) Report {
	return Report{Verb: verb, Commit: commit, Findings: found, Outcome: Failed}
}

// report makes the report from the progress of a pass. Err is why it ended before its steps, if it did.
func (p *Pass) report(ctx context.Context, began time.Time, c progress, err error) Report {
	r := Report{
		Verb: p.Verb, Commit: c.desired.Commit, Findings: c.findings, Host: p.Host,
		Plan: c.plan, Have: c.have, Omitted: c.omitted, Results: c.results, Checks: c.checks, Probes: c.probes,
		Unchecked: p.unchecked(c), Accepted: c.accepted, Began: began.Add(c.asked), About: p.Commit, Want: c.want,
		pass: p, desired: c.desired, verdicts: c.verdicts,
	}
	if c.desired.Site != nil {
		r.kinds = c.desired.Site.Kinds
	}
	if end := (*endError)(nil); errors.As(err, &end) {
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

// distinct appends the findings that are not in the list yet.
func distinct(found, more diag.List) diag.List {
	for _, f := range more {
		if !slices.ContainsFunc(found, func(g diag.Finding) bool { return same(f, g) }) {
			found = append(found, f)
		}
	}
	return found
}

// same reports whether two findings are equal but for the text of the source line, which only the
// loader sets.
func same(f, g diag.Finding) bool {
	return f.At.String() == g.At.String() && f.Severity == g.Severity && f.Summary == g.Summary && f.Detail == g.Detail
}

// isUnchanged reports whether an address is that of an object, not a guest, which is on the host
// and has no step. A plan omits the warnings of the site about it, such as that of an image without a
// checksum, which is about the download. validate still shows them.
func isUnchanged(address string, p *plan.Plan, have model.Observed) bool {
	addr, err := model.ParseAddress(address)
	if h := have.State[addr]; err != nil || h == nil || h.Guest != nil {
		return false
	}
	return !slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return s.Address == addr })
}

// failuresWithoutNode returns a finding for each failed step that belongs to no node. The failure of
// another step is in the report of its node.
func failuresWithoutNode(results []apply.Result) diag.List {
	var found diag.List
	for _, res := range results {
		if res.Status == apply.Failed && res.Step.Node == "" {
			found = append(found, diag.Finding{
				Severity: diag.Error, Source: diag.FromGuard, Address: res.Step.Address.String(), At: res.Step.At,
				Summary: fmt.Sprintf("%s: %s failed", res.Step.Address, res.Step.Action), Detail: res.Err.Error(),
			})
		}
	}
	return found
}

// NotObservedError is the error of a pass that is done but for what it could not observe, such as guests that
// were just started and do not answer yet.
type NotObservedError struct{ Parts []model.Unknown }

// Error names the first few parts.
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
	why := "part of the host could not be inspected: "
	if !slices.ContainsFunc(e.Parts, func(u model.Unknown) bool { return !u.Starting }) {
		why = "some guests are not ready yet, and a later pass continues: "
	}
	return why + strings.Join(parts, "; ")
}

// notObserved lists what could not be observed on the host. If nothing is listed there, it returns
// all that the plan has as unknown.
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

// Decisive returns the findings. Those that deny the whole plan come before those that withhold
// single steps.
func (r *Report) Decisive() diag.List {
	denies := func(f diag.Finding) bool {
		return f.Severity == diag.Error && slices.ContainsFunc(r.verdicts, func(g diag.Finding) bool { return same(f, g) })
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

// outcome returns the outcome of a plan that was applied.
func (r *Report) outcome(ctx context.Context) (Outcome, error) {
	done := 0
	var errs []error
	for _, res := range r.Results {
		switch res.Status {
		case apply.Done:
			done++
		case apply.Failed:
			errs = append(errs, fmt.Errorf("%s %s: %w", res.Step.Action, res.Step.Address, res.Err))
		default: // skipped or rolled back because of another step
		}
	}
	failedChecks := r.failedChecks()
	errs = append(errs, failedChecks...)
	unfinished := done < len(r.Results)
	switch refused := OutcomeOf(r.Plan.Findings); {
	case IsClosed(r.pass.Stop):
		return Interrupted, errors.Join(append([]error{ErrInterrupted}, errs...)...)
	case ctx.Err() != nil && unfinished:
		errs = append([]error{context.Cause(ctx)}, errs...)
	case !unfinished && len(failedChecks) > 0:
		return Partly, errors.Join(errs...) // all steps are done, but a guest is not healthy
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

// OutcomeOf returns how the errors among findings let a pass end: Refused if one is of a
// guard, Invalid if all are of the site, "" without errors.
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

// MarshalJSON writes the document. Lists are never null, and the error of a pass without
// steps becomes a finding.
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

// FindingOf returns an error as a finding for a document. It returns none for nil.
func FindingOf(err error) diag.List {
	if err == nil {
		return nil
	}
	summary, detail, _ := strings.Cut(err.Error(), "\n")
	return diag.List{{Severity: diag.Error, Source: diag.FromGuard, Summary: summary, Detail: detail}}
}

// seconds is d in seconds, rounded to milliseconds.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// IsClosed reports whether a channel that never carries a value is closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
