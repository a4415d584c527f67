package api

// The configuration of a guest in Proxmox VE has values with a syntax of their own: property strings, lists of
// tags, sizes, VLANs and SSH keys.

import (
	"cmp"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// PropertySet is a parsed property string such as "virtio=BC:24:…,bridge=vmbr0".
// PVE stores most of them as sent, so they are compared parsed, never as text.
type PropertySet struct {
	Keyless string            // the value that stands without its key, in front
	Values  map[string]string // the others
}

// ParseProperty parses a property string.
func ParseProperty(s string) PropertySet {
	p := PropertySet{Values: map[string]string{}}
	first := true
	for part := range strings.SplitSeq(s, ",") {
		k, v, ok := strings.Cut(part, "=")
		switch {
		case ok:
			p.Values[strings.TrimSpace(k)] = v
		case first:
			p.Keyless = part
		}
		first = false
	}
	return p
}

// First gives the value of a key that may stand bare.
func (p PropertySet) First(key string) string {
	if v, ok := p.Values[key]; ok {
		return v
	}
	return p.Keyless
}

// With writes the property string with some members set, or left out where their value is "";
// bare is the member that may stand without its name.
func (p PropertySet) With(set map[string]string, keyless string) string {
	values := maps.Clone(p.Values)
	maps.Copy(values, set)
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if val := values[key]; val != "" {
			parts = append(parts, key+"="+val)
		}
	}
	if len(parts) == 1 && keyless != "" {
		return strings.TrimPrefix(parts[0], keyless+"=")
	}
	if i := slices.IndexFunc(parts, func(s string) bool { return strings.HasPrefix(s, "ip=") }); i > 0 { // as PVE's own form writes it
		ip := parts[i]
		parts = slices.Insert(slices.Delete(parts, i, i+1), 0, ip)
	}
	return strings.Join(parts, ",")
}

// PropertyValue gives one value of a property string, as Parse does, and takes
// nothing else of it apart.
func PropertyValue(s, key string) string {
	val, _ := lookup(s, key)
	return val
}

// PropertyFirst is Value for a key that may stand bare.
func PropertyFirst(s, key string) string {
	val, ok := lookup(s, key)
	if keyless, _, _ := strings.Cut(s, ","); !ok && !strings.Contains(keyless, "=") {
		return keyless
	}
	return val
}

func lookup(s, key string) (val string, ok bool) {
	for part := range strings.SplitSeq(s, ",") {
		if k, v, pair := strings.Cut(part, "="); pair && strings.TrimSpace(k) == key {
			val, ok = v, true
		}
	}
	return val, ok
}

// VolumeOf is the volume of a drive, or of a mount point.
func VolumeOf(drive string) string {
	return cmp.Or(PropertyValue(drive, "file"), PropertyFirst(drive, "volume"))
}

// StorageOf is the storage of a drive's volume, or of the order for one.
func StorageOf(drive string) string {
	storage, _, _ := strings.Cut(VolumeOf(drive), ":")
	return storage
}

// isNumber reports whether a text is the number at the end of a key such as net0.
func isNumber(s string) bool {
	return s != "" && strings.IndexFunc(s, func(c rune) bool { return c < '0' || c > '9' }) < 0
}

// IsNet reports whether a key is that of a network card.
func IsNet(key string) bool {
	no, ok := strings.CutPrefix(key, "net")
	return ok && isNumber(no)
}

// ParseGiB reads a size such as 32G, 1T or 2252M in whole ParseGiB, rounded down.
func ParseGiB(s string) int {
	n, _ := ParseBytes(s)
	return int(n >> 30)
}

// ParseBytes reads a size in bytes; without a unit it is bytes (PVE/JSONSchema.pm, parse_size).
func ParseBytes(s string) (int64, bool) {
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

// SplitTags reads a list of tags with any of PVE's separators (PVE/JSONSchema.pm, pve-tag-list).
func SplitTags(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ';' || r == ',' || r == ' ' })
}

// NormalTags normalises a guest's tags.
func NormalTags(s string) []string {
	var out []string
	for _, t := range SplitTags(s) {
		out = append(out, strings.ToLower(t))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// EncodeSSHKeys encodes SSH keys for PVE: percent-encoded by RFC 3986, where a space is %20 and never
// +.
func EncodeSSHKeys(keys []string) string {
	return strings.ReplaceAll(url.QueryEscape(strings.Join(keys, "\n")), "+", "%20")
}

// DecodeSSHKeys decodes SSH keys, without empty lines and spaces around the keys.
func DecodeSSHKeys(s string) []string {
	plain, err := url.PathUnescape(s)
	if err != nil {
		plain = s
	}
	out := []string{}
	for line := range strings.Lines(plain) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}
