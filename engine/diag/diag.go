// Package diag has findings: problems of a site, a plan or a host, for the person who can fix them. A finding says
// what, where, why and what to do next; an error (package errors) is about a failed operation.
//
// Findings are values. Packages return them together with their result, including warnings on success, and do not
// stop at the first one.
package diag

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Severity says whether a finding stops the pass.
type Severity string

// The two severities. An error keeps a site from converging, a warning does not.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Source is the origin of a finding, as the plan document has it.
type Source string

// The sources.
const (
	FromSite   Source = "site"
	FromPolicy Source = "policy"
	FromGuard  Source = "guard"
	FromHost   Source = "host" // how the host is at the moment; it differs in nothing from the files, and withholds no step
)

// Pos is a place in a file. Line and Column count from 1, Column in characters;
// Byte is the offset from the start of the file.
type Pos struct{ Line, Column, Byte int }

// Range is a piece of a file; its zero value means "nowhere in the files".
type Range struct {
	File       string
	Start, End Pos
}

// IsZero reports whether the range is empty.
func (r Range) IsZero() bool { return r.File == "" }

// String gives file:line:column, or "" for the zero Range.
func (r Range) String() string {
	if r.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s:%d:%d", r.File, r.Start.Line, r.Start.Column)
}

// MarshalJSON writes {"file","line","column"}, or {} for the zero Range.
func (r Range) MarshalJSON() ([]byte, error) {
	type at struct {
		File   string `json:"file,omitempty"`
		Line   int    `json:"line,omitempty"`
		Column int    `json:"column,omitempty"`
	}
	return json.Marshal(at{r.File, r.Start.Line, r.Start.Column})
}

// UnmarshalJSON reads what MarshalJSON writes; the end of the range is lost.
func (r *Range) UnmarshalJSON(b []byte) error {
	var at struct {
		File         string
		Line, Column int
	}
	if err := json.Unmarshal(b, &at); err != nil {
		return err
	}
	*r = Range{File: at.File, Start: Pos{Line: at.Line, Column: at.Column}}
	return nil
}

// Finding is one thing to report.
type Finding struct {
	Severity Severity `json:"severity"`
	Summary  string   `json:"summary"` // what, in one line without a full stop
	Detail   string   `json:"detail"`  // why, and what to do; may be empty
	Source   Source   `json:"source"`
	Address  string   `json:"address,omitempty"` // the resource it is about, such as vm.web-1
	Rule     string   `json:"rule,omitempty"`    // of the policies, by the name that it gives itself
	Waiver   string   `json:"waiver,omitempty"`  // that made it a warning
	At       Range    `json:"at"`
	Code     string   `json:"code,omitempty"` // the source line at At, without its newline
}

// String returns one line: position, severity, summary.
func (f Finding) String() string {
	s := string(f.Severity) + ": " + f.Summary
	if !f.At.IsZero() {
		return f.At.String() + ": " + s
	}
	return s
}

// List is any number of findings. The nil List is empty and ready to use.
type List []Finding

// Errors counts the findings that stop a pass.
func (l List) Errors() int {
	n := 0
	for _, f := range l {
		if f.Severity == Error {
			n++
		}
	}
	return n
}

// HasErrors reports whether any finding stops a pass.
func (l List) HasErrors() bool { return l.Errors() > 0 }

// Sorted returns the findings by file, line, column and summary, those without a position last,
// without duplicates.
func (l List) Sorted() List {
	s := slices.Clone(l)
	slices.SortStableFunc(s, func(a, b Finding) int {
		if a.At.IsZero() != b.At.IsZero() {
			if a.At.IsZero() {
				return 1
			}
			return -1
		}
		return cmp.Or(
			cmp.Compare(a.At.File, b.At.File),
			cmp.Compare(a.At.Start.Line, b.At.Start.Line),
			cmp.Compare(a.At.Start.Column, b.At.Start.Column),
			cmp.Compare(a.Summary, b.Summary),
		)
	})
	return slices.Compact(s)
}

// Errorf returns an error finding of the site at a position.
func Errorf(at Range, summary, detail string, args ...any) Finding {
	return Finding{Severity: Error, Summary: summary, Detail: fmt.Sprintf(detail, args...), Source: FromSite, At: at}
}

// Warnf returns a warning of the site at a position.
func Warnf(at Range, summary, detail string, args ...any) Finding {
	f := Errorf(at, summary, detail, args...)
	f.Severity = Warning
	return f
}

// FromError converts an error that is not about a file of the site to a finding. Its first line is
// the summary, the rest is the detail.
func FromError(err error) Finding {
	summary, detail, _ := strings.Cut(err.Error(), "\n")
	return Errorf(Range{}, summary, "%s", detail)
}
