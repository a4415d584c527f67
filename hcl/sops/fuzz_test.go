package sops_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/hcl/sops"
)

// FuzzFile feeds any document to a reader that has the key: no finding shows what was encrypted,
// and what was decrypted is there only without an error.
func FuzzFile(f *testing.F) {
	for _, v := range variants {
		data, err := os.ReadFile(filepath.Join("testdata", v.name+".sops.yaml"))
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte("a: &x [*x]\nsops: *x\n"))
	f.Add([]byte("sops: {age: [{recipient: x, enc: y}], mac: 'ENC[AES256_GCM,data:QQ==,iv:QQ==,tag:QQ==,type:str]', lastmodified: 2026-01-02T03:04:05Z}\n? [a]\n: b\n<<: {c: d}\n"))
	var all []*sops.Keys
	for _, name := range []string{"key.txt", "other.txt", "hybrid.txt", "ssh_ed25519", "ssh_rsa"} {
		k, _ := sops.FindKeys(sops.Sources{File: filepath.Join("testdata", name)})
		all = append(all, k)
	}
	const secret = "correct horse"
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, k := range append(all, nil) {
			var doc yaml.Node
			if yaml.Unmarshal(data, &doc) != nil || !sops.IsEncrypted(&doc) {
				return
			}
			f, found := sops.Parse("s.yaml", &doc)
			if !found.HasErrors() {
				found = append(found, f.Decrypt(k)...)
			}
			if len(found) > 0 && !strings.Contains(string(data), secret) {
				out, _ := yaml.Marshal(f.Root)
				require.NotContains(t, string(out), secret)
			}
			for _, x := range found {
				require.Equal(t, "s.yaml", x.At.File)
				require.Positive(t, x.At.Start.Line)
				require.Empty(t, x.Code)
				if !strings.Contains(string(data), secret) {
					require.NotContains(t, x.Summary+x.Detail, secret)
				}
				require.Less(t, len(x.Summary+x.Detail), 4000)
			}
		}
	})
}
