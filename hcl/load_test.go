package hcl_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

func files(pairs ...string) fstest.MapFS {
	out := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return out
}

func summaries(l diag.List) []string {
	out := []string{}
	for _, f := range l {
		out = append(out, f.String())
	}
	return out
}

const siteFile = "site \"home\" {\n}\n"

func TestBadInput(t *testing.T) {
	for name, c := range map[string]struct {
		data string
		want []string
	}{
		"no HCL":            {"<html><body>Not found</body></html>\n", []string{"a.hcl:1:1: error: argument or block definition required"}},
		"binary":            {"\x7fELF\x02\x01\x01\x00\x00\xff", []string{"a.hcl:1:8: error: file is not UTF-8 text"}},
		"Latin-1":           {"locals {\n  a = \"gr\xfcn\"\n}\n", []string{"a.hcl:2:10: error: file is not UTF-8 text"}},
		"UTF-16":            {"\xff\xfel\x00o\x00", []string{"a.hcl:1:1: error: file is not UTF-8 text"}},
		"BOM":               {"\xef\xbb\xbflocals {\n}\n", []string{}},
		"CRLF":              {"locals {\r\n  a = 1\r\n}\r\n", []string{}},
		"10 MB":             {strings.Repeat("# nothing\n", 1_000_000), []string{"a.hcl:1:1: error: unreadable file"}},
		"brackets":          {"locals {\n  a = " + strings.Repeat("[", 100_000) + "\n}\n", []string{"a.hcl:2:206: error: expression too deep"}},
		"closed brackets":   {"locals {\n  a = " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000) + "\n}\n", []string{"a.hcl:2:206: error: expression too deep"}},
		"blocks":            {strings.Repeat("a {\n", 5000) + strings.Repeat("}\n", 5000), []string{"a.hcl:201:3: error: expression too deep"}},
		"templates":         {"locals {\n  a = " + strings.Repeat("\"${", 5000) + "\n}\n", []string{"a.hcl:2:305: error: expression too deep"}},
		"sums":              {"locals {\n  a = 1" + strings.Repeat("+1", 100_000) + "\n}\n", []string{"a.hcl:2:4008: error: expression too deep"}},
		"negations":         {"locals {\n  a = " + strings.Repeat("!", 100_000) + "true\n}\n", []string{"a.hcl:2:2007: error: expression too deep"}},
		"sums over lines":   {"locals {\n  a = (1\n" + strings.Repeat("+1\n", 100_000) + ")\n}\n", []string{"a.hcl:2002:1: error: expression too deep"}},
		"objects in a sum":  {"locals {\n  a = {\n}" + strings.Repeat("+{\n}", 10_000) + "\n}\n", []string{"a.hcl:2003:2: error: expression too deep"}},
		"template controls": {"locals {\n  a = <<E\n" + strings.Repeat("%{ if true }\n", 100_000) + "E\n}\n", []string{"a.hcl:2003:1: error: expression too deep"}},
		"conditions":        {"locals {\n  a = " + strings.Repeat("true ? 1 : ", 100_000) + "1\n}\n", []string{"a.hcl:2:22012: error: expression too deep"}},
		"indices":           {"locals {\n  a = [1]" + strings.Repeat("[0]", 100_000) + "\n}\n", []string{"a.hcl:2:6007: error: expression too deep"}},
		"long heredoc":      {"locals {\n  a = <<E\n" + strings.Repeat("line\n", 100_000) + "E\n}\n", []string{"a.hcl:14657:1: error: text too long"}},
		"dollars":           {"locals {\n  a = \"" + strings.Repeat("$a", 100_000) + "\"\n}\n", []string{"a.hcl:2:32776: error: text too long"}},
		"long line":         {"answer = [" + strings.Repeat("1, ", 5000) + "2]\n", []string{"a.hcl:1:1: error: attribute outside of any block"}},
		"huge number":       {"locals {\n  a = \"${1e99999999}\"\n}\n", []string{"a.hcl:2:10: error: number too large"}},
		"open string":       {"locals {\n  a = \"x\n  b = \"y\n  c = \"z\n}\n", []string{"a.hcl:2:9: error: invalid multi-line string", "a.hcl:2:9: error: unterminated template string", "a.hcl:4:9: error: invalid multi-line string"}},
		"control character": {"locals {\n  a = \x01\n}\n", []string{"a.hcl:2:7: error: invalid character", "a.hcl:2:7: error: invalid expression"}},
	} {
		t.Run(name, func(t *testing.T) {
			site, found := hcl.Load(files("a.hcl", c.data, "site.hcl", siteFile), hcl.Options{Kinds: testKinds()})
			require.NotNil(t, site, "the other file has the site")
			require.Equal(t, c.want, summaries(found))
			for _, f := range found {
				require.LessOrEqual(t, len(f.Detail), 2100)
			}
		})
	}
}

