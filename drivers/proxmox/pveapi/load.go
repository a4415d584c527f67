package pveapi

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
)

// packed is the table as ./gen writes it: one line per method, "VERB PATH {json}".
//
//go:embed schema.gz
var packed []byte

// index is the table, unpacked but not parsed: of 426 methods a program needs a
// handful, and a command line tool starts often.
type index struct {
	lines []*line
	root  *branch
}

// line is one method, parsed when first asked for.
type line struct {
	verb, path string
	method     func() *Method
}

// branch is a node of the tree of path segments.
type branch struct {
	literal map[string]*branch
	// A placeholder matches what no literal sibling matches; PVE has at most
	// one per level.
	placeholder *branch
	name        string // Of this branch, if it is a placeholder.
	verbs       map[string]*line
}

// table unpacks the table once. The file is part of the program and checked by
// the tests, so damage to it is a defect and panics.
var table = sync.OnceValue(unpack)

func unpack() *index {
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		panic(fmt.Sprintf("pveapi: unpack the embedded table: %v", err))
	}
	t := &index{root: &branch{}}
	scanner := bufio.NewScanner(unpacked)
	scanner.Buffer(nil, 1<<20) // Bytes of the longest line; real ones stay below 40000.
	for scanner.Scan() {
		verb, rest, _ := strings.Cut(scanner.Text(), " ")
		path, text, _ := strings.Cut(rest, " ")
		l := &line{verb: verb, path: path, method: sync.OnceValue(func() *Method {
			return parse(verb, path, text)
		})}
		t.lines = append(t.lines, l)
		t.root.add(l)
	}
	if err := scanner.Err(); err != nil {
		panic(fmt.Sprintf("pveapi: read the embedded table: %v", err))
	}
	return t
}

func (b *branch) add(l *line) {
	for segment := range strings.SplitSeq(strings.Trim(l.path, "/"), "/") {
		b = b.child(segment)
	}
	if b.verbs == nil {
		b.verbs = map[string]*line{}
	}
	b.verbs[l.verb] = l
}

func (b *branch) child(segment string) *branch {
	if name, ok := placeholder(segment); ok {
		if b.placeholder == nil {
			b.placeholder = &branch{name: name}
		}
		return b.placeholder
	}
	if b.literal == nil {
		b.literal = map[string]*branch{}
	}
	next := b.literal[segment]
	if next == nil {
		next = &branch{}
		b.literal[segment] = next
	}
	return next
}

func placeholder(segment string) (name string, ok bool) {
	if strings.HasPrefix(segment, "{") && strings.HasSuffix(segment, "}") {
		return segment[1 : len(segment)-1], true
	}
	return "", false
}

// parse reads one method's line.
func parse(verb, path, text string) *Method {
	m := struct {
		*Method
		Dropped []string `json:"dropped"`
		Check84 *Rule    `json:"check84"`
	}{Method: &Method{Path: path, Verb: verb}}
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		panic(fmt.Sprintf("pveapi: parse %s %s of the embedded table: %v", verb, path, err))
	}
	for _, v := range m.Params {
		v.prepare()
	}
	m.Returns.prepare()
	m.check84 = m.Check84
	for _, name := range m.Dropped {
		m.Params[name] = &Value{Type: "string", Optional: true, Until: "8.4"}
	}
	m.needed = m.neededParams()
	return m.Method
}

// UnmarshalJSON reads the two forms: a truth value, or what such members are.
func (a *Additional) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte("{")) {
		a.Allowed = true
		return json.Unmarshal(text, &a.Value)
	}
	return json.Unmarshal(text, &a.Allowed)
}

// prepare makes the tests of the patterns of a value and of all within it. A method of
// the decoder would do that too, but then it reads each value once for every one around it.
func (v *Value) prepare() {
	if v == nil {
		return
	}
	if v.Pattern != "" {
		v.expression = expression(v.Pattern)
	}
	for _, values := range []map[string]*Value{v.Sub, v.Props} {
		for _, inner := range values {
			inner.prepare()
		}
	}
	v.Items.prepare()
	if v.Additional != nil {
		v.Additional.Value.prepare()
	}
}
