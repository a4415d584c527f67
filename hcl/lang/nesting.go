package lang

import (
	"bytes"
	"slices"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// The parser and the evaluator of the library recurse, and a Go program cannot
// survive a stack overflow. So every text is measured before it is parsed.
const (
	maxNesting = 200     // brackets, blocks and templates within each other
	maxChain   = 2000    // operators of one expression, those around it included
	maxStray   = 10_000  // as maxNesting, with brackets that do not match never counted as closed
	maxPieces  = 1 << 30 // pieces of a text times its bytes: the parser joins them one by one
)

// nesting tracks the brackets of a text. Each open bracket counts the operators of its expression,
// since 1+1+1+… nests as deeply as brackets do.
type nesting struct {
	outer level   // outside of any bracket
	stack []level // the open brackets
	sum   int     // of the ops of all levels
	stray int
	deep  bool // a limit was crossed
	long  bool // that of one text
	body  bool // a line break ends an expression outside of brackets
}

type level struct {
	open   byte // { [ ( or " for a string, $ for an interpolation
	ops    int
	pieces int // of the text so far: a line of a heredoc is one, and so is a lone $
	bytes  int
}

func (n *nesting) top() *level {
	if len(n.stack) == 0 {
		return &n.outer
	}
	return &n.stack[len(n.stack)-1]
}

func (n *nesting) operator() {
	n.top().ops++
	n.sum++
	n.deep = n.deep || n.sum > maxChain
}

// rest begins a new expression beside the last one.
func (n *nesting) rest() {
	n.sum -= n.top().ops
	n.top().ops = 0
}

func (n *nesting) newline() {
	if open := n.top().open; open == '{' || open == 0 && n.body {
		n.rest()
	}
}

func (n *nesting) text(size int) {
	t := n.top()
	t.pieces++
	t.bytes += size
	n.long = n.long || t.pieces*t.bytes > maxPieces
}

func (n *nesting) open(b byte) {
	n.stack = append(n.stack, level{open: b})
	n.stray++
	n.deep = n.deep || len(n.stack) > maxNesting || n.stray > maxStray
}

// close ends the innermost bracket of a sort and all that were left open in it,
// as the parser does when it recovers.
func (n *nesting) close(b byte) {
	for i, found := range slices.Backward(n.stack) {
		if found.open != b {
			continue
		}
		if i == len(n.stack)-1 {
			n.stray--
		}
		for _, l := range n.stack[i:] {
			n.sum -= l.ops
		}
		n.stack = n.stack[:i]
		return
	}
}

// lexer is one of the scanners of the library.
type lexer func(src []byte, name string, start hclv2.Pos) (hclsyntax.Tokens, hclv2.Diagnostics)

// CheckFile is checkNesting for a file of the language. A quick scan of the bytes is enough for
// most files; only the others go through the library's scanner, which costs as much as parsing.
func (f *Findings) CheckFile(name string, src []byte) bool {
	return plainNesting(src) || f.CheckNesting(name, src, hclsyntax.LexConfig, true)
}

// CheckNesting reports where a text is nested too deeply, or has a number that is too large.
func (f *Findings) CheckNesting(name string, src []byte, lex lexer, body bool) bool {
	tokens, _ := lex(src, name, hclv2.InitialPos)
	n := nesting{body: body}
	for i := range tokens {
		t := &tokens[i]
		n.token(t)
		if n.long {
			f.Errorf(t.Range, "text too long", "Move a text of this length to its own file, and write file(\"PATH\").")
			return false
		}
		if n.deep {
			f.Errorf(t.Range, "expression too deep", "The limit is %d nested brackets, and %d operators in one expression: move parts of it to locals.", maxNesting, maxChain)
			return false
		}
		if t.Type == hclsyntax.TokenNumberLit && hugeExponent(t.Bytes) {
			f.Errorf(t.Range, "number too large", "%s is too large for any attribute.", Clip(string(t.Bytes), MaxQuoted))
			return false
		}
	}
	return true
}

func (n *nesting) token(t *hclsyntax.Token) {
	switch t.Type {
	case hclsyntax.TokenStringLit, hclsyntax.TokenQuotedLit:
		n.text(len(t.Bytes))
	case hclsyntax.TokenOBrace:
		n.open('{')
	case hclsyntax.TokenCBrace:
		n.close('{')
	case hclsyntax.TokenOBrack:
		n.operator() // an index, too, nests
		n.open('[')
	case hclsyntax.TokenCBrack:
		n.close('[')
	case hclsyntax.TokenOParen:
		n.operator()
		n.open('(')
	case hclsyntax.TokenCParen:
		n.close('(')
	case hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc:
		n.open('"')
	case hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc:
		n.close('"')
	case hclsyntax.TokenTemplateInterp:
		n.open('$')
	case hclsyntax.TokenTemplateControl:
		n.operator() // %{ if } holds what follows up to its %{ endif }
		n.open('$')
	case hclsyntax.TokenTemplateSeqEnd:
		n.close('$')
	case hclsyntax.TokenNewline:
		n.newline()
	case hclsyntax.TokenComma:
		n.rest()
	case hclsyntax.TokenStar, hclsyntax.TokenSlash, hclsyntax.TokenPercent, hclsyntax.TokenPlus, hclsyntax.TokenMinus,
		hclsyntax.TokenEqualOp, hclsyntax.TokenNotEqual, hclsyntax.TokenLessThan, hclsyntax.TokenLessThanEq,
		hclsyntax.TokenGreaterThan, hclsyntax.TokenGreaterThanEq, hclsyntax.TokenAnd, hclsyntax.TokenOr,
		hclsyntax.TokenBang, hclsyntax.TokenQuestion:
		n.operator()
	default:
	}
}

// plainNesting reports whether a text is certainly within the limits. It reads strings with
// interpolations on one line and line comments; at anything more (heredocs, escapes, block
// comments, brackets that do not match) it gives up.
func plainNesting(src []byte) bool {
	n := nesting{body: true}
	quotes := 0
	for i := 0; i < len(src) && !n.deep; i++ {
		c, next := src[i], byte(0)
		if i+1 < len(src) {
			next = src[i+1]
		}
		if n.top().open == '"' {
			switch {
			case c == '\\' || c == '\n' || (c == '$' || c == '%') && next == c:
				return false
			case c == '"':
				n.close('"')
				quotes--
			case (c == '$' || c == '%') && next == '{':
				n.operator()
				n.open('$')
				i++
			case c == '$' || c == '%':
				n.operator() // not one, but a piece of its own: too many of them are left to the scanner
			}
			continue
		}
		switch c {
		case '"':
			n.open('"')
			quotes++
		case '{':
			n.open(c)
		case '[', '(':
			n.operator()
			n.open(c)
		case '}', ']', ')':
			if !n.closes(c) {
				return false
			}
		case '\n':
			if quotes > 0 {
				return false
			}
			n.newline()
		case '#', '/', '<':
			switch {
			case c == '#' || c == '/' && next == '/':
				if quotes > 0 {
					return false
				}
				end := bytes.IndexByte(src[i:], '\n')
				if end < 0 {
					return !n.deep
				}
				i += end - 1
			case c == '/' && next == '*' || c == '<' && next == '<':
				return false
			default:
				n.operator()
			}
		case ',':
			n.rest()
		case '+', '*', '%', '>', '!', '&', '|', '?', '=', '-':
			n.operator()
		case 'e', 'E':
			if i > 0 && (digit(src[i-1]) || src[i-1] == '.') && exponent(src[i:]) >= 4 {
				return false
			}
		}
	}
	return !n.deep && quotes == 0
}

// closes ends the innermost bracket if the character is its counterpart.
func (n *nesting) closes(c byte) bool {
	open := n.top().open
	switch {
	case c == '}' && (open == '{' || open == '$'), c == ']' && open == '[', c == ')' && open == '(':
		n.close(open)
		return true
	default:
		return false
	}
}

// hugeExponent reports whether a number has an exponent of four digits or more.
// Its text would be as long as its value.
func hugeExponent(number []byte) bool {
	i := bytes.IndexAny(number, "eE")
	if i < 0 {
		return false
	}
	significant := bytes.TrimLeft(bytes.TrimLeft(number[i+1:], "+-"), "0")
	return len(significant) >= 4
}

// exponent counts the digits of the exponent that a text begins with.
func exponent(s []byte) int {
	i := 1
	if len(s) > 1 && (s[1] == '+' || s[1] == '-') {
		i = 2
	}
	n := 0
	for i+n < len(s) && n < 4 && digit(s[i+n]) {
		n++
	}
	return n
}

func digit(c byte) bool { return c >= '0' && c <= '9' }
