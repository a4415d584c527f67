package arch_test

import (
	"go/ast"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// cleanerLaw lists cleaners of text beside diag.Clean. What decides whether a character is fit to be shown is in
// one place, since one that is forgotten anywhere else is a hole there.
func cleanerLaw(tree []source) []string {
	var out []string
	for _, f := range tree {
		if f.test || strings.HasPrefix(f.path, "engine/diag/") || !strings.HasPrefix(f.path, "engine/") && !strings.HasPrefix(f.path, "specserve/") &&
			!strings.HasPrefix(f.path, "policy/") && !strings.HasPrefix(f.path, "cmd/") && !strings.HasPrefix(f.path, "hcl/") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, _ := s.X.(*ast.Ident)
			if of != nil && (of.Name == "unicode" || of.Name == "strconv") && (s.Sel.Name == "IsPrint" || s.Sel.Name == "IsControl" || s.Sel.Name == "Cc" || s.Sel.Name == "IsGraphic") {
				out = append(out, f.path+": cleans text by "+of.Name+"."+s.Sel.Name+": use diag.Clean, diag.Line or diag.Escape")
			}
			return true
		})
	}
	return out
}

func TestS7OneCleaner(t *testing.T) {
	require.Empty(t, strings.Join(cleanerLaw(read(t, os.DirFS("../.."))), "\n"))
}