func TestWithinLimits(t *testing.T) {
	var b strings.Builder
	b.WriteString(siteFile + "locals {\n")
	for i := range 3000 { // many operators, but never in one expression
		fmt.Fprintf(&b, "  a-%d = [1 + %d, \"${%d}-x\", { b = [-1] }]\n", i, i, i)
	}
	b.WriteString("  deep = " + strings.Repeat("[", 190) + strings.Repeat("]", 190) + "\n")
	b.WriteString("  text = <<E\n}}}} ]] \" ${1 + 1}\nE\n}\n")
	_, found := hcl.Load(files("a.hcl", b.String()), hcl.Options{Kinds: testKinds()})
	require.Empty(t, summaries(found))
}

func TestThousandErrors(t *testing.T) {
	var b strings.Builder
	b.WriteString(siteFile)
	for i := range 1500 {
		fmt.Fprintf(&b, "preset \"p%d\" {\n  cores  = 1\n  memory = 512\n  dsik   = 1\n}\n", i)
	}
	_, found := hcl.Load(files("a.hcl", b.String()), hcl.Options{Kinds: testKinds()})
	require.Len(t, found, 1001)
	require.Equal(t, `a.hcl:6:3: error: unknown attribute "dsik" in preset "p0"`, found[0].String())
	require.Equal(t, "a.hcl:5006:3: error: and 500 more findings", found[1000].String())
}

func TestErrorsBehindTheLimitStayErrors(t *testing.T) {
	var b strings.Builder
	b.WriteString(siteFile)
	for i := range 1200 {
		fmt.Fprintf(&b, "image \"i%d\" {\n  url = \"x\"\n}\n", i)
	}
	b.WriteString("answer = 42\n")
	_, found := hcl.Load(files("a.hcl", b.String()), hcl.Options{Kinds: testKinds()})
	require.Len(t, found, 1001)
	require.Equal(t, 1, found.Errors())
}

// unreadable is a tree in which one file cannot be opened.
type unreadable struct {
	fstest.MapFS
	name string
}

func (u unreadable) Open(name string) (fs.File, error) {
	if name == u.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return u.MapFS.Open(name)
}

func TestUnreadable(t *testing.T) {
	tree := unreadable{files("site.hcl", siteFile, "sub/a.hcl", "", "b.hcl", "manifest \"m\" {\n  pattern = \"flat\"\n  host = host.far\n  node \"n\" {\n    type = \"ct\"\n  }\n}\n"), "sub/a.hcl"}
	site, found := hcl.Load(tree, hcl.Options{Kinds: testKinds()})
	require.NotNil(t, site)
	require.Equal(t, []string{
		"b.hcl:4:3: error: ct without template",
		"sub/a.hcl:1:1: error: unreadable file",
	}, summaries(found), "what the unreadable file may declare is not unknown")
	_, found = hcl.Load(os.DirFS(filepath.Join(t.TempDir(), "nowhere")), hcl.Options{Kinds: testKinds()})
	require.Equal(t, []string{"error: unreadable site"}, summaries(found))
}

