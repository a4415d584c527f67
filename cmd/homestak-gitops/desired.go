package main

import (
	"bytes"
	"context"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/policy"
)

// reader reads what folders and commits say, and holds it against their policies. It
// keeps what it has read: of the next commit only files that changed are parsed, and
// policies are compiled only if one of theirs changed. Where the same commit is read
// again and again, no more is kept than what came of it, since the syntax of a large
// site takes more memory than all the rest. The zero reader is ready to use, by one
// goroutine at a time.
type reader struct {
	kinds model.Kinds // made once: a loader takes others for other options
	files hcl.Loader
	set   *policy.Set // the policies of the last tree
	last  judgement   // on the last site
	was   loaded      // the last tree
	rests bool        // it was asked for twice
}

// loaded is what came of loading a tree.
type loaded struct {
	tree          string // its name; "" if it has none
	secrets       *model.Secrets
	site          *model.Site
	found, denied diag.List // by the loader, and by compiling the policies
}

// judgement is what policies say of a site.
type judgement struct {
	on    *model.Site
	by    *policy.Set
	found diag.List
	asked plan.Rules
}

// reading is what a site is read with, beside its files.
type reading struct {
	Commit     model.Commit // zero for a folder that is no checkout; ID alone where no more is known
	Tree       string       // names what is in the tree: equal names, equal trees; "" where nothing is known
	Secrets    *model.Secrets
	Vars       map[string]string
	Mode       string           // of one run: push or pull; "" for what the files say
	Unattended bool             // nobody watches: an agent's pass
	Found      diag.List        // what was found before, about secrets for one
	Now        func() time.Time // nil: time.Now
}

// read gives what a tree says: the site, what is wrong with it, what its policies say
// of it, and how its plans are judged. Policies are compiled while the site is loaded,
// and asked about one that loaded without errors.
func (r *reader) read(ctx context.Context, tree fs.FS, o reading) engine.Desired {
	if r.kinds == nil {
		r.kinds = kinds()
	}
	l := r.load(ctx, tree, o)
	d := engine.Desired{Site: withMode(l.site, o.Mode), Commit: o.Commit.ID}
	d.Findings = slices.Concat(diag.List{}, o.Found, l.found, l.denied)
	return r.judged(ctx, tree, d, o)
}

// load loads a tree and compiles its policies, unless that was done already.
func (r *reader) load(ctx context.Context, tree fs.FS, o reading) loaded {
	if o.Tree != "" && o.Tree == r.was.tree && len(o.Vars) == 0 && reflect.DeepEqual(o.Secrets, r.was.secrets) {
		if r.rests {
			r.files.Forget()
		}
		r.rests = true
		return r.was
	}
	r.rests = false
	l := loaded{secrets: o.Secrets}
	compiled := make(chan struct{})
	go func() {
		defer close(compiled)
		r.set, l.denied = policy.Compile(ctx, policy.Options{Site: tree, Kinds: r.kinds, Last: r.set})
	}()
	l.site, l.found = r.files.Load(tree, hcl.Options{Kinds: r.kinds, Secrets: o.Secrets, Vars: o.Vars})
	<-compiled
	if o.Tree == "" {
		r.files.Forget() // a folder is read once, and what it came to is at work for minutes
	}
	if len(o.Vars) == 0 && !l.found.HasErrors() && !l.denied.HasErrors() {
		l.tree = o.Tree // errors may have been for want of time, or of a disk that could be read
	}
	r.was = l
	return l
}

// judged adds to what a site says what policies say of it, and how they judge plans.
func (r *reader) judged(ctx context.Context, tree fs.FS, d engine.Desired, o reading) engine.Desired {
	now := o.Now
	if now == nil {
		now = time.Now
	}
	v := judgement{by: r.set}
	if d.Site != nil && !d.Findings.HasErrors() {
		v = r.ask(ctx, tree, d.Site, siteRequest(o, now()))
		d.Findings = append(d.Findings, v.found...)
	}
	d.Findings = d.Findings.Sorted()
	d.PolicyCheck = v.judge(tree, now)
	return d
}

// ask asks about a site, unless the answer is known already.
func (r *reader) ask(ctx context.Context, tree fs.FS, s *model.Site, q policy.Request) judgement {
	if s == r.last.on && r.set == r.last.by && r.set.Constant() {
		return r.last
	}
	v := judgement{on: s, by: r.set}
	v.found, v.asked = r.set.Site(ctx, s, q)
	v.found = quoted(tree, v.found)
	r.last = v
	return v
}

// judge gives the function that asks about plans of the site. It notes in a plan how
// many rules plan and site were held against.
func (v judgement) judge(tree fs.FS, now func() time.Time) engine.PolicyCheck {
	return func(ctx context.Context, q engine.Question) diag.List {
		found, asked := v.by.Plan(ctx, q.Site, q.Plan, planRequest(q, now()))
		asked = asked.Plus(v.asked)
		q.Plan.Rules = &asked
		return quoted(tree, found)
	}
}

// siteRequest is what rules get beside a site.
func siteRequest(o reading, now time.Time) policy.Request {
	return policy.Request{Commit: o.Commit, Now: now, Unattended: o.Unattended}
}

// planRequest is what rules get beside site and plan.
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
