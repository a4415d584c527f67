package awk

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// value is a text, a number, or what was read and looks like a number.
type value struct {
	s       string
	n       float64
	numeric bool // n counts
	isText  bool // s is there
}

func text(s string) value    { return value{s: s, isText: true} }
func number(n float64) value { return value{n: n, numeric: true} }

// input is a text from outside, which is a number as well if it looks like one.
func input(s string) value {
	n, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	return value{s: s, n: n, isText: true, numeric: err == nil}
}

func truth(b bool) value {
	if b {
		return number(1)
	}
	return number(0)
}

func (v value) truth() bool {
	if v.numeric {
		return v.n != 0
	}
	return v.s != ""
}

func (v value) text() string {
	switch {
	case v.isText:
		return v.s
	case !v.numeric:
		return ""
	case v.n == math.Trunc(v.n) && math.Abs(v.n) < 1e16:
		return strconv.FormatInt(int64(v.n), 10)
	}
	return strconv.FormatFloat(v.n, 'g', 6, 64)
}

func (v value) number() float64 {
	if v.numeric {
		return v.n
	}
	n, _ := strconv.ParseFloat(numberForm.FindString(strings.TrimLeft(v.s, " \t+-")), 64)
	if strings.HasPrefix(strings.TrimLeft(v.s, " \t"), "-") {
		n = -n
	}
	return n
}

// run is a program that runs.
type run struct {
	vars   map[string]value
	arrays map[string]map[string]value
	line   string
	fields []string
	out    *bufio.Writer
}

var (
	errNext     = errors.New("next")
	errBreak    = errors.New("break outside of a loop")
	errContinue = errors.New("continue outside of a loop")
)

type exit struct{ code int }

func (e *exit) Error() string { return fmt.Sprintf("exit %d", e.code) }

// Regexp makes an extended regular expression of POSIX one of Go.
func Regexp(text string) (*regexp.Regexp, error) { return regexp.Compile("(?s)" + text) }

func (r *run) setLine(line string) {
	r.line = line
	r.fields = r.split(line, r.vars["FS"].text())
	r.vars["NF"] = number(float64(len(r.fields)))
}

func (*run) split(line, sep string) []string {
	switch {
	case sep == " ":
		return strings.Fields(line)
	case line == "":
		return nil
	case len(sep) == 1 && sep != "|" || sep == "|":
		return strings.Split(line, sep)
	}
	re, err := Regexp(sep)
	if err != nil {
		return []string{line}
	}
	return re.Split(line, -1)
}

