package hcl_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/hcl"
)

type patched struct {
	Text    string            `hcl:"text,optional"`
	Count   int               `hcl:"number,optional"`
	Flag    bool              `hcl:"flag,optional"`
	Disk    int               `hcl:"disk,optional" plan:"-"`
	Disks   []patchedDisk     `hcl:"disk,block"`
	Options map[string]string `hcl:"options,optional"`
}

type patchedDisk struct {
	Name string `hcl:"name,label"`
	Size int    `hcl:"size,optional"`
	Fast bool   `hcl:"fast,optional"`
}

func TestPatch(t *testing.T) {
	spec := &patched{Text: "a", Disks: []patchedDisk{{Name: "data", Size: 4}}}
	for _, c := range []struct {
		name, body string
		edits      []hcl.Edit
		want, kept string // kept: paths
	}{
		{"heredoc", "text = <<EOT\none\ntwo\nEOT\nflag = true\n", []hcl.Edit{{"text", "three\n$" + "{x}\n", "one\ntwo\n"}}, "text = <<EOT\nthree\n$$" + "{x}\nEOT\nflag = true\n", ""},
		{"heredoc goes", "text = <<EOT\none\nEOT\nflag = true\n", []hcl.Edit{{"text", "", "one\n"}}, "flag = true\n", ""},
		{"to heredoc", "text = \"a\" # why\n", []hcl.Edit{{"text", "a\nb\n", "a"}}, "text = \"a\\nb\\n\" # why\n", ""},
		{"from heredoc", "text = <<EOT\none\nEOT\nflag = true\n", []hcl.Edit{{"text", "b", "one\n"}}, "text = \"b\"\nflag = true\n", ""},
		{"below a heredoc", "text = <<EOT\none\nEOT\n", []hcl.Edit{{"number", int64(2), int64(0)}}, "text = <<EOT\none\nEOT\nnumber = 2\n", ""},
		{"short", "disk = 4\n", []hcl.Edit{{"disk.root.size", int64(8), int64(4)}}, "disk = 8\n", ""},
		{"short and block", "disk = 4\n", []hcl.Edit{{"disk.root.size", int64(8), int64(4)}, {"disk.root.fast", true, false}}, "disk = 8\n\ndisk \"root\" {\nfast = true\n}\n", ""},
		{"block comes", "flag = true\n", []hcl.Edit{{"disk.x.size", int64(8), nil}, {"disk.x.fast", false, nil}}, "flag = true\n\ndisk \"x\" {\nsize = 8\n}\n", ""},
		{"block goes", "flag = true\ndisk \"data\" {\nsize = 4\n}\n", []hcl.Edit{{"disk.data.size", nil, int64(4)}, {"disk.data.fast", nil, false}}, "flag = true\n", ""},
		{"block is not here", "flag = true\n", []hcl.Edit{{"disk.x.size", nil, int64(8)}}, "flag = true\n", "disk.x.size"},
		{"map comes", "flag = true\n", []hcl.Edit{{"options.a-b", "1", nil}, {"options.c d", "2", nil}}, "flag = true\noptions = {\na-b = \"1\"\n\"c d\" = \"2\"\n}\n", ""},
		{"map on a line", "options = { a = \"1\", b = local.b, \"c\" = \"3\" }\n", []hcl.Edit{{"options.a", "2", "1"}, {"options.b", "9", "8"}, {"options.c", nil, "3"}}, "options = { a = \"2\", b = local.b }\n", "options.b"},
		{"map goes", "flag = true\noptions = { a = \"1\" }\n", []hcl.Edit{{"options.a", nil, "1"}}, "flag = true\n", ""},
		{"map with comments", "options = {\na = \"1\" # one\n}\n", []hcl.Edit{{"options.a", "2", "1"}}, "options = {\na = \"1\" # one\n}\n", "options.a"},
		{"default", "flag = true\n", []hcl.Edit{{"number", int64(0), int64(5)}, {"mark", "x", "y"}}, "flag = true\n", "number mark"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := func(body string) string {
				return "manifest \"m\" {\nnode \"n\" {\n" + body + "}\n}\n"
			}
			n := &model.Node{Name: "n", Block: "n", Manifest: &model.Manifest{Name: "m"}, At: diag.Range{File: "a.hcl"}, Resource: &model.Resource{Spec: spec}}
			got, kept, err := hcl.Patch([]byte(file(c.body)), n, c.edits)
			var paths []string
			for _, k := range kept {
				paths = append(paths, k.Path)
			}
			text := strings.ReplaceAll(string(got), "\n  ", "\n")
			for strings.Contains(text, "\n ") {
				text = strings.ReplaceAll(text, "\n ", "\n")
			}
			if err != nil || text != file(c.want) || strings.Join(paths, " ") != c.kept {
				t.Errorf("error %v, kept %q\n%s\nwant:\n%s", err, kept, text, file(c.want))
			}
			if _, found := hcl.Format(got, "a.hcl"); found.HasErrors() {
				t.Errorf("it does not parse: %v", found)
			}
		})
	}
}

func TestDiff(t *testing.T) {
	if got := hcl.Diff("a.hcl", []byte("a\n"), []byte("a\n")); got != "" {
		t.Errorf("diff of equal files: %q", got)
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git to apply patches with")
	}
	for _, pair := range [][2]string{
		{"a\nb\nc\n", "a\nB\nc\n"},
		{"a\nb\nc\n", "a\nb\nc\nd\n"},
		{"a\nb\nc\n", "b\nc\n"},
		{"a\nb\nc", "a\nb\nc\n"},
		{"a\nb\nc\nd\ne\nf\ng\nh\ni\n", "a\nb\nc\nd\n}\nx\n}\ne\nf\ng\nh\nj\n"},
		{"{\nx\n}\n}\n}\nz\n", "{\nx\n}\n\ny\n}\n}\n}\nz\n"},
		{strings.Repeat("a\n", 9), strings.Repeat("a\n", 11)},
		{"x\n" + strings.Repeat("}\n", 9), "y\n" + strings.Repeat("}\n", 6)},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "a.hcl")
		if err := os.WriteFile(file, []byte(pair[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := sourcetest.Git(t.Context(), dir, "apply", "-")
		cmd.Stdin = strings.NewReader(hcl.Diff("a.hcl", []byte(pair[0]), []byte(pair[1])))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("git apply of %q → %q: %v\n%s", pair[0], pair[1], err, out)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != pair[1] {
			t.Errorf("applied to %q: %q, want %q (%v)", pair[0], got, pair[1], err)
		}
	}
}
