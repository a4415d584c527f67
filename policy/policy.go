// Package policy checks a site and a plan: values in, findings out. It is the only user of OPA.
//
// Policies are rules in Rego: some are shipped with this program (shipped/), a site adds its own in policy/*.rego.
// A rule adds to deny or warn in one of four packages, which determines when it is evaluated:
//
//	homestak.site    Set.Site       the site as declared, before a host is observed
//	homestak.plan    Set.Plan       the plan
//	homestak.guard   Set.Plan       the plan, for rules that prevent accidents
//	homestak.auth    Set.Authorize  a request to the server
//
// Input creates the document for the first three. Compile creates a Set of all rules, once for each commit; the Set
// evaluates any number of documents, with one prepared query for each.
//
// Everything fails closed. A rule denies if it does not compile, fails, exceeds its limits or returns something
// other than a finding, and the denial names its file and rule. The zero Set denies too.
//
//	load.go       which files are policies, and their size limits
//	check.go      rejects rules that are never evaluated
//	fields.go     rejects references to fields that no input has (shape.go)
//	functions.go  the allowed functions: none with effects, clocks or randomness
//	bounds.go     limits of one call
//	limit.go      limits of one evaluation
//	apart.go      evaluation in another process, which can be killed
//	verdict.go    the valid results of a rule
//	govern.go     packs of shipped rules, and waivers
package policy

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// The evaluated packages.
const (
	sitePackage  = "homestak.site"
	planPackage  = "homestak.plan"
	guardPackage = "homestak.guard"
	authPackage  = "homestak.auth"
)

// Options are the options of Compile.
type Options struct {
	Site   fs.FS         // the site's tree, of which policy/ is read; nil: the shipped rules alone
	Kinds  model.Kinds   // so that attributes of nodes are checked too; nil: they are not
	Limit  time.Duration // for one evaluation; 0: 5 s
	Memory int64         // by which the heap may grow in one evaluation, in bytes; 0: 256 MiB

	// Last is a Set that was compiled with the same options except Site. If the policies are the same it is returned
	// again, unless it is broken: it may have lacked time or memory. May be nil.
	Last *Set

	// Apart evaluates the site's own rules; nil: they are evaluated here.
	Apart Apart
}

// Set has all compiled rules of a commit. It may be used by several goroutines. The zero Set denies
// everything, and so does one that did not compile.
type Set struct {
	ruleset
	limits    limits
	apart     Apart
	compiler  *ast.Compiler
	queries   map[string]*query // by the package that is asked; guard is asked with plan
	broken    diag.List         // why it does not work
	found     diag.List         // what was found when it was compiled
	withPacks func() *Set       // makes this set with the packs; nil: it has them
	decided   decisions
}

// newSet is a set without rules.
func newSet(o Options) *Set {
	s := &Set{limits: limits{time: o.Limit, memory: uint64(max(o.Memory, 0))}, apart: o.Apart}
	if s.limits.time <= 0 {
		s.limits.time = defaultTime
	}
	s.limits.memory = cmp.Or(s.limits.memory, defaultMemory)
	return s
}

// Compile compiles the shipped rules and those of a site. The findings are problems of the site's rules; they are
// errors, and the Set then denies everything with the same findings. Reading and compiling are limited as
// evaluations are.
func Compile(ctx context.Context, o Options) (*Set, diag.List) {
	s := newSet(o)
	again := false
	found, err := within(ctx, &s.limits, func(context.Context, topdown.Cancel) (diag.List, error) {
		files, found := load(o.Site)
		if again = o.Last.works() && !found.HasErrors() && slices.Equal(files, o.Last.sources); again {
			return nil, nil
		}
		install()
		s.sources = files
		return s.compile(o, found), nil
	})
	if err == nil && again {
		return o.Last, slices.Clone(o.Last.found)
	}
	if err != nil {
		// The abandoned goroutine may still write to s.
		found = diag.List{denial(diag.FromPolicy, "the policies of the site cannot be compiled: "+diag.FirstLine(err.Error()), "Make them smaller or simpler.")}
		return &Set{broken: found}, found
	}
	s.found = slices.Clone(found)
	if found.HasErrors() {
		s.broken = s.found
	}
	return s, found
}

