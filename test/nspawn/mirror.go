package nspawn

import (
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"
)

// aptSource is one line, or one stanza, of what apt is told.
type aptSource struct{ uris, suites []string }

// mirrorOf finds the mirror of Debian that a machine uses, in its /etc/apt: one that is
// asked for the suite, else any of Debian, since a mirror has all suites. "" if none.
func mirrorOf(apt fs.FS, suite string) string {
	var other string
	for _, s := range aptSources(apt) {
		for _, uri := range s.uris {
			u, err := url.Parse(uri)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" {
				continue
			}
			if slices.Contains(s.suites, suite) {
				return uri
			}
			if other == "" && path.Base(u.Path) == "debian" {
				other = uri
			}
		}
	}
	return other
}

// aptSources reads what apt is told: sources.list, then the files beside it by name.
func aptSources(apt fs.FS) []aptSource {
	names := []string{"sources.list"}
	for _, pattern := range []string{"sources.list.d/*.list", "sources.list.d/*.sources"} {
		more, _ := fs.Glob(apt, pattern) // the patterns are good ones
		names = append(names, more...)
	}
	var all []aptSource
	for _, name := range names {
		text, err := fs.ReadFile(apt, name)
		switch {
		case err != nil: // what cannot be read tells of no mirror
		case path.Ext(name) == ".sources":
			all = append(all, stanzas(string(text))...)
		default:
			all = append(all, lines(string(text))...)
		}
	}
	return all
}

// lines reads "deb [options] URI SUITE COMPONENT…".
func lines(text string) []aptSource {
	var all []aptSource
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != "deb" {
			continue
		}
		words = words[1:]
		if len(words) > 0 && strings.HasPrefix(words[0], "[") {
			end := slices.IndexFunc(words, func(w string) bool { return strings.HasSuffix(w, "]") })
			words = words[end+1:]
		}
		if len(words) > 2 {
			all = append(all, aptSource{words[:1], words[1:2]})
		}
	}
	return all
}

// stanzas reads "Types: …, URIs: …, Suites: …", with empty lines between.
func stanzas(text string) []aptSource {
	var all []aptSource
	for stanza := range strings.SplitSeq(text, "\n\n") {
		fields := map[string][]string{}
		for line := range strings.Lines(stanza) {
			if key, value, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, "#") {
				fields[strings.ToLower(key)] = strings.Fields(value)
			}
		}
		if slices.Contains(fields["types"], "deb") && !slices.Contains(fields["enabled"], "no") {
			all = append(all, aptSource{fields["uris"], fields["suites"]})
		}
	}
	return all
}
