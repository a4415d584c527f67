package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// maxValue bounds one value in a line of text, in characters.
const maxValue = 32

// maxWide is the same where every change has a line of its own.
const maxWide = 400

// shown names changes with their values: "cores 4 → 8, tags +web".
func shown(changes []Change) string {
	var texts []string
	for _, part := range parts(changes) {
		texts = append(texts, part.long)
	}
	return strings.Join(texts, ", ")
}

// part is the name of one change, or of the changes of one block.
type part struct{ long, short string }

// parts names changes. A disk or network card that comes or goes as a whole is one
// thing and not five: it is named with its attributes.
func parts(changes []Change) []part {
	var out []part
	shown := map[string]bool{}
	for _, c := range changes {
		block := blockOf(c.Path)
		sign := whole(changes, block)
		switch {
		case sign == "":
			out = append(out, part{c.String(), diag.Escape(c.Path)})
		case !shown[block]:
			shown[block] = true
			name := sign + diag.Escape(block)
			out = append(out, part{name + said(changes, block), name})
		}
	}
	return out
}

// blockOf is the block of an attribute, as disk.data of disk.data.size.
func blockOf(path string) string {
	if i := strings.LastIndexByte(path, '.'); strings.Count(path, ".") == 2 {
		return path[:i]
	}
	return ""
}

// whole reports whether a block comes ("+") or goes ("-"). Of one that stays no
// attribute is nil on either side.
func whole(changes []Change, block string) string {
	sign := ""
	for _, c := range changes {
		now := ""
		switch {
		case block == "" || blockOf(c.Path) != block:
			continue
		case c.Before == nil && c.After != nil:
			now = "+"
		case c.After == nil && c.Before != nil:
			now = "-"
		}
		if now == "" || sign != "" && now != sign {
			return ""
		}
		sign = now
	}
	return sign
}

// said lists what the attributes of a block say that comes or goes.
func said(changes []Change, block string) string {
	var texts []string
	for _, c := range changes {
		val := c.After
		if val == nil {
			val = c.Before
		}
		switch {
		case blockOf(c.Path) != block:
			continue
		case c.Sensitive:
			val = model.Sensitive
		case empty(val):
			continue
		}
		texts = append(texts, diag.Escape(c.Path[len(block)+1:])+" "+value(val))
	}
	if len(texts) == 0 {
		return ""
	}
	return " (" + strings.Join(texts, ", ") + ")"
}

// empty reports whether a value says nothing about what is new or gone.
func empty(val any) bool {
	list, isList := val.([]string)
	return val == nil || val == "" || val == false || isList && len(list) == 0 || fmt.Sprint(val) == "0"
}

// String gives the change in a few words, of a sensitive one without its values.
func (c Change) String() string { return c.text(maxValue) }

// Values gives both values for a line of their own, of a sensitive change without them.
func (c Change) Values() (before, after string) {
	b, a := c.masked()
	return valued(b, maxWide), valued(a, maxWide)
}

func (c Change) masked() (before, after any) {
	if c.Sensitive {
		return masked(c.Before), masked(c.After)
	}
	return c.Before, c.After
}

func (c Change) text(most int) string {
	before, after := c.masked()
	return diag.Escape(c.Path) + " " + between(before, after, most)
}

func between(before, after any, most int) string {
	if b, a, ok := lists(before, after); ok {
		if d := delta(b, a); d != "" {
			return d
		}
	}
	b, a := valued(before, most), valued(after, most)
	if b == a && most < maxWide { // they differ behind what was cut off
		b, a = valued(before, maxWide), valued(after, maxWide)
	}
	return b + " → " + a
}

// lists takes two values as lists, nil being an empty one; at least one must be a list.
func lists(before, after any) (b, a []string, ok bool) {
	b, okB := before.([]string)
	a, okA := after.([]string)
	return b, a, (okA || before != nil && okB) && (okA || after == nil) && (okB || before == nil)
}

// delta shows what a list gains and loses; "" if that is nothing (another order) or
// too much to read.
func delta(before, after []string) string {
	var out []string
	for _, s := range after {
		if !slices.Contains(before, s) {
			out = append(out, "+"+value(s))
		}
	}
	for _, s := range before {
		if !slices.Contains(after, s) {
			out = append(out, "-"+value(s))
		}
	}
	if len(out) > 6 {
		return ""
	}
	return strings.Join(out, " ")
}

// value writes a plain value on one line: short, unambiguous, and without anything
// that drives a terminal.
func value(v any) string { return valued(v, maxValue) }

func valued(v any, most int) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case string:
		if n := strings.Count(strings.TrimSuffix(v, "\n"), "\n"); n > 0 {
			return fmt.Sprintf("(%d lines)", n+1)
		}
		if v == model.Sensitive {
			return v
		}
		if v == "" || v == "none" || strings.ContainsFunc(v, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`,"→`, r) }) {
			return strconv.Quote(limited(v, most))
		}
		return diag.Escape(limited(v, most))
	case []string:
		texts := make([]string, len(v))
		for i, s := range v {
			texts[i] = value(s)
		}
		return limited("["+strings.Join(texts, " ")+"]", most)
	case int64:
		return strconv.FormatInt(v, 10)
	case bool:
		return strconv.FormatBool(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return diag.Escape(limited(fmt.Sprint(v), most))
	}
}

func limited(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	return string(runes[:most-1]) + "…"
}
