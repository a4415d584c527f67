package doctor

import (
	"fmt"
	"io"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Report has the results for the hosts of a site.
type Report struct {
	Success  bool         `json:"success"` // no check failed
	Site     string       `json:"site"`
	Hosts    []HostReport `json:"hosts"`
	Findings diag.List    `json:"findings"`
}

// HostReport has the results for one host.
type HostReport struct {
	Host   string  `json:"host"`
	API    string  `json:"api"`
	Checks []Check `json:"checks"`
}

// Denied reports whether everything that failed did so because a login or a privilege is
// missing.
func (d Report) Denied() bool {
	for _, h := range d.Hosts {
		for _, c := range h.Checks {
			if c.Result == Failed && !c.Denied {
				return false
			}
		}
	}
	return true
}

// Count counts the checks with a result.
func (c HostReport) Count(r Result) int {
	n := 0
	for _, k := range c.Checks {
		if k.Result == r {
			n++
		}
	}
	return n
}

// alike returns the names of the checks from i on that were not run for the same reason; for any
// other check its own name.
func (c HostReport) alike(i int) []string {
	k := c.Checks[i]
	names := []string{k.Name}
	for _, next := range c.Checks[i+1:] {
		if k.Result != NotChecked || next.Result != k.Result || next.Seen != k.Seen {
			break
		}
		names = append(names, next.Name)
	}
	return names
}

// Text writes the results of the host, optionally in colour.
func (c HostReport) Text(w io.Writer, color bool) {
	fmt.Fprintf(w, "host %s  %s\n", c.Host, c.API)
	width := 0
	for _, k := range c.Checks {
		width = max(width, len(k.Name))
	}
	for i, k := range c.Checks {
		if i > 0 && k.Result == NotChecked && c.Checks[i-1].Result == k.Result && c.Checks[i-1].Seen == k.Seen {
			continue // one line is enough for all that hangs on one trouble
		}
		k.Name = strings.Join(c.alike(i), ", ")
		label, paint := word(k.Result)
		label += strings.Repeat(" ", len("not checked")-len(label))
		if color && paint != "" {
			label = paint + label + "\x1b[0m"
		}
		fmt.Fprintf(w, "  %s  %s%s  %s\n", label, k.Name, strings.Repeat(" ", max(width-len(k.Name), 0)), indented(k.Seen, "      "))
		if k.Why != "" {
			fmt.Fprintf(w, "      why: %s\n", indented(k.Why, "           "))
		}
		for _, line := range k.Fix {
			fmt.Fprintf(w, "      fix: %s\n", indented(line, "           "))
		}
	}
	fmt.Fprintf(w, "%s: %d ok, %s, %d failed, %d not checked\n", c.Host, c.Count(OK),
		diag.Count(c.Count(Warning), "warning"), c.Count(Failed), c.Count(NotChecked))
}

// indented keeps the lines of a text, which may be a host's, below one another.
func indented(s, by string) string {
	return strings.ReplaceAll(strings.TrimSpace(diag.Clean(s)), "\n", "\n"+by)
}

// word returns the word for a result, and its colour.
func word(r Result) (label, paint string) {
	switch r {
	case Failed:
		return "FAIL", "\x1b[31;1m"
	case Warning:
		return "warning", "\x1b[33m"
	case OK:
		return "ok", "\x1b[32m"
	default:
		return string(r), ""
	}
}
