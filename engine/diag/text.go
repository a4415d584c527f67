package diag

import (
	"fmt"
	"io"
	"strings"
)

// maxCode limits the displayed source line, in characters: a minified file must not fill the
// screen.
const maxCode = 160

// Write writes the findings for people: position, severity and summary on the first line, the source
// line with the range underlined, then the detail.
//
//	manifests/web.hcl:12:14: error: unknown preset "vm-smal"
//	  12 |     preset = preset.vm-smal
//	     |              ^^^^^^^^^^^^^^
//	  did you mean "vm-small"?
func (l List) Write(w io.Writer) {
	for i, f := range l {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, Clean(f.String()))
		writeCode(w, f)
		for line := range strings.Lines(Clean(f.Detail)) {
			fmt.Fprintln(w, "  "+strings.TrimRight(line, "\n"))
		}
	}
}

func writeCode(w io.Writer, f Finding) {
	if f.At.IsZero() || f.Code == "" {
		return
	}
	runes := []rune(strings.ReplaceAll(f.Code, "\t", " "))
	start := min(max(f.At.Start.Column-1, 0), len(runes))
	from := 0
	if start > maxCode-40 {
		from = start - 40
	}
	to := min(len(runes), from+maxCode)
	width := 1
	if f.At.End.Line == f.At.Start.Line && f.At.End.Column > f.At.Start.Column {
		width = f.At.End.Column - f.At.Start.Column
	}
	width = min(width, max(to-start, 1))
	no := fmt.Sprint(f.At.Start.Line)
	fmt.Fprintf(w, "  %s | %s\n", no, Clean(string(runes[from:to])))
	fmt.Fprintf(w, "  %s | %s%s\n", strings.Repeat(" ", len(no)), strings.Repeat(" ", start-from), strings.Repeat("^", width))
}

// Count formats a number with its noun: "1 node", "2 nodes".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// FirstLine returns text up to its first line break.
func FirstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
