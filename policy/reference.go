package policy

import (
	"fmt"
	"io"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Reference writes a Markdown section about the shipped packs, from the metadata of their files.
func Reference(w io.Writer) error {
	files, found := load(nil)
	modules, more := files.parse(func(f file) bool { return !f.test })
	if found = append(found, more...); found.HasErrors() {
		return listError(found)
	}
	var b strings.Builder
	b.WriteString("\n## Packs of rules\n\n`pack \"NAME\" { settings = { … } }` switches a shipped pack on, or the `rules` of it that it names. A denial is a refusal: it exits with 4.\n\n" +
		"| pack | rules | settings, values separated by spaces |\n|---|---|---|\n")
	for _, name := range sortedKeys(modules) {
		m := modules[name]
		if pkg := packageOf(m); isPack(pkg) {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", packName(pkg), packRules(m), packSettings(m))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// packRules lists the rules of a pack with what each wants.
func packRules(m *ast.Module) string {
	var out []string
	for _, r := range m.Rules {
		label := labelOf(r)
		for _, a := range r.Annotations {
			if label == "" || a.Scope != "rule" {
				continue
			}
			text := label + ": " + a.Title
			if isStrict(r) {
				text += "; cannot be waived"
			}
			out = append(out, text)
		}
	}
	return strings.Join(out, "<br>")
}

// packSettings lists the settings of a pack.
func packSettings(m *ast.Module) string {
	var out []string
	for _, a := range m.Annotations {
		settings, _ := a.Custom["settings"].(map[string]any)
		for _, name := range sortedKeys(settings) {
			out = append(out, fmt.Sprintf("`%s`: %v", name, settings[name]))
		}
	}
	return strings.Join(out, "<br>")
}
