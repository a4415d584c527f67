package importer_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/importer"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// ownershipKey is that of converted sites.
const ownershipKey = "2222222222222222222222222222222222222222222222222222222222222222"

// old are the files of a case: those of the predecessor.
func old(t *testing.T, name string) (*txtar.Archive, fstest.MapFS) {
	t.Helper()
	a, err := txtar.ParseFile(filepath.Join("testdata/convert", name))
	require.NoError(t, err)
	dir := fstest.MapFS{}
	for _, f := range a.Files {
		if in, ok := strings.CutPrefix(f.Name, "in/"); ok {
			dir[in] = &fstest.MapFile{Data: f.Data}
		}
	}
	return a, dir
}

func convert(dir fs.FS) (*importer.Conversion, diag.List) {
	return importer.Convert(dir, "home", "homestak-gitops v1", ownershipKey)
}

// loaded are the findings of a converted site with its own secrets, and they are checked for the canonical layout.
func loaded(t *testing.T, files map[string][]byte) diag.List {
	t.Helper()
	dir := fstest.MapFS{}
	for name, data := range files {
		dir[name] = &fstest.MapFile{Data: data}
		if filepath.Ext(name) == ".hcl" {
			out, found := hcl.Format(data, name)
			require.Empty(t, found, "%s", data)
			require.Equal(t, string(data), string(out), "fmt changes %s", name)
		}
	}
	o := hcl.Options{Kinds: proxmox.Kinds()}
	if data := files["secrets.yaml"]; data != nil {
		var found diag.List
		o.Secrets, found = hcl.ParseSecrets("secrets.yaml", data, nil)
		require.Empty(t, found)
	}
	_, found := hcl.Load(dir, o)
	return found
}

// A tree of the predecessor has the same result, and the same report, each time. HOMESTAK_UPDATE=1 writes them.
func TestConvert(t *testing.T) {
	for _, name := range []string{"site.txtar", "older.txtar"} {
		a, dir := old(t, name)
		made, found := convert(dir)
		require.Empty(t, found)
		var report strings.Builder
		made.Text(&report)
		for _, f := range loaded(t, made.Files) {
			fmt.Fprintf(&report, "finding: %s\n", diag.FirstLine(f.String()))
		}
		got := &txtar.Archive{Comment: a.Comment}
		for _, f := range a.Files {
			if strings.HasPrefix(f.Name, "in/") {
				got.Files = append(got.Files, f)
			}
		}
		for _, file := range made.Names {
			got.Files = append(got.Files, txtar.File{Name: "out/" + file, Data: made.Files[file]})
		}
		got.Files = append(got.Files, txtar.File{Name: "report", Data: []byte(report.String())})
		if os.Getenv("HOMESTAK_UPDATE") != "" {
			require.NoError(t, os.WriteFile(filepath.Join("testdata/convert", name), txtar.Format(got), 0o600))
			continue
		}
		require.Equal(t, string(txtar.Format(a)), string(txtar.Format(got)), "read what changed, then: HOMESTAK_UPDATE=1 go test ./drivers/proxmox/importer")
	}
}

// The cases have every key that is read.
func TestConvertHasEveryKey(t *testing.T) {
	var text strings.Builder
	for _, name := range []string{"site.txtar", "older.txtar"} {
		_, dir := old(t, name)
		for _, f := range dir {
			text.Write(f.Data)
		}
	}
	source, err := os.ReadFile("predecessor.go")
	require.NoError(t, err)
	keys := regexp.MustCompile(`yaml:"(\w+)"`).FindAllStringSubmatch(string(source), -1)
	require.Greater(t, len(keys), 100)
	for _, m := range keys {
		require.Regexp(t, `(?m)(^|[\s{])`+m[1]+`:`, text.String())
	}
}

