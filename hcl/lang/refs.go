package lang

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/homestak/homestak-gitops/engine/model"
)

// stepName returns the name in a step of a reference: x of local.x and of local["x"].
func stepName(t hclv2.Traversal, i int) (string, bool) {
	if i >= len(t) {
		return "", false
	}
	switch s := t[i].(type) {
	case hclv2.TraverseAttr:
		return s.Name, true
	case hclv2.TraverseIndex:
		if s.Key.Type() == cty.String && s.Key.IsKnown() && !s.Key.IsNull() {
			return s.Key.AsString(), true
		}
	}
	return "", false
}

// blockName returns the value of TYPE.NAME, which is the name, if it is declared.
func (ev *Evaluator) blockName(t hclv2.Traversal, sc *Scope) (cty.Value, bool) {
	if len(t) != 2 || sc.functionsOnly {
		return cty.NilVal, false
	}
	name, ok := stepName(t, 1)
	if !ok || ev.Named[t.RootName()][name] == nil || !ev.IsNamed(t.RootName()) {
		return cty.NilVal, false
	}
	return cty.StringVal(name), true
}

// resolve compares the first steps of a reference with the declarations, and reports problems.
func (ev *Evaluator) resolve(t hclv2.Traversal, sc *Scope, quoted bool) bool {
	root, at := t.RootName(), t.SourceRange()
	if sc.functionsOnly {
		ev.Errorf(at, "reference in a default", "The default of a variable may use functions, but must not refer to the site.")
		return false
	}
	name, named := stepName(t, 1)
	switch {
	case ev.IsNamed(root):
		return ev.resolveBlock(t, root)
	case root == "local" || root == "site":
		return ev.resolveCell(t, root, name, named)
	case root == "var":
		if _, ok := ev.vars[name]; ok || ev.failed[name] || !named && len(t) == 1 {
			return !ev.failed[name]
		}
		return ev.Unknown(at, "variable", name, slices.Sorted(maps.Keys(ev.Named["variable"])))
	case root == "secret":
		return ev.resolveSecret(t)
	case root == NodeBlock:
		return ev.resolveNode(t, sc)
	case root == "count" || root == "index" && len(t) == 1:
		return ev.resolveInstance(at, sc.Count, name == "index", "count.index", "count")
	case root == "each":
		return ev.resolveInstance(at, sc.Each, name == "key" || name == "value", "each.key and each.value", "for_each")
	default:
		roots := []string{"local", "site", "var", "secret", NodeBlock, "count", "each"}
		for _, b := range ev.Types {
			if b.Named {
				roots = append(roots, b.Name)
			}
		}
		detail := ev.Nearest(root, roots)
		if len(t) == 1 || plainWords(t) && !strings.HasPrefix(detail, "did you mean") {
			detail = fmt.Sprintf("Put a string in quotes: %s.", Quote(Spell(t)))
			for _, b := range ev.Types { // the name alone, without what it is the name of
				if len(t) == 1 && b.Named && ev.Named[b.Name][root] != nil {
					detail = fmt.Sprintf("did you mean %s.%s?", b.Name, root)
				}
			}
		}
		if ofOutput := root == "nodes" || root == "hosts"; quoted && (ofOutput || !strings.HasPrefix(detail, "did you mean")) {
			detail = "In a text in quotes write $${ for ${, and %%{ for %{, where they are meant as they are, as in the template of an output; or put the text into a file: file(\"…\")."
		}
		ev.Errorf(at, "unknown reference "+Quote(Spell(t)), "%s", detail)
		return false
	}
}

// plainWords reports whether a reference may be a string without quotes: home.lan.
func plainWords(t hclv2.Traversal) bool {
	for i := 1; i < len(t); i++ {
		if _, ok := t[i].(hclv2.TraverseAttr); !ok {
			return false
		}
	}
	return len(t) <= 3
}

// Spell returns the text of a reference, at most its first three steps.
func Spell(t hclv2.Traversal) string {
	parts := []string{t.RootName()}
	for i := 1; i < min(len(t), 3); i++ {
		if name, ok := stepName(t, i); ok {
			parts = append(parts, name)
		}
	}
	return strings.Join(parts, ".")
}

