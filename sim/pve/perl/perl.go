// Package perl has Proxmox VE's Perl conventions: values and failures (perl.go), property strings and configuration
// files (property.go), and calendar events (calendar.go).
package perl

// Values and failures follow the rules of Perl: what counts as true, how a value is printed,
// how a list is split, and which answer a die or an exception becomes ([Fail], [BadParam],
// [Forbidden]).

import (
	"crypto/sha1" //nolint:gosec // The digest of PVE is SHA-1.
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Text is a value as Perl would print it.
func Text(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case bool:
		if v {
			return "1"
		}
		return "0"
	case json.Number:
		return v.String()
	case []any:
		words := make([]string, len(v))
		for i := range v {
			words[i] = Text(v[i])
		}
		return strings.Join(words, ",")
	default:
		return fmt.Sprint(v)
	}
}

// IsTrue says whether Perl takes a text for true.
func IsTrue(value string) bool { return value != "" && value != "0" }

// SplitList splits a list as PVE::Tools::split_list does.
func SplitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool {
		return r == ',' || r == ';' || r == 0 || r == ' ' || r == '\t' || r == '\n'
	})
}

// Atoi reads a number that was checked before; 0 if it is none.
func Atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

// Itoa prints a number.
func Itoa(n int) string { return strconv.Itoa(n) }

// BoolInt is 1 for true.
func BoolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// CutLast is strings.Cut at the last separator.
func CutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// Sorted goes through a map in the order of its keys.
func Sorted[V any](all map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if !yield(key, all[key]) {
				return
			}
		}
	}
}

// SumOf is the digest of a text.
func SumOf(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // As above.
	return hex.EncodeToString(sum[:])
}

// Segments splits a path; doubled and trailing slashes mean nothing.
func Segments(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// OptionOf finds one option of a property string that is not parsed otherwise.
func OptionOf(value, name string) string {
	for part := range strings.SplitSeq(value, ",") {
		if v, ok := strings.CutPrefix(part, name+"="); ok {
			return v
		}
	}
	return ""
}

// Colons is a fingerprint as PVE shows it.
func Colons(hex string) string {
	var parts []string
	for pair := range slices.Chunk([]byte(strings.ToUpper(hex)), 2) {
		parts = append(parts, string(pair))
	}
	return strings.Join(parts, ":")
}
