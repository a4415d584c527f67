package hcl_test

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// FuzzLoad feeds two files to the loader: it never panics, tells every error with
// a place, gives the same answer twice, and what it accepts can be resolved.
func FuzzLoad(f *testing.F) {
	archives, err := filepath.Glob("testdata/*.txtar")
	require.NoError(f, err)
	for _, name := range archives {
		archive, err := txtar.ParseFile(name)
		require.NoError(f, err)
		var base, rest []byte
		for _, file := range archive.Files {
			switch {
			case filepath.Ext(file.Name) != ".hcl":
			case base == nil:
				base = file.Data
			default:
				rest = append(rest, file.Data...)
			}
		}
		f.Add(base, rest)
	}
	f.Add([]byte("site \"h\" {\n}\nlocals {\n  a = [for i in range(3): \"%{ if i > 1 }${i}%{ else }-%{ endif }\"]...\n}\n"), []byte("\xef\xbb\xbfa = <<-E\n  x\n  E\n"))
	secrets := &model.Secrets{Source: "s.yaml", Values: map[string]map[string]string{
		"passwords": {"root": "hunter2hunter2", "none": ""}, "ssh_keys": {"ops": "ssh-ed25519 AAAAhunter2 ops"}, "api_tokens": {"father": "a@pam!b=hunter2hunter2"},
	}}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if len(a)+len(b) > 16<<10 {
			t.Skip("large inputs only slow the search down")
		}
		tree := fstest.MapFS{"a.hcl": {Data: a}, "sub/b.hcl": {Data: b}, "t.tmpl": {Data: a}, "text": {Data: []byte("text")}}
		for _, s := range []*model.Secrets{nil, secrets} {
			o := hcl.Options{Kinds: testKinds(), Secrets: s}
			var l hcl.Loader
			site, found := l.Load(tree, o)
			for _, d := range found {
				if d.Severity == diag.Error && d.At.IsZero() {
					t.Errorf("no place: %s %s", d, d.Detail)
				}
				if strings.HasPrefix(d.Summary, "internal error") {
					t.Errorf("%s: %s", d, d.Detail)
				}
				text := d.Summary + d.Detail + d.Code
				if s != nil && strings.Contains(text, "hunter2") && !bytes.Contains(a, []byte("hunter2")) && !bytes.Contains(b, []byte("hunter2")) {
					t.Errorf("a secret in %q", text)
				}
			}
			var other hcl.Loader
			again, foundAgain := other.Load(tree, o)
			if dump(site) != dump(again) || !slices.Equal(found, foundAgain) {
				t.Error("another answer to the same question")
			}
			if !found.HasErrors() {
				if site == nil {
					t.Fatal("neither a site nor an error")
				}
				for host := range site.Hosts {
					if _, l := site.Want(host); l.HasErrors() {
						t.Errorf("accepted, but: %s", l[0])
					}
				}
			}
		}
		for _, text := range [][]byte{a, b} {
			once, found := hcl.Format(text, "a.hcl")
			if found.HasErrors() {
				continue
			}
			if twice, _ := hcl.Format(once, "a.hcl"); !bytes.Equal(once, twice) {
				t.Errorf("formatting twice is not formatting once:\n%s\n%s", once, twice)
			}
		}
	})
}

// FuzzSecrets feeds any text to the parser of secrets: no finding repeats it.
func FuzzSecrets(f *testing.F) {
	f.Add([]byte("passwords:\n  a: &x hunter2\n  b: *x\nauth:\n  node_tokens: {web: hunter2}\n"))
	f.Add([]byte("? hunter2\n: {hunter2: [hunter2]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, found := hcl.ParseSecrets("s.yaml", data, nil)
		require.NotNil(t, s)
		for _, d := range found {
			require.False(t, d.At.IsZero())
			require.Empty(t, d.Code)
		}
		for _, section := range s.Values {
			for _, v := range section {
				for _, d := range found {
					// Names of sections and keys may be told, and a value can look like one.
					if len(v) > 12 && !strings.Contains(string(data), v+":") {
						require.NotContains(t, d.Summary+d.Detail, v)
					}
				}
			}
		}
	})
}
