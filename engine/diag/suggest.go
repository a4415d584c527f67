package diag

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
)

// Nearest returns the candidate that a misspelt name probably means, or "". A candidate counts when
// at most a third of the name differs (and always for one wrong character).
func Nearest(name string, candidates []string) string {
	best, bestDist := "", max(len(name)/3, 1)+1
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		d := distance(strings.ToLower(name), strings.ToLower(c))
		if d < bestDist {
			best, bestDist = c, d
		}
	}
	return best
}

// distance is the number of characters that differ. A transposition of two neighbours, the most
// common typo, counts as one.
func distance(a, b string) int {
	d := levenshtein.Distance(a, b, nil)
	if d != 2 || len(a) != len(b) {
		return d
	}
	for i := 0; i+1 < len(a); i++ {
		if a[:i]+a[i+1:i+2]+a[i:i+1]+a[i+2:] == b {
			return 1
		}
	}
	return d
}

// DidYouMean turns Nearest into a sentence, or lists the known names if none is near; "" without names.
func DidYouMean(name string, candidates []string) string {
	if n := Nearest(name, candidates); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	if len(candidates) == 0 {
		return ""
	}
	known := slices.Compact(slices.Sorted(slices.Values(candidates)))
	const shown = 12
	if len(known) > shown+1 { // one more is shorter than "and 1 more"
		return fmt.Sprintf("known: %s, and %d more", strings.Join(known[:shown], ", "), len(known)-shown)
	}
	return "known: " + strings.Join(known, ", ")
}
