package hcl

import (
	"fmt"
	"slices"
	"strings"
)

// diffContext is how many lines around a change a diff shows.
const diffContext = 3

// Diff is the change of a file as a unified diff of one hunk, for `git apply` and `patch -p1`; "" if nothing changed.
func Diff(name string, before, after []byte) string {
	a, b := slices.Collect(strings.Lines(string(before))), slices.Collect(strings.Lines(string(after)))
	top, bottom := 0, 0
	for top < min(len(a), len(b)) && a[top] == b[top] {
		top++
	}
	for bottom < min(len(a), len(b))-top && a[len(a)-1-bottom] == b[len(b)-1-bottom] {
		bottom++
	}
	if top == len(a) && top == len(b) {
		return ""
	}
	var lines []string
	i, j := top, top
	for ; i < len(a)-bottom; i++ {
		same := slices.Index(b[j:len(b)-bottom], a[i])
		if same < 0 {
			lines = append(lines, "-"+a[i])
			continue
		}
		for range same {
			lines, j = append(lines, "+"+b[j]), j+1
		}
		lines, j = append(lines, " "+a[i]), j+1
	}
	for ; j < len(b)-bottom; j++ {
		lines = append(lines, "+"+b[j])
	}
	for ; lines[len(lines)-1][0] == ' '; bottom++ { // a brace of the end may have been found before it
		lines = lines[:len(lines)-1]
	}
	from, to := max(0, top-diffContext), max(0, bottom-diffContext)
	var out strings.Builder
	fmt.Fprintf(&out, "--- a/%s\n+++ b/%s\n@@ -%d,%d +%d,%d @@\n", name, name, from+1, len(a)-from-to, from+1, len(b)-from-to)
	write := func(line string) {
		out.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		if !strings.HasSuffix(line, "\n") {
			out.WriteString("\\ No newline at end of file\n")
		}
	}
	for _, line := range a[from:top] {
		write(" " + line)
	}
	for _, line := range lines {
		write(line)
	}
	for _, line := range a[len(a)-bottom : len(a)-to] {
		write(" " + line)
	}
	return out.String()
}
