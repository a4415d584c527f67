package hcl

import (
	"fmt"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// Deploy rewrites a file of a site so that of all manifests only this one is deployed, on this host: others that name a
// host are left out. Everything else stays as it is. An empty name leaves out all that name a host.
func Deploy(src []byte, filename, manifest, host string) ([]byte, error) {
	f, diags := hclwrite.ParseConfig(src, filename, hclv2.InitialPos)
	if diags.HasErrors() {
		return nil, fmt.Errorf("deploy %s: %w", manifest, diags)
	}
	changed := false
	for _, block := range f.Body().Blocks() {
		labels := block.Labels()
		if block.Type() != "manifest" || len(labels) != 1 {
			continue
		}
		switch {
		case labels[0] == manifest:
			block.Body().SetAttributeTraversal("host", hclv2.Traversal{hclv2.TraverseRoot{Name: "host"}, hclv2.TraverseAttr{Name: host}})
			changed = true
		case block.Body().GetAttribute("host") != nil:
			f.Body().RemoveBlock(block)
			changed = true
		}
	}
	if !changed {
		return src, nil
	}
	return f.Bytes(), nil
}
