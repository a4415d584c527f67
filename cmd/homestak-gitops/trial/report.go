package trial

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Markdown is the report for people.
func (t *Trial) Markdown() string {
	var b strings.Builder
	result := "failed"
	if t.Report.Success {
		result = "passed"
	}
	fmt.Fprintf(&b, "# Test of %s on %s: %s\n\n", t.o.Manifest.Name, t.o.Host.Name, result)
	fmt.Fprintf(&b, "Site %s", t.o.Site)
	if c := t.Report.Commit; c != "" {
		fmt.Fprintf(&b, " at commit %s", c)
	}
	fmt.Fprintf(&b, ", %.1f s.", t.Report.Seconds)
	if t.o.Keep {
		fmt.Fprintf(&b, " What it made was kept: `homestak-gitops destroy -M %s --host %s` removes it.", t.o.Manifest.Name, t.o.Host.Name)
	}
	fmt.Fprint(&b, "\n\n| phase | result | seconds |\n|---|---|---|\n")
	for _, p := range t.Phases {
		fmt.Fprintf(&b, "| %s | %s | %.1f |\n", p.Name, p.result(), p.Took.Seconds())
	}
	if len(t.Report.Nodes) > 0 {
		fmt.Fprint(&b, "\n| node | status | VMID | address | seconds | error |\n|---|---|---|---|---|---|\n")
	}
	for _, n := range t.Report.Nodes {
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %.1f | %s |\n", cell(n.Name), n.Status, n.VMID, cell(n.IP), n.Seconds, cell(n.Error))
	}
	t.checks(&b)
	if len(t.Report.Findings) > 0 {
		fmt.Fprint(&b, "\n")
	}
	for _, f := range t.Report.Findings {
		fmt.Fprintf(&b, "- %s\n", cell(strings.TrimSpace(f.String()+". "+f.Detail)))
	}
	return b.String()
}

// checks is the table of the checks of each node.
func (t *Trial) checks(b *strings.Builder) {
	head := "\n| node | check | result | saw | tries |\n|---|---|---|---|---|\n"
	for _, n := range t.Report.Nodes {
		for _, c := range n.Checks {
			result := "fails"
			if c.OK {
				result = "holds"
			}
			fmt.Fprintf(b, "%s| %s | %s | %s | %s | %d |\n", head, cell(n.Name), cell(c.Name), result, cell(c.Detail), c.Tries)
			head = ""
		}
	}
}

// cell makes a text safe for a table: one line, no markup, no cell of its own.
func cell(s string) string {
	return strings.NewReplacer(
		"\r", " ", "\n", " ", "|", `\|`, "<", "&lt;", ">", "&gt;", "`", "'", "*", `\*`, "_", `\_`,
	).Replace(diag.Clean(s))
}

// Write writes the report into a folder, as TIME.MANIFEST.passed.json and .md. The document
// is the report as JSON. It returns the name without the endings.
func (t *Trial) Write(dir, document string) (base string, err error) {
	result := "failed"
	if t.Report.Success {
		result = "passed"
	}
	base = filepath.Join(dir, fmt.Sprintf("%s.%s.%s", t.began.Format("20060102-150405"), t.o.Manifest.Name, result))
	err = os.MkdirAll(dir, 0o755)
	for name, text := range map[string]string{base + ".json": document, base + ".md": t.Markdown()} {
		err = errors.Join(err, os.WriteFile(name, []byte(text), 0o644))
	}
	if err != nil {
		return "", fmt.Errorf("keep the report: %w", err)
	}
	return base, nil
}
