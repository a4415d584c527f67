package site

import (
	"bytes"
	"context"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/policy"
)

// Loader loads the trees of sites and checks them with their policies. It caches: of the next tree it parses only
// files that changed, and it compiles policies only if one of them changed. A pass may load two trees, its own and
// the one before, so both results are kept. If it loads the same tree again, it keeps only that result, since the
// syntax of a large site takes more memory than all the rest. A Loader is not safe for concurrent use.
type Loader struct {
	Sandbox *Sandbox // tries each tree before it is loaded here; nil: everything is evaluated here
	// Copies is how the repositories of references are fetched. Dir is the folder of their copies, which belongs to this loader
	// alone; "": they are removed after each search. Auth is that of the site's own repository: its keys of servers and
	// certificates count for the others, too, and its token is never sent.
	Copies source.Options

	kinds    model.Kinds
	files    hcl.Loader
	position *hcl.Position // may be nil
	rules    limits        // of each evaluation of policies; zero: the usual ones
	asks     func()        // called when the site is loaded, and its policies are asked; may be nil
	was      *loaded       // the last tree; nil: none
	other    *loaded       // the one before, if it is another
	tried    []loaded      // what passed the sandbox, as far as loaded.of reads it; the newest at the end
}

// mostTried bounds what is kept of trees that passed the sandbox.
const mostTried = 8

// NewLoader makes a loader of sites that may declare these kinds.
func NewLoader(kinds model.Kinds) *Loader { return &Loader{kinds: kinds} }

// Policies are the compiled policies of the tree that was loaded last. They stay as they are when
// another one is loaded.
func (l *Loader) Policies() *policy.Set { return l.set() }

// apart is the sandbox as the policies want it.
func (l *Loader) apart() policy.Apart {
	if l.Sandbox == nil {
		return nil
	}
	return l.Sandbox
}

func (l *Loader) set() *policy.Set {
	if l.was == nil {
		return nil
	}
	return l.was.set
}

// loaded is the result of loading a tree.
type loaded struct {
	tree          string // its name; "" if it has none
	secrets       *model.Secrets
	local         *model.LocalHost
	site          *model.Site
	set           *policy.Set
	found, denied diag.List // by the language, and by compiling the policies
	check         siteCheck // of its site
	rendered      rendering // of its outputs
}

// of reports whether a load would give this once more.
func (l *loaded) of(in Input) bool {
	return l != nil && in.Tree != "" && in.Tree == l.tree && len(in.Vars) == 0 && reflect.DeepEqual(in.Secrets, l.secrets) && reflect.DeepEqual(in.Local, l.local)
}

// siteCheck is the result of a tree's policies for its site.
type siteCheck struct {
	on    *model.Site
	by    *policy.Set
	found diag.List
	rules plan.Rules
}

// Input is the input of a load, beside the files.
type Input struct {
	Commit     model.Commit // zero for a folder that is not a checkout; ID alone where no more is known
	Tree       string       // names the contents of the tree: equal names, equal trees; "" where nothing is known
	Secrets    *model.Secrets
	Local      *model.LocalHost // of the machine of an agent; nil elsewhere
	Vars       map[string]string
	Mode       string           // of one run: push or pull; "" for what the files say
	Unattended bool             // an agent's pass
	Found      diag.List        // what was found before, about secrets for one
	Now        func() time.Time // nil: time.Now
}

func (in Input) now() time.Time {
	if in.Now == nil {
		return time.Now()
	}
	return in.Now()
}

// Load returns what a tree says: the site, what is wrong with it, what its policies say
// of it, and the check of its plans. It compiles the policies while it loads the site, and
// evaluates them only on a site without errors.
func (l *Loader) Load(ctx context.Context, tree fs.FS, in Input) engine.Desired {
	d, known, refused := l.try(ctx, tree, in)
	if refused {
		return d
	}
	got := l.load(ctx, tree, in)
	d = engine.Desired{Site: withMode(got.site, in.Mode), Commit: in.Commit.ID}
	if got.site != nil && got.site.References != nil {
		d.References = references{tree, got.site.References, l.Copies}.find
	}
	d.Findings = slices.Concat(diag.List{}, in.Found, got.found, got.denied)
	d = l.check(ctx, tree, d, in, known)
	if got.site != nil && in.Local != nil {
		got.site.KeepResolved(in.Local.Identity)
	}
	return d
}

