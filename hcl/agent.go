package hcl

import (
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// agentRule is the first part of the agent's paths in the table of values.go.
const agentRule = "agent"

// ParseAgent reads agent.hcl; name is what findings call it. All that is wrong is told
// at once. What has a value on every machine unless it is declared has that value; the
// blocks are never nil. The file holds values only: neither references nor functions.
func ParseAgent(name string, data []byte) (file *model.AgentFile, found diag.List) {
	l, all := agentLoad(name, data), schemas{}
	file = &model.AgentFile{}
	defer func() {
		if recover() != nil {
			l.errorf(fileStart(name), "internal error", "Reading this file went wrong at %s. This is a mistake in homestak-gitops: please report it with the file.", panicLocation())
			found = l.finish(nil)
		}
		agentDefaults(all, file)
	}()
	switch i := unreadable(data); {
	case len(data) > maxOther:
		l.errorf(fileStart(name), "unreadable file", "At most %d MiB are read.", maxOther>>20)
		return file, l.finish(nil)
	case i >= 0:
		l.errorf(offsetRange(name, data, i), "file is no UTF-8 text", "Byte %d is no character: save the file as UTF-8.", i)
		return file, l.finish(nil)
	case !l.checkFile(name, data):
		return file, l.finish(nil)
	}
	f, diags := hclsyntax.ParseConfig(data, name, hclv2.InitialPos)
	l.addDiagnostics(diags, false)
	body, ok := f.Body.(*hclsyntax.Body)
	if !ok {
		return file, l.finish(nil)
	}
	d := Decoder{evaluator: l, schemas: all, what: filepath.Base(name), scope: l.base}
	d.onlyValues(body)
	d.body(body, body.SrcRange, nil, all.part(file, agentRule))
	d.finish()
	file.Ranges = d.ranges
	return file, l.finish(logins(string(data)))
}

// SetAgent writes an attribute, named by its path such as repository.auth.token_file,
// from a text: that of a flag or of the environment. Elements of a list are parted by
// commas. The findings have no place.
func SetAgent(file *model.AgentFile, path, text string) diag.List {
	l := agentLoad("", nil)
	all := schemas{}
	d := Decoder{evaluator: l, schemas: all, scope: l.base}
	p := all.part(file, agentRule)
	names := strings.Split(path, ".")
	last := len(names) - 1
	for _, block := range names[:last] {
		i, ok := p.inner[block]
		if !ok {
			panic("agent.hcl has no block " + path)
		}
		f := p.blocks[i]
		field := p.value.Field(f.Index)
		if field.IsNil() {
			field.Set(reflect.New(f.Elem))
		}
		p = part{schema: f.schema, value: field.Elem(), rule: p.rule + "." + block}
	}
	i, ok := p.byName[names[last]]
	if !ok {
		panic("agent.hcl has no attribute " + path)
	}
	field := p.value.Field(p.attrs[i].Index)
	v := cty.StringVal(text)
	if field.Kind() == reflect.Slice {
		var list []cty.Value
		for one := range strings.SplitSeq(text, ",") {
			list = append(list, cty.StringVal(strings.TrimSpace(one)))
		}
		v = cty.TupleVal(list)
	}
	if problem := d.assign(field, v); problem != "" {
		d.errorf(hclv2.Range{}, names[last]+" "+problem, "%s", p.attrs[i].Doc)
	} else {
		d.checkValue(field, p.rule+"."+names[last], names[last], hclv2.Range{})
	}
	return l.finish(logins(text))
}

// agentLoad evaluates one file, without a site around it.
func agentLoad(name string, data []byte) *evaluator {
	t := newTree(nil)
	t.sources[name], t.current, t.complete = data, name, true
	return newEvaluator(t, inputs{}, nil)
}

// agentDefaults fills in what does not depend on the machine.
func agentDefaults(all schemas, file *model.AgentFile) {
	for _, block := range []any{&file.Repository, &file.Parent, &file.Access, &file.Log} {
		notNil(reflect.ValueOf(block).Elem())
	}
	notNil(reflect.ValueOf(&file.Repository.Auth).Elem())
	all.fill(reflect.ValueOf(file).Elem(), agentRule)
}

func notNil(pointer reflect.Value) {
	if pointer.IsNil() {
		pointer.Set(reflect.New(pointer.Type().Elem()))
	}
}

// onlyValues takes out of a body, and of the blocks in it, what refers to anything:
// there is nothing to refer to.
func (d *Decoder) onlyValues(b *hclsyntax.Body) {
	for _, a := range sortedAttributes(b) {
		references := a.Expr.Variables()
		if len(references) == 0 {
			continue
		}
		detail := "Values stand in this file as they are; there is nothing to refer to."
		if t := references[0]; len(t) == 1 {
			detail = fmt.Sprintf("A text stands in quotes: %s.", quote(t.RootName()))
		}
		d.errorf(references[0].SourceRange(), "unknown reference "+quote(spell(references[0])), "%s", detail)
		d.recordRange(a.Name, a.SrcRange)
		delete(b.Attributes, a.Name)
	}
	for _, inner := range b.Blocks {
		d.onlyValues(inner.Body)
	}
}

var urlUser = regexp.MustCompile(`://([^/\s"@]+)@`)

// logins finds what stands before the @ of URLs, and may be a token: no finding
// repeats it.
func logins(text string) []string {
	var out []string
	for _, hit := range urlUser.FindAllStringSubmatch(text, maxFindings) {
		if hit[1] != "git" { // what everybody writes, and a part of other words
			out = append(out, hit[1])
		}
	}
	return out
}
