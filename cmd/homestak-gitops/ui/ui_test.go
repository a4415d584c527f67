package ui_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// screen is an output with what was written to it. Its flags are those of a command line.
type screen struct {
	*ui.UI
	out, err bytes.Buffer
}

func open(t *testing.T, p ui.Process, flags ...string) *screen {
	t.Helper()
	s := &screen{}
	p.Stdout, p.Stderr = &s.out, &s.err
	if p.Env == nil {
		p.Env = func(string) string { return "" }
	}
	s.UI = ui.New(p)
	c := &cobra.Command{}
	s.Flags(c.PersistentFlags())
	s.JSONFlag(c)
	require.NoError(t, c.ParseFlags(flags))
	return s
}

// With --json stdout has exactly one document, whether the verb made one or failed before.
func TestOneDocument(t *testing.T) {
	s := open(t, ui.Process{}, "--json")
	require.NoError(t, s.Check())
	s.Document = func(err error) any { return map[string]string{"error": err.Error()} }
	s.Printf("text for people\n")
	s.Failure(errors.New("reading the host: no route\ncheck the address"))
	require.JSONEq(t, `{"error": "reading the host: no route\ncheck the address"}`, s.out.String())
	require.Equal(t, "text for people\nerror: reading the host: no route\n  check the address\n", s.err.String())

	s = open(t, ui.Process{}, "--json")
	s.Document = func(error) any { return "a second document" }
	require.NoError(t, s.Show(map[string]int{"steps": 2}, "2 steps\n"))
	s.Failure(errors.New("later"))
	require.JSONEq(t, `{"steps": 2}`, s.out.String())

	s = open(t, ui.Process{}, "--json")
	s.Document = func(error) any { return "a third line" }
	require.NoError(t, s.Line(1))
	require.NoError(t, s.Line("a < b"))
	s.Failure(errors.New("later"))
	require.Equal(t, 2, strings.Count(s.out.String(), "\n"))
}

