package site

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/sops/sopstest"
)

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

// What a run is about is chosen by names, or by what the site leaves no doubt of.
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
	got, err := f.Eval(t.Context(), "input.site.name", input)
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

// Secrets are in the folder or in a named file, and nobody else may read them.
func TestSecretsOfAFolder(t *testing.T) {
	const secrets = "api_tokens:\n  father: root@pam!x=1\n"
	token := func(f *Folder) string { return f.Desired.Site.Hosts["father"].APIToken }
	dir := write(t, "hosts.hcl", twoHosts, SecretsName, secrets)
	require.Equal(t, "root@pam!x=1", token(open(t, FolderOptions{Dir: dir})))

	file := filepath.Join(t.TempDir(), "secrets")
	require.NoError(t, os.WriteFile(file, []byte(secrets), 0o644))
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
