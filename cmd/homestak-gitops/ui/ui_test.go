package ui_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/specserve/wire"
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
	s.Document = func(error) any { return "no document was asked for" }
	require.NoError(t, s.Show(map[string]int{"steps": 2}, "2 steps\n"))
	s.Failure(errors.New("a \x1b[2J b"))
	s.Failure(ui.ExitFailed.With(nil)) // everything was reported before
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
	return &engine.Pass{Host: "father", Scope: engine.Scope{Manifest: "web", Destroy: destroy}}, &plan.Plan{Steps: make([]plan.Step, 2), Summary: plan.Summary{Delete: 1}}
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

// Ctrl-C leaves the question.
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

// No text, on whichever way out, controls the terminal or reorders what is read.
func TestS7Outputs(t *testing.T) {
	const evil = "a\x1b]0;t\x07b\u009b2Jc\u202ed\u2066e\xfff\x7fg"
	found := diag.List{{Severity: diag.Error, Summary: evil, Detail: evil + "\n" + evil, Code: evil, At: diag.Range{File: evil, Start: diag.Pos{Line: 1, Column: 1}, End: diag.Pos{Line: 1, Column: 2}}}}
	for name, write := range map[string]func(s *screen){
		"Printf":          func(s *screen) { s.Printf("%s\n", evil) },
		"Notef":           func(s *screen) { s.Notef("note: %s", evil) },
		"Failure":         func(s *screen) { s.Failure(errors.New(evil)) },
		"invalid site":    func(s *screen) { s.Failure(&site.InvalidError{Found: found}) },
		"Findings":        func(s *screen) { s.Findings(found) },
		"Emit":            func(s *screen) { require.NoError(t, s.Emit(map[string]string{evil: evil})) },
		"Line":            func(s *screen) { require.NoError(t, s.Line([]string{evil})) },
		"Show":            func(s *screen) { require.NoError(t, s.Show(nil, evil)) },
		"Terminal":        func(s *screen) { _, _ = s.Terminal().W.Write([]byte(evil)) },
		"the text stream": func(s *screen) { w, _ := s.Text(); _, _ = w.Write([]byte(evil)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, ui.Process{})
			write(s)
			out := s.out.String() + s.err.String()
			require.NotEmpty(t, out)
			require.Equal(t, diag.Clean(out), out)
			require.NotContains(t, strings.ReplaceAll(out, "\\u001b", ""), "\x1b")
		})
	}
}

func TestExitCodesAreOneTable(t *testing.T) {
	meanings := ui.ExitMeanings()
	for _, meaning := range meanings {
		require.NotEmpty(t, meaning)
	}
	require.Equal(t, []ui.Exit{0, 1, 2, 3, 4, 5, 6, 130}, slices.Sorted(maps.Keys(meanings)))

	for _, c := range []struct {
		outcome engine.Outcome
		err     error
		want    ui.Exit
	}{
		{engine.Done, nil, 0},
		{engine.Planned, nil, 0},
		{engine.Invalid, nil, 3},
		{engine.Refused, nil, 4},
		{engine.Partly, nil, 5},
		{engine.Failed, nil, 1},
		{engine.Failed, fmt.Errorf("apply: %w", ui.ExitRefused.With(nil)), 4},
		{engine.Failed, ui.ErrTimeout, 1},
		{engine.Interrupted, engine.ErrInterrupted, 130},
		{"", nil, 1},
	} {
		require.Equal(t, c.want, ui.ExitCode(ui.ExitOfPass(engine.Report{Outcome: c.outcome, Err: c.err})), "%s %v", c.outcome, c.err)
	}
	require.ErrorContains(t, ui.ExitOfPass(engine.Report{
		Outcome: engine.Partly, Results: []apply.Result{{Status: apply.Done}},
		Err: &engine.NotObservedError{Parts: []model.Unknown{{Scope: "node b", Why: "offline"}, {Scope: "1"}, {Scope: "2"}, {Scope: "3"}}},
	}), "node b: offline; 1: ; 2: ; and 1 more", "all steps are done, so nothing else says why it is not all")
	require.Equal(t, ui.ExitInterrupted, ui.ExitCode(fmt.Errorf("plan: %w", engine.ErrInterrupted)))
	require.Equal(t, ui.ExitInvalid, ui.ExitCode(&site.InvalidError{}))
	for code, want := range map[wire.Code]ui.Exit{wire.CodeNoCredential: 6, wire.CodeRefused: 6, wire.CodeNotYours: 6, wire.CodeExpired: 6, wire.CodeNotFound: 1, wire.CodeConnection: 1} {
		require.Equal(t, want, ui.ExitCode(fmt.Errorf("fetching: %w", &wire.Error{Code: code})), code)
	}
}

