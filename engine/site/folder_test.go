package site

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
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
