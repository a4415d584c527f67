package proxmox

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
)

// row is an object of a list that PVE answered, member by member. It is read by name:
// most have many more members than anybody wants to know.
type row []member

type member struct {
	name []byte
	val  json.RawMessage
}

// raw is the JSON text of a member; nil if it is not there.
func (r row) raw(name string) json.RawMessage {
	for _, m := range slices.Backward(r) { // where a name comes twice the last one counts
		if string(m.name) == name {
			return m.val
		}
	}
	return nil
}

func (r row) text(name string) string { return text(r.raw(name)) }
func (r row) number(name string) int  { return number(r.raw(name)) }

// rows reads a list and hands out its objects one by one, each good until the next.
// there tells whether it was a list at all: null is none. After an error all that was
// handed out is to be thrown away, since the rest is missing.
//
// The lists that are as long as the host is large are read so. It gives what
// encoding/json gives, on which an agent would spend a quarter of its time.
func (c *client) rows(ctx context.Context, path string, each func(row)) (there bool, err error) {
	doc, err := c.ask(ctx, path)
	if err != nil {
		return false, err
	}
	return readRows(doc, each)
}

func readRows(doc []byte, each func(row)) (there bool, err error) {
	s := &scanner{doc: doc}
	var buf row
	object := func() bool {
		buf = buf[:0]
		ok := s.peek() == 'n' && s.word("null") || s.object(func(name []byte) bool {
			s.space()
			from := s.at
			ok := s.value()
			buf = append(buf, member{name, doc[from:s.at:s.at]})
			return ok
		})
		if ok {
			each(buf)
		}
		return ok
	}
	ok := s.object(func(name []byte) bool {
		if string(name) != "data" || s.peek() == 'n' {
			return s.value()
		}
		again := there
		there = true
		return !again && s.list(object)
	})
	if s.space(); ok && s.at == len(doc) {
		return there, nil
	}
	var list struct {
		Data []map[string]json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(doc, &list); err != nil {
		return false, err // which says what is wrong with it
	}
	return false, errors.New("the answer is no list of objects")
}

// mostNested is how deep a JSON text may be, as in encoding/json.
const mostNested = 10000

// scanner goes through a JSON text. Its methods report whether what they are named
// after stands there, and leave it behind.
type scanner struct {
	doc   []byte
	at    int
	depth int
}

func (s *scanner) space() {
	for s.at < len(s.doc) && (s.doc[s.at] == ' ' || s.doc[s.at] == '\n' || s.doc[s.at] == '\t' || s.doc[s.at] == '\r') {
		s.at++
	}
}

// peek is the first character of what comes next; 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	return s.here()
}

func (s *scanner) here() byte {
	if s.at == len(s.doc) {
		return 0
	}
	return s.doc[s.at]
}

func (s *scanner) sign(c byte) bool {
	if s.at == len(s.doc) || s.doc[s.at] != c {
		return false
	}
	s.at++
	return true
}

func (s *scanner) word(w string) bool {
	if len(s.doc)-s.at < len(w) || string(s.doc[s.at:s.at+len(w)]) != w {
		return false
	}
	s.at += len(w)
	return true
}

func (s *scanner) value() bool {
	switch s.peek() {
	case '"':
		return s.quoted()
	case '{':
		return s.object(func([]byte) bool { return s.value() })
	case '[':
		return s.list(s.value)
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	default:
		return s.number()
	}
}

// object calls value with the name of each member, after which its value comes.
func (s *scanner) object(value func(name []byte) bool) bool {
	return s.nested('{', '}', func() bool {
		s.space()
		from := s.at
		if !s.quoted() {
			return false
		}
		name := s.doc[from+1 : s.at-1]
		for _, c := range name {
			if c == '\\' || c >= 0x80 { // no name of PVE's
				name = []byte(text(s.doc[from:s.at]))
				break
			}
		}
		s.space()
		return s.sign(':') && value(name)
	})
}

func (s *scanner) list(element func() bool) bool { return s.nested('[', ']', element) }

func (s *scanner) nested(begin, end byte, element func() bool) bool {
	s.space()
	if s.depth++; s.depth > mostNested || !s.sign(begin) {
		return false
	}
	if s.peek() == end {
		s.depth--
		return s.sign(end)
	}
	for element() {
		s.space()
		if s.sign(end) {
			s.depth--
			return true
		}
		if !s.sign(',') {
			return false
		}
	}
	return false
}

func (s *scanner) quoted() bool {
	if !s.sign('"') {
		return false
	}
	for s.at < len(s.doc) {
		c := s.doc[s.at]
		s.at++
		switch {
		case c == '"':
			return true
		case c < ' ':
			return false
		case c == '\\' && !s.escaped():
			return false
		}
	}
	return false
}

func (s *scanner) escaped() bool {
	c := s.here()
	s.at = min(s.at+1, len(s.doc))
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
		for range 4 {
			c := s.here() | 0x20
			if s.at == len(s.doc) || (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
			s.at++
		}
		return true
	default:
		return false
	}
}

func (s *scanner) number() bool {
	s.sign('-')
	if !s.sign('0') && !s.digits() {
		return false
	}
	if s.sign('.') && !s.digits() {
		return false
	}
	if s.sign('e') || s.sign('E') {
		_ = s.sign('+') || s.sign('-')
		return s.digits()
	}
	return true
}

func (s *scanner) digits() bool {
	from := s.at
	for s.at < len(s.doc) && s.doc[s.at] >= '0' && s.doc[s.at] <= '9' {
		s.at++
	}
	return s.at > from
}