// A plan of a host that was seen in part does not end as one that is all there is to do.
func TestAPartlySeenHostIsNotInSync(t *testing.T) {
	dark := model.Unknown{Scope: "node pve2", Why: "offline"}
	denied := model.Unknown{Scope: "images on storage local", Why: "403", Denied: true}
	nothing := model.Unknown{Scope: "all guests", All: true}
	barred := model.Unknown{Scope: "all guests", All: true, Denied: true}
	step := []plan.Step{{Action: plan.Create}}
	for name, c := range map[string]struct {
		unknown        []model.Unknown
		steps          []plan.Step
		code, detailed ui.Exit
	}{
		"all seen, in sync":       {nil, nil, ui.ExitDone, ui.ExitDone},
		"all seen, changes":       {nil, step, ui.ExitDone, ui.ExitPending},
		"a node offline":          {[]model.Unknown{dark}, nil, ui.ExitFailed, ui.ExitFailed},
		"a node offline, changes": {[]model.Unknown{dark}, step, ui.ExitFailed, ui.ExitPending},
		"not permitted":           {[]model.Unknown{dark, denied}, nil, ui.ExitDenied, ui.ExitDenied},
		"nothing seen":            {[]model.Unknown{nothing}, nil, ui.ExitFailed, ui.ExitFailed},
		"nothing may be seen":     {[]model.Unknown{barred}, nil, ui.ExitDenied, ui.ExitDenied},
		"not permitted, changes":  {[]model.Unknown{denied}, step, ui.ExitDenied, ui.ExitPending},
	} {
		t.Run(name, func(t *testing.T) {
			r := engine.Report{Outcome: engine.Planned, Plan: &plan.Plan{Unknown: c.unknown, Steps: c.steps}}
			require.Equal(t, c.code, ui.ExitCode(ui.ExitOfPlan(r, false)))
			require.Equal(t, c.detailed, ui.ExitCode(ui.ExitOfPlan(r, true)))
		})
	}
}

// Exit code 2 is for steps and for drift that is only reported. Withheld, postponed and pending changes are neither, and apply exits with 0.
func TestN6WithheldWorkIsNotAChange(t *testing.T) {
	left := diag.Finding{Severity: diag.Warning, Source: diag.FromGuard, Address: "vm.web-1", Summary: "vm.web-1 is not created: no server runs"}
	for name, c := range map[string]struct {
		plan plan.Plan
		code ui.Exit
	}{
		"a step that is withheld": {plan.Plan{Findings: diag.List{left}}, ui.ExitDone},
		"a removal that waits":    {plan.Plan{Deferred: []model.Deferred{{Address: "pve.hv", Why: "not deleted", Differs: true}}}, ui.ExitDone},
		"a restart that waits":    {plan.Plan{Pending: []model.Pending{{Path: "cores"}}}, ui.ExitDone},
		"drift that is reported":  {plan.Plan{Findings: diag.List{left}, Drift: []model.Address{{Kind: "vm", Name: "web-1"}}}, ui.ExitPending},
	} {
		t.Run(name, func(t *testing.T) {
			r := engine.Report{Outcome: engine.Planned, Plan: &c.plan, Findings: c.plan.Findings}
			require.Equal(t, c.code, ui.ExitCode(ui.ExitOfPlan(r, true)))
			require.Equal(t, ui.ExitDone, ui.ExitCode(ui.ExitOfPlan(r, false)))
		})
	}
}

