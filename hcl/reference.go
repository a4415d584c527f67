package hcl

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// Reference writes the reference page of the language in Markdown. All of it comes
// from the tags of the structs and the tables of this package.
func Reference(w io.Writer, kinds model.Kinds) error {
	p := page{schemas: lang.Schemas{}, written: map[*lang.Schema]string{}, rows: map[string][]row{}}
	p.printf("# Language reference\n\n")
	p.printf("Generated from the code. [examples/site](../examples/site) shows how the blocks fit together.\n\n")
	p.printf("An attribute without a type is a string, or has the type of its default. In a duration, d is 24 hours: 1d12h. A bool without a default is false. A block with a NAME may be repeated. ")
	p.printf("Some brackets end with the [cost](changes.md#what-a-change-costs) of a change on a running guest.\n\n")
	types := lang.BlockTypes(kinds)
	var links []string
	for _, t := range types {
		links = append(links, fmt.Sprintf("[`%s`](#%s)", t.Name, t.Name))
		if t.Name == "manifest" {
			links = append(links, "[`node`](#node)")
		}
	}
	p.printf("Blocks: %s. Also: [functions](#functions), [secrets](#secrets), [agent.hcl](#agenthcl).\n\n", strings.Join(links, ", "))
	for _, t := range types {
		switch {
		case t.Kind != nil:
			p.kind(t.Kind, t.Name)
		case t.Name == "locals":
			p.printf("## locals\n\n%s\n\n", t.Doc)
		case t.Name == "variable":
			p.variable(t.Doc)
		case t.Name == "moved":
			p.printf("## moved\n\n%s\n\n", t.Doc)
			p.block(p.schemas.Of(t.Spec), t.Name, reflect.Value{}, false)
		default:
			p.title(t.Name, t.Doc)
			p.block(p.schemas.Of(t.Spec), t.Name, reflect.Value{}, false)
		}
		if t.Name == "manifest" {
			p.node(kinds)
		}
	}
	p.functions()
	p.secrets()
	p.agent()
	_, err := io.WriteString(w, strings.TrimRight(p.out.String(), "\n")+"\n")
	return err
}

type page struct {
	schemas lang.Schemas
	written map[*lang.Schema]string // the lists so far, by the block that has them
	rows    map[string][]row        // the same by the rule of the block
	first   string                  // the type of node that the page begins with, while it writes the others
	out     strings.Builder
}

func (p *page) printf(format string, args ...any) { fmt.Fprintf(&p.out, format, args...) }

func (p *page) title(name, doc string) {
	p.printf("## %s\n\n`%s \"NAME\"`: %s\n\n", name, name, doc)
}

func (p *page) variable(doc string) {
	p.title("variable", doc)
	p.list("variable", []row{
		{"`type`", " (type, default any)", "string, number, bool, list(string), map(string) or any."},
		{"`default`", " (that type)", "Its value; required unless --var gives one."},
		{"`description`", "", "A comment."},
	})
}

// kind writes a block that is a resource of its own.
func (p *page) kind(k *model.Kind, name string) {
	doc := k.Doc
	if k.Everywhere {
		doc += " Created on each host that needs it."
	}
	p.title(name, doc)
	p.block(p.schemas.Of(reflect.TypeOf(k.New()).Elem()), name, reflect.ValueOf(k.New()).Elem(), true)
}

// node writes the attributes that all nodes share, then those of each type.
func (p *page) node(kinds model.Kinds) {
	p.title(lang.NodeBlock, "One node in a manifest, or several with count or for_each. Attributes of all types:")
	p.list(lang.NodeBlock, append(rows(p.schemas.Of(reflect.TypeFor[model.Node]()), lang.NodeBlock, reflect.Value{}, false),
		row{"`count`", " (number)", "Creates that many nodes, NAME-1 and so on; count.index counts from 0."},
		row{"`for_each`", " (map or list(string))", "Creates a node for each key, NAME-KEY, with its each.key and each.value."}))
	p.inner(p.schemas.Of(reflect.TypeFor[model.Node]()), lang.NodeBlock, reflect.Value{}, "node", false)
	for _, k := range kinds.Block(lang.NodeBlock) {
		s := p.schemas.Of(reflect.TypeOf(k.New()).Elem())
		p.printf("### %s\n\n`type = %q`%s: %s\n\n", k.Name, k.Name, p.as(s), k.Doc)
		p.block(s, k.Name, reflect.ValueOf(k.New()).Elem(), true)
		p.first = cmp.Or(p.first, k.Name)
	}
	p.first = ""
}

