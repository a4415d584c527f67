package site

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/policy"
)

// FolderOptions say how a folder is loaded.
type FolderOptions struct {
	Kinds   model.Kinds
	Dir     string
	Secrets string            // a file; "" for secrets.sops.yaml or secrets.yaml in the folder
	Keys    Keys              // decrypt it
	Vars    map[string]string // values for variables of the site
	Mode    string            // execution mode of this run: push or pull; "" for what the files say
	Sandbox *Sandbox          // tries the site before it is loaded; nil: it is evaluated in this process
}

// Folder is the site in a folder, loaded once, as it is there. Files outside of the folder
// are never read.
type Folder struct {
	Desired engine.Desired
	Commit  model.Commit // zero for a folder that is not a checkout

	dir    string
	root   *os.Root
	loader *Loader
	input  Input
}

// folderGarbage is the garbage, as a percentage of what is in use, at which it is collected while a folder is loaded. Most of
// a load's memory stays in use, so collecting it finds little: by default that takes a tenth of the time of a load. GOGC
// takes precedence.
const folderGarbage = 200

// Open loads the site in a folder, and checks it with its policies. Problems of the site are findings of Desired;
// an error means that the folder does not exist, or that ctx ended before. Exceeded limits are findings too; an
// evaluation that does not end is then left running, so the process should exit soon.
func Open(ctx context.Context, o FolderOptions) (*Folder, error) {
	root, err := os.OpenRoot(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open site folder: %w\nname the folder of a site with --site, or begin one: homestak-gitops init", err)
	}
	f := &Folder{dir: o.Dir, root: root, loader: NewLoader(o.Kinds), input: Input{Vars: o.Vars, Mode: o.Mode}}
	f.loader.Sandbox = o.Sandbox
	tree, err := source.OpenWorktree(o.Dir)
	if err == nil {
		f.Commit, err = tree.Commit()
	}
	if err != nil {
		f.input.Found = append(f.input.Found, diag.Warnf(diag.Range{}, "the commit of the site is not known", "%v", err))
	}
	secrets, found := folderSecrets(root, tree, o.Secrets, o.Keys)
	f.input.Commit, f.input.Secrets, f.input.Found = f.Commit, secrets, append(f.input.Found, found...)
	defer collectLess()()
	f.Desired, err = f.loader.loadWithin(ctx, root.FS(), f.input)
	if err != nil {
		f.Close()
		return nil, err
	}
	f.loader.files = hcl.Loader{} // nothing is loaded twice, and what it keeps is as large as the site
	if f.CheckLoaded() == nil && f.Check() != nil && ctx.Err() != nil {
		f.Close()
		return nil, fmt.Errorf("evaluate the policies of the site: %w", context.Cause(ctx)) // they had no time to answer, and deny nothing
	}
	return f, nil
}

// collectLess sets folderGarbage; restore sets what was there before. If another load set it, that one restores it.
func collectLess() (restore func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	was := debug.SetGCPercent(folderGarbage)
	if was == folderGarbage {
		return func() {}
	}
	return func() { debug.SetGCPercent(was) }
}

// Peek loads the site in a folder without its secrets and policies, and without findings:
// nil if there is none.
func Peek(kinds model.Kinds, dir string, vars map[string]string) *model.Site {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil
	}
	defer func() { _ = root.Close() }()
	site, _ := hcl.Load(root.FS(), hcl.Options{Kinds: kinds, Vars: vars})
	return site
}

// Close frees the folder.
func (f *Folder) Close() { _ = f.root.Close() }

// Files are those of the folder.
func (f *Folder) Files() fs.FS { return f.root.FS() }

// Name is the name of the folder as the user knows it.
func (f *Folder) Name() string {
	if abs, err := filepath.Abs(f.dir); err == nil && f.dir == "." {
		return abs
	}
	return f.dir
}

// Check returns an *InvalidError if the site must not converge.
func (f *Folder) Check() error { return f.CheckFindings(f.Desired.Findings) }