func TestLinksLeadNowhere(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	write := func(name, text string) { require.NoError(t, os.WriteFile(name, []byte(text), 0o600)) }
	write(filepath.Join(outside, "passwd"), "root")
	write(filepath.Join(outside, "x.hcl"), siteFile)
	write(filepath.Join(dir, "site.hcl"), siteFile+"locals {\n  a = file(\"link\")\n  b = file(\"folder/passwd\")\n}\n")
	require.NoError(t, os.Symlink(filepath.Join(outside, "passwd"), filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "folder")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "x.hcl"), filepath.Join(dir, "x.hcl")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder.hcl"), 0o700))
	_, found := hcl.Load(os.DirFS(dir), hcl.Options{Kinds: testKinds()})
	require.Equal(t, []string{
		"folder:1:1: warning: linked folder is ignored",
		"site.hcl:4:7: error: function file failed",
		"site.hcl:5:7: error: function file failed",
		"x.hcl:1:1: error: unreadable file",
	}, summaries(found))
	for _, f := range found {
		require.Contains(t, f.Detail, "is a symbolic link")
	}
}

func TestLimitOfAllNodes(t *testing.T) {
	var b strings.Builder
	b.WriteString(siteFile + "manifest \"m\" {\n  pattern = \"flat\"\n")
	for i := range 6 {
		fmt.Fprintf(&b, "  node \"n%d\" {\n    type = \"ct\"\n    template = \"x\"\n    count = 10000\n  }\n", i)
	}
	b.WriteString("}\ntemplate \"x\" {\n  volume = \"v\"\n}\n")
	site, found := hcl.Load(files("a.hcl", b.String()), hcl.Options{Kinds: testKinds()})
	require.Equal(t, []string{"a.hcl:33:13: error: more than 50000 nodes in one site"}, summaries(found))
	require.Len(t, site.Manifests["m"].Nodes, 50_000)
}

func TestVariables(t *testing.T) {
	site := `
variable "text" {
  default = "d"
}
variable "number" {
  default = 1
}
variable "list" {
  type    = list(string)
  default = []
}
variable "map" {
  type    = map(number)
  default = {}
}
variable "bare" {
}
site "home" {
  domain      = var.text
  max_deletes = var.number
  dns         = var.list
  bridge      = join(",", keys(var.map))
  vm_user     = var.bare
}
`
	for name, c := range map[string]struct {
		vars map[string]string
		want []string
	}{
		"all set":        {map[string]string{"text": "5", "number": "7", "list": `["10.0.0.1"]`, "map": "{ a = 1 }", "bare": "me"}, []string{}},
		"no number":      {map[string]string{"number": "many", "bare": "me"}, []string{"a.hcl:5:1: error: --var number has the wrong type"}},
		"no list":        {map[string]string{"list": "10.0.0.1", "bare": "me"}, []string{"a.hcl:8:1: error: --var list has the wrong type"}},
		"a call":         {map[string]string{"list": `[file("x")]`, "bare": "me"}, []string{"a.hcl:8:1: error: --var list has the wrong type"}},
		"deep":           {map[string]string{"list": strings.Repeat("[", 1000), "bare": "me"}, []string{"a.hcl:8:1: error: --var list has the wrong type"}},
		"deep over rows": {map[string]string{"list": "1" + strings.Repeat("+\n1", 100_000), "bare": "me"}, []string{"a.hcl:8:1: error: --var list has the wrong type"}},
		"huge":           {map[string]string{"number": "1e99999", "bare": "me"}, []string{"a.hcl:5:1: error: --var number has the wrong type"}},
		"missing":        {nil, []string{"a.hcl:16:1: error: variable \"bare\" has no value"}},
		"misspelt":       {map[string]string{"bare": "me", "txt": "x"}, []string{"error: unknown variable \"txt\""}},
	} {
		t.Run(name, func(t *testing.T) {
			got, found := hcl.Load(files("a.hcl", site), hcl.Options{Kinds: testKinds(), Vars: c.vars})
			require.Equal(t, c.want, summaries(found))
			if len(c.want) == 0 {
				require.Equal(t, []any{"5", 7, []string{"10.0.0.1"}, "a", "me"}, []any{got.Domain, *got.MaxDeletes, got.DNS, got.Bridge, got.VMUser})
			}
		})
	}
}

