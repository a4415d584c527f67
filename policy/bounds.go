package policy

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// The largest values that policies may create. One call can create a huge value (join a text with
// itself a million times) without checking whether it should stop. So such calls are limited before
// they start; values that grow step by step are left to the limits of the whole evaluation, in
// limit.go.
const (
	maxText   = 1 << 20        // bytes of a text
	maxGuess  = 16 * maxText   // the same, where only an upper estimate can be had before the call
	maxDigits = 400            // of a number, in any notation; a float64 has 308
	maxFactor = 10 * maxDigits // of all factors of a product together
	maxList   = 1_000_000      // elements of a list made by one call
)

// bound returns an error if a call must not be made.
type bound func(args []*ast.Term) error

// bounds are the functions whose result may be much larger than their arguments, or
// follow from more than their arguments.
func bounds() map[string]bound {
	return map[string]bound{
		"concat": boundConcat, "sprintf": boundSprintf, "internal.template_string": boundWritten, "json.marshal": boundWritten,
		"replace": boundReplace, "strings.replace_n": boundReplaceN, "regex.replace": boundRegexReplace,
		"numbers.range": boundRange, "numbers.range_step": boundRangeStep, "array.flatten": boundFlatten, "array.concat": boundJoin,
		"mul": boundDigits, "plus": boundDigits, "minus": boundDigits, "div": boundDigits, "rem": boundDigits,
		"floor": boundDigits, "ceil": boundDigits, "round": boundDigits, "abs": boundDigits, "format_int": boundDigits,
		"sum": boundSum, "product": boundProduct,
		"time.add_date": boundZone, "time.clock": boundZone, "time.date": boundZone, "time.format": boundZone, "time.weekday": boundZone,
		"base64.decode": nil, "base64.encode": nil, "base64url.decode": nil, "base64url.encode": nil, "base64url.encode_no_pad": nil,
		"hex.encode": nil, "json.unmarshal": nil, "lower": nil, "to_number": nil, "units.parse": nil, "units.parse_bytes": nil,
		"upper": nil, "urlquery.encode": nil, "urlquery.encode_object": nil, // nil: only the result is checked
	}
}

// install wraps the functions with their bounds. OPA has one table of functions for the whole
// process, and this package is its only user: it writes there once, before anything is compiled,
// and never again.
var install = sync.OnceFunc(func() {
	limited := bounds()
	for _, known := range ast.Builtins {
		known.CanSkipBctx = false // without a context, a call does not know where it stands
		name, call := known.Name, topdown.GetBuiltin(known.Name)
		b, isLimited := limited[name]
		switch {
		case call == nil: // the evaluator does it without a function
		case !isLimited:
			topdown.RegisterBuiltinFunc(name, func(bctx topdown.BuiltinContext, args []*ast.Term, iter func(*ast.Term) error) error {
				enter(bctx)
				return call(bctx, args, iter)
			})
		default:
			topdown.RegisterBuiltinFunc(name, bounded(name, b, call))
		}
	}
})

// bounded is a function with its bound.
func bounded(name string, b bound, call topdown.BuiltinFunc) topdown.BuiltinFunc {
	return func(bctx topdown.BuiltinContext, args []*ast.Term, iter func(*ast.Term) error) error {
		enter(bctx)
		if b != nil {
			if err := b(args); err != nil {
				return halt(bctx, name, err)
			}
		}
		return call(bctx, args, func(result *ast.Term) error {
			if err := boundResult(result, b == nil); err != nil {
				return halt(bctx, name, err)
			}
			return iter(result)
		})
	}
}

// halt ends the evaluation. An ordinary error of a function would only be collected:
// it would be reported at the end, which may be a million calls later.
func halt(bctx topdown.BuiltinContext, name string, err error) error {
	return topdown.Halt{Err: &topdown.Error{Code: topdown.BuiltinErr, Message: name + ": " + err.Error(), Location: bctx.Location}}
}