// try gives a tree to the sandbox, unless it was there already with the same inputs. A tree with errors
// is not loaded here. Known is what the rules say of the site; nil if they have to be asked.
func (l *Loader) try(ctx context.Context, tree fs.FS, in Input) (d engine.Desired, known *policy.Answer, refused bool) {
	if l.Sandbox == nil {
		return d, nil, false
	}
	var found diag.List
	if i := slices.IndexFunc(l.tried, func(t loaded) bool { return t.of(in) }); i >= 0 {
		t := l.tried[i]
		l.tried = append(slices.Delete(l.tried, i, i+1), t)
		found = t.found
	} else {
		got, err := l.Sandbox.try(ctx, tree, in)
		found, d.Harmful = got.refused, got.harmful
		if err != nil {
			var f diag.Finding
			f, d.Harmful = harmOf(err)
			found = quoted(tree, diag.List{f})
		} else if got.whole && !got.harmful {
			known = &got.rules
			if in.Tree != "" && len(in.Vars) == 0 {
				l.tried = append(l.tried, loaded{tree: in.Tree, secrets: in.Secrets, local: in.Local, found: found})
				l.tried = l.tried[max(0, len(l.tried)-mostTried):]
			}
		}
	}
	if len(found) == 0 {
		return d, known, false
	}
	d.Commit, d.Findings = in.Commit.ID, slices.Concat(diag.List{}, in.Found, found).Sorted()
	return d, nil, true
}

// load loads a tree and compiles its policies, unless that was done already.
func (l *Loader) load(ctx context.Context, tree fs.FS, in Input) *loaded {
	switch {
	case l.was.of(in):
		l.files.Forget()
		l.other = nil
		return l.was
	case l.other.of(in):
		l.was, l.other = l.other, l.was
		return l.was
	}
	got := &loaded{secrets: in.Secrets, local: in.Local}
	if l.was != nil {
		got.check = l.was.check
	}
	compiled := make(chan struct{})
	go func() {
		defer close(compiled)
		got.set, got.denied = policy.Compile(ctx, policy.Options{
			Site: tree, Kinds: l.kinds, Last: l.set(), Apart: l.apart(), Limit: l.rules.CPU, Memory: l.rules.Memory,
		})
	}()
	got.site, got.found = l.files.Load(tree, hcl.Options{Kinds: l.kinds, Secrets: in.Secrets, Vars: in.Vars, Local: in.Local, Position: l.position})
	if got.site != nil && !got.found.HasErrors() {
		got.found = append(append(got.found, spec.Check(got.site)...), checkReferences(got.site.References)...)
	}
	<-compiled
	if in.Tree == "" {
		l.files.Forget() // a folder is loaded once, and the run with it may take minutes
	}
	if len(in.Vars) == 0 && !got.found.HasErrors() && !got.denied.HasErrors() {
		got.tree = in.Tree // errors may be of a timeout, or of a disk that could not be read
	}
	l.was, l.other = got, l.was
	if l.other != nil && l.other.tree == "" {
		l.other = nil // it is not given again
	}
	return got
}