func TestLocalsThatWaitForEachOther(t *testing.T) {
	forward, backward := "locals {\n  a0 = 1\n", "locals {\n"
	for i := range 3000 {
		forward += fmt.Sprintf("  a%d = local.a%d\n", i+1, i)
		backward += fmt.Sprintf("  a%d = local.a%d\n", i, i+1)
	}
	_, found := hcl.Load(files("site.hcl", siteFile, "a.hcl", forward+"}\n"), hcl.Options{Kinds: testKinds()})
	require.Empty(t, summaries(found), "each one is known when the next one asks")
	_, found = hcl.Load(files("site.hcl", siteFile, "a.hcl", backward+"  a3000 = 1\n}\n"), hcl.Options{Kinds: testKinds()})
	require.Equal(t, []string{"a.hcl:2002:3: error: locals nested too deeply"}, summaries(found))
}

func TestKindsCannotPrintSecrets(t *testing.T) {
	kinds := testKinds()
	kinds[0].Resolve = func(r *model.Resource, _ model.Scope) []model.Problem {
		return []model.Problem{{Path: "root_password", Summary: "weak: " + r.Spec.(*guest).Root, Detail: "Not " + r.Spec.(*guest).Root + "!"}}
	}
	site := siteFile + "manifest \"m\" {\n  pattern = \"flat\"\n  node \"n\" {\n    type = \"vm\"\n    root_password = secret.passwords.root\n  }\n}\n"
	secrets := &model.Secrets{Values: map[string]map[string]string{"passwords": {"root": "hunter2"}}}
	_, found := hcl.Load(files("a.hcl", site), hcl.Options{Kinds: kinds, Secrets: secrets})
	require.Equal(t, []string{"a.hcl:7:5: error: weak: (sensitive)"}, summaries(found))
	require.Equal(t, "Not (sensitive)!", found[0].Detail)
}

// An unknown secret of a section that is empty comes with what to write.
func TestASecretOfAnEmptySection(t *testing.T) {
	secrets := &model.Secrets{Values: map[string]map[string]string{"passwords": {}}}
	_, found := hcl.Load(files("a.hcl", siteFile+"locals {\n  a = secret.passwords.mail\n}\n"), hcl.Options{Kinds: testKinds(), Secrets: secrets})
	require.Equal(t, []string{`a.hcl:4:7: error: unknown secret "passwords.mail"`}, summaries(found))
	require.Equal(t, `The section passwords is empty. Write below passwords: in the secrets: mail: "…"`, found[0].Detail)
}

func TestAPanicIsAFinding(t *testing.T) {
	kinds := testKinds()
	kinds[0].Resolve = func(*model.Resource, model.Scope) []model.Problem { panic("hunter2") }
	site, found := hcl.Load(files("a.hcl", siteFile+"manifest \"m\" {\n  pattern = \"flat\"\n  node \"n\" {\n    type = \"vm\"\n  }\n}\n"), hcl.Options{Kinds: kinds})
	require.Nil(t, site)
	require.Equal(t, []string{"a.hcl:1:1: error: internal error"}, summaries(found))
	require.NotContains(t, found[0].Detail, "hunter2")
}

// good is the tree of the archive that has everything.
func good(t testing.TB) (fstest.MapFS, hcl.Options) {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/good.txtar")
	require.NoError(t, err)
	site := fstest.MapFS{}
	o := hcl.Options{Kinds: testKinds(), Vars: map[string]string{"workers": "3"}}
	for _, f := range archive.Files {
		switch f.Name {
		case "secrets":
			o.Secrets, _ = hcl.ParseSecrets("secrets.yaml", f.Data, nil)
		case "want", "dump", "vars":
		default:
			site[f.Name] = &fstest.MapFile{Data: f.Data}
		}
	}
	return site, o
}