// Unknown reports that a name is not declared, unless a file that could not be read may declare it.
func (ev *Evaluator) Unknown(at hclv2.Range, what, name string, known []string) bool {
	if !ev.Complete {
		return false
	}
	detail := ev.NearestOr(name, known, fmt.Sprintf("The site declares no %s.", what))
	if i := strings.LastIndexByte(name, '-'); i > 0 && slices.Contains(known, name[:i]) && strings.Trim(name[i+1:], "0123456789") == "" {
		detail = "Names may contain dashes: put spaces around a minus sign."
	}
	ev.Errorf(at, "unknown "+what+" "+Quote(name), "%s", detail)
	return false
}

func (ev *Evaluator) resolveBlock(t hclv2.Traversal, root string) bool {
	name, ok := stepName(t, 1)
	switch {
	case len(t) == 1:
		return true // preset[local.size]: the evaluation reports errors
	case !ok:
		ev.Errorf(t.SourceRange(), root+" without a name", "Write %s.NAME.", root)
		return false
	case ev.Named[root][name] == nil:
		return ev.Unknown(t.SourceRange(), root, name, slices.Sorted(maps.Keys(ev.Named[root])))
	case len(t) > 2:
		ev.Errorf(t.SourceRange(), root+"."+name+" has no attributes", "It is only the name of the %s; use locals for a value that several blocks share.", root)
		return false
	default:
		return true
	}
}

func (ev *Evaluator) resolveCell(t hclv2.Traversal, root, name string, named bool) bool {
	c := ev.cells[root+"."+name]
	switch {
	case c != nil:
		return ev.computeCell(c)
	case len(t) == 1 && ev.cellsDone:
		return true
	case !named:
		ev.Errorf(t.SourceRange(), root+" without a name", "Write %s.NAME.", root)
		return false
	}
	var known []string
	for _, k := range slices.Sorted(maps.Keys(ev.cells)) {
		if rest, ok := strings.CutPrefix(k, root+"."); ok {
			known = append(known, rest)
		}
	}
	if root == "site" {
		ev.Errorf(t.SourceRange(), "unknown attribute "+Quote(name)+" of the site", "%s", ev.Nearest(name, known))
		return false
	}
	return ev.Unknown(t.SourceRange(), root, name, known)
}

func (ev *Evaluator) resolveInstance(at hclv2.Range, here, known bool, what, by string) bool {
	switch {
	case !here:
		ev.Errorf(at, what+" outside of a node with "+by, "Set %s in the node block, or write the value itself.", by)
	case !known:
		ev.Errorf(at, "unknown reference", "A node with %s has %s.", by, what)
	}
	return here && known
}

// resolveNode compares node.NAME with the node blocks of the manifest around.
func (ev *Evaluator) resolveNode(t hclv2.Traversal, sc *Scope) bool {
	name, ok := stepName(t, 1)
	switch known, declared := sc.Nodes[name]; {
	case sc.Nodes == nil:
		ev.Errorf(t.SourceRange(), "node reference outside of a node", "node.NAME refers to a node of the same manifest, in attributes of its nodes other than count and for_each.")
		return false
	case !ok && len(t) == 1:
		return true
	case !declared:
		ev.Errorf(t.SourceRange(), "unknown node "+Quote(name), "%s", ev.NearestOr(name, slices.Sorted(maps.Keys(sc.Nodes)), "The manifest has no node of that name."))
		return false
	default:
		return known
	}
}

// NodeTokens is the key in the section auth with one token for each node.
const NodeTokens = "node_tokens"

// secretMark marks a value that was made from a secret.
type secretMark struct {
	Section, Key string // key is "" where it is computed and nothing is known
	Known        bool   // the value is known here
}

// secretPath splits a reference to a secret into section and key; the tokens of
// nodes are one level deeper, as node_tokens.NAME.
func secretPath(t hclv2.Traversal) (section, key string, whole bool) {
	section, _ = stepName(t, 1)
	key, whole = stepName(t, 2)
	if section == "auth" && key == NodeTokens {
		inner, ok := stepName(t, 3)
		return section, NodeTokens + "." + inner, ok
	}
	return section, key, whole
}

