package lang

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// Functions is the table of all functions that need nothing but their arguments. Two more, file and
// templatefile, belong to a load: see fileFunctions. If the library's function differs from
// Terraform's function of the same name, Terraform's is used.
func Functions() map[string]function.Function {
	table := map[string]function.Function{
		"abs": stdlib.AbsoluteFunc, "ceil": stdlib.CeilFunc, "floor": stdlib.FloorFunc, "int": stdlib.IntFunc, "log": stdlib.LogFunc,
		"max": stdlib.MaxFunc, "min": stdlib.MinFunc, "parseint": stdlib.ParseIntFunc, "pow": stdlib.PowFunc, "signum": stdlib.SignumFunc,

		"chomp": stdlib.ChompFunc, "format": stdlib.FormatFunc, "formatdate": stdlib.FormatDateFunc, "formatlist": stdlib.FormatListFunc,
		"indent": stdlib.IndentFunc, "join": stdlib.JoinFunc, "lower": stdlib.LowerFunc, "regex": stdlib.RegexFunc, "regexall": stdlib.RegexAllFunc,
		"replace": replaceFunc(), "split": stdlib.SplitFunc, "strlen": stdlib.StrlenFunc, "strrev": stdlib.ReverseFunc, "substr": stdlib.SubstrFunc,
		"timeadd": stdlib.TimeAddFunc, "title": stdlib.TitleFunc, "trim": stdlib.TrimFunc, "trimprefix": stdlib.TrimPrefixFunc,
		"trimspace": stdlib.TrimSpaceFunc, "trimsuffix": stdlib.TrimSuffixFunc, "upper": stdlib.UpperFunc,

		"chunklist": stdlib.ChunklistFunc, "coalesce": stdlib.CoalesceFunc, "coalescelist": stdlib.CoalesceListFunc, "compact": stdlib.CompactFunc,
		"concat": stdlib.ConcatFunc, "contains": stdlib.ContainsFunc, "distinct": stdlib.DistinctFunc, "element": stdlib.ElementFunc,
		"flatten": stdlib.FlattenFunc, "index": indexFunc(), "keys": stdlib.KeysFunc, "length": lengthFunc(), "lookup": stdlib.LookupFunc,
		"merge": stdlib.MergeFunc, "range": stdlib.RangeFunc, "reverse": stdlib.ReverseListFunc, "setintersection": stdlib.SetIntersectionFunc,
		"setproduct": stdlib.SetProductFunc, "setsubtract": stdlib.SetSubtractFunc, "setsymmetricdifference": stdlib.SetSymmetricDifferenceFunc,
		"setunion": stdlib.SetUnionFunc, "slice": stdlib.SliceFunc, "sort": stdlib.SortFunc, "values": stdlib.ValuesFunc, "zipmap": stdlib.ZipmapFunc,

		"csvdecode": stdlib.CSVDecodeFunc, "jsondecode": stdlib.JSONDecodeFunc, "jsonencode": stdlib.JSONEncodeFunc,
		"tobool": stdlib.MakeToFunc(cty.Bool), "tonumber": stdlib.MakeToFunc(cty.Number), "tostring": stdlib.MakeToFunc(cty.String),
		"tolist": stdlib.MakeToFunc(cty.List(cty.DynamicPseudoType)), "toset": stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType)),
		"tomap": stdlib.MakeToFunc(cty.Map(cty.DynamicPseudoType)),

		"can": tryfunc.CanFunc, "try": tryfunc.TryFunc,

		"cidrhost": cidrHostFunc(), "cidrsubnet": cidrSubnetFunc(),
	}
	for name, check := range map[string]func([]cty.Value) error{
		"format": boundFormat, "formatlist": boundFormat, "indent": boundIndent, "replace": boundReplace, "setproduct": boundProduct,
		"jsondecode": nil, "tonumber": nil, "join": nil, "pow": nil, "zipmap": nil, "flatten": nil, "concat": nil, "merge": nil,
	} {
		table[name] = bounded(table[name], check)
	}
	return table
}