func TestLoaderSeesEveryChange(t *testing.T) {
	site, o := good(t)
	site["lib/motd"] = &fstest.MapFile{Data: []byte("one")}
	site["more.hcl"] = &fstest.MapFile{Data: []byte("locals {\n  motd = file(\"lib/motd\")\n}\npreset \"more\" {\n  cores  = 1\n  memory = 1024\n}\n")}
	var l hcl.Loader
	first, found := l.Load(site, o)
	require.Empty(t, found)
	hashes := []string{first.SourceHash}
	again, _ := l.Load(site, o)
	require.Same(t, first, again, "nothing changed")

	changes := []func(){
		func() { site["lib/motd"] = &fstest.MapFile{Data: []byte("two")} },
		func() { delete(site, "lib/motd") },
		func() { site["lib/motd"] = &fstest.MapFile{Data: []byte("three")} },
		func() {
			site["more.hcl"] = &fstest.MapFile{Data: bytes.Replace(site["more.hcl"].Data, []byte("1024"), []byte("2048"), 1)}
		},
		func() { site["tls/ca.pem"] = &fstest.MapFile{Data: append([]byte("\n"), site["tls/ca.pem"].Data...)} },
		func() { site["new.hcl"] = &fstest.MapFile{Data: []byte("# new\n")} },
		func() { delete(site, "new.hcl") },
	}
	last := first
	for _, change := range changes {
		change()
		var fresh hcl.Loader
		got, found := l.Load(site, o)
		want, wantFound := fresh.Load(site, o)
		require.NotSame(t, last, got)
		require.Equal(t, dump(want), dump(got))
		require.Equal(t, wantFound, found)
		require.Equal(t, want.SourceHash, got.SourceHash)
		hashes = append(hashes, got.SourceHash)
		last = got
	}
	slices.Sort(hashes)
	require.Len(t, slices.Compact(hashes), len(changes), "each state of the files has a hash of its own; the last one is the one before new.hcl came")

	for name, change := range map[string]func(*hcl.Options){
		"variables": func(o *hcl.Options) { o.Vars = map[string]string{"workers": "4"} },
		"no values": func(o *hcl.Options) { o.Secrets = nil },
		"values": func(o *hcl.Options) {
			s := *o.Secrets
			s.Values = maps.Clone(s.Values)
			s.Values["passwords"] = map[string]string{"vm_root": "other"}
			o.Secrets = &s
		},
		"kinds": func(o *hcl.Options) { o.Kinds = testKinds() },
	} {
		before, _ := l.Load(site, o)
		other := o
		change(&other)
		got, _ := l.Load(site, other)
		require.NotSame(t, before, got, name)
	}
}

func TestSameInputSameSite(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	for _, name := range archives {
		archive, err := txtar.ParseFile(name)
		require.NoError(t, err)
		tree, o, _, _ := unpack(t, archive)
		var wantText, wantDump string
		for i := range 10 {
			site, found := hcl.Load(tree, o)
			var text strings.Builder
			found.Write(&text)
			got := dump(site)
			if i == 0 {
				wantText, wantDump = text.String(), got
			}
			require.Equal(t, wantText, text.String(), name)
			require.Equal(t, wantDump, got, name)
		}
	}
}

// No finding of any archive repeats a value of its secrets.
func TestSecretsStayAway(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	for _, name := range archives {
		archive, err := txtar.ParseFile(name)
		require.NoError(t, err)
		tree, o, _, _ := unpack(t, archive)
		if o.Secrets == nil {
			continue
		}
		_, found := hcl.Load(tree, o)
		for _, f := range found {
			text := f.Summary + f.Detail + f.Code
			for _, section := range o.Secrets.Values {
				for _, v := range section {
					if len(v) >= 6 {
						require.NotContains(t, text, v)
					}
				}
			}
			require.NotContains(t, text, "very-secret")
			require.NotContains(t, text, "00000000-0000-0000-0000-000000000001")
		}
	}
}