// String gives the secret as a reference names it.
func (m secretMark) String() string {
	section, key := m.Section, m.Key
	if prefix, name, ok := strings.Cut(key, "."); ok && section == "auth" && prefix == NodeTokens {
		section, key = section+"."+prefix, name
	}
	switch {
	case key == "":
		return "secret." + section
	case hclsyntax.ValidIdentifier(key):
		return "secret." + section + "." + key
	default:
		return fmt.Sprintf("secret.%s[%q]", section, key)
	}
}

func (ev *Evaluator) resolveSecret(t hclv2.Traversal) bool {
	section, key, whole := secretPath(t)
	known := model.SecretSections()
	switch {
	case section == "":
		ev.Errorf(t.SourceRange(), "secret without a section", "Write secret.SECTION.KEY; the sections are %s.", strings.Join(known, ", "))
		return false
	case !slices.Contains(known, section):
		ev.Errorf(t.SourceRange(), "unknown section "+Quote(section)+" of secrets", "%s", ev.Nearest(section, known))
		return false
	case section == "auth" && model.IsOwnershipSecret(key):
		ev.Errorf(t.SourceRange(), "secret."+section+"."+Clip(key, MaxQuoted)+" cannot be used in the site's files", "It proves which guests are the site's. A reader of it can forge that, so no file, spec or guest may get it.")
		return false
	case ev.Inputs.Secrets == nil || !whole:
		return true
	}
	values := ev.Inputs.Secrets.Values[section]
	if _, ok := values[key]; ok {
		return true
	}
	detail := ev.Nearest(key, slices.Sorted(maps.Keys(values)))
	if len(values) == 0 {
		detail = fmt.Sprintf("The section %s is empty. Write below %s: in the secrets: %s: \"…\"", section, section, Clip(key, MaxQuoted))
	}
	from := ""
	if ev.Inputs.Secrets.Source != "" {
		from = " in " + ev.Inputs.Secrets.Source
	}
	ev.Errorf(t.SourceRange(), "unknown secret "+Quote(section+"."+key)+from, "%s", detail)
	return false
}

// secretValues is the value of secret if the names are known: objects of marked values.
func (ev *Evaluator) secretValues() cty.Value {
	if ev.Inputs.Secrets == nil {
		return cty.NilVal
	}
	sections := map[string]cty.Value{}
	for _, section := range model.SecretSections() {
		values, tokens := map[string]cty.Value{}, map[string]cty.Value{}
		for key, text := range ev.Inputs.Secrets.Values[section] {
			if section == "auth" && model.IsOwnershipSecret(key) {
				continue // not a value of the language
			}
			v := cty.StringVal(text)
			if text == "" {
				v = cty.UnknownVal(cty.String)
			}
			v = v.Mark(secretMark{section, key, text != ""})
			if prefix, name, ok := strings.Cut(key, "."); ok && section == "auth" && prefix == NodeTokens {
				tokens[name] = v
			} else {
				values[key] = v
			}
		}
		if section == "auth" {
			values[NodeTokens] = cty.ObjectVal(tokens)
		}
		sections[section] = cty.ObjectVal(values)
	}
	return cty.ObjectVal(sections)
}

// unknownSecrets is the value of secret in one expression if nothing is known: the keys that it
// names, or an unknown value if it computes the key.
func unknownSecrets(references []hclv2.Traversal) cty.Value {
	sections, open := map[string]map[string]cty.Value{}, map[string]bool{}
	for _, t := range references {
		if t.RootName() != "secret" {
			continue
		}
		section, key, whole := secretPath(t)
		if !whole {
			open[section] = true
			continue
		}
		if sections[section] == nil {
			sections[section] = map[string]cty.Value{}
		}
		sections[section][key] = cty.UnknownVal(cty.String).Mark(secretMark{section, key, false})
	}
	out := map[string]cty.Value{}
	for section, values := range sections {
		tokens := map[string]cty.Value{}
		for key, v := range values {
			if name, ok := strings.CutPrefix(key, NodeTokens+"."); ok && section == "auth" {
				delete(values, key)
				tokens[name] = v
			}
		}
		if len(tokens) > 0 {
			values[NodeTokens] = cty.ObjectVal(tokens)
		}
		out[section] = cty.ObjectVal(values)
	}
	for section := range open {
		out[section] = cty.DynamicVal.Mark(secretMark{section, "", false})
	}
	return cty.ObjectVal(out)
}
