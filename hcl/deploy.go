package hcl

import (
	"fmt"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// Deployment changes a site for one run, as a commit that agents read: one manifest is deployed, with a mode and variables.
type Deployment struct {
	Manifest, Host string            // "": no manifest is deployed
	Mode           string            // push or pull, of all nodes of the manifest except those of type pve; "": as the files say
	Vars           map[string]string // values of variables, as --var has them
}

// Rewrite rewrites a file of the site. Other manifests with a host are removed. Everything else is unchanged.
func (d Deployment) Rewrite(src []byte, filename string) ([]byte, error) {
	f, diags := hclwrite.ParseConfig(src, filename, hclv2.InitialPos)
	if diags.HasErrors() {
		return nil, fmt.Errorf("deploy %s: %w", d.Manifest, diags)
	}
	changed := false
	for _, block := range f.Body().Blocks() {
		labels := block.Labels()
		if len(labels) != 1 {
			continue
		}
		text, set := d.Vars[labels[0]]
		switch {
		case block.Type() == "variable" && set:
			if err := setDefault(block.Body(), text); err != nil {
				return nil, fmt.Errorf("variable %s: %w", labels[0], err)
			}
		case block.Type() != "manifest":
			continue
		case labels[0] == d.Manifest:
			block.Body().SetAttributeTraversal("host", hclv2.Traversal{hclv2.TraverseRoot{Name: "host"}, hclv2.TraverseAttr{Name: d.Host}})
			if d.Mode != "" {
				d.setMode(block.Body())
			}
		case block.Body().GetAttribute("host") != nil:
			f.Body().RemoveBlock(block)
		default:
			continue
		}
		changed = true
	}
	if !changed {
		return src, nil
	}
	return f.Bytes(), nil
}

// setMode makes the mode that of a manifest and of all its nodes.
func (d Deployment) setMode(manifest *hclwrite.Body) {
	own := manifest.FirstMatchingBlock("execution", nil)
	if own == nil {
		own = manifest.AppendNewBlock("execution", nil)
	}
	own.Body().SetAttributeValue("default_mode", cty.StringVal(d.Mode))
	own.Body().RemoveAttribute("config")
	own.Body().RemoveAttribute("run")
	for _, node := range manifest.Blocks() {
		if execution := node.Body().FirstMatchingBlock("execution", nil); node.Type() == "node" && execution != nil {
			node.Body().RemoveBlock(execution)
		}
	}
}

// setDefault makes the text of --var the default of a variable: as it stands for what takes a text, as an expression for lists
// and maps. The site was loaded with it, so it fits.
func setDefault(variable *hclwrite.Body, text string) error {
	typed, before := variable.GetAttribute("type"), variable.GetAttribute("default")
	v := cty.StringVal(text)
	if typed != nil {
		if kind := string(typed.Expr().BuildTokens(nil).Bytes()); !isPrimitive(kind) {
			expr, diags := hclsyntax.ParseExpression([]byte(text), "--var", hclv2.InitialPos)
			if !diags.HasErrors() {
				v, diags = expr.Value(nil)
			}
			if diags.HasErrors() {
				return diags
			}
		}
	} else if before != nil {
		if was, ok := literal(before); ok && was.Type().IsPrimitiveType() {
			var err error
			if v, err = convert.Convert(v, was.Type()); err != nil {
				return err
			}
		}
	}
	variable.SetAttributeValue("default", v)
	return nil
}

func isPrimitive(constraint string) bool {
	e, diags := hclsyntax.ParseExpression([]byte(constraint), "type", hclv2.InitialPos)
	if diags.HasErrors() {
		return false
	}
	switch hclv2.ExprAsKeyword(e) {
	case "string", "number", "bool", "any":
		return true
	default:
		return false
	}
}

// literal is the value of an attribute that needs nothing of the site.
func literal(a *hclwrite.Attribute) (cty.Value, bool) {
	e, diags := hclsyntax.ParseExpression(a.Expr().BuildTokens(nil).Bytes(), "", hclv2.InitialPos)
	if diags.HasErrors() {
		return cty.NilVal, false
	}
	v, diags := e.Value(nil)
	return v, !diags.HasErrors() && v.IsWhollyKnown() && !v.IsNull()
}
