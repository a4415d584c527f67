package awk

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// rule is PATTERN { ACTION }.
type rule struct {
	special  string // BEGIN, END
	from, to *node  // nil: every line; to: a range
	inside   bool   // the range
	body     []*node
}

// node is an expression or a statement: what it does, and with what.
type node struct {
	op   string
	text string
	num  float64
	re   *regexp.Regexp
	args []*node
	body []*node
	more []*node // else
}

type token struct {
	kind string // num, str, re, name, func, op, newline, end
	text string
}

type parser struct {
	src  string
	at   int
	tok  token
	prev token
	noGt bool
}

func parse(src string) (rules []rule, err error) {
	p := &parser{src: src, prev: token{kind: "newline"}}
	defer func() {
		if e := recover(); e != nil {
			said, ours := e.(syntaxError)
			if !ours {
				panic(e)
			}
			err = fmt.Errorf("awk: syntax error: %s", string(said))
		}
	}()
	p.next()
	for {
		p.newlines()
		if p.tok.kind == "end" {
			return rules, nil
		}
		rules = append(rules, p.rule())
	}
}

type syntaxError string

func (*parser) fail(format string, args ...any) { panic(syntaxError(fmt.Sprintf(format, args...))) }

func (p *parser) rule() rule {
	var r rule
	switch {
	case p.tok.kind == "name" && (p.tok.text == "BEGIN" || p.tok.text == "END"):
		r.special = p.tok.text
		p.next()
	case !p.is("{"):
		r.from = p.expr()
		if p.is(",") {
			p.next()
			r.to = p.expr()
		}
	}
	if p.is("{") {
		r.body = p.block()
	} else {
		r.body = []*node{{op: "print"}}
	}
	return r
}

func (p *parser) newlines() {
	for p.tok.kind == "newline" || p.is(";") {
		p.next()
	}
}

func (p *parser) is(op string) bool { return p.tok.kind == "op" && p.tok.text == op }

func (p *parser) want(op string) {
	if !p.is(op) {
		p.fail("%q instead of %q", p.tok.text, op)
	}
	p.next()
}

// next reads a token.
func (p *parser) next() {
	p.prev = p.tok
	for p.at < len(p.src) {
		c := p.src[p.at]
		switch {
		case c == ' ' || c == '\t' || c == '\r':
			p.at++
		case c == '\\' && p.at+1 < len(p.src) && p.src[p.at+1] == '\n':
			p.at += 2
		case c == '#':
			for p.at < len(p.src) && p.src[p.at] != '\n' {
				p.at++
			}
		default:
			p.tok = p.lex()
			return
		}
	}
	p.tok = token{kind: "end"}
}

var (
	numberForm = regexp.MustCompile(`^(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?`)
	nameForm   = regexp.MustCompile(`^[A-Za-z_]\w*`)
)