var (
	errText   = fmt.Errorf("the result would be a string of more than %d KiB", maxText>>10)
	errList   = fmt.Errorf("the result would have more than %d elements", maxList)
	errNumber = fmt.Errorf("a number has more than %d digits", maxDigits)
	errZone   = errors.New("the time zone Local differs between machines: name one, such as Europe/Berlin")
)

func over(size, most int, err error) error {
	if size > most {
		return err
	}
	return nil
}

// boundResult checks the result of a call; deep also checks what is inside it.
func boundResult(t *ast.Term, deep bool) error {
	switch v := t.Value.(type) {
	case ast.String:
		return over(len(v), maxText, errText)
	case ast.Number:
		return over(digits(v), 2*maxDigits, errNumber)
	case *ast.Array, ast.Object:
		if !deep {
			return nil
		}
		var err error
		ast.WalkTerms(t, func(t *ast.Term) bool {
			if n, ok := t.Value.(ast.Number); ok && err == nil {
				err = over(digits(n), maxDigits, errNumber)
			}
			return err != nil
		})
		return err
	default:
		return nil
	}
}

// digits is the number of digits of a number in full notation, also for 1e9.
func digits(n ast.Number) int {
	s := string(n)
	e := strings.IndexAny(s, "eE")
	if e < 0 {
		return len(s)
	}
	exp, err := strconv.Atoi(s[e+1:])
	if err != nil {
		return math.MaxInt32
	}
	return e + min(max(exp, -exp), math.MaxInt32)
}

func boundDigits(args []*ast.Term) error {
	for _, a := range args {
		if n, ok := a.Value.(ast.Number); ok {
			if err := over(digits(n), 2*maxDigits, errNumber); err != nil {
				return err
			}
		}
	}
	return nil
}

func boundSum(args []*ast.Term) error {
	var err error
	each(args[0], func(t *ast.Term) bool {
		err = boundDigits([]*ast.Term{t})
		return err == nil
	})
	return err
}

func boundProduct(args []*ast.Term) error {
	sum := 0
	each(args[0], func(t *ast.Term) bool {
		if n, ok := t.Value.(ast.Number); ok {
			sum += digits(n)
		}
		return sum <= maxFactor
	})
	return over(sum, maxFactor, errNumber)
}

func boundConcat(args []*ast.Term) error {
	sum, sep := 0, length(args[0])
	each(args[1], func(t *ast.Term) bool {
		sum += length(t) + sep
		return sum <= maxText+sep
	})
	return over(sum-sep, maxText, errText)
}

// boundSprintf takes every verb for one that writes the longest argument, in the
// longest of all notations, at the greatest width that the format names.
func boundSprintf(args []*ast.Term) error {
	format, ok := args[0].Value.(ast.String)
	list, isList := args[1].Value.(*ast.Array)
	if !ok || !isList {
		return nil // wrong types: the function says it
	}
	longest := 0
	for i := range list.Len() {
		longest = max(longest, written(list.Elem(i), maxGuess))
	}
	const notation = 8 // "% #x" writes five bytes for one, %q up to ten for four
	each := notation*longest + width(string(format), list)
	return over(len(format)+strings.Count(string(format), "%")*each, maxGuess, errText)
}

// width is the greatest number in a format: of columns, of places. A star takes it
// from the arguments; fmt knows no width above a million.
func width(format string, list *ast.Array) int {
	const most = 1_000_000
	if strings.Contains(format, "*") && list.Len() > 1 {
		return most
	}
	widest, n := 0, 0
	for _, c := range []byte(format) {
		if c < '0' || c > '9' {
			n = 0
			continue
		}
		n = min(n*10+int(c-'0'), most)
		widest = max(widest, n)
	}
	return widest
}

// boundWritten is for what writes its argument as text, in JSON or a like notation.
func boundWritten(args []*ast.Term) error {
	return over(written(args[0], maxGuess), maxGuess, errText)
}

