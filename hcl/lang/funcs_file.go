package lang

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// Read reads a file of the site for an expression or attribute. The site depends
// on it from then on.
func (ev *Evaluator) Read(name string) (data []byte, problem string) {
	name = path.Clean(name)
	data, problem = ReadFile(ev.Inputs.Files, name, MaxOther)
	ev.Others[name] = ReadSum(data, problem)
	return data, problem
}

// fileFunctions are the functions that read files of the site, by a path relative to its folder.
// These files are part of the site, so they must not contain secrets either.
func (ev *Evaluator) fileFunctions() map[string]function.Function {
	param := function.Parameter{Name: "path", Type: cty.String}
	return map[string]function.Function{
		"file": function.New(&function.Spec{
			Params: []function.Parameter{param},
			Type:   function.StaticReturnType(cty.String),
			Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
				s, err := ev.readText(args[0].AsString())
				return cty.StringVal(s), err
			},
		}),
		"templatefile": function.New(&function.Spec{
			Params: []function.Parameter{param, {Name: "values", Type: cty.DynamicPseudoType}},
			Type:   function.StaticReturnType(cty.String),
			Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
				return ev.renderFile(args[0].AsString(), args[1])
			},
		}),
	}
}

func (ev *Evaluator) readText(name string) (string, error) {
	data, err := ev.ReadContent(name)
	if err == nil && Unreadable(data) >= 0 {
		err = fmt.Errorf("%s is not UTF-8 text", Quote(name))
	}
	return string(data), err
}

// ReadContent reads a file of the site, text or binary, whose content becomes part of the site: it
// must not contain a secret.
func (ev *Evaluator) ReadContent(name string) ([]byte, error) {
	data, problem := ev.Read(name)
	if problem != "" {
		if !strings.Contains(problem, name) { // else it says already which file
			problem = fmt.Sprintf("%s (relative to the site's folder): %s", Quote(name), problem)
		}
		return nil, errors.New(problem)
	}
	secret := new(Findings)
	if secret.FindSecrets(name, data); len(secret.List) > 0 {
		return nil, fmt.Errorf("plaintext secret: %s contains one, at line %d; move it to the secrets file", Quote(name), secret.List[0].At.Start.Line)
	}
	return data, nil
}

// renderFile renders a template with the given values and nothing else. A template
// can use all functions but templatefile.
func (ev *Evaluator) renderFile(name string, values cty.Value) (cty.Value, error) {
	if t := values.Type(); !t.IsObjectType() && !t.IsMapType() {
		return cty.NilVal, function.NewArgErrorf(1, "a map of values is required")
	}
	src, err := ev.readText(name)
	if err != nil {
		return cty.NilVal, function.NewArgError(0, err)
	}
	aside := &Findings{Sources: map[string][]byte{name: []byte(src)}}
	if !aside.CheckNesting(name, []byte(src), hclsyntax.LexTemplate, false) {
		return cty.NilVal, fmt.Errorf("in %s", aside.List[0])
	}
	expr, diags := hclsyntax.ParseTemplate([]byte(src), name, hclv2.InitialPos)
	if diags.HasErrors() {
		return cty.NilVal, TemplateError(diags)
	}
	ctx := &hclv2.EvalContext{Variables: map[string]cty.Value{}, Functions: maps.Clone(ev.funcs)}
	maps.Copy(ctx.Functions, ev.fileFunctions())
	delete(ctx.Functions, "templatefile")
	for it := values.ElementIterator(); it.Next(); {
		k, v := it.Element()
		ctx.Variables[k.AsString()] = v
	}
	for _, t := range expr.Variables() {
		if _, ok := ctx.Variables[t.RootName()]; !ok {
			at := DiagRange(t.SourceRange())
			return cty.NilVal, fmt.Errorf("in %s: the template uses %s, which is not one of the values: %s", at, Quote(t.RootName()), strings.Join(slices.Sorted(maps.Keys(ctx.Variables)), ", "))
		}
	}
	v, diags := expr.Value(ctx)
	if diags.HasErrors() {
		return cty.NilVal, TemplateError(diags)
	}
	if problem := tooBig(v); problem != "" {
		return cty.NilVal, errors.New(problem)
	}
	if !v.IsKnown() {
		return cty.UnknownVal(cty.String), nil // a secret whose value is not known
	}
	if v.IsNull() || v.Type() != cty.String {
		return cty.NilVal, fmt.Errorf("%s does not return a string", Quote(name))
	}
	return v, nil
}

// TemplateError describes an error of a template in one line, with its position.
func TemplateError(diags hclv2.Diagnostics) error {
	d := diags.Errs()[0]
	for _, one := range diags {
		if one.Severity == hclv2.DiagError && one.Subject != nil {
			return fmt.Errorf("in %s: %s: %s", DiagRange(*one.Subject), lowerFirst(one.Summary), strings.TrimRight(one.Detail, "."))
		}
	}
	return d
}
