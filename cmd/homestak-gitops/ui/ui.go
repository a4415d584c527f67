// Package ui writes all output. Its rules:
//
//   - stdout has the result: a plan, a report, a document. Everything else
//     (progress, questions, warnings, findings, errors) goes to stderr.
//   - With --json or another format, stdout has exactly one document and
//     nothing else, even when the verb fails.
//   - Colour only on a terminal, never with NO_COLOR, unless --color is given.
//   - An error is lower case without a full stop and names what was attempted;
//     further lines say what to do next.
//   - Control characters and bidirectional marks in external text are escaped: see diag.Clean.
//   - Only UI prints; view.Progress draws the live line of a terminal.
package ui

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/view"
)

// UI prints. It belongs to the goroutine of the verb; only view.Progress writes from another one, and synchronizes
// itself.
type UI struct {
	Process
	JSON    bool // --json: stdout carries a document
	Verbose bool // --verbose
	Data    bool // stdout carries data, in JSON or another format

	// Document makes what --json prints when the verb ends with an error before
	// it printed one; set by each verb that has a document.
	Document func(err error) any

	colorFlag string
	written   bool            // the document was printed
	reported  map[string]bool // findings that were written
}

// New makes the output of a process.
func New(p Process) *UI {
	p.Stdout, p.Stderr = diag.Screen(p.Stdout), diag.Screen(p.Stderr)
	return &UI{Process: p, colorFlag: "auto", reported: map[string]bool{}}
}

// Flags adds the flags that every verb has.
func (u *UI) Flags(f *pflag.FlagSet) {
	f.StringVar(&u.colorFlag, "color", "auto", "`WHEN`: colour the output auto, always or never")
	f.BoolVarP(&u.Verbose, "verbose", "v", false, "show more detail")
}

// JSONFlag gives a verb the flag --json; its document goes through Emit.
func (u *UI) JSONFlag(c *cobra.Command) {
	c.Flags().BoolVar(&u.JSON, "json", false, "print JSON: one document, or a line for each event, job or receipt")
}

// Check checks the flags of output, once they are known.
func (u *UI) Check() error {
	switch u.colorFlag {
	case "auto", "always", "never":
	default:
		return fmt.Errorf("--color %s: want auto, always or never", u.colorFlag)
	}
	u.Data = u.Data || u.JSON
	return nil
}

// colored says whether to colour what goes to a terminal or not to one.
func (u *UI) colored(terminal bool) bool {
	switch u.colorFlag {
	case "always":
		return true
	case "never":
		return false
	default:
		return terminal && u.Env("NO_COLOR") == "" && u.Env("TERM") != "dumb"
	}
}

// Text is the writer of text for people, and whether it is coloured: stdout, unless that has data.
func (u *UI) Text() (w io.Writer, color bool) {
	if u.Data {
		return u.Stderr, u.colored(u.ErrTerminal)
	}
	return u.Stdout, u.colored(u.OutTerminal)
}

// Paint says whether the text that was asked for is coloured.
func (u *UI) Paint() view.Paint {
	_, color := u.Text()
	return view.Paint(color)
}

// Printf writes text that was asked for, as it is.
func (u *UI) Printf(format string, args ...any) {
	w, _ := u.Text()
	fmt.Fprintf(w, format, args...)
}

// Wrapf writes text to read, and breaks long lines between words on a terminal.
func (u *UI) Wrapf(format string, args ...any) {
	u.Printf("%s", diag.Wrap(fmt.Sprintf(format, args...), u.columns(!u.Data && u.OutTerminal || u.Data && u.ErrTerminal)))
}

// columns is the width of a stream: that of the terminal, else 0.
func (u *UI) columns(terminal bool) int {
	if !terminal {
		return 0
	}
	return u.Width
}

// Notef writes a line beside what was asked for.
func (u *UI) Notef(format string, args ...any) {
	fmt.Fprintln(u.Stderr, diag.Wrap(diag.Clean(fmt.Sprintf(format, args...)), u.columns(u.ErrTerminal)))
}

// Findings writes findings about the site, the plan or the host; each text once, even if it is about many stages
// and instances of a node.
func (u *UI) Findings(l diag.List) {
	var fresh diag.List
	for _, f := range l {
		if text := f.String() + "\n" + f.Detail; !u.reported[text] {
			fresh = append(fresh, f)
			u.reported[text] = true
		}
	}
	if len(fresh) > 0 {
		var text strings.Builder
		fresh.Write(&text)
		fmt.Fprintln(u.Stderr, diag.Wrap(diag.Clean(text.String()), u.columns(u.ErrTerminal)))
	}
}

// Emit writes the one document of this run.
func (u *UI) Emit(document any) error {
	u.written = true
	return WriteJSON(u.Stdout, document)
}

// Line writes a document as one line, for a verb that then goes on.
func (u *UI) Line(document any) error {
	u.written = true
	text, err := json.Marshal(document)
	if err == nil {
		_, err = u.Stdout.Write(append(diag.JSON(text), '\n'))
	}
	if err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	return nil
}

// Show prints the document of a verb with --json, else its text.
func (u *UI) Show(document any, text string) error {
	if u.JSON {
		return u.Emit(document)
	}
	u.Printf("%s", text)
	return nil
}

// WriteJSON writes a document as all verbs do.
func WriteJSON(w io.Writer, document any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	err := e.Encode(document)
	if err == nil {
		_, err = w.Write(diag.JSON(text.Bytes()))
	}
	if err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	return nil
}

// Failure reports how the program ended, unless that was done.
func (u *UI) Failure(err error) {
	if u.JSON && !u.written && u.Document != nil {
		if werr := u.Emit(u.Document(err)); werr != nil {
			err = errors.Join(err, werr)
		}
	}
	if invalid, ok := errors.AsType[*site.InvalidError](err); ok {
		u.Findings(invalid.Found)
	}
	text := strings.TrimSpace(err.Error())
	if text == "" {
		return
	}
	label := "error:"
	if u.colored(u.ErrTerminal) {
		label = "\x1b[31;1merror:\x1b[0m"
	}
	fmt.Fprintf(u.Stderr, "%s %s\n", label, strings.ReplaceAll(diag.Clean(text), "\n", "\n  "))
}

// Terminal is the terminal for progress.
func (u *UI) Terminal() view.Terminal {
	return view.Terminal{W: u.Stderr, Live: u.ErrTerminal, Width: u.Width, Verbose: u.Verbose}
}

// Must is for registrations that can only fail by a mistake in this program, which every
// test would show.
func Must(err error) {
	if err != nil {
		panic(err)
	}
}