// The site never depends on whether the values of secrets are known, but for what
// is made from them.
func TestNodesDoNotDependOnSecrets(t *testing.T) {
	tree, o := good(t)
	known, _ := hcl.Load(tree, o)
	o.Secrets = nil
	unknown, found := hcl.Load(tree, o)
	require.Empty(t, found)
	require.Equal(t, known.Specs["base"].Access, unknown.Specs["base"].Access)
	require.True(t, unknown.Hosts["father"].TokenMissing)
	for i, n := range known.Manifests["web"].Nodes {
		other := unknown.Manifests["web"].Nodes[i]
		require.Equal(t, n.Resource.Addr, other.Resource.Addr)
		require.Equal(t, n.Resource.Sensitive, other.Resource.Sensitive)
		require.Equal(t, len(n.Resource.Sensitive) > 0, len(other.Resource.Missing) > 0)
	}
}

func TestResolvedSiteIsReadyForAHost(t *testing.T) {
	tree, o := good(t)
	site, found := hcl.Load(tree, o)
	require.Empty(t, found)
	want, found := site.Want("father")
	require.Empty(t, found)
	var got []string
	for _, a := range want.State.Addresses() {
		got = append(got, fmt.Sprint(a, " needs ", want.State[a].Needs))
	}
	require.Equal(t, []string{
		"ct.cache needs [template.debian-12-ct pool.guests]",
		"image.debian-12 needs []",
		"pool.guests needs []",
		"pve.inner needs [image.debian-12 pool.guests]",
		"template.debian-12-ct needs []",
		"vm.db-a needs [image.debian-12 pve.inner pool.guests]",
		"vm.db-b needs [image.debian-12 pve.inner pool.guests]",
	}, got)
	require.Equal(t, 2048, want.State[model.Address{Kind: "vm", Name: "db-a"}].Spec.(*guest).Memory)
	require.Equal(t, 0, site.Manifests["web"].Nodes[0].Resource.Spec.(*guest).Memory, "the site itself stays as declared")
}

const checkSite = `
site "home" {
}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "debian-12" {
  url      = "https://images.example/debian.qcow2"
  checksum = "sha256:ab"
}
spec "base" {
  check "inside" {
    command = "systemctl is-system-running"
  }
  check "port" {
    tcp     = 22
    timeout = "1m"
  }
}
`

func TestEveryOfACheck(t *testing.T) {
	for every, want := range map[string]string{
		"30s": "", "off": "", "0": "", "10s": "", "9s": "It must be at least 10s, or off.", "often": `It is not a duration such as "30s" or "5m", or off.`, "-1m": "It must be at least 10s, or off.",
	} {
		_, found := hcl.Load(files("site.hcl", checkSite+"\nspec \"more\" {\n  check \"web\" {\n    tcp = 80\n    every = \""+every+"\"\n  }\n}\n"), hcl.Options{Kinds: testKinds()})
		detail := ""
		for _, f := range found {
			detail += f.Detail
		}
		require.Equal(t, want, detail, every)
	}
}

// A container has no guest agent: what needs one is refused where it stands, also when
// it comes from the spec.
func TestChecksThatAContainerCannotPass(t *testing.T) {
	_, found := hcl.Load(files("site.hcl", checkSite+`
manifest "m" {
  pattern = "flat"
  host    = "father"
  node "cache" {
    type     = "ct"
    spec     = "base"
    template = template.debian
    check "up" {
      agent = true
    }
  }
}
template "debian" {
  volume = "local:vztmpl/debian.tar.zst"
}
`), hcl.Options{Kinds: testKinds()})
	require.Equal(t, []string{
		`site.hcl:12:3: error: check "inside" cannot run on node "cache"`,
		`site.hcl:28:5: error: check "up" cannot run on node "cache"`,
	}, summaries(found))
}

