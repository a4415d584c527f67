package hcl

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

// stepName gives the name in a step of a reference: x of local.x and of local["x"].
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

// blockName gives what TYPE.NAME stands for, the name, if it is declared.
func (ev *evaluator) blockName(t hclv2.Traversal, sc *scope) (cty.Value, bool) {
	if len(t) != 2 || sc.functionsOnly {
		return cty.NilVal, false
	}
	name, ok := stepName(t, 1)
	if !ok || ev.named[t.RootName()][name] == nil || !ev.isNamed(t.RootName()) {
		return cty.NilVal, false
	}
	return cty.StringVal(name), true
}

// lookUp holds the first steps of a reference against what is declared, and tells
// what is wrong with it.
func (ev *evaluator) lookUp(t hclv2.Traversal, sc *scope) bool {
	root, at := t.RootName(), t.SourceRange()
	if sc.functionsOnly {
		ev.errorf(at, "reference in a default", "The default of a variable stands for itself: it may use functions, but nothing of the site.")
		return false
	}
	name, named := stepName(t, 1)
	switch {
	case ev.isNamed(root):
		return ev.lookUpBlock(t, root)
	case root == "local" || root == "site":
		return ev.lookUpCell(t, root, name, named)
	case root == "var":
		if _, ok := ev.vars[name]; ok || ev.failed[name] || !named && len(t) == 1 {
			return !ev.failed[name]
		}
		return ev.unknown(at, "variable", name, slices.Sorted(maps.Keys(ev.named["variable"])))
	case root == "secret":
		return ev.lookUpSecret(t)
	case root == nodeBlock:
		return ev.lookUpNode(t, sc)
	case root == "count":
		return ev.lookUpInstance(at, sc.count, name == "index", "count.index", "count")
	case root == "each":
		return ev.lookUpInstance(at, sc.each, name == "key" || name == "value", "each.key and each.value", "for_each")
	default:
		roots := []string{"local", "site", "var", "secret", nodeBlock, "count", "each"}
		for _, b := range ev.types {
			if b.named {
				roots = append(roots, b.name)
			}
		}
		detail := ev.nearest(root, roots)
		if len(t) == 1 || plainWords(t) && !strings.HasPrefix(detail, "did you mean") {
			detail = fmt.Sprintf("A text stands in quotes: %s.", quote(spell(t)))
			for _, b := range ev.types { // the name alone, without what it is the name of
				if len(t) == 1 && b.named && ev.named[b.name][root] != nil {
					detail = fmt.Sprintf("did you mean %s.%s?", b.name, root)
				}
			}
		}
		ev.errorf(at, "unknown reference "+quote(spell(t)), "%s", detail)
		return false
	}
}

// plainWords reports whether a reference may be a text without its quotes: home.lan.
func plainWords(t hclv2.Traversal) bool {
	for i := 1; i < len(t); i++ {
		if _, ok := t[i].(hclv2.TraverseAttr); !ok {
			return false
		}
	}
	return len(t) <= 3
}

// spell writes a reference down, at most its first three steps.
func spell(t hclv2.Traversal) string {
	parts := []string{t.RootName()}
	for i := 1; i < min(len(t), 3); i++ {
		if name, ok := stepName(t, i); ok {
			parts = append(parts, name)
		}
	}
	return strings.Join(parts, ".")
}

// unknown tells that a name is not declared, unless it may stand in a file that
// could not be read.
func (ev *evaluator) unknown(at hclv2.Range, what, name string, known []string) bool {
	if !ev.complete {
		return false
	}
	detail := ev.nearestOr(name, known, fmt.Sprintf("The site declares no %s.", what))
	if i := strings.LastIndexByte(name, '-'); i > 0 && slices.Contains(known, name[:i]) && strings.Trim(name[i+1:], "0123456789") == "" {
		detail = "Names may hold dashes: a difference needs spaces around its minus."
	}
	ev.errorf(at, "unknown "+what+" "+quote(name), "%s", detail)
	return false
}

func (ev *evaluator) lookUpBlock(t hclv2.Traversal, root string) bool {
	name, ok := stepName(t, 1)
	switch {
	case len(t) == 1:
		return true // preset[local.size]: the evaluation finds what is wrong
	case !ok:
		ev.errorf(t.SourceRange(), root+" without a name", "Write %s.NAME.", root)
		return false
	case ev.named[root][name] == nil:
		return ev.unknown(t.SourceRange(), root, name, slices.Sorted(maps.Keys(ev.named[root])))
	case len(t) > 2:
		ev.errorf(t.SourceRange(), root+"."+name+" has no attributes", "It stands for the name of the %s and nothing else; for a value that several blocks share use locals.", root)
		return false
	default:
		return true
	}
}

func (ev *evaluator) lookUpCell(t hclv2.Traversal, root, name string, named bool) bool {
	c := ev.cells[root+"."+name]
	switch {
	case c != nil:
		return ev.settle(c)
	case len(t) == 1 && ev.settled:
		return true
	case !named:
		ev.errorf(t.SourceRange(), root+" without a name", "Write %s.NAME.", root)
		return false
	}
	var known []string
	for _, k := range slices.Sorted(maps.Keys(ev.cells)) {
		if rest, ok := strings.CutPrefix(k, root+"."); ok {
			known = append(known, rest)
		}
	}
	if root == "site" {
		ev.errorf(t.SourceRange(), "unknown attribute "+quote(name)+" of the site", "%s", ev.nearest(name, known))
		return false
	}
	return ev.unknown(t.SourceRange(), root, name, known)
}