// CheckLoaded is Check, but a site that its policies deny passes.
func (f *Folder) CheckLoaded() error {
	return f.CheckFindings(slices.DeleteFunc(slices.Clone(f.Desired.Findings), fromPolicies))
}

// fromPolicies reports whether the policies of the site found something; of packs it is a guard's.
func fromPolicies(f diag.Finding) bool {
	return f.Source == diag.FromPolicy || f.Source == diag.FromGuard
}

// CheckFindings returns an *InvalidError if the site is missing, or one of these findings is an error.
func (f *Folder) CheckFindings(l diag.List) error {
	if l.HasErrors() || f.Desired.Site == nil {
		return &InvalidError{f.Name(), l}
	}
	return nil
}

// Manifest returns the manifest of a name, nil for "".
func (f *Folder) Manifest(name string) (*model.Manifest, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // no name, no manifest, and nothing wrong
	}
	m := f.Desired.Site.Manifests[name]
	if m == nil && path.Ext(name) == ".yaml" {
		return nil, fmt.Errorf("unknown manifest %q\na manifest has a name, such as %s, and YAML of the predecessor becomes HCL by: homestak-gitops convert", name, strings.TrimSuffix(path.Base(name), ".yaml"))
	}
	if m == nil {
		return nil, fmt.Errorf("unknown manifest %q\n%s", name, diag.DidYouMean(name, slices.Collect(maps.Keys(f.Desired.Site.Manifests))))
	}
	return m, nil
}

// Node finds a node by its name: in a manifest, or in any that is deployed if that is nil.
func (f *Folder) Node(name string, m *model.Manifest) (*model.Node, error) {
	var known []string
	for _, other := range f.Desired.Site.Manifests {
		if m != nil && other != m || m == nil && other.Host == "" {
			continue
		}
		for _, n := range other.Nodes {
			if n.Name == name {
				return n, nil
			}
			known = append(known, n.Name)
		}
	}
	where := "in a deployed manifest (name a recipe with -M)"
	if m != nil {
		where = "in manifest " + m.Name
	}
	return nil, fmt.Errorf("no node %q %s\n%s", name, where, diag.DidYouMean(name, known))
}

// Host chooses a host: the named one, which may be a child, else that of the manifest, which may
// be nil, else the only one.
func (f *Folder) Host(name string, m *model.Manifest) (*model.Host, error) {
	site := f.Desired.Site
	known := slices.Sorted(maps.Keys(site.Hosts))
	switch {
	case name != "":
		h := site.HostFor(name)
		if h == nil {
			return nil, fmt.Errorf("unknown host %q\n%s", name, diag.DidYouMean(name, site.Identities()))
		}
		if m != nil && m.Host != "" && !m.Concerns(name) {
			return nil, fmt.Errorf("manifest %s is deployed on host %s, not on %s", m.Name, m.Host, name)
		}
		return h, nil
	case m != nil && m.Host != "":
		name = m.Host
	case len(known) == 1:
		name = known[0]
	case len(known) == 0:
		return nil, errors.New("the site has no host\ndeclare one: host \"NAME\" { api = \"https://…:8006\" }")
	default:
		return nil, fmt.Errorf("the site has several hosts\nchoose one with --host: %s", strings.Join(known, ", "))
	}
	return site.Hosts[name], nil
}

// Examined are the hosts that a check is about, and the site as they are to have it: all hosts,
// or where one of them is named, the host of that name or of that manifest, which may be a recipe.
func (f *Folder) Examined(manifest, host string) (*model.Site, []*model.Host, error) {
	site := f.Desired.Site
	m, err := f.Manifest(manifest)
	if err != nil {
		return nil, nil, err
	}
	if m == nil && host == "" && len(site.Hosts) > 0 {
		var all []*model.Host
		for _, name := range slices.Sorted(maps.Keys(site.Hosts)) {
			all = append(all, site.Hosts[name])
		}
		return site, all, nil
	}
	h, err := f.Host(host, m)
	if err == nil && m != nil {
		site, err = site.Bind(m.Name, h.Name)
	}
	return site, []*model.Host{h}, err
}