// as says where the list of a block is if the page has it already, such as that of a VM for the type pve.
func (p *page) as(s *lang.Schema) string {
	if first, found := p.written[s]; found {
		return ", as " + first
	}
	return ""
}

func (p *page) block(s *lang.Schema, rule string, defaults reflect.Value, costs bool) {
	if p.as(s) != "" {
		return
	}
	p.written[s] = "`" + rule + "`"
	p.list(rule, rows(s, rule, defaults, costs))
	p.inner(s, rule, defaults, rule, costs)
}

// inner writes the blocks inside of a block, each with a list of its own.
func (p *page) inner(s *lang.Schema, rule string, defaults reflect.Value, way string, costs bool) {
	for _, f := range s.Blocks {
		label := ""
		if f.Schema.Label >= 0 {
			label = ` "NAME"`
		}
		as := p.as(f.Schema)
		p.printf("**`%s`** in %s%s: %s\n\n", f.Name+label, way, as, f.Doc)
		if as != "" {
			continue
		}
		p.written[f.Schema] = "in " + way
		var inner reflect.Value
		if defaults.IsValid() && !f.Many && !defaults.Field(f.Index).IsNil() {
			inner = defaults.Field(f.Index).Elem()
		}
		p.list(rule+"."+f.Name, rows(f.Schema, rule+"."+f.Name, inner, costs))
		p.inner(f.Schema, rule+"."+f.Name, inner, "`"+strings.Trim(way, "`")+"."+f.Name+"`", costs)
	}
}

// row is one attribute: its name, in brackets its type, the default and the cost of a change, and its meaning.
type row [3]string

// list writes the attributes of a block, in one line those with the same text. Those that the same block of the first type of
// node has too are only named, with their brackets if these differ.
func (p *page) list(rule string, rows []row) {
	p.rows[rule] = rows
	if kind, rest, _ := strings.Cut(rule, "."); p.first != "" && kind != p.first {
		first := strings.TrimSuffix(p.first+"."+rest, ".")
		var same, other []string
		rows = slices.DeleteFunc(slices.Clone(rows), func(r row) bool {
			i := slices.IndexFunc(p.rows[first], func(f row) bool { return f[0] == r[0] && f[2] == r[2] && (f[1] == r[1] || r[1] != "") })
			switch {
			case i < 0:
				return false
			case p.rows[first][i] == r:
				same = append(same, r[0])
			default:
				other = append(other, r[0]+r[1])
			}
			return true
		})
		if len(same) > 0 {
			p.printf("As in `%s`: %s.", first, strings.Join(same, ", "))
			if len(other) > 0 {
				p.printf(" At another cost: %s.", strings.Join(other, ", "))
			}
			p.printf(" Besides:\n\n")
		}
	}
	for i, r := range rows {
		if i == 0 || rows[i-1][2] != r[2] {
			p.printf("* ")
		}
		p.printf("%s%s", r[0], r[1])
		if i+1 < len(rows) && rows[i+1][2] == r[2] {
			p.printf(", ")
		} else {
			p.printf(": %s\n", r[2])
		}
	}
	if len(rows) > 0 {
		p.printf("\n")
	}
}

// rows returns the attributes of a block.
func rows(s *lang.Schema, rule string, defaults reflect.Value, costs bool) (out []row) {
	for _, f := range s.Attrs {
		var terms []string
		kind, def := typeName(f, rule), defaultOf(f, rule, defaults)
		if kind != "string" && (def == "" || kind == "duration") {
			terms = append(terms, kind)
		}
		if f.Secret {
			terms = append(terms, "secret")
		}
		if !f.Optional {
			terms = append(terms, "required")
		}
		if def != "" {
			terms = append(terms, "default "+def)
		}
		if costs && f.Compared {
			terms = append(terms, string(f.Cost))
		}
		in := ""
		if len(terms) > 0 {
			in = " (" + strings.Join(terms, ", ") + ")"
		}
		out = append(out, row{"`" + f.Name + "`", in, f.Doc})
	}
	return out
}

