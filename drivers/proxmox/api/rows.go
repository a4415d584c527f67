package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// ContentTypes returns the content types that a storage accepts. PVE lists it in the order of a
// hash, which changes from answer to answer; it is sorted here.
func ContentTypes(list string) []string {
	return slices.DeleteFunc(slices.Sorted(strings.SplitSeq(list, ",")), func(c string) bool { return c == "" || c == "none" })
}

// AddContentTypes is the list of what a storage takes, with more, for pvesm set --content.
func AddContentTypes(takes []string, more ...string) string {
	all := slices.Concat(takes, more)
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}

// Row is an object of a list in PVE's response, member by member. It is read by name: most have many unused
// members.
type Row []member

type member struct {
	name []byte
	val  json.RawMessage
}

// Raw is the JSON text of a member; nil if it is not there.
func (r Row) Raw(name string) json.RawMessage {
	for _, m := range slices.Backward(r) { // where a name comes twice the last one counts
		if string(m.name) == name {
			return m.val
		}
	}
	return nil
}

// Text is a member as canonical text; see Text.
func (r Row) Text(name string) string { return Text(r.Raw(name)) }

// Number is a member as a number; see Number.
func (r Row) Number(name string) int { return Number(r.Raw(name)) }

// Rows reads a list and hands out its objects one by one, each good until the next.
// there reports whether it was a list at all: null is none. After an error all that was
// handed out is to be thrown away, since the rest is missing.
//
// The lists that are as long as the host is large are read so, token by token. It gives
// what encoding/json gives, on which an agent would spend a quarter of its time.
func (c *Client) Rows(ctx context.Context, path string, each func(Row)) (there bool, err error) {
	doc, err := c.Read(ctx, path)
	if err != nil {
		return false, err
	}
	return readRows(doc, each)
}

func readRows(doc []byte, each func(Row)) (there bool, err error) {
	r := reader{doc, jsontext.NewDecoder(bytes.NewBuffer(doc), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))}
	var members Row
	err = r.object(func(name []byte) error {
		if string(name) != "data" || r.PeekKind() == 'n' {
			return r.SkipValue()
		}
		if there {
			return errors.New("data appears twice")
		}
		there = true
		return r.list(func() error {
			members = members[:0]
			if r.PeekKind() == 'n' {
				each(members)
				return r.SkipValue()
			}
			err := r.object(func(name []byte) error {
				val, err := r.value()
				members = append(members, member{name, val})
				return err
			})
			if err == nil {
				each(members)
			}
			return err
		})
	})
	if err == nil {
		if _, err = r.ReadToken(); errors.Is(err, io.EOF) {
			return there, nil
		}
		err = errors.New("there is more data after it")
	}
	return false, fmt.Errorf("the answer is not a list of objects: %w", err)
}

// reader goes through a JSON text; what it gives stays good, being a part of the text.
type reader struct {
	doc []byte
	*jsontext.Decoder
}

// value reads whatever comes next.
func (r reader) value() (json.RawMessage, error) {
	v, err := r.ReadValue()
	if err != nil {
		return nil, err
	}
	end := r.InputOffset()
	return r.doc[end-int64(len(v)) : end : end], nil
}

// object calls member with the name of each, after which its value is to be read.
func (r reader) object(member func(name []byte) error) error {
	return r.within('{', '}', func() error {
		raw, err := r.value()
		if err != nil {
			return err
		}
		name := []byte(raw[1 : len(raw)-1])
		if bytes.ContainsFunc(name, func(c rune) bool { return c == '\\' || c >= utf8.RuneSelf }) { // no name of PVE's
			name = []byte(Text(raw))
		}
		return member(name)
	})
}

func (r reader) list(element func() error) error { return r.within('[', ']', element) }

func (r reader) within(begin, end jsontext.Kind, element func() error) error {
	if token, err := r.ReadToken(); err != nil {
		return err
	} else if token.Kind() != begin {
		return fmt.Errorf("got %s, expected %s", token.Kind(), begin)
	}
	for r.PeekKind() != end {
		if err := element(); err != nil {
			return err
		}
	}
	_, err := r.ReadToken()
	return err
}
