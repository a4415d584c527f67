package arch_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// retiredNames are words that no identifier may have as a part, each with what to say instead.
// CONTRIBUTING.md has the whole glossary.
var retiredNames = map[string]string{
	"anew": "again, or a verb with re-", "bare": "provisional, unmarked", "besides": "also", "blind": "unobservable",
	"booked": "recorded", "born": "created", "came": "renumbered", "desk": "shared", "dress": "finish", "foreign": "unmanaged",
	"held": "locked, withheld", "herald": "notifier", "hush": "redact", "judge": "classify, check", "judged": "classified, checked",
	"leaves": "removalNote", "leaving": "removal", "leftover": "unusable", "leftovers": "unusableVMIDs", "look": "observe, check",
	"looked": "observed, checked", "looking": "observing, checking", "looks": "observations", "mark": "ownership tag, CommitRef",
	"marks": "tags", "mend": "fix", "mended": "fixed", "narrow": "limited", "obey": "respond", "obstacle": "preflight problem",
	"obstacles": "preflight problems", "pen": "write lock", "place": "range, slot, guest reference", "places": "ranges, slots",
	"proof": "identity check", "prove": "verify", "proved": "verified", "proves": "verifies", "recall": "sweepHints", "seat": "slot",
	"seated": "has a slot", "settle": "finish, apply", "settled": "finished, applied", "shelf": "node storage", "sick": "failing",
	"sight": "lastSeen", "spend": "consume", "spent": "consumed", "stand": "resume", "steered": "agentAPI", "stranger": "unknownIdentity, unmanaged",
	"strangers": "unmanaged", "survey": "hostInventory", "talkative": "logging", "tell": "report, notify", "tells": "reports", "told": "reported",
	"twin": "possibleDuplicate", "uncheckable": "uncheckedNow", "unseen": "notObserved", "unwell": "failing", "void": "used",
}

// retiredTexts are what no message may say, each with what to say instead.
var retiredTexts = []struct {
	name    string // in the table of exceptions
	re      *regexp.Regexp
	instead string
}{
	{"text: anew", regexp.MustCompile(`\banew\b`), "again, or recreated"},
	{"text: mend", regexp.MustCompile(`(?i)\bmend(s|ed)?\b`), "fix"},
	{"text: foreign", regexp.MustCompile(`\bforeign\b`), "unmanaged"},
	{"text: owner mark", regexp.MustCompile(`\b(owner|ownership) marks?\b`), "ownership tag"},
	{"text: tell", regexp.MustCompile(`\b(told|tells?)\b`), "report, say or list"},
	{"text: is no", regexp.MustCompile(`\bis no (a|b|c|d|e|f|g|h|i|j|k|li|le|me|n|o|p|q|r|s|t|u|v|w|x|y|z)[a-z]*`), "is not a"},
	{"text: not ours", regexp.MustCompile(`\bnot ours\b`), "unmanaged, or name its owner"},
	{"text: waits for a restart", regexp.MustCompile(`\b(what waits|waits? for (a|the next) restart)\b`), "pending changes, pending restart"},
	{"text: come to an end", regexp.MustCompile(`\bcomes? to (its|their|an) end\b`), "complete"},
	{"text: for want of", regexp.MustCompile(`\bfor want of\b`), "because … is missing"},
	{"text: one writer", regexp.MustCompile(`\bone writer\b`), "holds the write lock"},
}

// keptWords stay, each for its reason, in a folder and all below it.
var keptWords = map[string]map[string]string{
	"hcl": {"mark": "go-cty marks the values that are made from secrets", "marks": "as above"},
}

// exempt finds the folder around a package whose row has a word, of the nearest rows first.
func exempt(pkg, word string) (row string, ok bool) {
	for dir := pkg; dir != "."; dir = path.Dir(dir) {
		if keptWords[dir][word] != "" {
			return dir, true
		}
	}
	return "", false
}

// retired is a use of a retired word.
type retired struct{ pkg, word, finding string }

// findRetired lists the retired words in the identifiers that files declare, and in their texts.
func findRetired(tree []source) []retired {
	var out []retired
	for _, f := range tree {
		if f.test || f.forTests() {
			continue
		}
		for _, id := range declared(f.ast) {
			for _, part := range parts(id.Name) {
				if instead := retiredNames[part]; instead != "" {
					out = append(out, retired{f.pkg(), part, fmt.Sprintf("%s: %s has the retired word %q: say %s", f.path, id.Name, part, instead)})
				}
			}
		}
		for _, text := range texts(f.ast) {
			text = strings.NewReplacer("there is no ", "", "There is no ", "").Replace(text) // plain English
			for _, t := range retiredTexts {
				if hit := t.re.FindString(text); hit != "" {
					out = append(out, retired{f.pkg(), t.name, fmt.Sprintf("%s: a message says %q: say %s", f.path, hit, t.instead)})
				}
			}
		}
	}
	return out
}

func wordLaw(tree []source) []string {
	var out []string
	for _, r := range findRetired(tree) {
		if _, ok := exempt(r.pkg, r.word); !ok {
			out = append(out, r.finding)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// wordRowLaw finds exceptions that are not needed any more.
func wordRowLaw(tree []source) []string {
	used := map[string]bool{}
	for _, r := range findRetired(tree) {
		if row, ok := exempt(r.pkg, r.word); ok {
			used[row+" "+r.word] = true
		}
	}
	var out []string
	for _, row := range slices.Sorted(maps.Keys(keptWords)) {
		for _, word := range slices.Sorted(maps.Keys(keptWords[row])) {
			if !used[row+" "+word] {
				out = append(out, fmt.Sprintf("test/arch: %s does not have the word %q any more: remove it from keptWords", row, word))
			}
		}
	}
	return out
}

// declared lists the identifiers that a file declares.
func declared(file *ast.File) []*ast.Ident {
	var out []*ast.Ident
	add := func(list ...ast.Expr) {
		for _, e := range list {
			if id, ok := e.(*ast.Ident); ok {
				out = append(out, id)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.FuncDecl:
			out = append(out, x.Name)
		case *ast.TypeSpec:
			out = append(out, x.Name)
		case *ast.Field:
			out = append(out, x.Names...)
		case *ast.ValueSpec:
			out = append(out, x.Names...)
		case *ast.AssignStmt:
			if x.Tok == token.DEFINE {
				add(x.Lhs...)
			}
		case *ast.RangeStmt:
			if x.Tok == token.DEFINE {
				add(x.Key, x.Value)
			}
		}
		return true
	})
	return out
}

// parts splits an identifier into its words, in small letters: lookUp into look and up.
func parts(name string) []string {
	var out []string
	start := 0
	for i, r := range name {
		if i > start && unicode.IsUpper(r) {
			out = append(out, strings.ToLower(name[start:i]))
			start = i
		}
	}
	return append(out, strings.ToLower(name[start:]))
}

// texts lists the string literals of a file that may be sentences; the tags of fields are, too,
// since the reference page is made of them.
func texts(file *ast.File) []string {
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(s, " ") {
				out = append(out, s)
			}
		}
		return true
	})
	return out
}