// Deployed on a host, the nodes become the guests that the predecessor made: VMIDs, sizes, addresses, start with the host.
func TestConvertedSiteMakesTheSameGuests(t *testing.T) {
	_, dir := old(t, "site.txtar")
	made, found := convert(dir)
	require.Empty(t, found)
	w := newWorld(t, pve.New(pve.Config{Storages: []pve.Storage{
		{Name: "local", Type: "dir", Content: []string{"iso", "vztmpl", "backup", "snippets", "import"}}, {Name: "local-zfs", Type: "zfspool", Content: []string{"images", "rootdir"}},
	}}))
	for name, data := range made.Files {
		if filepath.Ext(name) == ".hcl" {
			w.files[name] = &fstest.MapFile{Data: data}
		}
	}
	w.secrets, found = hcl.ParseSecrets("secrets.yaml", made.Files["secrets.yaml"], nil)
	require.Empty(t, found)
	deploy := func(manifest string) {
		f := w.files["manifests/"+manifest+".hcl"]
		f.Data = bytes.ReplaceAll(f.Data, []byte(`"pull"`), []byte(`"push"`)) // no agent serves specs here
		f.Data = hclFormatted(t, regexp.MustCompile(`(?m)^  pattern .*$`).ReplaceAllString(string(f.Data), "$0\n  host = host.father"))
	}
	deploy("apps")
	deploy("n2-pull")
	w.load()
	p := w.plan()
	require.False(t, p.Findings.HasErrors(), "%v", p.Findings)
	vmids := map[string]int{}
	for _, s := range p.Steps {
		require.Equal(t, plan.Create, s.Action, s.Address)
		vmids[s.Address.String()] = s.VMID
	}
	require.Equal(t, 10001, vmids["vm.db"])
	require.Equal(t, 99011, vmids["pve.root-pve"])
	w.apply(p)
	configs := w.configs()
	root, db := configs[99011], configs[10001]
	require.Equal(t, "4", root["cores"])
	require.Equal(t, "8192", root["memory"])
	require.Contains(t, root["scsi0"], "local-zfs:")
	require.Contains(t, root["scsi0"], "size=64G")
	require.Equal(t, "1", root["onboot"])
	require.Equal(t, "2", db["cores"])
	require.Equal(t, "4096", db["memory"])
	require.Contains(t, db["scsi0"], "size=20G")
	require.Equal(t, "ip=192.0.2.50/24,gw=192.0.2.1", db["ipconfig0"])
	require.Equal(t, "192.0.2.3", db["nameserver"])
	require.Len(t, configs, 3, "the container was never created, and the child lives on its parent")
}

func hclFormatted(t *testing.T, text string) []byte {
	t.Helper()
	out, found := hcl.Format([]byte(text), "x.hcl")
	require.Empty(t, found)
	return out
}

// Mistakes are errors at their lines, and nothing is made.
func TestConvertFindsMistakes(t *testing.T) {
	for _, c := range []struct{ file, text, want string }{
		{"site.yaml", "defaults:\n  gatewy: 192.0.2.1\n", `site.yaml:2:1: error: unknown key "gatewy"`},
		{"site.yaml", "defaults: &d\n  domain: a\n", "site.yaml:1:1: error: anchors, aliases and merges are not read"},
		{"site.yaml", "a: &a {b: [1]}\nc: *a\n", "anchors"},
		{"site.yaml", "defaults:\n  <<: {domain: x}\n", "anchors, aliases and merges"},
		{"site.yaml", "defaults: !!map {}\n", "tags are not read"},
		{"site.yaml", "defaults:\n  domain: a\n  domain: b\n", `key "domain" is there twice`},
		{"site.yaml", "defaults:\n  packages: htop\n", "site.yaml:2:1: error: the value has the wrong type\n"},
		{"presets/vm-small.yaml", "cores: many\n", "It is of the type a string, and has to be a whole number."},
		{"presets/vm-small.yaml", "cores: [1]\n", "It is of the type a list, and has to be a whole number."},
		{"site.yaml", "a: 1\n---\nb: 2\n", "several documents"},
		{"site.yaml", "\tdefaults:\n", "the file is not valid YAML"},
		{"site.yaml", "defaults: \xff\n", "not UTF-8"},
		{"site.yaml", strings.Repeat("[", 20000), "exceeded max depth"},
		{"site.yaml", strings.Repeat("#", 300<<10), "the file is too large"},
		{"specs/a.yaml", "schema_version: 7\n", "schema_version 7 of a spec"},
		{"specs/a b.yaml", "schema_version: 1\n", `"a b" cannot be the name of a spec`},
		{"manifests/b.yaml", "schema_version: 2\nname: n1-push\n", "manifest \"n1-push\" is there twice"},
		{"secrets.yaml", "api_tokens:\n  father: 5\n", `"father" in section api_tokens is not a string`},
		{"secrets.yaml", "extra: {a: do-not-show}\n", `unknown section "extra" of secrets`},
	} {
		_, dir := old(t, "site.txtar")
		dir[c.file] = &fstest.MapFile{Data: []byte(c.text)}
		made, found := convert(dir)
		require.Nil(t, made, c.text[:min(len(c.text), 40)])
		var text strings.Builder
		found.Write(&text)
		require.Contains(t, text.String(), c.want)
		require.NotContains(t, text.String(), "do-not-show")
	}
	_, found := convert(fstest.MapFS{"README.md": {}})
	require.Contains(t, found.Sorted()[0].String(), "no files of the predecessor")
}

