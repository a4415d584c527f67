package main

import (
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/engine/view"
)

// markdown is the report of a test for people.
func (t *trial) markdown(keep bool) string {
	var b strings.Builder
	result := "failed"
	if t.report.Success {
		result = "passed"
	}
	fmt.Fprintf(&b, "# Test of %s on %s: %s\n\n", t.manifest.Name, t.host.Name, result)
	fmt.Fprintf(&b, "Site %s", t.session.Desired.Site.Name)
	if c := t.report.Commit; c != "" {
		fmt.Fprintf(&b, " at commit %s", c)
	}
	fmt.Fprintf(&b, ", %.1f s.", t.report.Seconds)
	if keep {
		fmt.Fprintf(&b, " What it made was kept: `homestak-gitops destroy -M %s --host %s` removes it.", t.manifest.Name, t.host.Name)
	}
	fmt.Fprint(&b, "\n\n| phase | result | seconds |\n|---|---|---|\n")
	for _, p := range t.phases {
		fmt.Fprintf(&b, "| %s | %s | %.1f |\n", p.Name, p.result(), p.Took.Seconds())
	}
	if len(t.report.Nodes) > 0 {
		fmt.Fprint(&b, "\n| node | status | VMID | address | seconds | error |\n|---|---|---|---|---|---|\n")
	}
	for _, n := range t.report.Nodes {
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %.1f | %s |\n", cell(n.Name), n.Status, n.VMID, cell(n.IP), n.Seconds, cell(n.Error))
	}
	t.checks(&b)
	if len(t.report.Findings) > 0 {
		fmt.Fprint(&b, "\n")
	}
	for _, f := range t.report.Findings {
		fmt.Fprintf(&b, "- %s\n", cell(strings.TrimSpace(f.String()+". "+f.Detail)))
	}
	return b.String()
}

// checks is the table of what was tried of each node.
func (t *trial) checks(b *strings.Builder) {
	head := "\n| node | check | result | saw | tries |\n|---|---|---|---|---|\n"
	for _, n := range t.report.Nodes {
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
	).Replace(view.Printable(s))
}
