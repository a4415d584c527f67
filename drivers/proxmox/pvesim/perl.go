package pvesim

import (
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// text is a value as Perl would print it.
func text(value any) string {
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
			words[i] = text(v[i])
		}
		return strings.Join(words, ",")
	default:
		return fmt.Sprint(v)
	}
}

// isTrue says whether Perl takes a text for true.
func isTrue(value string) bool { return value != "" && value != "0" }

// kept is a text that a file keeps: one that Perl takes for false is gone once the file is
// read again.
func kept(value string) *string {
	if !isTrue(value) {
		return nil
	}
	return &value
}

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool {
		return r == ',' || r == ';' || r == 0 || r == ' ' || r == '\t' || r == '\n'
	})
}

// atoi reads a number that was checked before; 0 if it is none.
func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

func itoa(n int) string { return strconv.Itoa(n) }

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// sumOf is the digest of a text.
func sumOf(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // As above.
	return hex.EncodeToString(sum[:])
}

// segments splits a path; doubled and trailing slashes mean nothing.
func segments(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// unescaped takes back what clients percent-encode, as browsers do.
func unescaped(value string) string {
	if plain, err := url.PathUnescape(value); err == nil {
		return plain
	}
	return value
}

// optionOf finds one option of a property string that is not parsed otherwise.
func optionOf(value, name string) string {
	for part := range strings.SplitSeq(value, ",") {
		if v, ok := strings.CutPrefix(part, name+"="); ok {
			return v
		}
	}
	return ""
}

func ceil(n, by int64) int64 { return (n + by - 1) / by }

// printOptions prints a property string of which no member stands bare.
func printOptions(options map[string]string) string {
	parts := make([]string, 0, len(options))
	for _, key := range slices.Sorted(maps.Keys(options)) {
		parts = append(parts, key+"="+options[key])
	}
	return strings.Join(parts, ",")
}

// colons is a fingerprint as PVE shows it.
func colons(hex string) string {
	var parts []string
	for pair := range slices.Chunk([]byte(strings.ToUpper(hex)), 2) {
		parts = append(parts, string(pair))
	}
	return strings.Join(parts, ":")
}
