package arch_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// messagesFile has every text that the program can show, so that a reviewer reads texts as
// an editor reads a page. HOMESTAK_UPDATE=1 go test ./test/arch writes it.
const messagesFile = "testdata/messages.txt"

// sentence matches texts of at least two words. What has one word is a key, a path or a format.
var sentence = regexp.MustCompile(`[A-Za-z]{2,}[^A-Za-z\n]? [^ ]*[a-z]{2,}`)

// script matches what machines read: shell, Rego, HTTP, HCL of templates.
var script = regexp.MustCompile(`(?m)\b(fi|done|esac|then)$|^\s*(set -|if \[|exec |package |import |default )|^#!|>&2|\$\{?[0-9@#]|=> |^[A-Z]+ /`)

// prose matches texts that end like shell, and are sentences: "nothing is done", with no line of a script.
var prose = regexp.MustCompile(`^[^$;|<>{}\[\]]*$`)

// dies matches the messages of scripts.
var dies = regexp.MustCompile(`\bdie (?:"([^"]+)"|'([^']+)')`)

// phrases are constructions that no message has, each with what to write instead.
// CONTRIBUTING.md says how messages are written; this list is only what came back before.
var phrases = []struct {
	re      *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\b(nobody|somebody|whoever|no one)\b`), "name the person, program or guest"},
	{regexp.MustCompile(`(?i)\b(by itself|what came of it|looks? again|for want of|not ours|what waits)\b`), "say what happens"},
	{regexp.MustCompile(`(?i)\b(anew|mend(s|ed)?|foreign guest|told|tells?)\b`), "recreate, fix, unmanaged, report"},
	{regexp.MustCompile(`\b(it|that|this|which|[A-Za-z%]*[a-df-z%q]) is no ([a-km-z]|l[a-np-z])[a-z]*`), "is not a …"},
	{regexp.MustCompile(`\bowner(ship)? marks?\b`), "ownership tag"},
}

// messages lists the texts of a file in their order. A text that is joined of several
// literals is one; what is put in between is shown as ….
func messages(file *ast.File) []string {
	var out []string
	var fold func(e ast.Expr) (string, bool)
	fold = func(e ast.Expr) (string, bool) {
		switch x := e.(type) {
		case *ast.BasicLit:
			s, err := strconv.Unquote(x.Value)
			return s, x.Kind == token.STRING && err == nil
		case *ast.ParenExpr:
			return fold(x.X)
		case *ast.BinaryExpr:
			l, lok := fold(x.X)
			r, rok := fold(x.Y)
			if x.Op != token.ADD || !lok && !rok {
				return "…", false
			}
			return l + r, true
		}
		return "…", false
	}
	var visit func(n ast.Node) bool
	inside := func(e ast.Expr) { // of what is joined to a text, such as a call with texts of its own
		ast.Inspect(e, func(n ast.Node) bool {
			switch n.(type) {
			case *ast.BinaryExpr, *ast.ParenExpr, *ast.BasicLit:
				return true
			case ast.Expr:
				ast.Inspect(n, visit)
			}
			return false
		})
	}
	visit = func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		text, ok := fold(e)
		if !ok {
			return true
		}
		if sentence.MatchString(text) && (!script.MatchString(text) || prose.MatchString(text)) {
			out = append(out, text)
		}
		for _, die := range dies.FindAllStringSubmatch(text, -1) { // what a script says when it fails
			if says := cmp.Or(die[1], die[2]); sentence.MatchString(says) {
				out = append(out, says)
			}
		}
		inside(e)
		return false
	}
	ast.Inspect(file, visit)
	return out
}

// messageList gives each package that has texts, with its texts in alphabetical order.
func messageList(tree []source) map[string][]string {
	out := map[string][]string{}
	for _, f := range tree {
		if f.test || f.forTests() || strings.HasPrefix(f.path, "sim/") || strings.HasSuffix(f.pkg(), "test") || path.Base(f.pkg()) == "gen" || f.pkg() == "drivers/proxmox/pveapi" {
			continue
		}
		out[f.pkg()] = append(out[f.pkg()], messages(f.ast)...)
	}
	for pkg, list := range out {
		slices.Sort(list)
		out[pkg] = slices.Compact(list)
	}
	maps.DeleteFunc(out, func(_ string, list []string) bool { return len(list) == 0 })
	return out
}

// phraseLaw finds the phrases in messages.
func phraseLaw(tree []source) []string {
	var out []string
	for _, f := range tree {
		if f.test || f.forTests() || strings.HasSuffix(f.pkg(), "test") {
			continue
		}
		for _, text := range messages(f.ast) {
			for _, p := range phrases {
				if hit := p.re.FindString(text); hit != "" {
					out = append(out, fmt.Sprintf("%s: says %q: %s", f.path, hit, p.instead))
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// texts lists the string literals of a file.
func texts(file *ast.File) []string {
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil {
				out = append(out, s)
			}
		}
		return true
	})
	return out
}

func TestMessages(t *testing.T) {
	var b strings.Builder
	list := messageList(read(t, os.DirFS("../..")))
	for _, pkg := range slices.Sorted(maps.Keys(list)) {
		fmt.Fprintf(&b, "\n== %s\n", pkg)
		for _, text := range list[pkg] {
			b.WriteString("- " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ") + "\n")
		}
	}
	if os.Getenv("HOMESTAK_UPDATE") != "" {
		require.NoError(t, os.WriteFile(messagesFile, []byte(b.String()), 0o600))
	}
	want, err := os.ReadFile(messagesFile)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "read what changed, then: HOMESTAK_UPDATE=1 go test ./test/arch")
}