func (ev *evaluator) lookUpInstance(at hclv2.Range, here, known bool, what, by string) bool {
	switch {
	case !here:
		ev.errorf(at, what+" outside of a node with "+by, "Only a node block with the attribute %s has it.", by)
	case !known:
		ev.errorf(at, "unknown reference", "A node with %s has %s.", by, what)
	}
	return here && known
}

// lookUpNode holds node.NAME against the node blocks of the manifest around.
func (ev *evaluator) lookUpNode(t hclv2.Traversal, sc *scope) bool {
	name, ok := stepName(t, 1)
	switch known, declared := sc.nodes[name]; {
	case sc.nodes == nil:
		ev.errorf(t.SourceRange(), "node reference outside of a node", "node.NAME stands for a node of the same manifest, in attributes of its nodes other than count and for_each.")
		return false
	case !ok && len(t) == 1:
		return true
	case !declared:
		ev.errorf(t.SourceRange(), "unknown node "+quote(name), "%s", ev.nearestOr(name, slices.Sorted(maps.Keys(sc.nodes)), "The manifest has no node of that name."))
		return false
	default:
		return known
	}
}

// nodeTokens is the key of the section auth that holds one token a node.
const nodeTokens = "node_tokens"

// secretMark marks a value that was made from a secret.
type secretMark struct {
	section, key string // key is "" where it is computed and nothing is known
	known        bool   // the value is known here
}

// secretPath splits a reference to a secret into section and key; the tokens of
// nodes are one level deeper, as node_tokens.NAME.
func secretPath(t hclv2.Traversal) (section, key string, whole bool) {
	section, _ = stepName(t, 1)
	key, whole = stepName(t, 2)
	if section == "auth" && key == nodeTokens {
		inner, ok := stepName(t, 3)
		return section, nodeTokens + "." + inner, ok
	}
	return section, key, whole
}

// String gives the secret as a reference names it.
func (m secretMark) String() string {
	section, key := m.section, m.key
	if prefix, name, ok := strings.Cut(key, "."); ok && section == "auth" && prefix == nodeTokens {
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

func (ev *evaluator) lookUpSecret(t hclv2.Traversal) bool {
	section, key, whole := secretPath(t)
	known := model.SecretSections()
	switch {
	case section == "":
		ev.errorf(t.SourceRange(), "secret without a section", "Write secret.SECTION.KEY; the sections are %s.", strings.Join(known, ", "))
		return false
	case !slices.Contains(known, section):
		ev.errorf(t.SourceRange(), "unknown section "+quote(section)+" of secrets", "%s", ev.nearest(section, known))
		return false
	case ev.inputs.secrets == nil || !whole:
		return true
	}
	values := ev.inputs.secrets.Values[section]
	if _, ok := values[key]; ok {
		return true
	}
	detail := ev.nearest(key, slices.Sorted(maps.Keys(values)))
	if len(values) == 0 {
		detail = fmt.Sprintf("The section %s is empty.", section)
	}
	from := ""
	if ev.inputs.secrets.Source != "" {
		from = " in " + ev.inputs.secrets.Source
	}
	ev.errorf(t.SourceRange(), "unknown secret "+quote(section+"."+key)+from, "%s", detail)
	return false
}

// secretValues is what secret stands for where the names are known: objects of
// marked values.
func (ev *evaluator) secretValues() cty.Value {
	if ev.inputs.secrets == nil {
		return cty.NilVal
	}
	sections := map[string]cty.Value{}
	for _, section := range model.SecretSections() {
		values, tokens := map[string]cty.Value{}, map[string]cty.Value{}
		for key, text := range ev.inputs.secrets.Values[section] {
			v := cty.StringVal(text)
			if text == "" {
				v = cty.UnknownVal(cty.String)
			}
			v = v.Mark(secretMark{section, key, text != ""})
			if prefix, name, ok := strings.Cut(key, "."); ok && section == "auth" && prefix == nodeTokens {
				tokens[name] = v
			} else {
				values[key] = v
			}
		}
		if section == "auth" {
			values[nodeTokens] = cty.ObjectVal(tokens)
		}
		sections[section] = cty.ObjectVal(values)
	}
	return cty.ObjectVal(sections)
}

// unknownSecrets is what secret stands for in one expression where nothing is
// known: just the keys it names, and anything at all where it computes the key.
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
			if name, ok := strings.CutPrefix(key, nodeTokens+"."); ok && section == "auth" {
				delete(values, key)
				tokens[name] = v
			}
		}
		if len(tokens) > 0 {
			values[nodeTokens] = cty.ObjectVal(tokens)
		}
		out[section] = cty.ObjectVal(values)
	}
	for section := range open {
		out[section] = cty.DynamicVal.Mark(secretMark{section, "", false})
	}
	return cty.ObjectVal(out)
}
