package hcl_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/hcl"
)

var update = flag.Bool("update", false, "rewrite the wanted texts in testdata")

// Each archive of testdata is a site, with what the loader says of it in the file
// "want". The files "secrets" (YAML) and "vars" (NAME=VALUE, one a line) are the
// options; a file "dump" asks for the site itself as well.
func TestGolden(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, archives)
	for _, name := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			require.NoError(t, err)
			site, o, want, dumped := unpack(t, archive)
			got, found := hcl.Load(site, o)
			var text strings.Builder
			diag.Text(&text, found)
			answers := map[string]string{"want": text.String()}
			if dumped {
				answers["dump"] = dump(got)
			}
			if *update {
				for i, f := range archive.Files {
					if a, ok := answers[f.Name]; ok {
						archive.Files[i].Data = []byte(a)
					}
				}
				require.NoError(t, os.WriteFile(name, txtar.Format(archive), 0o600))
				return
			}
			for file, text := range answers {
				require.Equal(t, want[file], text)
			}
		})
	}
}

func unpack(t *testing.T, archive *txtar.Archive) (site fstest.MapFS, o hcl.Options, want map[string]string, dumped bool) {
	t.Helper()
	site, want = fstest.MapFS{}, map[string]string{}
	o.Kinds = testKinds()
	for _, f := range archive.Files {
		switch f.Name {
		case "want", "dump":
			want[f.Name] = string(f.Data)
			dumped = dumped || f.Name == "dump"
		case "secrets":
			secrets, found := hcl.ParseSecrets("secrets.yaml", f.Data, nil)
			require.Empty(t, found)
			o.Secrets = secrets
		case "vars":
			o.Vars = map[string]string{}
			for line := range strings.Lines(string(f.Data)) {
				k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
				o.Vars[k] = v
			}
		default:
			site[f.Name] = &fstest.MapFile{Data: f.Data}
		}
	}
	require.Contains(t, want, "want")
	return site, o, want, dumped
}