// The shipped rules alone, compiled: with the packs, and without them. Most sites have no other rules and no pack, and
// the packs take longer than all others. These rules are the same for all sites, so a process compiles them once. It is
// not for any caller to cancel that.
var (
	shippedRules = sync.OnceValue(func() *Set { return compileShipped(func(file) bool { return true }) })
	shippedCore  = sync.OnceValue(func() *Set { return compileShipped(func(f file) bool { return !f.pack() }) })
)

func compileShipped(wanted func(file) bool) *Set {
	s := &Set{}
	files, found := load(nil)
	for _, f := range files {
		if wanted(f) {
			s.sources = append(s.sources, f)
		}
	}
	if found = append(found, s.build()...); !found.HasErrors() {
		found = append(found, s.prepareAll()...)
	}
	s.found = found
	return s
}

// take makes the rules of a set those of another one.
func (s *Set) take(from *Set) {
	s.rules, s.compiler, s.queries, s.found = from.rules, from.compiler, from.queries, from.found
}

// forSite is the set for a site: with the packs, if the site has any, or waivers, which may name a rule of a pack.
func (s *Set) forSite(site *model.Site) *Set {
	if site == nil || !site.Governed() {
		return s
	}
	return s.complete()
}

// complete is the set with the packs.
func (s *Set) complete() *Set {
	if s == nil || s.withPacks == nil {
		return s
	}
	return s.withPacks()
}

// compile compiles the files of the set; found has what was wrong with reading them.
func (s *Set) compile(o Options, found diag.List) diag.List {
	if !found.HasErrors() && !slices.ContainsFunc(s.sources, func(f file) bool { return !f.shipped }) {
		s.take(shippedCore())
		o.Site, o.Last = nil, nil // the set may outlive them by far
		s.withPacks = sync.OnceValue(func() *Set {
			all := newSet(o)
			all.sources = s.sources
			if all.take(shippedRules()); all.found.HasErrors() {
				all.broken = all.found
			}
			return all
		})
		return slices.Concat(found, s.found)
	}
	if found = append(found, s.build()...); found.HasErrors() {
		return found.Sorted()
	}
	found = append(found, (&checker{&s.ruleset, s.compiler}).check(shapesOf(o.Kinds))...).Sorted()
	if found.HasErrors() {
		return found
	}
	return append(found, s.prepareAll()...)
}

// build compiles the files of the set, but for tests. It finds what the compiler finds.
func (s *Set) build() diag.List {
	modules, found := s.parse(func(f file) bool { return !f.test })
	if found.HasErrors() {
		return found
	}
	s.rules = rulesOf(modules, s.shipped)
	s.compiler = compiler()
	s.compiler.Compile(modules)
	if s.compiler.Failed() {
		return append(found, s.findingsOf(s.compiler.Errors)...)
	}
	return found
}

// prepareAll prepares the questions to the rules.
func (s *Set) prepareAll() diag.List {
	forgetText(s.compiler.Modules)
	s.queries = map[string]*query{}
	for asked, text := range map[string]string{
		sitePackage: s.question(append([]string{sitePackage}, s.packs(sitePacks)...)...),
		planPackage: s.question(append([]string{planPackage, guardPackage}, s.packs(planPacks)...)...),
		authPackage: authQuestion,
	} {
		q, err := newQuery(s.compiler, text)
		if err != nil {
			return diag.List{denial(diag.FromPolicy, "the rules of "+asked+" cannot be evaluated: "+diag.FirstLine(err.Error()), "")}
		}
		s.queries[asked] = q
	}
	return nil
}

// forgetText takes the source texts out of compiled rules, but for their ranges. When
// an evaluation fails, OPA puts the values of variables into the text of each query on
// its stack: of a value with a million elements that takes longer than the evaluation.
func forgetText(modules map[string]*ast.Module) {
	for _, m := range modules {
		ast.WalkExprs(m, func(e *ast.Expr) bool {
			if e.Location != nil {
				e.Location.Text = nil
			}
			return false
		})
	}
}

// compiler returns one that knows only what policies may use.
func compiler() *ast.Compiler {
	const mostErrors = 100
	return ast.NewCompiler().WithCapabilities(capabilities()).WithDefaultRegoVersion(ast.RegoV1).SetErrorLimit(mostErrors)
}

