package core

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// The API table leaves out whole families (software networks, mappings, metrics,
// notifications, ACME, disks). Their methods are described here, by what PVE's Perl
// registers, in the table's own form: so the checks of every call hold for them too.

// extraMethod is a method that the table has not, with what it does.
type extraMethod struct {
	*pveapi.Method
	handle Handler
}

// extra finishes a method: the variables of its path are parameters too.
func extra(m *pveapi.Method, h Handler) extraMethod {
	for _, segment := range perl.Segments(m.Path) {
		name := strings.Trim(segment, "{}")
		if name == segment {
			continue
		}
		if m.Params[name] == nil {
			m.Params[name] = describe("string")
		}
		own := *m.Params[name]
		own.Optional, own.InPath = false, true
		m.Params[name] = &own
		if name == "node" {
			m.ProxyTo, m.Params[name] = "node", &pveapi.Value{Type: "string", Format: "pve-node", InPath: true}
		}
	}
	return extraMethod{m, h}
}

// ExtraCall describes a method that stands alone.
type ExtraCall struct {
	Name    string // "VERB /path".
	Perm    *pveapi.Rule
	Params  string // As in props.
	Returns *pveapi.Value
	Since   string
	Handle  Handler
}

func (p ExtraCall) method() extraMethod {
	verb, path, _ := strings.Cut(p.Name, " ")
	m := &pveapi.Method{
		Verb: verb, Path: path, Params: Props(p.Params), Returns: p.Returns, Since: p.Since, Protected: verb != "GET",
		Perm: pveapi.Perm{User: "all", Check: p.Perm},
	}
	if p.Perm != nil {
		m.Perm.User = ""
	}
	return extra(m, p.Handle)
}

// match fills the placeholders of a template with the parts of a path.
func match(template, parts []string) (map[string]string, bool) {
	vars := map[string]string{}
	for i, segment := range template {
		if name := strings.Trim(segment, "{}"); name != segment {
			vars[name] = parts[i]
		} else if segment != parts[i] {
			return nil, false
		}
	}
	return vars, true
}

// AnyOf is the rule that one of several privileges on a path is enough.
func AnyOf(path string, privs ...string) *pveapi.Rule {
	return &pveapi.Rule{Kind: "perm", Path: path, Privs: privs, Any: true}
}

// Props reads descriptions of parameters, one a line: "name: type bounds", see describe.
func Props(text string) map[string]*pveapi.Value {
	all := map[string]*pveapi.Value{}
	for line := range strings.Lines(text) {
		if name, about, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			all[name] = describe(about)
		}
	}
	return all
}

// describe reads a description of a value: its type ("array" is of strings), then in
// any order a|b for an enumeration, 1..9 for bounds, <=9 for the length, /…/ for a
// pattern, "needed" for what is not optional, @9.0 for what came with a version, and
// else the name of a format.
func describe(about string) *pveapi.Value {
	words := strings.Fields(about)
	v := map[string]any{"type": words[0], "optional": true}
	inner := v
	if words[0] == "array" {
		inner = map[string]any{"type": "string"}
		v["items"] = inner
	}
	for _, word := range words[1:] {
		lower, upper, bounded := strings.Cut(word, "..")
		switch {
		case word == "needed":
			delete(v, "optional")
		case strings.HasPrefix(word, "@"):
			v["since"] = word[1:]
		case strings.HasPrefix(word, "/"):
			inner["pattern"] = strings.Trim(word, "/")
		case strings.HasPrefix(word, "<="):
			inner["maxLength"] = json.Number(word[2:])
		case strings.Contains(word, "|"):
			inner["enum"] = strings.FieldsFunc(word, func(r rune) bool { return r == '|' })
		case bounded:
			for name, bound := range map[string]string{"min": lower, "max": upper} {
				if bound != "" {
					inner[name] = json.Number(bound)
				}
			}
		default:
			inner["format"] = word
		}
	}
	text, err := json.Marshal(v)
	value := new(pveapi.Value)
	if err == nil {
		err = json.Unmarshal(text, value)
	}
	if err != nil {
		panic(fmt.Sprintf("core: the description %q: %v", about, err)) // A mistake of the program.
	}
	return value
}

// listOf is the answer of a reading: a list of objects with members of these types.
func listOf(members map[string]*pveapi.Value) *pveapi.Value {
	return &pveapi.Value{Type: "array", Items: objectOf(members)}
}

func objectOf(members map[string]*pveapi.Value) *pveapi.Value {
	shown := maps.Clone(members)
	for name, v := range shown {
		own := *v
		own.Optional = true
		shown[name] = &own
	}
	return &pveapi.Value{Type: "object", Props: shown}
}