func (r *run) block(list []*node) error {
	for _, n := range list {
		if err := r.statement(n); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) statement(n *node) error {
	switch n.op {
	case "block":
		return r.block(n.body)
	case "do":
		_, err := r.eval(n.args[0])
		return err
	case "next":
		return errNext
	case "break":
		return errBreak
	case "continue":
		return errContinue
	case "exit":
		code := value{}
		if len(n.args) > 0 {
			v, err := r.eval(n.args[0])
			if err != nil {
				return err
			}
			code = v
		}
		return &exit{int(code.number())}
	case "print", "printf":
		return r.print(n)
	case "delete":
		if n.args == nil {
			delete(r.arrays, n.text)
			return nil
		}
		key, err := r.key(n.args)
		delete(r.arrays[n.text], key)
		return err
	case "if":
		v, err := r.eval(n.args[0])
		if err != nil {
			return err
		}
		if v.truth() {
			return r.block(n.body)
		}
		return r.block(n.more)
	case "while":
		return r.loop(n.args[0], nil, n.body)
	case "for":
		if n.args[0] != nil {
			if _, err := r.eval(n.args[0]); err != nil {
				return err
			}
		}
		return r.loop(n.args[1], n.args[2], n.body)
	case "forin":
		var keys []string
		for key := range r.arrays[n.args[0].text] {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		for _, key := range keys {
			r.vars[n.text] = input(key)
			if err := r.block(n.body); errors.Is(err, errBreak) {
				return nil
			} else if err != nil && !errors.Is(err, errContinue) {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("awk: %s is not known", n.op)
}

func (r *run) loop(condition, after *node, body []*node) error {
	for {
		if condition != nil {
			v, err := r.eval(condition)
			if err != nil || !v.truth() {
				return err
			}
		}
		if err := r.block(body); errors.Is(err, errBreak) {
			return nil
		} else if err != nil && !errors.Is(err, errContinue) {
			return err
		}
		if after != nil {
			if _, err := r.eval(after); err != nil {
				return err
			}
		}
	}
}

func (r *run) print(n *node) error {
	var words []string
	for _, a := range n.args {
		v, err := r.eval(a)
		if err != nil {
			return err
		}
		words = append(words, v.text())
	}
	if n.op == "printf" {
		if len(words) == 0 {
			return errors.New("awk: printf needs a format")
		}
		_, err := r.out.WriteString(format(words[0], words[1:]))
		return err
	}
	line := r.line
	if len(words) > 0 {
		line = strings.Join(words, r.vars["OFS"].text())
	}
	_, err := r.out.WriteString(line + r.vars["ORS"].text())
	return err
}

var verb = regexp.MustCompile(`%[-+ #0]*\d*(\.\d+)?[a-zA-Z%]`)

func format(f string, args []string) string {
	return verb.ReplaceAllStringFunc(f, func(spec string) string {
		last := spec[len(spec)-1]
		if last == '%' {
			return "%"
		}
		arg := ""
		if len(args) > 0 {
			arg, args = args[0], args[1:]
		}
		switch last {
		case 'd', 'i':
			return fmt.Sprintf(spec[:len(spec)-1]+"d", int64(text(arg).number()))
		case 'x', 'o', 'X':
			return fmt.Sprintf(spec, int64(text(arg).number()))
		case 'f', 'g', 'e':
			return fmt.Sprintf(spec, text(arg).number())
		}
		return fmt.Sprintf(spec[:len(spec)-1]+"s", arg)
	})
}

func (r *run) key(args []*node) (string, error) {
	var parts []string
	for _, a := range args {
		v, err := r.eval(a)
		if err != nil {
			return "", err
		}
		parts = append(parts, v.text())
	}
	return strings.Join(parts, r.vars["SUBSEP"].text()), nil
}

func (r *run) set(to *node, v value) error {
	switch to.op {
	case "var":
		r.vars[to.text] = v
	case "index":
		key, err := r.key(to.args)
		if err != nil {
			return err
		}
		if r.arrays[to.text] == nil {
			r.arrays[to.text] = map[string]value{}
		}
		r.arrays[to.text][key] = v
	case "field":
		at, err := r.eval(to.args[0])
		if err != nil {
			return err
		}
		i := int(at.number())
		if i == 0 {
			r.setLine(v.text())
			return nil
		}
		for len(r.fields) < i {
			r.fields = append(r.fields, "")
		}
		r.fields[i-1] = v.text()
		r.line = strings.Join(r.fields, r.vars["OFS"].text())
		r.vars["NF"] = number(float64(len(r.fields)))
	default:
		return errors.New("awk: this cannot be assigned to")
	}
	return nil
}

func (r *run) eval(n *node) (value, error) {
	switch n.op {
	case "num":
		return number(n.num), nil
	case "str":
		return text(n.text), nil
	case "re":
		return truth(n.re.MatchString(r.line)), nil
	case "group":
		return r.eval(n.args[0])
	case "var":
		return r.vars[n.text], nil
	case "index":
		key, err := r.key(n.args)
		return r.arrays[n.text][key], err
	case "field":
		v, err := r.eval(n.args[0])
		i := int(v.number())
		switch {
		case err != nil:
			return value{}, err
		case i == 0:
			return input(r.line), nil
		case i < 0 || i > len(r.fields):
			return value{}, nil
		}
		return input(r.fields[i-1]), nil
	case "=":
		v, err := r.eval(n.args[1])
		if err != nil {
			return v, err
		}
		return v, r.set(n.args[0], v)
	case "post++", "post--":
		old, err := r.eval(n.args[0])
		if err != nil {
			return old, err
		}
		by := 1.0
		if n.op == "post--" {
			by = -1
		}
		return number(old.number()), r.set(n.args[0], number(old.number()+by))
	case "?":
		c, err := r.eval(n.args[0])
		if err != nil {
			return c, err
		}
		if c.truth() {
			return r.eval(n.args[1])
		}
		return r.eval(n.args[2])
	case "call":
		return r.call(n)
	case "in":
		key, err := r.eval(n.args[0])
		_, there := r.arrays[n.args[1].text][key.text()]
		return truth(there), err
	case "~", "!~":
		left, err := r.eval(n.args[0])
		if err != nil {
			return left, err
		}
		re, err := r.regexp(n.args[1])
		if err != nil {
			return left, err
		}
		return truth(re.MatchString(left.text()) == (n.op == "~")), nil
	}
	left, err := r.eval(n.args[0])
	if err != nil {
		return left, err
	}
	switch n.op {
	case "unary!":
		return truth(!left.truth()), nil
	case "unary-":
		return number(-left.number()), nil
	case "unary+":
		return number(left.number()), nil
	case "&&", "||":
		if left.truth() == (n.op == "||") {
			return truth(left.truth()), nil
		}
		right, err := r.eval(n.args[1])
		return truth(right.truth()), err
	}
	right, err := r.eval(n.args[1])
	if err != nil {
		return right, err
	}
	return binary(n.op, left, right), nil
}

func binary(op string, a, b value) value {
	x, y := a.number(), b.number()
	switch op {
	case "concat":
		return text(a.text() + b.text())
	case "+":
		return number(x + y)
	case "-":
		return number(x - y)
	case "*":
		return number(x * y)
	case "/":
		return number(x / y)
	case "%":
		return number(math.Mod(x, y))
	case "^":
		return number(math.Pow(x, y))
	}
	order := strings.Compare(a.text(), b.text())
	if (a.numeric || a == value{}) && (b.numeric || b == value{}) {
		order = int(math.Copysign(1, x-y))
		if x == y {
			order = 0
		}
	}
	return truth(map[string]bool{"<": order < 0, "<=": order <= 0, "==": order == 0, "!=": order != 0, ">": order > 0, ">=": order >= 0}[op])
}

func (r *run) regexp(n *node) (*regexp.Regexp, error) {
	if n.op == "re" {
		return n.re, nil
	}
	v, err := r.eval(n)
	if err != nil {
		return nil, err
	}
	return Regexp(v.text())
}

// call is one of the functions that every awk has.
func (r *run) call(n *node) (value, error) {
	var args []value
	for i, a := range n.args {
		if a.op == "re" || n.text == "split" && i == 1 || n.text == "length" && a.op == "var" && r.arrays[a.text] != nil {
			args = append(args, value{})
			continue
		}
		v, err := r.eval(a)
		if err != nil {
			return v, err
		}
		args = append(args, v)
	}
	need := map[string]int{"substr": 2, "index": 2, "split": 2, "sub": 2, "gsub": 2, "match": 2, "tolower": 1, "toupper": 1, "int": 1, "sprintf": 1}
	if len(args) < need[n.text] {
		return value{}, fmt.Errorf("awk: %s needs %d arguments", n.text, need[n.text])
	}
	switch n.text {
	case "length":
		switch {
		case len(args) == 0:
			return number(float64(len(r.line))), nil
		case n.args[0].op == "var" && r.arrays[n.args[0].text] != nil:
			return number(float64(len(r.arrays[n.args[0].text]))), nil
		}
		return number(float64(len(args[0].text()))), nil
	case "substr":
		s, from, to := args[0].text(), int(args[1].number()), len(args[0].text())+1
		if len(args) > 2 {
			to = min(to, from+int(args[2].number()))
		}
		from = max(from, 1)
		if from >= to {
			return text(""), nil
		}
		return text(s[from-1 : to-1]), nil
	case "index":
		return number(float64(strings.Index(args[0].text(), args[1].text()) + 1)), nil
	case "tolower":
		return text(strings.ToLower(args[0].text())), nil
	case "toupper":
		return text(strings.ToUpper(args[0].text())), nil
	case "int":
		return number(math.Trunc(args[0].number())), nil
	case "sprintf":
		var words []string
		for _, a := range args[1:] {
			words = append(words, a.text())
		}
		return text(format(args[0].text(), words)), nil
	case "split":
		sep := r.vars["FS"].text()
		if len(args) > 2 {
			sep = args[2].text()
		}
		array := map[string]value{}
		parts := r.split(args[0].text(), sep)
		for i, part := range parts {
			array[strconv.Itoa(i+1)] = input(part)
		}
		r.arrays[n.args[1].text] = array
		return number(float64(len(parts))), nil
	case "sub", "gsub", "match":
		return r.replace(n, args)
	}
	return value{}, fmt.Errorf("awk: there is no function %s", n.text)
}

func (r *run) replace(n *node, args []value) (value, error) {
	if n.text == "match" {
		re, err := r.regexp(n.args[1])
		if err != nil {
			return value{}, err
		}
		at := re.FindStringIndex(args[0].text())
		if at == nil {
			at = []int{-1, -2}
		}
		r.vars["RSTART"], r.vars["RLENGTH"] = number(float64(at[0]+1)), number(float64(at[1]-at[0]))
		return number(float64(at[0] + 1)), nil
	}
	re, err := r.regexp(n.args[0])
	if err != nil {
		return value{}, err
	}
	to := &node{op: "field", args: []*node{{op: "num"}}}
	if len(n.args) > 2 {
		to = n.args[2]
	}
	v, err := r.eval(to)
	if err != nil {
		return value{}, err
	}
	times := 0
	out := re.ReplaceAllStringFunc(v.text(), func(found string) string {
		if times++; n.text == "sub" && times > 1 {
			return found
		}
		return strings.ReplaceAll(args[1].text(), "&", found)
	})
	if n.text == "sub" {
		times = min(times, 1)
	}
	if times == 0 {
		return number(0), nil
	}
	return number(float64(times)), r.set(to, text(out))
}