// defaultOf returns the default of an attribute, as it would be written.
func defaultOf(f model.Field, rule string, defaults reflect.Value) string {
	v := reflect.ValueOf(lang.DefaultValue(rule + "." + f.Name))
	if !v.IsValid() && defaults.IsValid() {
		v = defaults.Field(f.Index)
		if v.Kind() == reflect.Pointer && !v.IsNil() {
			v = v.Elem()
		}
	}
	if !v.IsValid() || v.IsZero() {
		return ""
	}
	switch d := v.Interface().(type) {
	case time.Duration:
		return fmt.Sprintf("`%q`", model.ShortDuration(d))
	case string:
		return fmt.Sprintf("`%q`", d)
	case []string:
		return fmt.Sprintf("`[\"%s\"]`", strings.Join(d, `", "`))
	case map[string]string:
		var entries []string
		for _, k := range slices.Sorted(maps.Keys(d)) {
			entries = append(entries, fmt.Sprintf("%s = %q", k, d[k]))
		}
		return "`{ " + strings.Join(entries, ", ") + " }`"
	default:
		return fmt.Sprintf("`%v`", d)
	}
}

func typeName(f model.Field, rule string) string {
	ref := f.Ref
	if rule == lang.NodeBlock && (f.Name == "parent" || f.Name == "depends_on") {
		ref = lang.NodeBlock
	}
	switch {
	case ref != "" && f.Type.Kind() == reflect.Slice:
		return "list of `" + ref + ".NAME`"
	case ref != "":
		return "`" + ref + ".NAME`"
	}
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == lang.DurationType:
		return "duration"
	case t.Kind() == reflect.String:
		return "string"
	case t.Kind() == reflect.Bool:
		return "bool"
	case t.Kind() == reflect.Slice:
		return "list(string)"
	case t.Kind() == reflect.Map:
		return "map(string)"
	case t.Kind() == reflect.Float64:
		return "number"
	default:
		return "integer"
	}
}

// agent documents agent.hcl, which is a file of each machine, not of the site.
func (p *page) agent() {
	p.printf("\n# agent.hcl\n\nThe configuration of an agent, on its machine. ")
	p.printf("Every attribute is optional. A flag of `agent` overrides the environment, which overrides the file: the variable of ")
	p.printf("`repository.auth.token_file` is `HOMESTAK_REPOSITORY_AUTH_TOKEN_FILE`, and so on. ")
	p.printf("`homestak-gitops agent --print-config` shows the values in effect and their sources. ")
	p.printf("A relative path is below the folder of this file. There are no references and no functions.\n\n")
	file := p.schemas.Of(reflect.TypeFor[model.AgentFile]())
	p.list(agentRule, rows(file, agentRule, reflect.Value{}, false))
	p.inner(file, agentRule, reflect.Value{}, "agent.hcl", false)
}

func (p *page) functions() {
	table := lang.Functions()
	names := append(slices.Sorted(maps.Keys(table)), "file", "templatefile")
	slices.Sort(names)
	p.printf("## Functions\n\nNone reads a clock, the environment or the network; `file` and `templatefile` read files of the site.\n\n")
	p.printf("`%s`\n", strings.Join(names, "`, `"))
}

// secrets writes what the secrets file may have.
func (p *page) secrets() {
	p.printf(`
## Secrets

` + "`secrets.yaml`" + ` beside ` + "`site.hcl`" + `, which git must not track, or [` + "`secrets.sops.yaml`" + `](howto/secrets-in-git.md), or the file of --secrets or of
` + "`secrets_file`" + ` of an agent: YAML with these sections. Each maps names to strings. Files of the site use them as secret.SECTION.NAME, or as
secret.SECTION["NAME"], which takes every name.

`)
	p.names("", secretSections())
	p.names("  ", authKeys())
	p.printf(`
An example:

    api_tokens:
      father: "homestak@pve!gitops=00000000-0000-0000-0000-000000000000"
    passwords:
      db: "correct horse battery staple"
    ssh_keys:
      me@laptop: "ssh-ed25519 AAAA… me@laptop"
      gitops: "ssh-ed25519 AAAA… gitops"
      gitops-private: |
        -----BEGIN OPENSSH PRIVATE KEY-----
        …
        -----END OPENSSH PRIVATE KEY-----
    auth:
      ownership_key: "…"

    host "father" {
      api = "https://192.0.2.10:8006"
      ssh {
        key = secret.ssh_keys["gitops-private"]
      }
    }
`)
}

func (p *page) names(indent string, all []named) {
	for _, n := range all {
		p.printf("%s* `%s`: %s\n", indent, n.name, n.doc)
	}
}
