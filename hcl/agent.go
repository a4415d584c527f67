package hcl

import (
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// agentRule is the first part of the agent's paths in the table of values.go.
const agentRule = "agent"

// ParseAgent reads agent.hcl; name is the file's name in findings. It reports all problems at once.
// Attributes with a default that suits every machine have that default; the blocks are never nil.
// The file has plain values only, no references and no functions.
func ParseAgent(name string, data []byte) (file *model.AgentFile, found diag.List) {
	l, all := agentLoad(name, data), lang.Schemas{}
	file = &model.AgentFile{}
	defer func() {
		if recover() != nil {
			l.Errorf(lang.FileStart(name), "internal error", "Reading this file failed at %s. This is a bug in homestak-gitops: please report it with the file.", panicLocation())
			found = l.Finish(nil)
		}
		agentDefaults(all, file)
	}()
	switch i := lang.Unreadable(data); {
	case len(data) > lang.MaxOther:
		l.Errorf(lang.FileStart(name), "unreadable file", "The limit is %d MiB.", lang.MaxOther>>20)
		return file, l.Finish(nil)
	case i >= 0:
		l.Errorf(lang.OffsetRange(name, data, i), "file is not UTF-8 text", "Byte %d is not valid UTF-8: save the file as UTF-8.", i)
		return file, l.Finish(nil)
	case !l.CheckFile(name, data):
		return file, l.Finish(nil)
	}
	f, diags := hclsyntax.ParseConfig(data, name, hclv2.InitialPos)
	l.AddDiagnostics(diags, false)
	body, ok := f.Body.(*hclsyntax.Body)
	if !ok {
		return file, l.Finish(nil)
	}
	d := lang.Decoder{Evaluator: l, Schemas: all, What: filepath.Base(name), Scope: l.Base}
	onlyValues(&d, body)
	d.Body(body, body.SrcRange, nil, all.Part(file, agentRule))
	d.Finish()
	file.Ranges = d.Ranges
	return file, l.Finish(logins(string(data)))
}

// SetAgent writes an attribute, named by its path such as repository.auth.token_file, from the text
// of a flag or an environment variable. Elements of a list are separated by commas. The findings
// have no position.
func SetAgent(file *model.AgentFile, path, text string) diag.List {
	l := agentLoad("", nil)
	all := lang.Schemas{}
	d := lang.Decoder{Evaluator: l, Schemas: all, Scope: l.Base}
	p := all.Part(file, agentRule)
	names := strings.Split(path, ".")
	last := len(names) - 1
	for _, block := range names[:last] {
		i, ok := p.Inner[block]
		if !ok {
			panic("agent.hcl has no block " + path)
		}
		f := p.Blocks[i]
		field := p.Value.Field(f.Index)
		if field.IsNil() {
			field.Set(reflect.New(f.Elem))
		}
		p = lang.Part{Schema: f.Schema, Value: field.Elem(), Rule: p.Rule + "." + block}
	}
	i, ok := p.ByName[names[last]]
	if !ok {
		panic("agent.hcl has no attribute " + path)
	}
	field := p.Value.Field(p.Attrs[i].Index)
	v := cty.StringVal(text)
	if field.Kind() == reflect.Slice {
		var list []cty.Value
		for one := range strings.SplitSeq(text, ",") {
			list = append(list, cty.StringVal(strings.TrimSpace(one)))
		}
		v = cty.TupleVal(list)
	}
	if problem := d.Assign(field, v); problem != "" {
		d.Errorf(hclv2.Range{}, names[last]+" "+problem, "%s", p.Attrs[i].Doc)
	} else {
		d.CheckValue(field, p.Rule+"."+names[last], names[last], hclv2.Range{})
	}
	return l.Finish(logins(text))
}

// agentLoad evaluates one file, without a site around it.
func agentLoad(name string, data []byte) *lang.Evaluator {
	t := lang.NewTree(nil)
	t.Sources[name], t.Current, t.Complete = data, name, true
	return t.Evaluator(lang.Inputs{}, nil)
}

// agentDefaults fills in what does not depend on the machine.
func agentDefaults(all lang.Schemas, file *model.AgentFile) {
	for _, block := range []any{&file.Repository, &file.Parent, &file.API, &file.Access, &file.Web, &file.Log} {
		notNil(reflect.ValueOf(block).Elem())
	}
	notNil(reflect.ValueOf(&file.Repository.Auth).Elem())
	all.Fill(reflect.ValueOf(file).Elem(), agentRule)
}

func notNil(pointer reflect.Value) {
	if pointer.IsNil() {
		pointer.Set(reflect.New(pointer.Type().Elem()))
	}
}

// onlyValues removes references from a body and its inner blocks: there is nothing to refer to.
func onlyValues(d *lang.Decoder, b *hclsyntax.Body) {
	for _, a := range lang.SortedAttributes(b) {
		references := a.Expr.Variables()
		if len(references) == 0 {
			continue
		}
		detail := "This file has plain values only; there is nothing to refer to."
		if t := references[0]; len(t) == 1 {
			detail = fmt.Sprintf("Put a string in quotes: %s.", lang.Quote(t.RootName()))
		}
		d.Errorf(references[0].SourceRange(), "unknown reference "+lang.Quote(lang.Spell(references[0])), "%s", detail)
		d.RecordRange(a.Name, a.SrcRange)
		delete(b.Attributes, a.Name)
	}
	for _, inner := range b.Blocks {
		onlyValues(d, inner.Body)
	}
}

var urlUser = regexp.MustCompile(`://([^/\s"@]+)@`)

// logins matches the part before the @ of a URL. It may be a token, so no finding repeats it.
func logins(text string) []string {
	var out []string
	for _, hit := range urlUser.FindAllStringSubmatch(text, lang.MaxFindings) {
		if hit[1] != "git" { // common, and part of other words
			out = append(out, hit[1])
		}
	}
	return out
}

// panicLocation returns our function and line where a panic started. The panic's text is not
// reported, because it may repeat a value.
func panicLocation() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.Contains(f.Function, "homestak-gitops/") && !strings.HasSuffix(f.Function, "anicLocation") {
			return fmt.Sprintf("%s, line %d", f.Function[strings.LastIndexByte(f.Function, '/')+1:], f.Line)
		}
		if !more {
			return "an unknown position"
		}
	}
}