// The first signal ends what has nothing to finish, the second one everything.
func TestSignalsAreCounted(t *testing.T) {
	signals := make(chan os.Signal)
	ctx, s := ui.Process{Signals: signals}.Watch(t.Context())
	defer s.Close()
	reading, cancel := s.Soon(ctx)
	defer cancel()

	signals <- os.Interrupt
	<-s.Once
	<-reading.Done()
	require.ErrorIs(t, context.Cause(reading), engine.ErrInterrupted)
	require.NoError(t, ctx.Err(), "what runs is finished")

	signals <- syscall.SIGTERM
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), engine.ErrInterrupted)
}

// A program that ends without an interruption has no cause of one in its context.
func TestCloseIsNotAnInterruption(t *testing.T) {
	ctx, s := ui.Process{}.Watch(t.Context())
	s.Close()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	require.NotErrorIs(t, context.Cause(ctx), engine.ErrInterrupted)
	select {
	case <-s.Once:
		require.Fail(t, "no signal came")
	default:
	}
}

func TestHangups(t *testing.T) {
	none, end := ui.Process{}.Hangups()
	end()
	require.Nil(t, none)

	var asked os.Signal
	ended := false
	p := ui.Process{Subscribe: func(s os.Signal) (<-chan os.Signal, func()) {
		asked = s
		return make(chan os.Signal), func() { ended = true }
	}}
	hangups, end := p.Hangups()
	require.NotNil(t, hangups)
	require.Equal(t, syscall.SIGHUP, asked)
	end()
	require.True(t, ended)
}

// A wrong command line is answered with what was probably meant.
func TestExplain(t *testing.T) {
	root := &cobra.Command{Use: "tool", SilenceErrors: true, SilenceUsage: true, DisableSuggestions: true}
	run := func(*cobra.Command, []string) error { return nil }
	plan := &cobra.Command{Use: "plan", Args: cobra.NoArgs, RunE: run}
	plan.Flags().String("manifest", "", "")
	root.AddCommand(plan, &cobra.Command{Use: "eval QUERY", Args: ui.TakesArgs(1, 1), RunE: run})
	for _, c := range []struct{ verb, arg, want string }{
		{"vm-constructor", "", "unknown verb \"vm-constructor\"\nthe predecessor's vm-constructor is now: homestak-gitops test -M n1-push --keep\nsee: tool --help"},
		{"pln", "", "unknown verb \"pln\"\ndid you mean \"plan\"?\nsee: tool --help"},
		{"plan", "web", "tool plan takes no argument, but \"web\" was given\na manifest is named by -M, the folder of a site by --site\nsee: tool plan --help"},
		{"eval", "", "tool eval takes 1 argument, but none was given\nusage: tool eval QUERY [flags]\nsee: tool eval --help"},
	} {
		args := []string{c.verb}
		if c.arg != "" {
			args = append(args, c.arg)
		}
		root.SetArgs(args)
		require.EqualError(t, ui.ExplainUsage(root, root.Execute()), c.want)
	}
	require.NoError(t, ui.ExplainUsage(root, nil))
	require.EqualError(t, ui.ExplainFlag(plan, plan.ParseFlags([]string{"--json-output"})), "unknown flag: --json-output\nthe predecessor's --json-output is now: --json\nsee: tool plan --help")
	require.EqualError(t, ui.ExplainFlag(plan, plan.ParseFlags([]string{"--jsn"})), "unknown flag: --jsn\nsee: tool plan --help")
	require.Contains(t, ui.VerbNames(root), "plan")
}
