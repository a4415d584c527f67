package diag

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
)

// Nearest gives the candidate that was probably meant by a misspelt name, or "".
// A candidate counts when at most a third of the name differs (and always for
// one wrong character).
func Nearest(name string, candidates []string) string {
	best, bestDist := "", max(len(name)/3, 1)+1
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		d := levenshtein.Distance(strings.ToLower(name), strings.ToLower(c), nil)
		if d < bestDist {
			best, bestDist = c, d
		}
	}
	return best
}

// DidYouMean turns Nearest into a sentence, with the known names where there is
// no near one; "" when there is nothing to choose from.
func DidYouMean(name string, candidates []string) string {
	if n := Nearest(name, candidates); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	if len(candidates) == 0 {
		return ""
	}
	known := slices.Sorted(slices.Values(candidates))
	const shown = 12
	if len(known) > shown {
		return fmt.Sprintf("known: %s, and %d more", strings.Join(known[:shown], ", "), len(known)-shown)
	}
	return "known: " + strings.Join(known, ", ")
}
