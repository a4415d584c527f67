package hcl_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/homestak/homestak-gitops/hcl"
)

func TestDiff(t *testing.T) {
	if got := hcl.Diff("a.hcl", []byte("a\n"), []byte("a\n")); got != "" {
		t.Errorf("diff of equal files: %q", got)
	}
	git, err := exec.LookPath("git")
	if err != nil {
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
		cmd := exec.CommandContext(t.Context(), git, "apply", "-")
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(hcl.Diff("a.hcl", []byte(pair[0]), []byte(pair[1])))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("git apply of %q → %q: %v\n%s", pair[0], pair[1], err, out)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != pair[1] {
			t.Errorf("applied to %q: %q, want %q (%v)", pair[0], got, pair[1], err)
		}
	}
}