// Of an encrypted file that cannot be used, the names of the secrets are reported, and no value is written.
func TestConvertUnusableSecrets(t *testing.T) {
	_, dir := old(t, "site.txtar")
	delete(dir, "secrets.yaml")
	dir["secrets.yaml.enc"] = &fstest.MapFile{Data: []byte("api_tokens:\n  father: do-not-show\nsops: {}\n")}
	made, found := convert(dir)
	require.Empty(t, found)
	require.NotContains(t, made.Files, "secrets.sops.yaml")
	require.NotContains(t, string(made.Files["secrets.yaml"]), "do-not-show")
	var report strings.Builder
	made.Text(&report)
	require.NotContains(t, report.String(), "do-not-show")
	require.Contains(t, report.String(), "it cannot be read: decrypt it, and copy the values of api_tokens.father")
}

// A spec that VMs share with nodes of type pve makes no Proxmox VE hosts of them.
func TestConvertSharedSpec(t *testing.T) {
	_, dir := old(t, "site.txtar")
	dir["manifests/shared.yaml"] = &fstest.MapFile{Data: []byte("schema_version: 2\nname: shared\nnodes:\n  - {name: plain, type: vm, spec: pve, image: debian-12}\n")}
	made, found := convert(dir)
	require.Empty(t, found)
	specs := string(made.Files["specs.hcl"])
	require.NotRegexp(t, `(?m)^ +no_subscription`, specs)
	require.Contains(t, specs, "# Check: nodes of type pve have this spec, and so have others.")
	loaded(t, made.Files)
}

// No content of a key can inject text into the report or the files of the site.
func TestConvertHostileText(t *testing.T) {
	_, dir := old(t, "site.txtar")
	dir["specs/evil.yaml"] = &fstest.MapFile{Data: []byte("schema_version: 1\nconfig:\n  \"a\\e[2J\\ncheck: all is well\": 1\n")}
	dir["nodes/evil.yaml"] = &fstest.MapFile{Data: []byte("node: evil\nip: 192.0.2.9\napi_token: \"a\\x01b\"\ndatastore: local\n")}
	dir["presets/other.yml"] = &fstest.MapFile{Data: []byte("cores: 1\n")}
	made, found := convert(dir)
	require.Empty(t, found)
	var report strings.Builder
	made.Text(&report)
	require.Contains(t, report.String(), "specs/evil.yaml:3 config.a?[2J check: all is well: ")
	require.Contains(t, report.String(), "not converted: presets/other.yml: the predecessor read files that end with .yaml only\n")
	require.NotContains(t, string(made.Files["hosts/evil.hcl"]), "api_token =")
	loaded(t, made.Files)
}

// A link is not followed, wherever it leads.
func TestConvertFollowsNoLinks(t *testing.T) {
	for _, link := range []string{"site.yaml", "specs", "specs/a.yaml", "secrets.yaml", "secrets.yaml.enc"} {
		dir := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "hosts"), 0o700))
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, link)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "hosts", "father.yaml"), nil, 0o600))
		require.NoError(t, os.Symlink("hosts/father.yaml", filepath.Join(dir, link)))
		root, err := os.OpenRoot(dir)
		require.NoError(t, err)
		defer func() { _ = root.Close() }()
		made, found := convert(root.FS())
		require.Nil(t, made, link)
		require.Regexp(t, "is a link|is not a file", fmt.Sprint(found))
	}
}

// For any bytes there are findings, or files in the canonical layout that the loader can read.
func TestConvertMutated(t *testing.T) {
	_, dir := old(t, "site.txtar")
	_, older := old(t, "older.txtar")
	maps.Copy(older, fstest.MapFS{"secrets.yaml": dir["secrets.yaml"]})
	r := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // drawn again by its seed
	pieces := []string{"\n", ":", "- ", "{", "}", "[", "null", "~", "'", "\"", "&a ", "*a", "!!int ", "|", "${x}", "%{y}", "\x00", "é", "-1", "99999999999", "\t", "# ", "name: x\n"}
	for range mutations(t) {
		for _, tree := range []fstest.MapFS{dir, older} {
			tree = maps.Clone(tree)
			names := slices.Sorted(maps.Keys(tree))
			name := names[r.IntN(len(names))]
			data := slices.Clone(tree[name].Data)
			for range 1 + r.IntN(3) {
				if at := r.IntN(len(data) + 1); r.IntN(2) == 0 {
					data = slices.Insert(data, at, []byte(pieces[r.IntN(len(pieces))])...)
				} else {
					data = slices.Delete(data, at, min(len(data), at+1+r.IntN(8)))
				}
			}
			tree[name] = &fstest.MapFile{Data: data}
			made, found := convert(tree)
			require.Equal(t, made == nil, found.HasErrors(), "%s", data)
			if made != nil {
				for _, f := range loaded(t, made.Files) {
					require.NotEqual(t, "internal error", f.Summary, "%s", data)
				}
			}
		}
	}
}

// mutations is how many trees of each kind are tried.
func mutations(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("HOMESTAK_CONVERT_TREES"))
	if err != nil {
		return 25
	}
	return n
}
