package replay_test

import (
	"maps"
	"regexp"
	"strings"
)

// identifiers are the invented values in texts: they differ, but the same
// recorded one must always meet the same value, and another one another.
type identifiers struct {
	actual   map[string]string // By recorded value.
	recorded map[string]string // By value at hand.
	// given are those that a request brought; they must come back as they are.
	given map[string]bool
}

func newIdentifiers() *identifiers {
	return &identifiers{actual: map[string]string{}, recorded: map[string]string{}, given: map[string]bool{}}
}

func (ids *identifiers) clone() *identifiers {
	return &identifiers{actual: maps.Clone(ids.actual), recorded: maps.Clone(ids.recorded), given: ids.given}
}

// same says whether a text is the recorded one with the values at hand.
func (ids *identifiers) same(recorded, atHand string) bool {
	if plain(recorded) != plain(atHand) {
		return false
	}
	wants, gots := identify(recorded), identify(atHand)
	if len(wants) == 0 {
		return recorded == atHand
	}
	for i := range wants {
		if ids.actual[wants[i].value] != gots[i].value {
			return false
		}
	}
	return true
}

// invented finds them: of a UPID the three numbers, fingerprints, uuids, digests,
// MACs, tickets, the names of uploaded files. Where there is a group it is the
// identifier.
var invented = regexp.MustCompile(strings.Join([]string{
	`UPID:[^:\s]+:([0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}):`,
	`(?:[0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}`,
	`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`,
	`\b[0-9a-f]{40}\b`, `\b[0-9a-f]{64}\b`,
	`(?i:\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b)`,
	`(?i:\bfe80::[0-9a-f]{1,4}:[0-9a-f]{1,2}ff:fe[0-9a-f]{2}:[0-9a-f]{1,4}\b)`, // Made of a MAC.
	`pveupload-[0-9a-f]+`,
	`PVE:[^:\s]+:([0-9A-F]{8}::[A-Za-z0-9+/=]+)`,
	`\b[0-9A-F]{8}:[A-Za-z0-9+/]{43}`,
}, "|"))

// depending are parts of texts that hang on time or on the version of QEMU.
var depending = regexp.MustCompile(`ctime=\d+|creation-qemu=[\d.]+|\bpc-(?:i440fx|q35)-[\d.]+(?:\+pve\d+)?`)

// give learns the identifiers that a client thought up and put into a request.
func (ids *identifiers) give(text string) {
	for _, id := range identify(text) {
		if _, met := ids.actual[id.value]; !met {
			ids.given[id.value] = true
		}
	}
}

type identified struct {
	from, to int
	value    string
}

// identify finds the identifiers of a text; MACs compare without case.
func identify(text string) []identified {
	var all []identified
	if len(text) < len("BC:24:11:00:00:01") {
		return nil // Shorter than any.
	}
	for _, at := range invented.FindAllStringSubmatchIndex(text, -1) {
		from, to := at[0], at[1]
		for group := 2; group < len(at); group += 2 {
			if at[group] >= 0 {
				from, to = at[group], at[group+1]
			}
		}
		all = append(all, identified{from, to, strings.ToLower(text[from:to])})
	}
	return all
}

// plain is a text with its identifiers and what depends on the setup left out.
func plain(text string) string {
	var b strings.Builder
	last := 0
	for _, id := range identify(text) {
		b.WriteString(text[last:id.from])
		b.WriteString("<id>")
		last = id.to
	}
	b.WriteString(text[last:])
	return depending.ReplaceAllString(b.String(), "<setup>")
}

// text compares two texts.
func (c *comparison) text(path, want, got string) {
	if want != got && plain(want) != plain(got) {
		c.differ(path, "want %q, got %q", want, got)
		return
	}
	wants, gots := identify(want), identify(got)
	for i := range wants {
		c.identifier(path, wants[i].value, gots[i].value)
	}
}

func (c *comparison) identifier(path, want, got string) {
	ids := c.ids
	if ids.given[want] && want != got {
		c.differ(path, "a request brought %s, but here is %s", want, got)
		return
	}
	if before, met := ids.actual[want]; met && before != got {
		c.differ(path, "should still be %s, but is %s", before, got)
		return
	}
	if before, met := ids.recorded[got]; met && before != want {
		c.differ(path, "should have changed, but is still %s", got)
		return
	}
	ids.actual[want], ids.recorded[got] = got, want
}
