package hcl

import (
	"fmt"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// Deploy rewrites a file of a site so that only one manifest is deployed, on this host: other
// manifests with a host are removed. Everything else is unchanged. With an empty name all manifests
// with a host are removed.
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