func boundReplace(args []*ast.Term) error {
	s, _ := args[0].Value.(ast.String)
	before, _ := args[1].Value.(ast.String)
	return over(len(s)+strings.Count(string(s), string(before))*length(args[2]), maxGuess, errText)
}

func boundReplaceN(args []*ast.Term) error {
	patterns, ok := args[0].Value.(ast.Object)
	s, _ := args[1].Value.(ast.String)
	if !ok {
		return nil
	}
	size := len(s)
	patterns.Until(func(k, v *ast.Term) bool {
		before, _ := k.Value.(ast.String)
		size += strings.Count(string(s), string(before)) * length(v)
		return size > maxGuess
	})
	return over(size, maxGuess, errText)
}

// boundRegexReplace: there are at most as many matches as bytes, and what a $ puts in
// is part of its match, so each $ puts in at most the whole text over all matches.
func boundRegexReplace(args []*ast.Term) error {
	s, _ := args[0].Value.(ast.String)
	by, _ := args[2].Value.(ast.String)
	return over((len(s)+1)*len(by)+strings.Count(string(by), "$")*len(s)+len(s), maxGuess, errText)
}

func boundRange(args []*ast.Term) error { return boundSteps(args[0], args[1], 1) }

func boundRangeStep(args []*ast.Term) error {
	step, _ := float(args[2])
	return boundSteps(args[0], args[1], step)
}

func boundSteps(from, to *ast.Term, step float64) error {
	a, okA := float(from)
	b, okB := float(to)
	if okA && okB && step > 0 && math.Abs(b-a)/step >= maxList {
		return errList
	}
	return nil // the function reports what has a wrong type
}

func float(t *ast.Term) (float64, bool) {
	n, ok := t.Value.(ast.Number)
	if !ok {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(n), 64)
	return f, err == nil || errors.Is(err, strconv.ErrRange)
}

func boundFlatten(args []*ast.Term) error {
	size := 0
	each(args[0], func(t *ast.Term) bool {
		size++
		if inner, ok := t.Value.(*ast.Array); ok {
			size += inner.Len()
		}
		return size <= maxList
	})
	return over(size, maxList, errList)
}

func boundJoin(args []*ast.Term) error {
	a, okA := args[0].Value.(*ast.Array)
	b, okB := args[1].Value.(*ast.Array)
	if !okA || !okB {
		return nil // wrong types: the function says it
	}
	return over(a.Len()+b.Len(), maxList, errList)
}

func boundZone(args []*ast.Term) error {
	if when, ok := args[0].Value.(*ast.Array); ok && when.Len() > 1 && when.Elem(1).Value.Compare(ast.String("Local")) == 0 {
		return errZone
	}
	return nil
}

// length is the length of a text, 0 of anything else.
func length(t *ast.Term) int {
	s, _ := t.Value.(ast.String)
	return len(s)
}

// each calls f with the elements of a list or set until it says false.
func each(t *ast.Term, f func(*ast.Term) bool) {
	switch v := t.Value.(type) {
	case *ast.Array:
		v.Until(func(t *ast.Term) bool { return !f(t) })
	case ast.Set:
		v.Until(func(t *ast.Term) bool { return !f(t) })
	default:
	}
}

// written is about how long a value is as text, or any number above most. A value may
// hold another one many times, so its text can be longer than all memory.
func written(t *ast.Term, most int) int {
	switch v := t.Value.(type) {
	case ast.String:
		return len(v) + 2
	case ast.Number:
		return len(v)
	case ast.Object:
		size := 2
		v.Until(func(k, v *ast.Term) bool {
			size += written(k, most-size) + 4
			if size <= most {
				size += written(v, most-size)
			}
			return size > most
		})
		return size
	case *ast.Array, ast.Set:
		size := 2
		each(t, func(t *ast.Term) bool {
			size += written(t, most-size) + 2
			return size <= most
		})
		return size
	default:
		return 8 // true, false, null
	}
}
