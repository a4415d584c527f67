package site

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
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
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/hcl/sops/sopstest"
)

// warnOfSite is a policy that warns of all that rules know of commit and pass.
const warnOfSite = `package homestak.site
warn contains sprintf("%s by %s, %d s old, %s, at %s, unattended %v", [
	input.commit.id, input.commit.author.name, input.commit.age_seconds, input.commit.trailers.Ticket, input.now, input.unattended,
])
`

const warnOfPlan = `package homestak.guard
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

// An agent reads a commit, and gives its rules everything that is known of it.
func TestRulesGetCommitAndPass(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	commit := model.Commit{
		ID: "3f2c1a9", Author: model.Person{Name: "Ana"}, At: now.Add(-time.Minute), Trailers: map[string]string{"Ticket": "HOME-7"},
	}
	o := Input{Commit: commit, Unattended: true, Now: func() time.Time { return now }}
	r := NewLoader(proxmox.Kinds())
	tree := folder("policy/site.rego", warnOfSite, "policy/guard.rego", warnOfPlan)
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
func TestParsedTextIsNotKept(t *testing.T) {
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
func TestOnlyTheOwnHostIsKept(t *testing.T) {
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
func TestUnchangedFilesAreNotReadAgain(t *testing.T) {
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

const twoHosts = `
host "father" {
  api = "https://192.0.2.10:8006"
}
host "mother" {
  api = "https://192.0.2.11:8006"
}
image "debian" {
  url = "https://example.org/debian.qcow2"
}
manifest "web" {
  pattern = "flat"
  host    = "father"
  node "web" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
  }
}
manifest "recipe" {
  pattern = "flat"
  node "one" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
  }
}
`

// write makes a folder of a site with these files.
func write(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for name, file := range folder(files...) {
		name = filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, file.Data, 0o600))
	}
	return dir
}

func open(t *testing.T, o FolderOptions) *Folder {
	t.Helper()
	o.Kinds = proxmox.Kinds()
	f, err := Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(f.Close)
	return f
}

// The host and manifest of a run are chosen by name, or if the site has only one.
func TestHostAndManifest(t *testing.T) {
	f := open(t, FolderOptions{Dir: write(t, "hosts.hcl", twoHosts)})
	require.NoError(t, f.Check())
	web, err := f.Manifest("web")
	require.NoError(t, err)
	recipe, err := f.Manifest("recipe")
	require.NoError(t, err)
	none, err := f.Manifest("")
	require.NoError(t, err)
	require.Nil(t, none)
	_, err = f.Manifest("wob")
	require.ErrorContains(t, err, "unknown manifest \"wob\"\ndid you mean \"web\"?")

	for _, c := range []struct {
		name     string
		manifest *model.Manifest
		host     string
		err      string
	}{
		{"", web, "father", ""},
		{"father", web, "father", ""},
		{"mother", web, "", "manifest web is deployed on host father, not on mother"},
		{"mother", recipe, "mother", ""},
		{"", recipe, "", "choose one with --host: father, mother"},
		{"fathr", nil, "", `did you mean "father"?`},
	} {
		h, err := f.Host(c.name, c.manifest)
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.host, h.Name)
		require.Equal(t, c.manifest == recipe, CheckDeployed(c.manifest, "plan", h) != nil)
	}
}

// On a slow machine --timeout may end while the policies are asked. That is no verdict of theirs.
func TestN5TimeOverWhilePoliciesAreAsked(t *testing.T) {
	const rule = "package homestak.site\ndeny contains name if some name, _ in input.site.nodes\n"
	over := errors.New("the time is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	_, err := Open(ctx, FolderOptions{Kinds: proxmox.Kinds(), Dir: write(t, "hosts.hcl", twoHosts, "policy/x.rego", rule)})
	require.ErrorIs(t, err, over)
}

// A recipe is bound to a host, and then the policies see it deployed.
func TestBind(t *testing.T) {
	const rule = "package homestak.site\ndeny contains name if some name, _ in input.site.nodes\n"
	f := open(t, FolderOptions{Dir: write(t, "hosts.hcl", twoHosts)})
	m, err := f.Manifest("recipe")
	require.NoError(t, err)
	require.NoError(t, f.Bind(m, f.Desired.Site.Hosts["mother"]))
	require.NoError(t, f.Recheck(t.Context()))
	require.Equal(t, "mother", f.Desired.Site.Manifests["recipe"].Host)

	f = open(t, FolderOptions{Dir: write(t, "hosts.hcl", twoHosts, "policy/x.rego", rule)})
	require.NoError(t, f.CheckLoaded(), "that policies deny it is another matter")
	invalid, ok := errors.AsType[*InvalidError](f.Check())
	require.True(t, ok)
	require.Contains(t, invalid.Error(), "is denied by its policies: ")
	input, err := f.PolicyInput()
	require.NoError(t, err)
	got, err := f.Eval(t.Context(), "input.site.name", input, nil)
	require.NoError(t, err)
	require.Equal(t, "home", got)
}

// Without a site there is nothing to choose from, and every finding is kept.
func TestInvalidFolder(t *testing.T) {
	_, err := Open(t.Context(), FolderOptions{Dir: filepath.Join(t.TempDir(), "nowhere")})
	require.ErrorIs(t, err, fs.ErrNotExist)
	f := open(t, FolderOptions{Dir: write(t, "site.hcl", "site \"home\" {\n")})
	invalid, ok := errors.AsType[*InvalidError](f.CheckLoaded())
	require.True(t, ok)
	require.Equal(t, "the site in "+f.Name()+" is not valid: 1 error", invalid.Error())
	require.Equal(t, f.Desired.Findings, invalid.Found)
}

// Secrets are in the folder or in a named file that other users cannot read.
func TestSecretsOfAFolder(t *testing.T) {
	const secrets = "api_tokens:\n  father: root@pam!x=1\n"
	token := func(f *Folder) string { return f.Desired.Site.Hosts["father"].APIToken }
	dir := write(t, "hosts.hcl", twoHosts, SecretsName, secrets)
	require.Equal(t, "root@pam!x=1", token(open(t, FolderOptions{Dir: dir})))

	file := filepath.Join(t.TempDir(), "secrets")
	require.NoError(t, os.WriteFile(file, []byte(secrets), 0o644))
	require.NoError(t, os.Chmod(file, 0o644)) // with any umask
	f := open(t, FolderOptions{Dir: write(t, "hosts.hcl", twoHosts), Secrets: file})
	require.Equal(t, "root@pam!x=1", token(f))
	require.Contains(t, summaries(f.Desired), "warning: "+file+" can be read by others on this machine")
}

// The named file comes first, then secrets.sops.yaml, then secrets.yaml; each at most once.
func TestOrderOfSecrets(t *testing.T) {
	secrets := func(token string) string { return "api_tokens:\n  father: root@pam!x=" + token + "\n" }
	key, recipient, err := sopstest.NewKey()
	require.NoError(t, err)
	encrypted := func(plain, inClear string) string {
		data, err := sopstest.Encrypt(plain, sopstest.Options{Recipients: []string{recipient}, Clear: inClear})
		require.NoError(t, err)
		return string(data)
	}
	env := func(name string) string { return map[string]string{"SOPS_AGE_KEY": key}[name] }
	named := write(t, "named.yaml", secrets("named"), "named.sops.yaml", encrypted(secrets("named"), ""))
	const cannot = "secrets.sops.yaml:5:1: warning: secrets.sops.yaml cannot be decrypted here"
	for name, c := range map[string]struct {
		files []string // beside the site
		named string
		env   func(string) string
		token string
		found []string
	}{
		"plain":              {files: []string{SecretsName, secrets("plain")}, token: "plain"},
		"encrypted":          {files: []string{encryptedName, encrypted(secrets("sops"), "")}, env: env, token: "sops"},
		"both":               {files: []string{encryptedName, encrypted(secrets("sops"), ""), SecretsName, secrets("plain")}, env: env, token: "sops", found: []string{"secrets.yaml:1:1: warning: secrets.yaml is not read"}},
		"no identity":        {files: []string{encryptedName, encrypted(secrets("sops"), ""), SecretsName, secrets("plain")}, found: []string{cannot, "secrets.yaml:1:1: warning: secrets.yaml is not read"}},
		"named":              {files: []string{encryptedName, encrypted(secrets("sops"), ""), SecretsName, secrets("plain")}, named: "named.yaml", token: "named"},
		"named is encrypted": {named: "named.sops.yaml", env: env, token: "named"},
		"in the clear":       {files: []string{encryptedName, encrypted(secrets("sops"), "father")}, env: env, found: []string{`secrets.sops.yaml:2:1: error: plaintext secret: "father" in section api_tokens is not encrypted`}},
		"named, and another in the clear": {
			files: []string{encryptedName, encrypted(secrets("sops"), "father")}, named: "named.yaml", token: "named",
			found: []string{`secrets.sops.yaml:2:1: error: plaintext secret: "father" in section api_tokens is not encrypted`},
		},
		"public keys in the clear": {files: []string{encryptedName, encrypted(secrets("sops")+"ssh_keys:\n  ops: ssh-ed25519 AAAA\n", "^ssh_keys$")}, env: env, token: "sops"},
		"private key in the clear": {
			files: []string{encryptedName, encrypted(secrets("sops")+"ssh_keys:\n  ops: -----BEGIN OPENSSH PRIVATE KEY-----\n", "^ssh_keys$")}, env: env, token: "sops",
			found: []string{`secrets.sops.yaml:4:1: error: plaintext secret: "ops" in section ssh_keys is not encrypted`},
		},
		"number":                        {files: []string{encryptedName, encrypted("passwords:\n  pin: 1234\n", "")}, env: env, found: []string{`secrets.sops.yaml:2:1: error: "pin" in section passwords is not a string`}},
		"unknown section":               {files: []string{encryptedName, encrypted(secrets("sops")+"password:\n  a: b\n", "")}, env: env, token: "sops", found: []string{`secrets.sops.yaml:4:1: error: unknown section "password" of secrets`}},
		"not encrypted":                 {files: []string{encryptedName, secrets("plain")}, env: env, found: []string{"secrets.sops.yaml:1:1: error: secrets.sops.yaml is not encrypted"}},
		"not YAML":                      {files: []string{encryptedName, "<<<<<<< HEAD\n" + encrypted(secrets("sops"), "")}, env: env, found: []string{"secrets.sops.yaml:2:1: error: secrets.sops.yaml is not a file that sops encrypted"}},
		"the rules of sops":             {files: []string{".sops.yaml", "creation_rules: [1, 2\n"}},
		"secrets.sops.yaml is a folder": {files: []string{encryptedName + "/x", "y"}, found: []string{"secrets.sops.yaml:1:1: error: secrets cannot be read"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := FolderOptions{Dir: write(t, append(c.files, "hosts.hcl", twoHosts)...), Keys: Keys{Env: c.env}}
			if c.named != "" {
				o.Secrets = filepath.Join(named, c.named)
			}
			tree := os.DirFS(o.Dir)
			f := open(t, o)
			commits := Commits{Loader: NewLoader(proxmox.Kinds()), Files: func(string) (fs.FS, error) { return tree, nil }, Notes: func(string) diag.List { return nil }, Secrets: o.Secrets, Keys: o.Keys}
			ofAgent := commits.Load(t.Context(), model.Commit{ID: "a"})
			for who, d := range map[string]engine.Desired{"folder": f.Desired, "agent": ofAgent} {
				want, token := c.found, c.token
				if _, err := fs.Stat(tree, SecretsName); err == nil && who == "agent" {
					want = append(slices.DeleteFunc(slices.Clone(want), func(s string) bool { return strings.HasSuffix(s, "is not read") }), "secrets.yaml:1:1: error: secrets.yaml is tracked by git")
					if token == "plain" {
						token = ""
					}
				}
				if token != "" {
					token = "root@pam!x=" + token
				}
				require.ElementsMatch(t, want, about("secrets", d), who)
				require.Equal(t, token, d.Site.Hosts["father"].APIToken, who)
				require.True(t, token != "" || d.Site.Hosts["father"].TokenMissing)
				for _, x := range d.Findings {
					require.NotContains(t, x.Summary+x.Detail+x.Code, "root@pam!x=")
				}
			}
		})
	}
}

// about lists the findings about files of secrets.
func about(what string, d engine.Desired) []string {
	return slices.DeleteFunc(summaries(d), func(s string) bool { return !strings.Contains(s, what) })
}

// An agent's commits: what the repository says of one is reported with every load.
func TestCommits(t *testing.T) {
	trees := map[string]fs.FS{"a": folder(), "b": folder(SecretsName, "x: 1\n")}
	noted := 0
	c := Commits{
		Loader: NewLoader(proxmox.Kinds()),
		Files: func(id string) (fs.FS, error) {
			if trees[id] == nil {
				return nil, fs.ErrNotExist
			}
			return trees[id], nil
		},
		Notes: func(id string) diag.List {
			noted++
			return diag.List{diag.Warnf(diag.Range{}, "about "+id, "")}
		},
		Secrets: filepath.Join(t.TempDir(), "nowhere"),
	}
	load := func(id string) engine.Desired { return c.Load(t.Context(), model.Commit{ID: id}) }
	for range 2 {
		d := load("a")
		require.Contains(t, summaries(d), "warning: about a")
		require.Contains(t, summaries(d), "error: secrets cannot be read")
	}
	require.Equal(t, 1, noted)
	require.Contains(t, summaries(load("b")), SecretsName+":1:1: error: "+SecretsName+" is tracked by git")
	d := load("c")
	require.Nil(t, d.Site)
	require.Len(t, d.Findings, 1)
	require.Contains(t, d.Findings[0].Summary+d.Findings[0].Detail, "--path")
}

func TestModeOfOneRun(t *testing.T) {
	site, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(`