// Bind makes the site one in which only this manifest is deployed, on this host.
func (f *Folder) Bind(m *model.Manifest, h *model.Host) error {
	bound, err := f.Desired.Site.Bind(m.Name, h.Name)
	f.Desired.Site = bound
	return err
}

// Recheck evaluates the policies on the site that Bind made, since they did not see a
// recipe as deployed. It adds their findings, and returns an *InvalidError if the site must
// not converge.
func (f *Folder) Recheck(ctx context.Context) error {
	f.Desired = f.loader.check(ctx, f.root.FS(), f.Desired, f.input, nil)
	return f.Check()
}

// Pass begins a pass over the site; the caller adds what it is about.
func (f *Folder) Pass(h *model.Host, open func(d engine.Desired, h *model.Host) (engine.Driver, error)) *engine.Pass {
	return &engine.Pass{
		Host: h.Name, Grants: engine.Grants{Commit: &f.Commit},
		Load: func(context.Context) engine.Desired { return f.Desired },
		Open: open,
	}
}

// PolicyInput is the document that rules get of the site.
func (f *Folder) PolicyInput() (map[string]any, error) {
	return siteRequest(f.input, time.Now()).Input(f.Desired.Site, nil)
}

// PolicyInputOf is the document that rules get of the site and a plan for what a host has.
func (f *Folder) PolicyInputOf(p *plan.Plan, have model.Observed, allowDeletes int) (map[string]any, error) {
	q := engine.Question{Have: have, Commit: f.Commit, AllowDeletes: allowDeletes}
	return planRequest(q, time.Now()).Input(f.Desired.Site, p)
}

// Policies are the compiled policies of the site. They stay usable after Close.
func (f *Folder) Policies() *policy.Set { return f.loader.Policies() }

// Eval evaluates a query over the rules of the site; see policy.Set.Eval.
func (f *Folder) Eval(ctx context.Context, query string, input any, explain io.Writer) (any, error) {
	return f.loader.set().Eval(ctx, query, input, explain)
}

// Verdict says whether the site is valid, with these findings, in one line.
func (f *Folder) Verdict(found diag.List) (text string, valid bool) {
	errs := found.Errors()
	warnings := diag.Count(len(found)-errs, "warning")
	s := f.Desired.Site
	if errs > 0 || s == nil {
		return fmt.Sprintf("the site in %s is %s: %s, %s", f.Name(), fault(found), diag.Count(errs, "error"), warnings), false
	}
	nodes := 0
	for _, m := range s.Manifests {
		nodes += len(m.Nodes)
	}
	text = fmt.Sprintf("site %s is valid: %s, %s, %s", s.Name, diag.Count(len(s.Hosts), "host"), diag.Count(len(s.Manifests), "manifest"), diag.Count(nodes, "node"))
	if len(found) > 0 {
		text += ", " + warnings
	}
	return text, true
}

// InvalidError is why nothing is done with a site that must not converge.
type InvalidError struct {
	Name  string // of its folder
	Found diag.List
}

// Error counts; the findings themselves are shown beside it.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("the site in %s is %s: %s", e.Name, fault(e.Found), diag.Count(e.Found.Errors(), "error"))
}

// fault says in which way a site with these findings is not good.
func fault(found diag.List) string {
	for _, f := range found {
		if f.Severity == diag.Error && !fromPolicies(f) {
			return "not valid"
		}
	}
	if found.HasErrors() {
		return "denied by its policies"
	}
	return "not valid" // there is none
}

// CheckDeployed refuses a recipe, which has no host, and says how it would be deployed.
// Nil is deployed.
func CheckDeployed(m *model.Manifest, verb string, h *model.Host) error {
	if m == nil || m.Host != "" {
		return nil
	}
	at := ""
	if !m.At.IsZero() {
		at = " (" + m.At.String() + ")"
	}
	return fmt.Errorf(`manifest %[1]s is a recipe%[2]s: it has no host, so there is nothing to %[3]s
deploy it by these two lines:
  manifest %[1]q {
    host = host.%[4]s
or run it once: homestak-gitops test -M %[1]s --host %[4]s`, m.Name, at, verb, h.Name)
}