func (p *parser) lex() token {
	rest := p.src[p.at:]
	c := rest[0]
	switch {
	case c == '\n':
		p.at++
		return token{"newline", "\n"}
	case c == '"':
		return p.quoted()
	case c == '/' && p.regexpMayCome():
		end := 1
		for end < len(rest) && rest[end] != '/' {
			if rest[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(rest) {
			p.fail("a regular expression has no end")
		}
		p.at += end + 1
		return token{"re", strings.ReplaceAll(rest[1:end], `\/`, "/")}
	}
	if s := numberForm.FindString(rest); s != "" {
		p.at += len(s)
		return token{"num", s}
	}
	if s := nameForm.FindString(rest); s != "" {
		p.at += len(s)
		if p.at < len(p.src) && p.src[p.at] == '(' {
			return token{"func", s}
		}
		return token{"name", s}
	}
	for _, op := range []string{"&&", "||", "==", "!=", "<=", ">=", "++", "--", "+=", "-=", "*=", "/=", "%=", "^=", "!~", ">>"} {
		if strings.HasPrefix(rest, op) {
			p.at += 2
			return token{"op", op}
		}
	}
	p.at++
	return token{"op", string(c)}
}

// regexpMayCome reports whether a slash begins a regular expression here, and does not divide.
func (p *parser) regexpMayCome() bool {
	switch p.prev.kind {
	case "num", "str", "name":
		return p.prev.text == "print" || p.prev.text == "return"
	case "op":
		return p.prev.text != ")" && p.prev.text != "]" && p.prev.text != "$"
	}
	return true
}

func (p *parser) quoted() token {
	var b strings.Builder
	p.at++
	for p.at < len(p.src) && p.src[p.at] != '"' {
		c := p.src[p.at]
		if c == '\\' && p.at+1 < len(p.src) {
			p.at++
			c = p.src[p.at]
			if at := strings.IndexByte("nt\\\"/ra", c); at >= 0 {
				c = "\n\t\\\"/\r\a"[at]
			} else {
				b.WriteByte('\\')
			}
		}
		b.WriteByte(c)
		p.at++
	}
	p.at++
	return token{"str", b.String()}
}

func (p *parser) block() []*node {
	p.want("{")
	var list []*node
	for {
		p.newlines()
		if p.is("}") {
			p.next()
			return list
		}
		if p.tok.kind == "end" {
			p.fail("a block has no end")
		}
		list = append(list, p.statement())
	}
}

// body is a block or one statement.
func (p *parser) body() []*node {
	for p.tok.kind == "newline" {
		p.next()
	}
	if p.is("{") {
		return p.block()
	}
	if p.is(";") {
		p.next()
		return nil
	}
	return []*node{p.statement()}
}

func (p *parser) statement() *node {
	if p.is("{") {
		return &node{op: "block", body: p.block()}
	}
	word := ""
	if p.tok.kind == "name" || p.tok.kind == "func" {
		word = p.tok.text
	}
	n := &node{op: word}
	switch word {
	case "if":
		p.next()
		p.want("(")
		n.args = []*node{p.expr()}
		p.want(")")
		n.body = p.body()
		at, tok, prev := p.at, p.tok, p.prev
		p.newlines()
		if p.tok.kind == "name" && p.tok.text == "else" {
			p.next()
			n.more = p.body()
		} else {
			p.at, p.tok, p.prev = at, tok, prev
		}
		return n
	case "while":
		p.next()
		p.want("(")
		n.args = []*node{p.expr()}
		p.want(")")
		n.body = p.body()
		return n
	case "for":
		return p.loop()
	case "next", "break", "continue":
		p.next()
	case "exit":
		p.next()
		if !p.ends() {
			n.args = []*node{p.expr()}
		}
	case "print", "printf":
		n.args = p.printed()
	case "delete":
		p.next()
		n.text = p.tok.text
		p.next()
		if p.is("[") {
			p.next()
			n.args = p.list("]")
		}
	default:
		n = &node{op: "do", args: []*node{p.expr()}}
	}
	p.ended()
	return n
}

func (p *parser) ends() bool {
	return p.is(";") || p.is("}") || p.tok.kind == "newline" || p.tok.kind == "end"
}

func (p *parser) ended() {
	if !p.ends() {
		p.fail("unexpected %q", p.tok.text)
	}
	if !p.is("}") && p.tok.kind != "end" {
		p.next()
	}
}

func (p *parser) printed() []*node {
	p.next()
	defer func(old bool) { p.noGt = old }(p.noGt)
	p.noGt = true
	if p.ends() {
		return nil
	}
	if p.is("(") { // print (a, b)
		at, tok, prev := p.at, p.tok, p.prev
		p.next()
		list := []*node{p.expr()}
		for p.is(",") {
			p.next()
			list = append(list, p.expr())
		}
		if p.is(")") && len(list) > 1 {
			p.next()
			return list
		}
		p.at, p.tok, p.prev = at, tok, prev
	}
	list := []*node{p.expr()}
	for p.is(",") {
		p.next()
		list = append(list, p.expr())
	}
	return list
}

func (p *parser) loop() *node {
	p.next()
	p.want("(")
	if p.tok.kind == "name" {
		at, tok, prev := p.at, p.tok, p.prev
		name := p.tok.text
		p.next()
		if p.tok.kind == "name" && p.tok.text == "in" {
			p.next()
			array := p.tok.text
			p.next()
			if p.is(")") {
				p.next()
				return &node{op: "forin", text: name, args: []*node{{text: array}}, body: p.body()}
			}
		}
		p.at, p.tok, p.prev = at, tok, prev
	}
	part := func(end string) *node {
		if p.is(end) {
			p.next()
			return nil
		}
		n := p.expr()
		p.want(end)
		return n
	}
	n := &node{op: "for", args: []*node{part(";"), part(";"), part(")")}}
	n.body = p.body()
	return n
}

func (p *parser) list(end string) []*node {
	var out []*node
	for !p.is(end) {
		out = append(out, p.expr())
		if p.is(",") {
			p.next()
		} else if !p.is(end) {
			p.fail("unexpected %q", p.tok.text)
		}
	}
	p.next()
	return out
}

// expr reads an expression: assignment binds least.
func (p *parser) expr() *node {
	left := p.ternary()
	if p.tok.kind == "op" {
		switch p.tok.text {
		case "=", "+=", "-=", "*=", "/=", "%=", "^=":
			if left.op != "var" && left.op != "field" && left.op != "index" {
				break
			}
			op := p.tok.text
			p.next()
			right := p.expr()
			if op != "=" {
				right = &node{op: op[:1], args: []*node{left, right}}
			}
			return &node{op: "=", args: []*node{left, right}}
		}
	}
	return left
}

func (p *parser) ternary() *node {
	c := p.binary(0)
	if !p.is("?") {
		return c
	}
	p.next()
	yes := p.ternary()
	p.want(":")
	return &node{op: "?", args: []*node{c, yes, p.ternary()}}
}

// levels are the binary operators, those that bind least first.
func level(t token, noGt bool) int {
	if t.kind == "name" && t.text == "in" {
		return 2
	}
	if t.kind != "op" {
		return -1
	}
	switch t.text {
	case "||":
		return 0
	case "&&":
		return 1
	case "~", "!~":
		return 3
	case "<", "<=", "==", "!=", ">=":
		return 4
	case ">":
		if !noGt {
			return 4
		}
	case "+", "-":
		return 6
	case "*", "/", "%":
		return 7
	}
	return -1
}

const concatenation = 5

func (p *parser) binary(least int) *node {
	if least == 8 {
		return p.unary()
	}
	left := p.binary(least + 1)
	for {
		if least == concatenation {
			if !p.operand() {
				return left
			}
			left = &node{op: "concat", args: []*node{left, p.binary(least + 1)}}
			continue
		}
		if level(p.tok, p.noGt) != least {
			return left
		}
		op := p.tok.text
		p.next()
		if least <= 1 {
			for p.tok.kind == "newline" {
				p.next()
			}
		}
		left = &node{op: op, args: []*node{left, p.binary(least + 1)}}
	}
}

// operand reports whether what comes begins an operand, to be put behind the one before.
func (p *parser) operand() bool {
	switch p.tok.kind {
	case "num", "str", "func":
		return true
	case "name":
		return p.tok.text != "in"
	case "op":
		return p.is("$") || p.is("(") || p.is("!") || p.is("-") && false
	}
	return false
}

func (p *parser) unary() *node {
	if p.tok.kind == "op" {
		switch op := p.tok.text; op {
		case "!", "-", "+":
			p.next()
			return &node{op: "unary" + op, args: []*node{p.unary()}}
		case "++", "--":
			p.next()
			v := p.primary()
			return &node{op: "=", args: []*node{v, {op: op[:1], args: []*node{v, {op: "num", num: 1}}}}}
		}
	}
	n := p.primary()
	for p.is("++") || p.is("--") {
		n = &node{op: "post" + p.tok.text, args: []*node{n}}
		p.next()
	}
	if p.is("^") {
		p.next()
		n = &node{op: "^", args: []*node{n, p.unary()}}
	}
	return n
}

func (p *parser) primary() *node {
	t := p.tok
	p.next()
	switch t.kind {
	case "num":
		f, _ := strconv.ParseFloat(t.text, 64)
		return &node{op: "num", num: f}
	case "str":
		return &node{op: "str", text: t.text}
	case "re":
		re, err := Regexp(t.text)
		if err != nil {
			p.fail("%v", err)
		}
		return &node{op: "re", re: re}
	case "func":
		p.want("(")
		defer func(old bool) { p.noGt = old }(p.noGt)
		p.noGt = false
		return &node{op: "call", text: t.text, args: p.list(")")}
	case "name":
		if t.text == "length" {
			return &node{op: "call", text: "length"}
		}
		if p.is("[") {
			p.next()
			return &node{op: "index", text: t.text, args: p.list("]")}
		}
		return &node{op: "var", text: t.text}
	case "op":
		switch t.text {
		case "$":
			return &node{op: "field", args: []*node{p.unaryField()}}
		case "(":
			defer func(old bool) { p.noGt = old }(p.noGt)
			p.noGt = false
			n := p.expr()
			p.want(")")
			return &node{op: "group", args: []*node{n}}
		}
	}
	p.fail("unexpected %q", t.text)
	return nil
}

func (p *parser) unaryField() *node {
	if p.is("-") {
		p.next()
		return &node{op: "unary-", args: []*node{p.primary()}}
	}
	return p.primary()
}
