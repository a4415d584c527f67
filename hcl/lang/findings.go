package lang

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty/function"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// The limits of the findings of one load.
const (
	MaxFindings = 1000      // reported; the rest is counted
	maxKept     = 20_000    // stored while loading, so that hostile files need bounded memory
	maxCompared = 1_000_000 // names compared for suggestions in one run
	MaxQuoted   = 80        // characters of a name or value repeated in a message
)

// Findings collects the findings of one load, which owns it.
type Findings struct {
	List     diag.List
	more     int               // found beyond maxKept
	moreBad  bool              // an error is among them
	Sources  map[string][]byte // by file name, for the source lines
	compared int
}

// Add adds a finding unchanged.
func (f *Findings) Add(d diag.Finding) {
	if len(f.List) < maxKept {
		f.List = append(f.List, d)
		return
	}
	f.more++
	f.moreBad = f.moreBad || d.Severity == diag.Error
}

// Errorf adds an error at a position in the files.
func (f *Findings) Errorf(at hclv2.Range, summary, detail string, args ...any) {
	f.Add(diag.Errorf(DiagRange(at), summary, detail, args...))
}

// Warnf adds a warning at a position in the files.
func (f *Findings) Warnf(at hclv2.Range, summary, detail string, args ...any) {
	f.Add(diag.Warnf(DiagRange(at), summary, detail, args...))
}

// ErrorAt is Errorf with a range of package diag.
func (f *Findings) ErrorAt(at diag.Range, summary, detail string, args ...any) {
	f.Add(diag.Errorf(at, summary, detail, args...))
}

// oneLine is the library's message for a block with more than one attribute on its line. Its details are about the
// brace, which is not the problem.
const oneLine = "Invalid single-argument block definition"

// AddDiagnostics adds diagnostics of the library as findings. With quiet set it omits the details,
// because they may repeat values.
func (f *Findings) AddDiagnostics(diags hclv2.Diagnostics, quiet bool) {
	for i, d := range diags {
		if i > 0 && follows(diags[i-1], d) {
			continue
		}
		var at diag.Range
		if d.Subject != nil {
			at = DiagRange(*d.Subject)
		}
		summary, detail := d.Summary, d.Detail
		switch {
		case detail == "This value does not have any indices.":
			detail = "It is one value, not a list: remove the index. node.NAME is a list if that node has count or for_each."
		case strings.EqualFold(summary, oneLine):
			detail = "A block on one line may have one attribute. Put each attribute, and the closing brace, on its own line."
		}
		if call, ok := hclv2.DiagnosticExtra[hclsyntax.FunctionCallDiagExtra](d); ok && call.FunctionCallError() != nil {
			if _, isArg := errors.AsType[function.ArgError](call.FunctionCallError()); !isArg {
				summary, detail = "function "+call.CalledFunctionName()+" failed", sentence(call.FunctionCallError().Error())
			}
		}
		if quiet {
			detail = "The details are hidden, because this expression uses a secret."
		}
		n := diag.Errorf(at, lowerFirst(strings.TrimSuffix(summary, ".")), "%s", Clip(detail, 2000))
		if d.Severity == hclv2.DiagWarning {
			n.Severity = diag.Warning
		}
		f.Add(n)
	}
}

// follows reports whether one message only repeats the one before it on the next
// line: a quote that is missing makes an error of every line below.
func follows(last, d *hclv2.Diagnostic) bool {
	return last.Summary == d.Summary && last.Subject != nil && d.Subject != nil &&
		last.Subject.Filename == d.Subject.Filename && d.Subject.Start.Line-last.Subject.Start.Line == 1
}

// Nearest is diag.DidYouMean within a budget: a thousand misspelt names against
// ten thousand known ones must not take minutes.
func (f *Findings) Nearest(name string, known []string) string {
	f.compared += len(known)
	if f.compared > maxCompared || len(name) > MaxQuoted {
		return ""
	}
	short := make([]string, 0, len(known))
	for _, k := range known {
		if len(k) <= MaxQuoted {
			short = append(short, k)
		}
	}
	slices.Sort(short)
	return diag.DidYouMean(name, slices.Compact(short))
}

