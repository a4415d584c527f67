package apply

import (
	"cmp"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// shortest is the minimum length of redacted secrets: shorter ones occur in any text by chance.
const shortest = 4

// hushedError is an error whose text had a secret in it. Unwrapping returns the original, for comparison only,
// never to print.
type hushedError struct {
	text string
	err  error
}

// Error is the text without the secret.
func (e *hushedError) Error() string { return e.text }

// Unwrap returns the original.
func (e *hushedError) Unwrap() error { return e.err }

// redact removes the secret values of a step from the text of its error: a host may repeat invalid
// values, and errors go into logs and receipts.
func redact(s plan.Step, err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	clean := text
	for _, v := range secrets(s) {
		for _, form := range []string{v, url.QueryEscape(v), url.PathEscape(v)} {
			clean = strings.ReplaceAll(clean, form, model.Sensitive)
		}
	}
	if clean == text {
		return err
	}
	return &hushedError{clean, err}
}

// secrets lists the values of a step that were made from secrets, longest first.
func secrets(s plan.Step) []string {
	var out []string
	for _, c := range s.Changes {
		if c.Sensitive {
			out = texts(texts(out, c.Before), c.After)
		}
	}
	for _, r := range []*model.Resource{s.Want, s.Have} {
		if r == nil || r.Spec == nil {
			continue
		}
		for _, a := range model.Attrs(r.Spec) {
			if a.Secret || r.IsSensitive(a.Path) {
				out = texts(out, a.Value)
			}
		}
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	return slices.Compact(out)
}

// texts adds the texts in a value to a list.
func texts(list []string, value any) []string {
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.String:
		if v.Len() >= shortest {
			list = append(list, v.String())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			list = texts(list, v.Index(i).Interface())
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			list = texts(list, v.MapIndex(k).Interface())
		}
	case reflect.Pointer:
		if !v.IsNil() {
			list = texts(list, v.Elem().Interface())
		}
	default: // numbers and truths are in any text
	}
	return list
}