// Where one block declares several nodes, what only one of them can have has one finding, which names no other line.
func TestN16SeveralNodesOfABlockWithOneVMID(t *testing.T) {
	_, found := hcl.Load(files("site.hcl", checkSite+`
manifest "m" {
  pattern = "flat"
  host    = "father"
  node "web" {
    type   = "vm"
    count  = 4
    vmid   = 1001
    cores  = 1
    memory = 512
    image  = image.debian-12
    nic "lan" {
      ip = "192.0.2.10/24"
    }
  }
}
`), hcl.Options{Kinds: testKinds()})
	require.Equal(t, []string{
		"site.hcl:27:5: error: several nodes have vmid 1001",
		`site.hcl:32:7: error: several nodes have static address "192.0.2.10/24"`,
	}, summaries(found))
	require.Equal(t, `This block declares node "web-1" and others. Use count.index, each.key or each.value, so that each node has its own, on the same PVE host.`, found[0].Detail)
}

// A container has no guest agent: it is not advised to check one.
func TestN16AgentOfAContainer(t *testing.T) {
	_, found := hcl.Load(files("site.hcl", `
site "home" {
}
host "father" {
  api = "https://192.0.2.10:8006"
}
manifest "m" {
  pattern = "flat"
  host    = host.father
  node "cache" {
    type  = "ct"
    agent = true
    cores = 1
  }
}
`), hcl.Options{Kinds: proxmox.Kinds()})
	i := slices.IndexFunc(found, func(f diag.Finding) bool { return f.At.Start.Line == 12 })
	require.GreaterOrEqual(t, i, 0, "%v", found)
	require.Equal(t, "agent is an attribute of vm and pve nodes", found[i].Summary)
	require.Equal(t, `It is not allowed in node "cache": the guest agent is a program for VMs, and a container needs none. Leave it out.`, found[i].Detail)
}

// A node's check replaces the one that its spec has under the same name, and
// each knows where it is declared.
func TestChecksOfANode(t *testing.T) {
	site, found := hcl.Load(files("site.hcl", checkSite+`
manifest "m" {
  pattern = "flat"
  host    = "father"
  node "web" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian-12
    spec   = spec.base
    check "port" {
      http = ":8080/health"
    }
  }
}
`), hcl.Options{Kinds: testKinds()})
	require.Empty(t, summaries(found))
	checks := site.Checks(site.Manifests["m"].Nodes[0])
	require.Len(t, checks, 2)
	require.Equal(t, "inside", checks[0].Name)
	require.Equal(t, "site.hcl:12:3", checks[0].At.String())
	require.Equal(t, ":8080/health", checks[1].HTTP)
	require.Equal(t, "site.hcl:30:5", checks[1].At.String())
	require.Equal(t, 5*time.Minute, checks[1].Timeout, "nothing of the spec's is left")
}

// What a check was made from is remembered, so that what it sees is not shown.
func TestChecksMadeFromSecrets(t *testing.T) {
	secrets, found := hcl.ParseSecrets("secrets.yaml", []byte("passwords:\n  probe: correct-horse\n"), nil)
	require.Empty(t, found)
	text := siteFile + `
spec "base" {
  check "open" {
    command = "true"
  }
  check "closed" {
    command = "curl -u probe:${secret.passwords.probe} localhost"
  }
}
`
	site, found := hcl.Load(files("site.hcl", text), hcl.Options{Kinds: testKinds(), Secrets: secrets})
	require.Empty(t, summaries(found))
	require.False(t, site.Specs["base"].Checks[0].Sensitive)
	require.True(t, site.Specs["base"].Checks[1].Sensitive)

	site, found = hcl.Load(files("site.hcl", text), hcl.Options{Kinds: testKinds()})
	require.Empty(t, summaries(found), "a value that is not known here is no mistake of the files")
	require.Empty(t, site.Specs["base"].Checks[1].Command)
}