// check evaluates the policies of the loaded tree on the site of d, unless the result is known. It adds the findings,
// and the check of plans.
func (l *Loader) check(ctx context.Context, tree fs.FS, d engine.Desired, in Input, known *policy.Answer) engine.Desired {
	c := siteCheck{by: l.set()}
	if d.Site != nil && !d.Findings.HasErrors() {
		if l.asks != nil {
			l.asks()
		}
		if known != nil {
			l.was.check = siteCheck{d.Site, c.by, known.Found, known.Rules}
			c = l.was.check
		} else {
			c = l.checkSite(ctx, tree, d.Site, siteRequest(in, in.now()))
		}
		d.Findings = append(d.Findings, c.found...)
	}
	d.Findings = d.Findings.Sorted()
	d.PolicyCheck = c.plans(tree, in.now)
	if d.Site != nil && len(d.Site.Outputs) > 0 {
		d.Render = renderer(l.Sandbox, d.Site, &l.was.rendered)
	}
	return d
}

// checkSite evaluates the policies on a site, unless the result is known already.
func (l *Loader) checkSite(ctx context.Context, tree fs.FS, s *model.Site, q policy.Request) siteCheck {
	set := l.set()
	if last := l.was.check; s == last.on && set == last.by && set.Constant() && !s.Governed() {
		return last
	}
	c := siteCheck{on: s, by: set}
	c.found, c.rules = set.Site(ctx, s, q)
	c.found = quoted(tree, c.found)
	l.was.check = c
	return c
}

// plans returns the check of plans of the site. It records in a plan how many rules were
// evaluated on plan and site.
func (c siteCheck) plans(tree fs.FS, now func() time.Time) engine.PolicyCheck {
	return func(ctx context.Context, q engine.Question) diag.List {
		found, rules := c.by.Plan(ctx, q.Site, q.Plan, planRequest(q, now()))
		rules = rules.Plus(c.rules)
		q.Plan.Rules = &rules
		return quoted(tree, found)
	}
}

// siteRequest is the input of rules beside a site.
func siteRequest(in Input, now time.Time) policy.Request {
	return policy.Request{Commit: in.Commit, Now: now, Unattended: in.Unattended}
}

// planRequest is the input of rules beside site and plan.
func planRequest(q engine.Question, now time.Time) policy.Request {
	r := policy.Request{
		Commit: q.Commit, Now: now, Want: q.Want,
		Unattended: q.Unattended, Destroy: q.Destroy, AllowDeletes: q.AllowDeletes, Untraced: q.Untraced,
	}
	for _, have := range q.Have.State {
		if have.Guest != nil {
			r.OwnedCount++
		}
	}
	if b := q.Before; b != nil {
		r.Before = &policy.Before{Nodes: len(b.Site.Deployed()), Lost: q.Site.Lost(b.Site), Granted: b.Granted}
	}
	return r
}

// quoted adds to findings the source lines that they are about, as the loader does to
// its own.
func quoted(tree fs.FS, found diag.List) diag.List {
	files := map[string][][]byte{}
	for i := range found {
		f := &found[i]
		if f.At.IsZero() || f.Code != "" {
			continue
		}
		lines, read := files[f.At.File]
		if !read {
			if text, err := fs.ReadFile(tree, f.At.File); err == nil {
				lines = bytes.Split(text, []byte("\n"))
			}
			files[f.At.File] = lines
		}
		if n := f.At.Start.Line; n >= 1 && n <= len(lines) {
			f.Code = strings.TrimRight(string(lines[n-1]), "\r")
		}
	}
	return found
}

// withMode returns the site with the execution mode of one run: that of every node directly on a host, except pve
// nodes, which are always pushed when they are created. Nodes below keep the mode of the files.
func withMode(site *model.Site, mode string) *model.Site {
	if site == nil || mode == "" {
		return site
	}
	c := *site
	c.Resolved = nil // by the modes of the files
	c.Manifests = maps.Clone(site.Manifests)
	for name, m := range c.Manifests {
		mm := *m
		mm.Nodes = slices.Clone(m.Nodes)
		for i, n := range mm.Nodes {
			nn := *n
			nn.Manifest = &mm
			if n.Root() && n.Type != "pve" {
				nn.Mode, nn.Commands = mode, mode
			}
			mm.Nodes[i] = &nn
		}
		c.Manifests[name] = &mm
	}
	return &c
}
