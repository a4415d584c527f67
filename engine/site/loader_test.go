package site

import (
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// told is a policy that warns of all that rules are told of commit and pass.
const told = `package homestak.site
warn contains sprintf("%s by %s, %d s old, %s, at %s, unattended %v", [
	input.commit.id, input.commit.author.name, input.commit.age_seconds, input.commit.trailers.Ticket, input.now, input.unattended,
])
`

const toldOfPlans = `package homestak.guard
warn contains {
	"message": sprintf("%s owns %d, %d granted, destroy %v, unattended %v", [input.commit.id, input.owned.count, input.allow_deletes, input.destroy, input.unattended]),
	"address": "site.home",
}
`

func folder(files ...string) fstest.MapFS {
	tree := fstest.MapFS{"site.hcl": {Data: []byte("\nsite \"home\" {\n}\n")}}
	for i := 0; i+1 < len(files); i += 2 {
		tree[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}
	return tree
}

func summaries(d engine.Desired) []string {
	var out []string
	for _, f := range d.Findings {
		out = append(out, f.String())
	}
	return out
}

// What an agent reads: a commit, of which its rules are told everything that is known.
func TestRulesAreToldOfCommitAndPass(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	commit := model.Commit{
		ID: "3f2c1a9", Author: model.Person{Name: "Ana"}, At: now.Add(-time.Minute), Trailers: map[string]string{"Ticket": "HOME-7"},
	}
	o := Input{Commit: commit, Unattended: true, Now: func() time.Time { return now }}
	r := NewLoader(proxmox.Kinds())
	tree := folder("policy/site.rego", told, "policy/guard.rego", toldOfPlans)
	d := r.Load(t.Context(), tree, o)
	require.Equal(t, "3f2c1a9", d.Commit)
	require.Equal(t, []string{"warning: 3f2c1a9 by Ana, 60 s old, HOME-7, at 2026-01-02T03:04:05Z, unattended true"}, summaries(d))

	vm := func(name string) *model.Resource {
		return &model.Resource{Addr: model.Address{Kind: "vm", Name: name}, Guest: &model.Guest{VMID: 1}}
	}
	have := model.State{
		{Kind: "vm", Name: "a"}: vm("a"), {Kind: "vm", Name: "b"}: vm("b"),
		{Kind: "image", Name: "c"}: {Addr: model.Address{Kind: "image", Name: "c"}},
	}
	p := &plan.Plan{}
	found := d.PolicyCheck(t.Context(), engine.Question{
		Site: d.Site, Plan: p, Have: model.Observed{State: have}, Commit: commit, AllowDeletes: 4, Destroy: true, Unattended: true,
	})
	require.Len(t, found, 1)
	require.Equal(t, "site.hcl:2:1: warning: 3f2c1a9 owns 2, 4 granted, destroy true, unattended true", found[0].String())
	require.Equal(t, `site "home" {`, found[0].Code, "the line is shown, as that of a finding of the loader")
	require.Equal(t, &plan.Rules{OK: 8, Warning: 2}, p.Rules, "those of the site, too")

	now = now.Add(time.Hour)
	d = r.Load(t.Context(), tree, o)
	require.Equal(t, []string{"warning: 3f2c1a9 by Ana, 3660 s old, HOME-7, at 2026-01-02T04:04:05Z, unattended true"}, summaries(d), "time goes on also where no file changed")
}

// openings counts how often something of a tree is opened.
type openings struct {
	fs.FS
	n *atomic.Int64 // policies are read beside the site
}

func (o openings) Open(name string) (fs.File, error) {
	o.n.Add(1)
	return o.FS.Open(name)
}

// A tree that is known by its name is not even looked at again, unless secrets changed
// or it held errors, which may have been for want of time.
func TestANamedTreeIsReadOnce(t *testing.T) {
	r := NewLoader(proxmox.Kinds())
	var n atomic.Int64
	good := openings{folder("policy/x.rego", "package homestak.site\nwarn contains \"w\" if input.now == null\n"), &n}
	first := r.Load(t.Context(), good, Input{Tree: "a"})
	require.Zero(t, first.Findings.Errors(), "%v", summaries(first))
	require.Positive(t, n.Load())
	n.Store(0)
	again := r.Load(t.Context(), good, Input{Tree: "a", Found: diag.List{diag.Warnf(diag.Range{}, "of this reading", "")}})
	require.Zero(t, n.Load())
	require.Same(t, first.Site, again.Site)
	require.Equal(t, append([]string{"warning: of this reading"}, summaries(first)...), summaries(again))
	r.Load(t.Context(), good, Input{Tree: "a", Secrets: &model.Secrets{}})
	require.Positive(t, n.Load(), "other secrets")
	bad := openings{folder("site.hcl", "site \"home\" {\n"), &n}
	r.Load(t.Context(), bad, Input{Tree: "b"})
	n.Store(0)
	r.Load(t.Context(), bad, Input{Tree: "b"})
	require.Positive(t, n.Load(), "errors are not kept")
	n.Store(0)
	r.Load(t.Context(), good, Input{})
	require.Positive(t, n.Load(), "a tree without a name")
}

// As long as no commit comes, a large site is held as what it says, and not as its text
// was written: what was parsed is gone once the same commit was asked for again.
func TestWhatIsReadAgainIsSmall(t *testing.T) {
	var text strings.Builder
	text.WriteString("preset \"small\" {\n  cores = 1\n  memory = 512\n}\n")
	for i := range 2000 {
		fmt.Fprintf(&text, "locals {\n  l%d = [%d, \"of a large site\", true, null]\n}\n", i, i)
	}
	tree := folder("large.hcl", text.String())
	heap := func(r *Loader) uint64 {
		var m runtime.MemStats
		d := r.Load(t.Context(), tree, Input{Tree: "a"})
		require.Zero(t, d.Findings.Errors(), "%v", summaries(d))
		runtime.GC()
		runtime.ReadMemStats(&m)
		runtime.KeepAlive(r)
		return m.HeapAlloc
	}
	r := NewLoader(proxmox.Kinds())
	converged, idle := heap(r), heap(r)
	require.Less(t, idle+1<<20, converged)
}

// An agent keeps worked out what is its own, and what others shall hold can still be had.
func TestWhatOthersHoldIsNotKept(t *testing.T) {
	tree := folder("hosts.hcl", "host \"father\" {\n  api = \"https://192.0.2.1:8006\"\n}\nhost \"mother\" {\n  api = \"https://192.0.2.2:8006\"\n}\n")
	all := NewLoader(proxmox.Kinds()).Load(t.Context(), tree, Input{Tree: "a"}).Site
	require.Len(t, all.Resolved, 2)
	r := NewLoader(proxmox.Kinds())
	of := func(tree string, files fs.FS) *model.Site {
		return r.Load(t.Context(), files, Input{Tree: tree, Local: &model.LocalHost{Identity: "father"}}).Site
	}
	own := of("a", tree)
	require.Len(t, own.Resolved, 1)
	mine, found := own.Want("father")
	require.Empty(t, found)
	require.Same(t, own.Resolved["father"], mine)
	others, found := own.Want("mother")
	require.Empty(t, found)
	require.Equal(t, all.Resolved["mother"].Host.API, others.Host.API)
	before := own.Resolved
	require.Same(t, own, of("b", tree), "a commit that changes no file of the site")
	require.Equal(t, before, own.Resolved)
}

// A pass about a new commit loads the one before beside it. Neither is loaded twice for that.
func TestTwoNamedTreesAreReadOnce(t *testing.T) {
	r := NewLoader(proxmox.Kinds())
	var n atomic.Int64
	trees := map[string]fs.FS{}
	for _, name := range []string{"a", "b", "c"} {
		trees[name] = openings{folder("policy/x.rego", "package homestak.site\nwarn contains \""+name+"\" if input.version == 1\n"), &n}
	}
	load := func(tree string) (engine.Desired, int64) {
		n.Store(0)
		d := r.Load(t.Context(), trees[tree], Input{Tree: tree})
		require.Equal(t, []string{"warning: " + tree}, summaries(d))
		return d, n.Load()
	}
	first, _ := load("a")
	_, opened := load("b")
	require.Positive(t, opened)
	a := r.Policies()
	again, opened := load("a")
	require.Zero(t, opened)
	require.Same(t, first.Site, again.Site)
	require.NotSame(t, a, r.Policies(), "those of the tree that was loaded last")
	_, opened = load("b")
	require.Zero(t, opened)
	load("b")
	_, opened = load("a")
	require.Positive(t, opened, "what rests at one tree keeps that alone")
	load("b")
	load("c")
	_, opened = load("a")
	require.Positive(t, opened, "they do not pile up")
}

// An agent reads again and again. Only what changed costs anything, and nothing of
// what was found is forgotten.
func TestReadingAgain(t *testing.T) {
	const library = "package lib\ndeny contains \"x\" if input.version == 1\n"
	r := NewLoader(proxmox.Kinds())
	tree := folder("policy/lib.rego", library)
	first := r.Load(t.Context(), tree, Input{})
	require.Len(t, first.Findings, 1)
	set, on := r.Policies(), r.was.check.on
	require.NotNil(t, on)
	again := r.Load(t.Context(), tree, Input{})
	require.Same(t, first.Site, again.Site, "not loaded again")
	require.Same(t, set, r.Policies(), "not compiled again")
	require.Equal(t, summaries(first), summaries(again))
	p := &plan.Plan{}
	require.Empty(t, again.PolicyCheck(t.Context(), engine.Question{Site: again.Site, Plan: p}))
	require.Equal(t, &plan.Rules{OK: 8}, p.Rules)

	for range 2 { // what is broken stays broken, until it is fixed
		d := r.Load(t.Context(), folder("policy/lib.rego", "package lib\nx :="), Input{})
		require.Positive(t, d.Findings.Errors())
		denied := d.PolicyCheck(t.Context(), engine.Question{Site: d.Site, Plan: &plan.Plan{}})
		require.Equal(t, d.Findings.Errors(), denied.Errors(), "who judges a plan all the same is denied")
	}
	require.Zero(t, r.Load(t.Context(), tree, Input{}).Findings.Errors())

	// The site changes under the same policies.
	tree["site.hcl"] = &fstest.MapFile{Data: []byte("site \"home\" {\n}\nposture \"prod\" {\n}\n")}
	d := r.Load(t.Context(), tree, Input{})
	require.Equal(t, 1, d.Findings.Errors(), "%v", summaries(d))
	tree["site.hcl"] = &fstest.MapFile{Data: []byte("site \"home\" {\n")}
	d = r.Load(t.Context(), tree, Input{})
	require.Positive(t, d.Findings.Errors())
	for _, f := range d.Findings {
		require.False(t, f.Severity == diag.Error && f.Source == diag.FromPolicy, "what does not load is not asked about")
	}
}

// A pass loads earlier commits beside its own. What is served is checked by the policies of the commit that is served.
func TestPoliciesOfACommit(t *testing.T) {
	const deny = "package homestak.site\ndeny contains \"%s\" if true\n"
	trees := map[string]fstest.MapFS{"a": folder("policy/x.rego", fmt.Sprintf(deny, "a")), "b": folder("policy/x.rego", fmt.Sprintf(deny, "b"))}
	c := Commits{
		Loader: NewLoader(proxmox.Kinds()), Files: func(commit string) (fs.FS, error) { return trees[commit[:1]], nil },
		Notes: func(string) diag.List { return nil },
	}
	load := func(commit string) { c.Load(t.Context(), model.Commit{ID: commit}) }
	load("a")
	first := c.Policies("a")
	require.NotNil(t, first)
	load("b")
	require.NotSame(t, first, c.Policies("b"))
	require.Same(t, first, c.Policies("a"))
	for i := range mostRules - 1 {
		load(fmt.Sprintf("a%d", i))
	}
	require.NotNil(t, c.Policies("b"), "the commit of a pass is among the last")
	load("a again")
	require.Nil(t, c.Policies("b"), "they do not pile up")
}