// Finish sorts the findings, adds their source lines, takes secrets out of them,
// and bounds their number.
func (f *Findings) Finish(secrets []string) diag.List {
	list := f.List.Sorted()
	more, bad := f.more, f.moreBad
	if len(list) > MaxFindings {
		rest := list[MaxFindings:]
		more, bad = more+len(rest), bad || rest.HasErrors()
		list = list[:MaxFindings:MaxFindings]
		f.List = rest
	}
	if more > 0 {
		last := diag.Warnf(f.List[0].At, fmt.Sprintf("and %d more findings", more), "Fix the first ones and run this again: many may have the same cause.")
		if bad {
			last.Severity = diag.Error
		}
		list = append(list, last)
	}
	keys := map[string]bool{}
	for name, src := range f.Sources {
		keys[name] = bytes.Contains(src, keyHint)
	}
	for i := range list {
		d := &list[i]
		switch {
		case d.Code != "" || d.At.IsZero():
		case i > 0 && list[i-1].At.File == d.At.File && list[i-1].At.Start.Line == d.At.Start.Line:
			d.Code = list[i-1].Code
		default:
			d.Code = sourceCode(f.Sources[d.At.File], d.At.Start.Byte, keys[d.At.File])
		}
		for _, s := range secrets {
			for _, text := range []*string{&d.Summary, &d.Detail, &d.Code} {
				*text = strings.ReplaceAll(*text, s, model.Sensitive)
			}
		}
		for _, text := range []*string{&d.Summary, &d.Detail} {
			*text = mask(*text)
		}
	}
	return list
}

// sourceLine returns the line at an offset, without its line break.
func sourceLine(src []byte, offset int) (line []byte, start int) {
	offset = min(max(offset, 0), len(src))
	start = bytes.LastIndexByte(src[:offset], '\n') + 1
	line, _, _ = bytes.Cut(src[start:], []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r")), start
}

// DiagRange converts a range of the library.
func DiagRange(r hclv2.Range) diag.Range {
	return diag.Range{
		File:  r.Filename,
		Start: diag.Pos{Line: r.Start.Line, Column: r.Start.Column, Byte: r.Start.Byte},
		End:   diag.Pos{Line: r.End.Line, Column: r.End.Column, Byte: r.End.Byte},
	}
}

// OffsetRange is the range of one offset of a file.
func OffsetRange(name string, src []byte, offset int) hclv2.Range {
	line, start := sourceLine(src, offset)
	at := hclv2.Pos{
		Line:   1 + bytes.Count(src[:start], []byte("\n")),
		Column: 1 + utf8.RuneCount(line[:min(offset-start, len(line))]),
		Byte:   offset,
	}
	return hclv2.Range{Filename: name, Start: at, End: at}
}

// Quote repeats a name or value of the files in a message: escaped, and never long.
func Quote(s string) string { return strconv.Quote(Clip(s, MaxQuoted)) }

// Clip cuts a text after limit characters.
func Clip(s string, limit int) string {
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	n := 0
	for i := range s {
		if n == limit {
			return s[:i] + "…"
		}
		n++
	}
	return s
}

// sentence makes one of what an error says.
func sentence(s string) string { return UpperFirst(strings.TrimRight(s, ".")) + "." }

// lowerFirst writes the first letter small, unless it begins an abbreviation.
func lowerFirst(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if next, _ := utf8.DecodeRuneInString(s[n:]); unicode.IsUpper(next) {
		return s // an abbreviation
	}
	return string(unicode.ToLower(r)) + s[n:]
}

// NearestOr is Nearest, or the text none where nothing is known.
func (f *Findings) NearestOr(name string, known []string, none string) string {
	if len(known) == 0 {
		return none
	}
	return f.Nearest(name, known)
}
