package arch_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pageRows reads the table of packages in docs/architecture.md: what each package may
// import, and what its tests may import beside that.
func pageRows(page string) map[string][2][]string {
	rows := map[string][2][]string{}
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || !strings.HasPrefix(strings.TrimSpace(cells[0]), "`") {
			continue
		}
		may, tests, _ := strings.Cut(cells[2], "; tests:")
		rows[strings.Trim(strings.TrimSpace(cells[0]), "`")] = [2][]string{quoted(may), quoted(tests)}
	}
	return rows
}

// quoted returns the words in backquotes, sorted.
func quoted(text string) []string {
	out := []string{}
	for i, word := range strings.Split(text, "`") {
		if i%2 == 1 {
			out = append(out, word)
		}
	}
	slices.Sort(out)
	return out
}

// pageLaw lists how the page differs from the table. The packages of the simulator have one
// row there; their order is only in simulator_test.go.
func pageLaw(table []layer, rows map[string][2][]string) []string {
	var out []string
	known := map[string]bool{}
	for _, l := range table {
		known[l.pkg] = true
		if l.pkg == "sim/pve" || slices.Contains(simulator, l.pkg) {
			continue
		}
		row, there := rows[l.pkg]
		if !there {
			out = append(out, fmt.Sprintf("docs/architecture.md: the row of %s is missing", l.pkg))
			continue
		}
		for i, want := range [][]string{l.may, l.tests} {
			want = slices.Sorted(slices.Values(want))
			if !slices.Equal(want, row[i]) {
				out = append(out, fmt.Sprintf("docs/architecture.md: the row of %s has %v where test/arch has %v", l.pkg, row[i], want))
			}
		}
	}
	for pkg := range rows {
		if !known[pkg] && !strings.HasSuffix(pkg, "/...") {
			out = append(out, fmt.Sprintf("docs/architecture.md: package %s does not exist", pkg))
		}
	}
	slices.Sort(out)
	return out
}

func TestThePageHasTheTable(t *testing.T) {
	page, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	require.Empty(t, strings.Join(pageLaw(layers, pageRows(string(page))), "\n"))
}

func TestDifferencesOfThePageAreFound(t *testing.T) {
	table := []layer{{pkg: "a", may: []string{"b"}, tests: []string{"c"}}, {pkg: "b"}}
	rows := pageRows("| `a` | x | `c`; tests: `b` |\n| `gone` | x | – |\n")
	require.Equal(t, []string{
		"docs/architecture.md: package gone does not exist",
		"docs/architecture.md: the row of a has [b] where test/arch has [c]",
		"docs/architecture.md: the row of a has [c] where test/arch has [b]",
		"docs/architecture.md: the row of b is missing",
	}, pageLaw(table, rows))
}
