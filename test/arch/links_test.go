package arch_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// linkLaw checks that the links between the pages of a tree lead somewhere, as do the pages that a Go
// file names, and that the tests and scripts are there that a page names.
func linkLaw(t *testing.T, fsys fs.FS) (out []string) {
	t.Helper()
	var (
		link    = regexp.MustCompile(`\]\(([^()\s]*)\)`)
		heading = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
		named   = regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md`)
		code    = regexp.MustCompile("(?m)^    .*$|`[^`\n]*`")
		pages   = map[string]string{}
	)
	anchors := func(page string) (all []string) {
		for _, m := range heading.FindAllStringSubmatch(page, -1) {
			slug := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
			all = append(all, strings.ReplaceAll(slug, " ", "-"))
		}
		return all
	}
	goFiles := map[string]string{}
	require.NoError(t, fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		base := path.Base(name)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && (strings.HasPrefix(base, ".") || slices.Contains([]string{"testdata", "bin", "dist"}, base)) {
				return fs.SkipDir
			}
			return nil
		}
		text, err := fs.ReadFile(fsys, name)
		switch path.Ext(name) {
		case ".md":
			pages[name] = string(text)
		case ".go":
			goFiles[name] = string(text)
		}
		return err
	}))
	for name, page := range pages {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(page, ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue // another server
			}
			file := name
			if target != "" {
				file = path.Join(path.Dir(name), target)
			}
			if _, err := fs.Stat(fsys, file); err != nil {
				out = append(out, fmt.Sprintf("%s: %s does not exist", name, m[1]))
			} else if anchor != "" && !slices.Contains(anchors(pages[file]), anchor) {
				out = append(out, fmt.Sprintf("%s: %s has no such heading", name, m[1]))
			}
		}
	}
	tests := map[string]bool{}
	for _, text := range goFiles {
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(text, -1) {
			tests[m[1]] = true
		}
	}
	for name, page := range pages {
		for _, m := range regexp.MustCompile("`(Test\\w+)[`/]").FindAllStringSubmatch(page, -1) {
			if !tests[m[1]] {
				out = append(out, fmt.Sprintf("%s: there is no test %s", name, m[1]))
			}
		}
		for _, m := range regexp.MustCompile("script `(\\w+)`").FindAllStringSubmatch(page, -1) {
			if _, err := fs.Stat(fsys, "cmd/homestak-gitops/testdata/script/"+m[1]+".txtar"); err != nil {
				out = append(out, fmt.Sprintf("%s: there is no script %s", name, m[1]))
			}
		}
	}
	for name, text := range goFiles {
		for _, page := range named.FindAllString(text, -1) {
			if _, found := pages[page]; !found && !strings.HasSuffix(name, "_test.go") {
				out = append(out, fmt.Sprintf("%s: %s does not exist", name, page))
			}
		}
	}
	slices.Sort(out)
	return out
}

func TestLinksLeadSomewhere(t *testing.T) {
	require.Empty(t, strings.Join(linkLaw(t, os.DirFS("../..")), "\n"))
	require.Equal(t, []string{
		"a.md: #gone has no such heading",
		"a.md: docs/b.md#gone has no such heading",
		"a.md: gone.md does not exist",
		"a.md: there is no script gone",
		"a.md: there is no test TestGone",
		"x.go: docs/gone.md does not exist",
	}, linkLaw(t, fstest.MapFS{
		"a.md":      {Data: []byte("# A `few` words\n[x](gone.md) [y](#gone) [z](#a-few-words) [u](docs/b.md#gone) [v](docs/b.md#b-and-c)\n    [code](gone.md)\n`TestX`, `TestX/part`, `TestGone/part`, script `gone`\n")},
		"docs/b.md": {Data: []byte("## B, and C\n[a](../a.md) [web](https://example.org/x)\n")},
		"x.go":      {Data: []byte("// See docs/gone.md and docs/b.md.\npackage x\n\nfunc TestX(t *testing.T) {}\n")},
	}))
}
