package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Apart evaluates the rules of a site in another process. A function call cannot be interrupted and its memory
// cannot be freed, but a process can be killed. An error says why there is no result, and becomes a denial.
type Apart interface {
	Ask(ctx context.Context, q Question) (Answer, error)
}

// Question has everything that an answer depends on. It crosses the border of a process.
type Question struct {
	Files    map[string]string // the site's own rules, by name from the root of the site
	Packages []string          // that are evaluated; none for a request to the server
	Input    json.RawMessage   // the document of these packages
	Request  *AuthInput        // a request to the server
}

// Answer is the result of the rules.
type Answer struct {
	Found    diag.List // without the places of addresses
	Rules    plan.Rules
	Decision Decision // of a request to the server
}

// own are the rules of the site itself.
func (rs *ruleset) own() map[string]string {
	out := map[string]string{}
	for _, f := range rs.sources {
		if !f.shipped && !f.test {
			out[f.name] = f.text
		}
	}
	return out
}

// hasOwn reports whether the site has rules of its own. Those that are shipped need no other process.
func (rs *ruleset) hasOwn() bool {
	return slices.ContainsFunc(rs.rules, func(r rule) bool { return !r.shipped })
}

// Responder answers questions, in the other process. The zero Responder is ready to use, by one
// goroutine at a time.
type Responder struct {
	Limit  time.Duration // as in Options
	Memory int64

	set   *Set
	files map[string]string
	stuck bool // a compilation does not end
}

// Answer answers a question. It keeps the compiled rules for the next one.
func (r *Responder) Answer(ctx context.Context, q Question) (Answer, error) {
	if r.set == nil || !sameFiles(r.files, q.Files) {
		r.set, r.files = r.compile(ctx, q.Files), q.Files
	}
	if q.Request != nil {
		return Answer{Decision: r.set.Authorize(ctx, *q.Request)}, nil
	}
	if !r.set.works() {
		found, rules := denied(slices.Clone(r.set.whyNot()))
		return Answer{Found: found, Rules: rules}, nil
	}
	var doc any
	d := json.NewDecoder(bytes.NewReader(q.Input))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return Answer{}, fmt.Errorf("read the input of the policies: %w", err)
	}
	object, ok := doc.(map[string]any)
	if !ok || len(q.Packages) == 0 {
		return Answer{}, fmt.Errorf("read the input of the policies: it is not an object")
	}
	found, rules := r.set.check(ctx, q.Packages, object)
	return Answer{Found: found, Rules: rules}, nil
}

func sameFiles(a, b map[string]string) bool {
	for name, text := range a {
		if other, ok := b[name]; !ok || other != text {
			return false
		}
	}
	return len(a) == len(b)
}

// Busy reports whether an evaluation was stopped, and does not end. Nothing more is answered then.
func (r *Responder) Busy() bool { return r.stuck || r.set != nil && r.set.limits.stray.Load() > 0 }

// compile compiles the shipped rules with those of a site, which were found to be good before.
func (r *Responder) compile(ctx context.Context, files map[string]string) *Set {
	s := newSet(Options{Limit: r.Limit, Memory: r.Memory})
	found, err := within(ctx, &s.limits, func(context.Context, topdown.Cancel) (diag.List, error) {
		install()
		all, found := load(nil)
		for _, name := range sortedKeys(files) {
			all = append(all, file{name: name, text: files[name], test: strings.HasSuffix(name, testEnding)})
		}
		s.sources = all
		if found = append(found, s.build()...); !found.HasErrors() {
			found = append(found, s.prepareAll()...)
		}
		return found, nil
	})
	if err != nil {
		r.stuck = true
		return &Set{broken: diag.List{denial(diag.FromPolicy, "the policies of the site cannot be compiled: "+diag.FirstLine(err.Error()), "Make them smaller or simpler.")}}
	}
	if found.HasErrors() {
		s.broken = found
	}
	return s
}

// check evaluates packages on a document: here, or where the site's own rules are evaluated apart.
func (s *Set) check(ctx context.Context, packages []string, doc map[string]any) (diag.List, plan.Rules) {
	if s.apart != nil && s.hasOwn() {
		text, err := json.Marshal(doc)
		if err != nil {
			return denied(diag.List{denial(diag.FromPolicy, "policies have nothing to evaluate: "+diag.FirstLine(err.Error()), "")})
		}
		a, err := s.apart.Ask(ctx, Question{Files: s.own(), Packages: packages, Input: text})
		if err != nil {
			return denied(diag.List{s.failure(packages, failedApart(err))})
		}
		return a.Found, a.Rules
	}
	answer, err := within(ctx, &s.limits, func(ctx context.Context, stop topdown.Cancel) (*ast.Term, error) {
		return ask(ctx, s.queries[packages[0]], ast.LazyObject(doc), stop)
	})
	if err != nil {
		return denied(diag.List{s.failure(packages, err)})
	}
	return s.verdict(packages, answer)
}

// withPosition is an error with the place where an evaluation was when it ended.
type withPosition interface {
	error
	Position() diag.Range
}

// failedApart makes the error of another process one of an evaluation.
func failedApart(err error) error {
	why := error(&stopped{why: diag.FirstLine(err.Error()), cause: err})
	p, ok := err.(withPosition) //nolint:errorlint // the error of Apart itself
	if !ok || p.Position().IsZero() {
		return why
	}
	at := p.Position()
	l := ast.NewLocation(nil, at.File, at.Start.Line, at.Start.Column)
	return fmt.Errorf("%w\n%w", why, &topdown.Error{Code: topdown.CancelErr, Message: "it does not end", Location: l})
}
