package pveapi

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestNumbersAreThoseOfTheExpressions: the tests for numbers without an expression say what
// the expressions of PVE say.
func TestNumbersAreThoseOfTheExpressions(t *testing.T) {
	digits, integer := expression(`[0-9]+`), expression(`[+-]?[0-9]+`)
	number := expression(`[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?`)
	rapid.Check(t, func(rt *rapid.T) {
		word := rapid.StringMatching(`[+-]{0,2}[0-9]{0,3}\.?[0-9]{0,2}(e[+-]?[0-9]?)?[\nax٣]{0,2}`).Draw(rt, "word")
		require.Equal(rt, []bool{digits(word), integer(word), number(word)}, []bool{isDigits(word), isInteger(word), isNumber(word)}, "%q", word)
	})
}

// TestFormatsKnown: every format that a parameter names is implemented, but for
// these; a new one in the table must not pass unseen.
func TestFormatsKnown(t *testing.T) {
	unchecked := map[string]string{
		"pve-command-batch": "JSON of API calls, of a method for root alone",
	}
	named := map[string]bool{}
	var walk func(values map[string]*Value)
	walk = func(values map[string]*Value) {
		for _, v := range values {
			named[v.Format] = true
			walk(v.Sub)
			walk(v.Props)
			if v.Items != nil {
				walk(map[string]*Value{"": v.Items})
			}
		}
	}
	for _, m := range Methods() {
		walk(m.Params)
	}
	for _, property := range propertyFormats() {
		walk(property.members)
	}
	delete(named, "")
	require.Greater(t, len(named), 80)
	for _, name := range slices.Sorted(maps.Keys(named)) {
		_, single := formats()[name]
		_, property := propertyFormats()[name]
		_, list := formats()[strings.TrimSuffix(name, "-list")]
		_, optional := formats()[strings.TrimSuffix(name, "-opt")]
		_, excused := unchecked[name]
		require.True(t, single || property || list || optional || excused, "format %q is not implemented", name)
		require.False(t, excused && (single || property), "format %q is implemented after all", name)
	}
}

// TestPatternsCompile: the patterns of the table work in Go, but for one of
// answers, which then lets everything pass.
func TestPatternsCompile(t *testing.T) {
	var failing []string
	var walk func(at string, values map[string]*Value)
	walk = func(at string, values map[string]*Value) {
		for name, v := range values {
			// A word that no pattern can match: if it passes, the pattern did not
			// compile, or matches anything.
			if v.Pattern != "" && v.matches("\x01 <>#\"\n\x02") {
				failing = append(failing, at+" "+name)
			}
			walk(at, v.Sub)
			walk(at, v.Props)
			if v.Items != nil {
				walk(at, map[string]*Value{name: v.Items})
			}
		}
	}
	for _, m := range Methods() {
		walk("request", m.Params)
		walk("answer", map[string]*Value{"": m.Returns})
	}
	slices.Sort(failing)
	require.Equal(t, []string{"answer runningcpu"}, slices.Compact(failing))
}

// TestRulesOfPermissions: every declared check is read to its end.
func TestRulesOfPermissions(t *testing.T) {
	kinds := map[string]int{}
	var walk func(r *Rule)
	walk = func(r *Rule) {
		kinds[r.Kind]++
		for _, rule := range r.Rules {
			walk(rule)
		}
		if r.Kind == "perm" {
			require.NotEmpty(t, r.Path)
			require.NotEmpty(t, r.Privs)
		}
	}
	for _, m := range Methods() {
		for _, version := range []string{"8.4", ""} {
			if perm := m.PermFor(version); perm.Check != nil {
				walk(perm.Check)
			}
		}
	}
	require.ElementsMatch(t, []string{"and", "or", "perm", "userid-param", "userid-group", "perm-modify"},
		slices.Collect(maps.Keys(kinds)))
	require.Greater(t, kinds["perm"], 300)
}

// BenchmarkFirstUse is what a command line tool pays that looks up one method.
func BenchmarkFirstUse(b *testing.B) {
	for b.Loop() {
		lines := unpack().lines
		_ = lines[0].method()
	}
}
