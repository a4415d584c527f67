package view

import (
	"strings"

	"github.com/homestak/homestak-gitops/engine/plan"
)

// Attributes draws a table of attributes, as declared and as observed; "" if there are none.
func Attributes(all []plan.Attribute) string {
	if len(all) == 0 {
		return ""
	}
	rows := [][]string{{"ADDRESS", "ATTRIBUTE", "DECLARED", "OBSERVED"}}
	for _, a := range all {
		declared, observed := a.Values()
		rows = append(rows, []string{a.Address.String(), a.Path, declared, observed})
	}
	var out strings.Builder
	out.WriteString("\n")
	table(&out, rows, func(_, _ int, text string) string { return text })
	return out.String()
}
