package hcl_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// What is written is read back, whatever the text.
func TestWrite(t *testing.T) {
	for _, text := range []string{
		"", "plain", "${x} and %{y}", "$${x}", "quoted \"x\" \\ y", "two\nlines", "ends\n", "\n", "${x}\n%{y}\n$${z}", "EOT\n  EOT\nEOT_", "  indented\n\ttab\n",
		"carriage\r\nreturn", "bell \a\nand \u202e mark", "ü\nß", "a\n\n\nb", "trailing \n space ", "# no comment\n", "<<EOT\n",
	} {
		h := &model.Host{Name: "father", API: "https://192.0.2.10:8006", Bridge: "vmbr1", Nodes: []string{"a", "b"}, Storage: &model.Storage{Disks: "tank", ISO: "local"}}
		base := &model.Host{Bridge: "vmbr1", Storage: &model.Storage{ISO: "local"}}
		m := &model.Manifest{Description: text, Pattern: "flat", Host: "father"}
		node := hcl.Block{Type: "node", Label: "web", Comment: []string{"As it was."}, Parts: []hcl.Part{{Value: &model.Node{Type: "vm", VMID: 100, Adopt: "1bae9530-15f1-4d8a-8b09-1412c51fdb8d"}}}}
		file := hcl.Write([]string{"Head.", ""}, []hcl.Block{
			{Type: "site", Label: "home", Parts: []hcl.Part{{Value: &model.Site{Name: "home"}}}},
			{Type: "host", Label: "father", Parts: []hcl.Part{{Value: h, Base: base}}},
			{Type: "preset", Label: "small", Parts: []hcl.Part{{Value: &model.Preset{Cores: 1, Memory: 512}}}},
			{Type: "manifest", Label: "web", Parts: []hcl.Part{{Value: m}}, Inner: []hcl.Block{node}},
		})
		formatted, found := hcl.Format(file, "a.hcl")
		require.Empty(t, found, "%s", file)
		require.Equal(t, string(file), string(formatted))
		require.True(t, strings.HasPrefix(string(file), "# Head.\n#\n\nsite \"home\" {\n}\n"), "%s", file)
		require.Contains(t, string(file), "  host ", "a reference, and no string")
		require.Contains(t, string(file), "= host.father\n")
		require.Contains(t, string(file), "  # As it was.\n  node \"web\" {\n    type  = \"vm\"\n    vmid  = 100\n    adopt = ")
		require.NotContains(t, string(file), "vmbr1")
		require.NotContains(t, string(file), "iso")

		site, found := hcl.Load(fstest.MapFS{"a.hcl": {Data: file}}, hcl.Options{Kinds: proxmox.Kinds()})
		require.Equal(t, 1, found.Errors(), "only the size of the node is missing: %v\n%s", found, file)
		require.Equal(t, strings.TrimSuffix(text, "\n"), strings.TrimSuffix(site.Manifests["web"].Description, "\n"), "%s", file)
		require.Equal(t, []string{"a", "b"}, site.Hosts["father"].Nodes)
		require.Equal(t, "tank", site.Hosts["father"].Storage.Disks)
	}
}
