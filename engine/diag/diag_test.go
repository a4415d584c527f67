package diag_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
)

func at(file string, line, col, endcol int) diag.Range {
	return diag.Range{File: file, Start: diag.Pos{Line: line, Column: col}, End: diag.Pos{Line: line, Column: endcol}}
}

func TestTextMarksTheCulprit(t *testing.T) {
	f := diag.Errorf(at("manifests/web.hcl", 12, 14, 28), `unknown preset "vm-smal"`, "%s", diag.DidYouMean("vm-smal", []string{"vm-small", "vm-large"}))
	f.Code = "    preset = preset.vm-smal"
	f.At.Start.Column, f.At.End.Column = 14, 28
	var b strings.Builder
	diag.Text(&b, diag.List{f, {Severity: diag.Warning, Summary: "host is slow"}})
	require.Equal(t, `manifests/web.hcl:12:14: error: unknown preset "vm-smal"
  12 |     preset = preset.vm-smal
     |              ^^^^^^^^^^^^^^
  did you mean "vm-small"?

warning: host is slow
`, b.String())
}

func TestTextSurvivesHostileLines(t *testing.T) {
	for _, code := range []string{"\x1b[31mred\x1b[0m", strings.Repeat("x", 100_000), "ü\x00\tö", ""} {
		for _, col := range []int{0, 1, 3, 99_990, 200_000} {
			f := diag.Errorf(at("a.hcl", 1, col, col+5), "bad", "")
			f.Code = code
			var b strings.Builder
			diag.Text(&b, diag.List{f})
			require.NotContains(t, b.String(), "\x1b")
			for line := range strings.Lines(b.String()) {
				require.Less(t, len([]rune(line)), 400)
			}
		}
	}
}

func TestSortedByPlaceOnceEach(t *testing.T) {
	a, b, c := diag.Errorf(at("b.hcl", 1, 1, 2), "z", ""), diag.Errorf(at("a.hcl", 9, 1, 2), "y", ""), diag.Errorf(diag.Range{}, "x", "")
	got := diag.List{c, a, b, a}.Sorted()
	require.Equal(t, diag.List{b, a, c}, got)
	require.Equal(t, 3, got.Errors())
}

func TestNearest(t *testing.T) {
	names := []string{"vm-small", "vm-xsmall", "vm-large"}
	require.Equal(t, "vm-small", diag.Nearest("vm-smal", names))
	require.Equal(t, "vm-large", diag.Nearest("vm_large", names))
	require.Equal(t, "cores", diag.Nearest("coers", []string{"clone", "cores", "count"}), "two neighbours changed places")
	require.Empty(t, diag.Nearest("coxxs", []string{"clone", "cores", "count"}))
	require.Empty(t, diag.Nearest("gigantic", names))
	require.Equal(t, "known: vm-large, vm-small, vm-xsmall", diag.DidYouMean("gigantic", names))
}

func TestFindingJSON(t *testing.T) {
	b, err := json.Marshal(diag.Finding{Severity: diag.Error, Summary: "s", Source: diag.FromSite})
	require.NoError(t, err)
	require.JSONEq(t, `{"severity":"error","summary":"s","detail":"","source":"site","at":{}}`, string(b))
	b, err = json.Marshal(at("a.hcl", 3, 4, 5))
	require.NoError(t, err)
	require.JSONEq(t, `{"file":"a.hcl","line":3,"column":4}`, string(b))
}