func TestTextForPeople(t *testing.T) {
	s := open(t, ui.Process{})
	s.Document = func(error) any { return "nobody asked for a document" }
	require.NoError(t, s.Show(map[string]int{"steps": 2}, "2 steps\n"))
	s.Failure(errors.New("a \x1b[2J b"))
	s.Failure(&ui.ExitError{Code: ui.ExitFailed}) // everything was reported before
	require.Equal(t, "2 steps\n", s.out.String())
	require.Equal(t, "error: a ?[2J b\n", s.err.String())
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A document that cannot be written is an error, since a program waits for it.
func TestBrokenStdout(t *testing.T) {
	s := open(t, ui.Process{}, "--json")
	s.Stdout = broken{}
	require.ErrorIs(t, s.Emit(1), io.ErrClosedPipe)
	require.ErrorIs(t, s.Line(1), io.ErrClosedPipe)
}

// The same finding of several stages is written once.
func TestFindingsAreWrittenOnce(t *testing.T) {
	s := open(t, ui.Process{})
	first, second := diag.Warnf(diag.Range{}, "no checksum", "of image debian"), diag.Warnf(diag.Range{}, "no checksum", "of image ubuntu")
	s.Findings(diag.List{first})
	s.Findings(diag.List{first, second, second})
	require.Equal(t, 1, strings.Count(s.err.String(), "image debian"))
	require.Equal(t, 1, strings.Count(s.err.String(), "image ubuntu"))
	before := s.err.String()
	s.Findings(diag.List{second})
	require.Equal(t, before, s.err.String(), "nothing new, not even an empty line")
}

// On a terminal, notes, findings and other texts are broken between words. A file or a pipe gets them as they are.
func TestN16TextFitsTheTerminal(t *testing.T) {
	for _, terminal := range []bool{true, false} {
		s := open(t, ui.Process{OutTerminal: terminal, ErrTerminal: terminal, Width: 20})
		s.Notef("one two three four five six")
		s.Findings(diag.List{diag.Warnf(diag.Range{}, "one two three", "four five six seven eight")})
		s.Wrapf("%s\n", "one two three four five six")
		require.Equal(t, terminal, strings.Contains(s.err.String(), "one two three four\n  five six\n"))
		require.Equal(t, terminal, strings.Contains(s.err.String(), "\n  four five six\n    seven eight\n"), s.err.String())
		require.Equal(t, terminal, s.out.String() == "one two three four\n  five six\n")
	}
}

func TestColor(t *testing.T) {
	for _, c := range []struct {
		flag     string
		terminal bool
		env      string
		want     bool
	}{
		{"auto", true, "", true},
		{"auto", false, "", false},
		{"auto", true, "NO_COLOR=1", false},
		{"auto", true, "TERM=dumb", false},
		{"always", false, "NO_COLOR=1", true},
		{"never", true, "", false},
	} {
		env := func(key string) string {
			name, value, _ := strings.Cut(c.env, "=")
			if name != key {
				return ""
			}
			return value
		}
		s := open(t, ui.Process{OutTerminal: c.terminal, Env: env}, "--color", c.flag)
		require.NoError(t, s.Check())
		_, color := s.Text()
		require.Equal(t, c.want, color, c)
	}
	require.ErrorContains(t, open(t, ui.Process{}, "--color", "blue").Check(), "--color blue: want auto, always or never")
}

// asked is a pass over two steps, and its plan.
func asked(destroy bool) (*engine.Pass, *plan.Plan) {
	return &engine.Pass{Host: "father", Manifest: "web", Destroy: destroy}, &plan.Plan{Steps: make([]plan.Step, 2), Summary: plan.Summary{Delete: 1}}
}

// Only a whole yes agrees, and an end of input is none.
func TestConfirm(t *testing.T) {
	p, made := asked(false)
	for _, c := range []struct {
		answer string
		agreed bool
	}{{"yes\n", true}, {" yes \n", true}, {"yes", true}, {"y\n", false}, {"no\n", false}, {"", false}} {
		s := open(t, ui.Process{InTerminal: true, Stdin: strings.NewReader(c.answer)})
		err := s.Confirm(t.Context(), p, made)
		require.Equal(t, "Do these 2 steps on host father?\nType \"yes\" to continue: ", s.err.String())
		require.Equal(t, c.agreed, err == nil, c.answer)
		if !c.agreed {
			require.EqualError(t, err, "not confirmed, so nothing was done")
			require.Equal(t, ui.ExitFailed, ui.ExitCode(err))
		}
	}
	p, made = asked(true)
	s := open(t, ui.Process{InTerminal: true, Stdin: strings.NewReader("yes\n")})
	require.NoError(t, s.Confirm(t.Context(), p, made))
	require.Contains(t, s.err.String(), "Destroy manifest web on host father, with all data of 1 guest?\n")
}

func TestConfirmWithoutTerminal(t *testing.T) {
	for destroy, wayOn := range map[bool]string{true: "then run it with --yes", false: "or save it with plan --out FILE, and apply that file"} {
		p, made := asked(destroy)
		err := open(t, ui.Process{Stdin: strings.NewReader("yes\n")}).Confirm(t.Context(), p, made)
		require.Equal(t, ui.ExitFailed, ui.ExitCode(err))
		require.True(t, strings.HasSuffix(err.Error(), wayOn), err)
	}
}

// Whoever is asked can leave by Ctrl-C.
func TestConfirmCanBeLeft(t *testing.T) {
	unanswered, end := io.Pipe()
	defer func() { _ = end.Close() }()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(engine.ErrInterrupted)
	p, made := asked(false)
	err := open(t, ui.Process{InTerminal: true, Stdin: unanswered}).Confirm(ctx, p, made)
	require.Equal(t, ui.ExitInterrupted, ui.ExitCode(err))
}

func TestReport(t *testing.T) {
	partly := engine.Report{Outcome: engine.Partly, Seconds: 1.5, Results: []apply.Result{{Status: apply.Done}, {Status: apply.Failed}}}
	s := open(t, ui.Process{})
	require.Equal(t, ui.ExitPartly, ui.ExitCode(s.Report(partly)))
	require.Equal(t, "2 steps: 1 done, 1 failed in 1.5 s\n", s.out.String())
	require.Contains(t, s.err.String(), "completed steps are kept: fix the cause")

	s = open(t, ui.Process{}, "--json")
	require.NoError(t, s.Check())
	require.NoError(t, s.Report(engine.Report{Verb: "apply", Outcome: engine.Done, Success: true}))
	var document struct{ Success bool }
	require.NoError(t, json.Unmarshal(s.out.Bytes(), &document))
	require.True(t, document.Success)
}

// A destruction that finds nothing does not call the site in sync: the site wants those guests.
func TestNothingToDestroy(t *testing.T) {
	s := open(t, ui.Process{})
	p, _ := asked(true)
	s.Planned(p, &plan.Plan{})
	require.Equal(t, "nothing to destroy: no guest of manifest web is on host father\n", s.out.String())
}