// bounded wraps a function whose result can be far larger than its arguments: the
// check sees these before, and the result must not be too big either.
func bounded(f function.Function, check func(args []cty.Value) error) function.Function {
	run := func(args []cty.Value) error {
		if check == nil {
			return nil
		}
		for _, a := range args {
			if !a.IsWhollyKnown() {
				return nil
			}
		}
		return check(args)
	}
	return function.New(&function.Spec{
		Params: f.Params(), VarParam: f.VarParam(),
		Type: func(args []cty.Value) (cty.Type, error) {
			if err := run(args); err != nil {
				return cty.NilType, err
			}
			return f.ReturnTypeForValues(args)
		},
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			v, err := f.Call(args)
			if err != nil {
				return v, err
			}
			if problem := tooBig(v); problem != "" {
				return cty.NilVal, fmt.Errorf("the result is too large: %s", lowerFirst(strings.TrimSuffix(problem, ".")))
			}
			return v, nil
		},
	})
}

var wideVerb = regexp.MustCompile(`%[^a-zA-Z%]*[0-9]{4}`)

func text(v cty.Value) string {
	v, _ = v.Unmark()
	if v.IsNull() || !v.IsKnown() || v.Type() != cty.String {
		return ""
	}
	return v.AsString()
}

func boundFormat(args []cty.Value) error {
	if len(args) > 0 && wideVerb.MatchString(text(args[0])) {
		return fmt.Errorf("widths are limited to 999")
	}
	return nil
}

func boundIndent(args []cty.Value) error {
	n, _ := args[0].Unmark()
	lines := strings.Count(text(args[1]), "\n") + 1
	if width, _ := n.AsBigFloat().Int64(); width < 0 || width > 1000 || int(width)*lines > maxText {
		return fmt.Errorf("at most 1000 spaces, and 1 MiB in total")
	}
	return nil
}

func boundReplace(args []cty.Value) error {
	s, by := text(args[0]), text(args[2])
	if (len(s)+1)*len(by) > 16*maxText {
		return fmt.Errorf("the result could be too large")
	}
	return nil
}

func boundProduct(args []cty.Value) error {
	n := 1
	for _, a := range args {
		if a, _ = a.Unmark(); a.CanIterateElements() {
			n *= max(a.LengthInt(), 1)
		}
		if n > maxElements {
			return fmt.Errorf("more than %d combinations", maxElements)
		}
	}
	return nil
}

// lengthFunc counts the elements of a collection or the characters of a text.
func lengthFunc() function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "value", Type: cty.DynamicPseudoType, AllowDynamicType: true}},
		Type: func(args []cty.Value) (cty.Type, error) {
			t := args[0].Type()
			if t == cty.DynamicPseudoType || t == cty.String || t.IsCollectionType() || t.IsTupleType() || t.IsObjectType() {
				return cty.Number, nil
			}
			return cty.NilType, function.NewArgErrorf(0, "a list, a map or a string is required")
		},
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			v := args[0]
			switch t := v.Type(); {
			case t == cty.DynamicPseudoType:
				return cty.UnknownVal(cty.Number), nil
			case t == cty.String:
				return stdlib.Strlen(v)
			case t.IsObjectType():
				return cty.NumberIntVal(int64(len(t.AttributeTypes()))), nil
			default:
				return v.Length(), nil
			}
		},
	})
}

// indexFunc finds the position of a value in a list.
func indexFunc() function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "list", Type: cty.DynamicPseudoType}, {Name: "value", Type: cty.DynamicPseudoType}},
		Type:   function.StaticReturnType(cty.Number),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			if t := args[0].Type(); !t.IsListType() && !t.IsTupleType() {
				return cty.NilVal, function.NewArgErrorf(0, "a list is required")
			}
			for it := args[0].ElementIterator(); it.Next(); {
				i, e := it.Element()
				same, err := stdlib.Equal(e, args[1])
				if err != nil {
					return cty.NilVal, err
				}
				if !same.IsKnown() {
					return cty.UnknownVal(cty.Number), nil
				}
				if same.True() {
					return i, nil
				}
			}
			return cty.NilVal, fmt.Errorf("the list has no such element")
		},
	})
}

// replaceFunc replaces a text, or what a regular expression between slashes matches.
func replaceFunc() function.Function {
	param := func(name string) function.Parameter { return function.Parameter{Name: name, Type: cty.String} }
	return function.New(&function.Spec{
		Params: []function.Parameter{param("text"), param("substring"), param("replacement")},
		Type:   function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			if what := args[1].AsString(); len(what) > 1 && what[0] == '/' && what[len(what)-1] == '/' {
				return stdlib.RegexReplace(args[0], cty.StringVal(what[1:len(what)-1]), args[2])
			}
			return stdlib.Replace(args[0], args[1], args[2])
		},
	})
}