// question is a query for all denials and warnings of packages.
func (rs *ruleset) question(packages ...string) string {
	var asked []string
	for _, p := range packages {
		var said []string
		for _, name := range rs.said(p) {
			said = append(said, fmt.Sprintf("%q: data.%s.%s", name, p, name))
		}
		asked = append(asked, fmt.Sprintf("%q: {%s}", p, strings.Join(said, ", ")))
	}
	return "{" + strings.Join(asked, ", ") + "}"
}

// said lists which of deny and warn a package has: one without a rule would make the whole query
// undefined.
func (rs *ruleset) said(pkg string) []string {
	names := map[string]bool{}
	for _, r := range rs.rules {
		if r.pkg == pkg && (r.name == denyRule || r.name == warnRule) {
			names[r.name] = true
		}
	}
	return sortedKeys(names)
}

// Constant reports whether the result of Site depends only on the site, so that it need not be
// evaluated again: this is so with only shipped rules.
func (s *Set) Constant() bool {
	return s.works() && !slices.ContainsFunc(s.rules, func(r rule) bool { return r.pkg == sitePackage && !r.shipped })
}

// Site checks a site that loaded without errors, and counts the rules that did.
func (s *Set) Site(ctx context.Context, site *model.Site, r Request) (diag.List, plan.Rules) {
	s = s.forSite(site)
	return s.evaluate(ctx, append([]string{sitePackage}, s.on(sitePacks, site)...), site, nil, r)
}

// Plan checks a plan, also for accidents. A denial by a guard has the source guard, any other the
// source policy.
func (s *Set) Plan(ctx context.Context, site *model.Site, p *plan.Plan, r Request) (diag.List, plan.Rules) {
	if p == nil {
		return denied(diag.List{denial(diag.FromPolicy, "there is no plan to check", "")})
	}
	s = s.forSite(site)
	return s.evaluate(ctx, append([]string{planPackage, guardPackage}, s.on(planPacks, site)...), site, p, r)
}

// denied is a verdict without results: one rule is to blame, and the results of the others are unknown.
func denied(found diag.List) (diag.List, plan.Rules) { return found, plan.Rules{Denied: 1} }

func (s *Set) evaluate(ctx context.Context, packages []string, site *model.Site, p *plan.Plan, r Request) (diag.List, plan.Rules) {
	if !s.works() {
		return denied(slices.Clone(s.whyNot()))
	}
	if site == nil {
		return denied(diag.List{denial(diag.FromPolicy, "there is no site to check", "")})
	}
	doc, err := s.input(site, p, r)
	if err != nil {
		return denied(diag.List{denial(diag.FromPolicy, "policies have nothing to evaluate: "+diag.FirstLine(err.Error()), "")})
	}
	found, rules := s.check(ctx, packages, doc)
	found, rules = s.governed(site, p == nil, r.Now, found, rules)
	ranges := rangesOf(site, p)
	for i := range found {
		if found[i].Address != "" && found[i].At.IsZero() {
			found[i].At = ranges(found[i].Address)
		}
	}
	return found.Sorted(), rules
}

// input is the document that rules get. An object of it becomes one of OPA's when a rule
// looks into it: of a large site, rules read little.
func (s *Set) input(site *model.Site, p *plan.Plan, r Request) (map[string]any, error) {
	nodes := nodeDocuments
	if !s.hasOwn() && len(site.Packs) == 0 {
		nodes = shippedNodes
	}
	return document(site, p, r, nodes)
}

func (s *Set) works() bool { return s != nil && len(s.queries) > 0 && !s.broken.HasErrors() }

func (s *Set) whyNot() diag.List {
	if s != nil && len(s.broken) > 0 {
		return s.broken
	}
	return diag.List{denial(diag.FromPolicy, "no policies were compiled, so everything is denied", "")}
}

// ask evaluates a query of one expression.
func ask(ctx context.Context, q *query, input ast.Value, stop topdown.Cancel) (*ast.Term, error) {
	found, err := q.ask(ctx, input, stop)
	if err != nil {
		return nil, err
	}
	if len(found) != 1 || found[0].value == nil {
		return nil, errUndefined
	}
	return found[0].value, nil
}
