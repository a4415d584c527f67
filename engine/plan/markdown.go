package plan

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// mostRows bounds the table: hosts of pull requests cut a comment off at 64 KiB.
const mostRows = 200

// Markdown renders the plan as a comment for a pull request: summary, table, and findings. All text is escaped,
// since names and values come from the authors of the site or from guests.
func (p *Plan) Markdown(w io.Writer) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "### %s\n\n", markdown(p.title()))
	fmt.Fprintf(&b, "**%s**\n", markdown(p.last()))
	if len(p.Steps) > 0 {
		fmt.Fprintf(&b, "\n| | resource | VMID | what | cost |\n|---|---|---|---|---|\n")
	}
	for i, s := range p.Steps {
		if i == mostRows {
			fmt.Fprintf(&b, "| | and %d more | | | |\n", len(p.Steps)-mostRows)
			break
		}
		vmid := ""
		if s.VMID != 0 {
			vmid = fmt.Sprint(s.VMID)
		}
		l := s.line()
		fmt.Fprintf(&b, "| %c | %s | %s | %s | %s |\n", l.sign, code(s.Address.String()), vmid, markdown(l.detail(300)), markdown(l.cost))
	}
	var rest []string
	for _, d := range p.Pending {
		c := Change{Path: d.Path, Before: d.Before, After: d.After}
		rest = append(rest, fmt.Sprintf("pending: %s %s: %s", code(d.Address.String()), markdown(c.String()), markdown(diag.Escape(d.Why))))
	}
	for _, u := range p.unknownOnce() {
		rest = append(rest, fmt.Sprintf("unknown: %s: %s", code(u.Scope), markdown(diag.Escape(u.Why+withheldNote(u.Withheld)))))
	}
	for _, d := range p.Deferred {
		rest = append(rest, fmt.Sprintf("deferred: %s: %s", code(d.Address), markdown(diag.Escape(d.Why))))
	}
	for _, r := range p.Planned {
		rest = append(rest, code(r.Address.String())+" "+markdown(r.text()))
	}
	for i := range p.Outputs {
		rest = append(rest, fmt.Sprintf("output %s: %s", code(p.Outputs[i].Name), markdown(p.Outputs[i].line().detail(0))))
		for _, text := range p.Outputs[i].line().all {
			rest = append(rest, "  - "+code(text))
		}
	}
	for _, f := range p.Findings {
		rest = append(rest, finding(f))
	}
	for i, text := range rest {
		if i == 0 {
			fmt.Fprintln(&b)
		}
		if i == mostRows {
			fmt.Fprintf(&b, "- and %d more\n", len(rest)-mostRows)
			break
		}
		fmt.Fprintf(&b, "- %s\n", text)
	}
	_, _ = w.Write(b.Bytes()) // as with fmt.Print: who needs to know has the writer
}

func finding(f diag.Finding) string {
	text := fmt.Sprintf("**%s**: %s", f.Severity, markdown(diag.Escape(f.Summary)))
	if !f.At.IsZero() {
		text += " (" + code(f.At.String()) + ")"
	}
	if f.Detail != "" {
		text += ": " + markdown(diag.Escape(strings.ReplaceAll(strings.TrimSpace(f.Detail), "\n", "; ")))
	}
	return text
}

// markdown escapes what would be markup, a mention, a link to an issue, or the end
// of a cell.
func markdown(s string) string {
	return strings.NewReplacer(
		"&", "&amp;", "<", "&lt;", ">", "&gt;", "@", "&#64;", "#", "&#35;", "|", "&#124;",
		`\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`, "~", `\~`,
	).Replace(s)
}

// code writes a text as code; a backtick in it would end that and becomes a quote.
func code(s string) string {
	return "`" + strings.NewReplacer("`", "'", "|", "¦").Replace(diag.Escape(s)) + "`"
}
