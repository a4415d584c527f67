package pveapi

import (
	"net/url"
	"strings"
)

// DecodeForm reads a query or an urlencoded form as PVE does (decode_urlencoded
// in PVE/APIServer/AnyEvent.pm): a bare ";" separates like "&", what follows a
// second bare "=" is dropped, a broken escape stands for itself, and a name that
// comes several times has a list of strings.
func DecodeForm(form string) map[string]any {
	values := map[string]any{}
	for pair := range strings.FieldsFuncSeq(form, func(r rune) bool { return r == '&' || r == ';' }) {
		name, value, _ := strings.Cut(pair, "=")
		value, _, _ = strings.Cut(value, "=")
		AddValue(values, unescape(name), unescape(value))
	}
	return values
}

// AddValue adds a parameter; one that comes several times has a list.
func AddValue(values map[string]any, name, value string) {
	switch before := values[name].(type) {
	case nil:
		values[name] = value
	case []any:
		values[name] = append(before, value)
	default:
		values[name] = []any{before, value}
	}
}

func unescape(s string) string {
	if plain, err := url.QueryUnescape(s); err == nil {
		return plain
	}
	// Escape the percent signs that start no escape, and decode the rest.
	var fixed strings.Builder
	for i := range len(s) {
		if s[i] == '%' && (i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2])) {
			fixed.WriteString("%25")
		} else {
			fixed.WriteByte(s[i])
		}
	}
	plain, err := url.QueryUnescape(fixed.String())
	if err != nil {
		return s
	}
	return plain
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}
