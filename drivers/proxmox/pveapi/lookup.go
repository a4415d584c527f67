package pveapi

import (
	"net/url"
	"strings"
	"unicode"
)

// Lookup finds the method that a request's verb and path name. The path is
// without "/api2/json" and percent-encoded; vars holds what stands for the
// placeholders, decoded, by name.
//
// As on PVE the path is decoded before it is split, so an encoded slash is a
// slash; empty segments mean nothing. A volume ID and a network, which hold
// slashes themselves, take all that is left of the path. No blank can stand for a
// placeholder (register_method in PVE/RESTHandler.pm matches \S+).
//
// known is false when no method has such a path. A known path without that verb
// gives known and no method.
func Lookup(verb, escapedPath string) (m *Method, vars map[string]string, known bool) {
	path, err := url.PathUnescape(escapedPath)
	if err != nil {
		return nil, nil, false
	}
	vars = map[string]string{}
	at := table().root
	for rest := strings.Trim(path, "/"); rest != ""; {
		segment, after, _ := strings.Cut(rest, "/")
		after = strings.TrimLeft(after, "/")
		switch next := at.literal[segment]; {
		case next != nil:
			at, rest = next, after
		case at.placeholder == nil, strings.ContainsFunc(segment, unicode.IsSpace):
			return nil, nil, false
		case at.placeholder.greedy():
			if strings.ContainsFunc(rest, unicode.IsSpace) {
				return nil, nil, false
			}
			at = at.placeholder
			vars[at.name], rest = rest, ""
		default:
			at = at.placeholder
			vars[at.name], rest = segment, after
		}
	}
	if at.verbs == nil {
		return nil, nil, false
	}
	if l := at.verbs[verb]; l != nil {
		return l.method(), vars, true
	}
	return nil, vars, true
}

// greedy says whether a placeholder takes the rest of the path: where PVE sets
// an empty fragmentDelimiter (PVE/API2/Storage/Status.pm for the content of a
// storage, PVE/API2/Firewall for IP sets).
func (b *branch) greedy() bool { return b.name == "volume" || b.name == "cidr" }
