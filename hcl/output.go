package hcl

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// decodeOutputs decodes the outputs. Their templates are tried by checkOutputs, when all nodes are known.
func (l *load) decodeOutputs() {
	for _, b := range l.Blocks["output"] {
		o := &model.Output{At: lang.DiagRange(b.At)}
		d := l.decodeBlock(b, o, true)
		if slices.ContainsFunc(d.Sensitive, func(p string) bool { return !strings.HasPrefix(p, "repository.") }) {
			l.Errorf(b.At, "output "+lang.Quote(b.Name)+" is made from a secret", "Others read an output: take the secret out of template and to.")
			b.Invalid = true
		}
		if problem := outputPath(o); problem != "" && !b.Invalid {
			l.Errorf(b.Body.Attributes["to"].SrcRange, "to = "+lang.Quote(o.To)+" is not valid", "%s", problem)
			b.Invalid = true
		}
		if b.Invalid {
			continue
		}
		o.File = fileOf(b.Body.Attributes["template"].Expr)
		if o.File == "" && !strings.ContainsAny(o.Template, "\n{") {
			if _, problem := l.Read(o.Template); problem == "" {
				l.Warnf(b.Body.Attributes["template"].SrcRange, "the template of output "+lang.Quote(b.Name)+" is the name of a file", "Write template = file(%q).", o.Template)
			}
		}
		if l.site.Outputs == nil {
			l.site.Outputs = map[string]*model.Output{}
		}
		l.site.Outputs[b.Name] = o
	}
}

// fileOf is the file that an expression names if it is file("…") alone.
func fileOf(e hclsyntax.Expression) string {
	call, is := e.(*hclsyntax.FunctionCallExpr)
	if !is || call.Name != "file" || len(call.Args) != 1 {
		return ""
	}
	v, diags := call.Args[0].Value(nil)
	if diags.HasErrors() || v.Type() != cty.String {
		return ""
	}
	return v.AsString()
}

// outputPath says what is wrong with the path of an output, "" for nothing.
func outputPath(o *model.Output) string {
	switch clean := path.Clean(o.To); {
	case o.To == "":
		return ""
	case clean != o.To || strings.ContainsAny(o.To, "\x00\n") || clean == ".." || strings.HasPrefix(clean, "../"):
		return "Write a path without . and .., and without a slash at its end."
	case strings.HasPrefix(clean, "~"):
		return "~ is not expanded. Write an absolute path."
	case strings.HasPrefix(path.Base(clean), "."):
		return "The name of the file must not begin with a dot."
	case o.Repository != nil && path.IsAbs(clean):
		return "In a repository it is a path below its root."
	default:
		return ""
	}
}

// checkOutputs renders each output with what the files say, and finds outputs that write one file. What depends on
// facts is rendered again when they are known; the cost is the same.
func checkOutputs(rs *rules) {
	if rs.site.Name == "" {
		return
	}
	var facts cty.Value
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(rs.site.Outputs)) {
		o := rs.site.Outputs[name]
		if facts == cty.NilVal {
			var err error
			if facts, err = factsValue(model.OutputFacts(rs.site, nil, func(*model.Resource) string { return "" })); err != nil {
				rs.ErrorAt(o.At, "the facts for outputs cannot be made", "%v", err)
				return
			}
		}
		text, err := render(cmp.Or(o.File, "output "+name), o.Template, facts)
		if err == nil {
			err = withoutSecrets(text, rs.site.Secrets)
		}
		if err != nil && rs.Complete {
			rs.ErrorAt(o.At, "output "+lang.Quote(name)+" cannot be rendered", "%s.", lang.UpperFirst(err.Error()))
		}
		key := o.To
		if o.Repository != nil {
			key = o.Repository.URL + " " + o.Repository.Branch + " " + o.To
		}
		if first := seen[key]; first != "" && o.To != "" {
			rs.ErrorAt(o.At, "outputs "+lang.Quote(first)+" and "+lang.Quote(name)+" are the same file", "Change to in one of them.")
		}
		seen[key] = name
	}
}

// Render renders templates of outputs, by their names, with facts, not nil: those of model.OutputFacts. It reads nothing.
func Render(templates map[string]string, facts map[string]any) map[string]model.Rendered {
	out := make(map[string]model.Rendered, len(templates))
	value, err := factsValue(facts)
	for name, template := range templates {
		r := model.Rendered{}
		if err == nil {
			if r.Text, err = render("output "+name, template, value); err != nil {
				r.Error, err = err.Error(), nil
			}
		} else {
			r.Error = err.Error()
		}
		out[name] = r
	}
	return out
}

// factsValue makes the value of the language of a document.
func factsValue(facts map[string]any) (cty.Value, error) {
	b, err := json.Marshal(facts)
	if err != nil {
		return cty.NilVal, err
	}
	t, err := ctyjson.ImpliedType(b)
	if err != nil {
		return cty.NilVal, err
	}
	return ctyjson.Unmarshal(b, t)
}

// render renders one template, with where it is for errors. Its functions are those of the language without file and templatefile.
func render(at, template string, facts cty.Value) (string, error) {
	aside := &lang.Findings{Sources: map[string][]byte{at: []byte(template)}}
	if !aside.CheckNesting(at, []byte(template), hclsyntax.LexTemplate, false) {
		return "", errors.New(aside.List[0].Summary)
	}
	expr, diags := hclsyntax.ParseTemplate([]byte(template), at, hclv2.InitialPos)
	if diags.HasErrors() {
		return "", lang.TemplateError(diags)
	}
	ctx := &hclv2.EvalContext{Variables: facts.AsValueMap(), Functions: lang.Functions()}
	for _, t := range expr.Variables() {
		if _, known := ctx.Variables[t.RootName()]; !known {
			return "", fmt.Errorf("in %s: a template of an output knows nodes, hosts and site, and not %s", lang.DiagRange(t.SourceRange()), lang.Quote(t.RootName()))
		}
	}
	v, diags := expr.Value(ctx)
	if !diags.HasErrors() && v.Type().IsPrimitiveType() { // that of a template with one expression alone
		if text, err := convert.Convert(v, cty.String); err == nil {
			v = text
		}
	}
	switch {
	case diags.HasErrors():
		return "", lang.TemplateError(diags)
	case v.IsNull() || !v.IsWhollyKnown() || v.Type() != cty.String:
		return "", errors.New("it is not a text")
	case len(v.AsString()) > maxOutput:
		return "", fmt.Errorf("it has more than %d MiB", maxOutput>>20)
	}
	return v.AsString(), nil
}

// maxOutput bounds the text of an output, in bytes.
const maxOutput = 1 << 20

// withoutSecrets is the last resort: a text that repeats the value of a secret is refused.
func withoutSecrets(text string, s *model.Secrets) error {
	for _, v := range s.Long() {
		if strings.Contains(text, v) {
			return errors.New("it contains the value of a secret")
		}
	}
	return nil
}