// TestFilesInOtherFormats are named once, with what to do about them.
func TestFilesInOtherFormats(t *testing.T) {
	for name, c := range map[string]struct {
		files []string
		want  string
	}{
		"none":         {[]string{"README.md", "policy/main.tf", ".terraform/x.tf", "x.json"}, ""},
		"Terraform":    {[]string{"infra/main.tf"}, "infra/main.tf:1:1: warning: file is ignored | Only files that end in .hcl are read. Terraform's configuration is another language: keep it in a folder whose name begins with a dot, or in another repository."},
		"JSON":         {[]string{"vms.hcl.json"}, "vms.hcl.json:1:1: warning: file is ignored | Only files that end in .hcl are read. The JSON syntax of HCL is not supported: write blocks, in a file that ends in .hcl."},
		"upper case":   {[]string{"VMS.HCL"}, "VMS.HCL:1:1: warning: file is ignored | Only files that end in .hcl are read."},
		"many of both": {[]string{"a.tf", "b.tf.json", "c.hcl.json", "d.tofu", "e.tf"}, "a.tf:1:1: warning: 5 files are ignored | Only files that end in .hcl are read. The others are b.tf.json, c.hcl.json, d.tofu and 1 more. The JSON syntax of HCL is not supported: write blocks, in a file that ends in .hcl. Terraform's configuration is another language: keep it in a folder whose name begins with a dot, or in another repository."},
	} {
		t.Run(name, func(t *testing.T) {
			tree := []string{"site.hcl", siteFile}
			for _, f := range c.files {
				tree = append(tree, f, "{")
			}
			site, found := hcl.Load(files(tree...), hcl.Options{Kinds: testKinds()})
			require.NotNil(t, site)
			if c.want == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Equal(t, c.want, found[0].String()+" | "+found[0].Detail)
		})
	}
}

// TestValuesOfAMapAreReferences: what a value of a map refers to is needed as what an
// attribute names is, once; one that is not there is told.
func TestValuesOfAMapAreReferences(t *testing.T) {
	text := `
image "virtio" {
  url      = "https://images.test/virtio.iso"
  checksum = "sha256:ab"
}
manifest "web" {
  pattern = "flat"
  host    = host.father
  node "web" {
    type    = "vm"
    cores   = 1
    memory  = 512
    image   = image.debian-12
    options = { ide0 = "${image.virtio},media=cdrom", sata0 = "x,${image.virtio}", sata1 = "${image.debian-12}" }
  }
}
`
	site, found := hcl.Load(files("site.hcl", checkSite+text), hcl.Options{Kinds: testKinds()})
	require.Empty(t, summaries(found))
	r := site.Manifests["web"].Nodes[0].Resource
	require.Equal(t, []model.Address{{Kind: "image", Name: "debian-12"}, {Kind: "image", Name: "virtio"}}, r.Needs)
	require.Equal(t, "virtio,media=cdrom", r.Spec.(*guest).Options["ide0"])
}

// Files in the layout stay as they are, hidden folders are not of the site, and a file with
// an error does not stop the others.
func TestFormatFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o640))
		require.NoError(t, os.Chmod(name, 0o640)) // with any umask
		return name
	}
	bad := write("a.hcl", "site \"home\" {\n")
	good := write("b.hcl", "site \"home\" {\n}\n")
	loose := write("sub/c.hcl", "host   \"father\" {\n}\n")
	write(".git/d.hcl", "x")
	write("e.txt", "x")
	files, err := hcl.Files(dir)
	require.NoError(t, err)
	require.Equal(t, []string{bad, good, loose}, files)

	changed, found, err := hcl.FormatFiles(files, true)
	require.NoError(t, err)
	require.True(t, found.HasErrors())
	require.Equal(t, []string{loose}, changed)
	text, err := os.ReadFile(loose)
	require.NoError(t, err)
	require.Contains(t, string(text), "host   ", "it only looked")

	changed, _, err = hcl.FormatFiles(append(files, filepath.Join(dir, "nowhere.hcl")), false)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, []string{loose}, changed)
	text, err = os.ReadFile(loose)
	require.NoError(t, err)
	require.Equal(t, "host \"father\" {\n}\n", string(text))
	info, err := os.Stat(loose)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
}