site "home" {
}
image "debian" {
  url = "https://example.org/debian.qcow2"
}
preset "small" {
  cores  = 1
  memory = 512
}
manifest "tree" {
  pattern = "tiered"
  node "inner" {
    type   = "pve"
    preset = preset.small
    image  = image.debian
  }
  node "app" {
    type   = "vm"
    parent = node.inner
    preset = preset.small
    image  = image.debian
  }
  node "edge" {
    type   = "vm"
    preset = preset.small
    image  = image.debian
  }
}
`)}}, hcl.Options{Kinds: proxmox.Kinds()})
	require.Zero(t, found.Errors(), "%v", found)
	modes := func(s *model.Site) map[string]string {
		out := map[string]string{}
		for _, n := range s.Manifests["tree"].Nodes {
			out[n.Name] = n.Mode
			require.Same(t, s.Manifests["tree"], n.Manifest)
		}
		return out
	}
	pulled := withMode(site, "pull")
	require.Equal(t, map[string]string{"inner": "push", "app": "push", "edge": "pull"}, modes(pulled), "a pve node is pushed, and what is below keeps its mode")
	require.Equal(t, map[string]string{"inner": "push", "app": "push", "edge": "push"}, modes(site), "the site itself stays as it is")
	require.Same(t, site, withMode(site, ""))
}

const needy = `
host "father" {
  api = "https://192.0.2.10:8006"
}
image "debian" {
  url      = "https://example.org/debian.qcow2"
  checksum = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
}
spec "db" {
  config {
    file "/etc/db" {
      content = upper(secret.passwords["db-1"])
      mode    = "0600"
    }
  }
}
spec "plain" {}
manifest "m" {
  pattern = "flat"
  host    = host.father
  node "db" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
    spec   = spec.db
  }
  node "web" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
    spec   = spec.plain
  }
}
`

// The secrets that a node needs are known through any expression, and no others are named.
func TestNeeds(t *testing.T) {
	tree := folder("a.hcl", needy)
	secrets := &model.Secrets{Values: map[string]map[string]string{"passwords": {"db-1": "canary", "other": "canary"}, "api_tokens": {"father": "a@b!c=d"}, "ssh_keys": {"ops": "ssh-ed25519 AAAA"}, "auth": {"site_token": "canary"}}}
	c := &Commits{Loader: NewLoader(proxmox.Kinds()), Files: func(string) (fs.FS, error) { return tree, nil }}
	needs, err := c.Needs("x", secrets)
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"db": {"passwords.db-1"}}, needs)
	require.Equal(t, "canary", secrets.Values["passwords"]["other"], "it is not changed")

	inFolder, err := open(t, FolderOptions{Dir: write(t, "a.hcl", needy, SecretsName, "passwords:\n  db-1: canary\n  other: canary\n")}).Needs()
	require.NoError(t, err)
	require.Equal(t, needs, inFolder)

	tree = folder("a.hcl", needy, "site.hcl", "\nsite \"home\" {\n  references {\n    repositories = [\"https://git.example/docs.git\"]\n    token = secret.passwords.other\n  }\n}\n")
	needs, err = c.Needs("x", secrets)
	require.NoError(t, err)
	require.Equal(t, []string{"passwords.other"}, needs[""], "each host removes guests")

	for reference, want := range map[string]string{
		"secret.passwords.x": "passwords.x", `secret.passwords["a b"]`: "passwords.a b", "secret.passwords": "passwords", "secret.auth.node_tokens.own": "auth.node_tokens.own",
	} {
		require.Equal(t, want, plainName(reference))
	}
}

// TestOpenPolicies: the folder of a site, and its folder policy, lead to the same files.
func TestOpenPolicies(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "policy"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "policy", "own.rego"), nil, 0o600))
	for _, of := range []string{dir, filepath.Join(dir, "policy")} {
		tree, done, err := OpenPolicies(of)
		require.NoError(t, err)
		names, err := fs.Glob(tree, "policy/*")
		require.NoError(t, err)
		require.Equal(t, []string{"policy/own.rego"}, names, of)
		done()
	}
	_, _, err := OpenPolicies(filepath.Join(dir, "gone"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// Loads at once leave the percentage as it was.
func TestLoadsAtOnceRestoreTheGarbage(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(77)
	defer debug.SetGCPercent(before)
	first, second := collectLess(), collectLess()
	first()
	second()
	require.Equal(t, 77, debug.SetGCPercent(before))
}
