package hcl_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

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

func TestKindsCannotTellSecrets(t *testing.T) {
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

func TestAPanicIsAFinding(t *testing.T) {
	kinds := testKinds()
	kinds[0].Resolve = func(*model.Resource, model.Scope) []model.Problem { panic("hunter2") }
	site, found := hcl.Load(files("a.hcl", siteFile+"manifest \"m\" {\n  pattern = \"flat\"\n  node \"n\" {\n    type = \"vm\"\n  }\n}\n"), hcl.Options{Kinds: kinds})
	require.Nil(t, site)
	require.Equal(t, []string{"a.hcl:1:1: error: internal error"}, summaries(found))
	require.NotContains(t, found[0].Detail, "hunter2")
}
