package pvesim

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// The API table leaves out whole families (software networks, mappings, metrics,
// notifications, ACME, disks). Their methods are described here, by what PVE's Perl
// registers, in the table's own form: so the checks of every call hold for them too.

// pastMethod is a method that the table has not, with what it does.
type pastMethod struct {
	*pveapi.Method
	handle handler
}

// past finishes a method: what stands in its path are parameters too.
func past(m *pveapi.Method, h handler) pastMethod {
	for _, segment := range segments(m.Path) {
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
	return pastMethod{m, h}
}

// pastCall describes a method that stands alone.
type pastCall struct {
	name    string // "VERB /path".
	perm    *pveapi.Rule
	root    bool   // For root@pam alone.
	params  string // As in props.
	returns *pveapi.Value
	since   string
	more    bool // Parameters that are not described here are taken.
	handle  handler
}

func (p pastCall) method() pastMethod {
	verb, path, _ := strings.Cut(p.name, " ")
	m := &pveapi.Method{
		Verb: verb, Path: path, Params: props(p.params), Returns: p.returns, Since: p.since, AdditionalParams: p.more, Protected: verb != "GET",
		Perm: pveapi.Perm{User: "all", Check: p.perm},
	}
	if p.root {
		m.Perm = pveapi.Perm{}
	} else if p.perm != nil {
		m.Perm.User = ""
	}
	return past(m, p.handle)
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

// anyOf is the rule that one of several privileges on a path is enough, allOf that all
// are needed, either that one of several rules holds.
func anyOf(path string, privs ...string) *pveapi.Rule {
	return &pveapi.Rule{Kind: "perm", Path: path, Privs: privs, Any: true}
}

func allOf(path string, privs ...string) *pveapi.Rule {
	return &pveapi.Rule{Kind: "perm", Path: path, Privs: privs}
}

func either(rules ...*pveapi.Rule) *pveapi.Rule { return &pveapi.Rule{Kind: "or", Rules: rules} }

func both(rules ...*pveapi.Rule) *pveapi.Rule { return &pveapi.Rule{Kind: "and", Rules: rules} }

// props reads descriptions of parameters, one a line: "name: type bounds", see describe.
func props(text string) map[string]*pveapi.Value {
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
		panic(fmt.Sprintf("pvesim: the description %q: %v", about, err)) // A mistake of the program.
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
