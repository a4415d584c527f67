package hcl_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/hcl"
)

// TestFilesThatOnlyLookLikeOurs are named once, with what to do about them.
func TestFilesThatOnlyLookLikeOurs(t *testing.T) {
	for name, c := range map[string]struct {
		files []string
		want  string
	}{
		"none":         {[]string{"README.md", "policy/main.tf", ".terraform/x.tf", "x.json"}, ""},
		"Terraform":    {[]string{"infra/main.tf"}, "infra/main.tf:1:1: warning: file is ignored | Only files that end in .hcl are read. Terraform's configuration is another language: keep it in a folder whose name begins with a dot, or in another repository."},
		"JSON":         {[]string{"vms.hcl.json"}, "vms.hcl.json:1:1: warning: file is ignored | Only files that end in .hcl are read. The JSON syntax of HCL is not supported: write blocks, in a file that ends in .hcl."},
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
