package proxmox

import (
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// property is a parsed property string such as "virtio=BC:24:…,bridge=vmbr0".
// PVE stores most of them as sent, so they are compared parsed, never as text.
type property struct {
	bare   string            // the value that stands without its key, in front
	values map[string]string // the others
}

func parseProperty(s string) property {
	p := property{values: map[string]string{}}
	for i, part := range strings.Split(s, ",") {
		k, v, ok := strings.Cut(part, "=")
		switch {
		case ok:
			p.values[strings.TrimSpace(k)] = v
		case i == 0:
			p.bare = part
		}
	}
	return p
}

// first gives the value of a key that may stand bare.
func (p property) first(key string) string {
	if v, ok := p.values[key]; ok {
		return v
	}
	return p.bare
}

// valueIn gives one value of a property string, as parseProperty does, and takes
// nothing else of it apart.
func valueIn(s, key string) string {
	val, _ := lookIn(s, key)
	return val
}

// firstIn is valueIn for a key that may stand bare.
func firstIn(s, key string) string {
	val, ok := lookIn(s, key)
	if bare, _, _ := strings.Cut(s, ","); !ok && !strings.Contains(bare, "=") {
		return bare
	}
	return val
}

func lookIn(s, key string) (val string, ok bool) {
	for part := range strings.SplitSeq(s, ",") {
		if k, v, pair := strings.Cut(part, "="); pair && strings.TrimSpace(k) == key {
			val, ok = v, true
		}
	}
	return val, ok
}

// isNumber reports whether a text is the number at the end of a key such as net0.
func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// gib reads a size such as 32G, 1T or 2252M in whole GiB, rounded down.
func gib(s string) int {
	n, _ := byteSize(s)
	return int(n >> 30)
}

// byteSize reads a size in bytes; without a unit it is bytes (PVE/JSONSchema.pm, parse_size).
func byteSize(s string) (int64, bool) {
	m := sizeText.FindStringSubmatch(s)
	if m == nil {
		return 0, false
	}
	f, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, false
	}
	return int64(f * map[string]float64{"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[m[2]]), true
}

var sizeText = regexp.MustCompile(`^(\d+(?:\.\d+)?)([KMGT]?)$`)

// splitTags reads a list of tags with any of PVE's separators (PVE/JSONSchema.pm, pve-tag-list).
func splitTags(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ';' || r == ',' || r == ' ' })
}

// readTags gives a guest's tags in the form in which they are wanted.
func readTags(s string) []string {
	var out []string
	for _, t := range splitTags(s) {
		out = append(out, strings.ToLower(t))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// encodeKeys gives PVE's form of ssh keys: percent-encoded by RFC 3986, where a
// space is %20 and never +.
func encodeKeys(keys []string) string {
	return strings.ReplaceAll(url.QueryEscape(strings.Join(keys, "\n")), "+", "%20")
}

// decodeKeys reads what encodeKeys wrote, or what somebody else did: without empty
// lines and blanks around the keys.
func decodeKeys(s string) []string {
	plain, err := url.PathUnescape(s)
	if err != nil {
		plain = s
	}
	return keyLines(plain)
}

// keyLines takes a text apart into the keys on its lines.
func keyLines(plain string) []string {
	out := []string{}
	for line := range strings.Lines(plain) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}
