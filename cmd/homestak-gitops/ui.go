package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/view"
)

// The rules of all output:
//
//   - stdout carries what was asked for: a plan, a report, a document. Everything
//     else (progress, questions, warnings, findings, errors) goes to stderr.
//   - With --json or another format, stdout carries exactly one document and
//     nothing else, also when the verb fails; the text about it goes to stderr.
//   - Colour only on a terminal, never when NO_COLOR is set, unless --color says so.
//   - An error says in lower case, without a full stop, what was attempted; lines
//     after the first say what to do next.
//   - Nothing is printed but through ui; the live line of a terminal is drawn by
//     progress.

// ui prints. It belongs to the goroutine of the verb; only progress writes from
// another one, and takes turns by itself.
type ui struct {
	process
	colorFlag string
	json      bool // --json: stdout carries a document
	verbose   bool
	data      bool            // stdout carries data, in JSON or another format
	written   bool            // the document was printed
	reported  map[string]bool // findings that were written

	// document makes what --json prints when the verb ends with an error before
	// it printed one; set by each verb that has a document.
	document func(err error) any
}

// jsonFlag gives a verb the flag --json; its document goes through emit.
func (u *ui) jsonFlag(c *cobra.Command) {
	c.Flags().BoolVar(&u.json, "json", false, "print one JSON document on stdout")
}

func (u *ui) flags(f *pflag.FlagSet) {
	f.StringVar(&u.colorFlag, "color", "auto", "`WHEN` to colour the output: auto, always, never")
	f.BoolVarP(&u.verbose, "verbose", "v", false, "report more of what is done")
}

// check checks the flags of output, once they are known.
func (u *ui) check() error {
	switch u.colorFlag {
	case "auto", "always", "never":
	default:
		return fmt.Errorf("--color %s: want auto, always or never", u.colorFlag)
	}
	u.data = u.data || u.json
	return nil
}

// colored says whether to colour what goes to a terminal or not to one.
func (u *ui) colored(terminal bool) bool {
	switch u.colorFlag {
	case "always":
		return true
	case "never":
		return false
	default:
		return terminal && u.env("NO_COLOR") == "" && u.env("TERM") != "dumb"
	}
}

// text is where text for people goes, and whether it is coloured there: the
// stream of what was asked for, unless data are there.
func (u *ui) text() (w io.Writer, color bool) {
	if u.data {
		return u.stderr, u.colored(u.errTerminal)
	}
	return u.stdout, u.colored(u.outTerminal)
}

// printf writes text that was asked for.
func (u *ui) printf(format string, args ...any) {
	w, _ := u.text()
	fmt.Fprintf(w, format, args...)
}

// notef writes a line beside what was asked for.
func (u *ui) notef(format string, args ...any) {
	fmt.Fprintf(u.stderr, format+"\n", args...)
}

// ask begins a line on which the user answers.
func (u *ui) ask(question string) { fmt.Fprintf(u.stderr, "%s\nOnly \"yes\" goes on: ", question) }

// findings writes what is wrong with the site, the plan or the host; each text
// once, however many stages and instances of a node it is about.
func (u *ui) findings(l diag.List) {
	var fresh diag.List
	for _, f := range l {
		if text := f.String() + "\n" + f.Detail; !u.reported[text] {
			fresh = append(fresh, f)
			u.reported[text] = true
		}
	}
	if len(fresh) > 0 {
		var text strings.Builder
		diag.Text(&text, fresh)
		fmt.Fprintln(u.stderr, view.Printable(text.String()))
	}
}

// emit writes the one document of this run.
func (u *ui) emit(document any) error {
	u.written = true
	return writeJSON(u.stdout, document)
}

// line writes the one document of this run as one line, for a verb that then goes on.
func (u *ui) line(document any) error {
	u.written = true
	text, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	_, err = fmt.Fprintf(u.stdout, "%s\n", text)
	return err
}

// show prints the document of a verb with --json, else its text.
func (u *ui) show(document any, text string) error {
	if u.json {
		return u.emit(document)
	}
	u.printf("%s", text)
	return nil
}

func writeJSON(w io.Writer, document any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(document); err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	return nil
}

// failure reports how the program ended, unless that was done.
func (u *ui) failure(err error) {
	if u.json && !u.written && u.document != nil {
		if werr := u.emit(u.document(err)); werr != nil {
			err = errors.Join(err, werr)
		}
	}
	if invalid, ok := errors.AsType[*site.InvalidError](err); ok {
		u.findings(invalid.Found)
	}
	text := err.Error()
	if text == "" {
		return
	}
	label := "error:"
	if u.colored(u.errTerminal) {
		label = "\x1b[31;1merror:\x1b[0m"
	}
	fmt.Fprintf(u.stderr, "%s %s\n", label, strings.ReplaceAll(view.Printable(text), "\n", "\n  "))
}

// terminal is where progress is shown.
func (u *ui) terminal() view.Terminal {
	return view.Terminal{W: u.stderr, Live: u.errTerminal, Width: u.width, Verbose: u.verbose}
}

// plan draws a plan for people.
func (u *ui) plan(p *plan.Plan) {
	w, color := u.text()
	if p.Text(w, plan.TextOptions{Color: color, Width: u.width, All: u.verbose}) {
		u.notef("not all of it fits on these lines: -v shows every change with its values")
	}
}

// planned draws the plan of a pass that is going to carry it out. That a destruction
// finds nothing is not reported as a site in sync: the site wants those guests.
func (u *ui) planned(p *engine.Pass, made *plan.Plan) {
	if p.Destroy && made.InSync() {
		u.printf("nothing to destroy: no guest of manifest %s is on host %s\n", p.Manifest, p.Host)
		return
	}
	u.plan(made)
}

// sketch draws a plan beside what was asked for.
func (u *ui) sketch(p *plan.Plan) {
	p.Text(u.stderr, plan.TextOptions{Color: u.colored(u.errTerminal), Width: u.width, All: u.verbose})
}

// report shows how a pass went: the document, or a summary for people. It returns the
// ending of the verb.
func (a *app) report(r engine.Report) error {
	a.ui.findings(r.Findings)
	if a.ui.json {
		if err := a.ui.emit(r); err != nil {
			return err
		}
	}
	line, unfinished := view.Results(r)
	a.ui.printf("%s", line)
	if unfinished && r.Outcome != engine.Interrupted { // its error says it
		a.ui.notef("what is done stays done: fix the cause, then run the same command again")
	}
	return exit.OfPass(r)
}
