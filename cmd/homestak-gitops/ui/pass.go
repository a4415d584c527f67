package ui

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/view"
)

// Plan draws a plan for people.
func (u *UI) Plan(p *plan.Plan) {
	_, color := u.Text()
	var text strings.Builder
	short := p.Text(&text, plan.TextOptions{Color: color, Width: u.Width, All: u.Verbose})
	if u.Printf("%s", text.String()); short {
		u.Notef("some lines are shortened: -v shows every change with its values")
	}
}

// Planned draws the plan of a pass that is going to carry it out. That a destruction
// finds nothing is not reported as a site in sync: the site wants those guests.
func (u *UI) Planned(p *engine.Pass, made *plan.Plan) {
	if p.Destroy && made.InSync() {
		u.Printf("nothing to destroy: no guest of manifest %s is on host %s\n", p.Manifest, p.Host)
		return
	}
	u.Plan(made)
}

// Sketch draws a plan beside what was asked for.
func (u *UI) Sketch(p *plan.Plan) {
	p.Text(u.Stderr, plan.TextOptions{Color: u.colored(u.ErrTerminal), Width: u.Width, All: u.Verbose})
}

// Report shows how a pass went: the document, or a summary for people. It returns the
// ending of the verb.
func (u *UI) Report(r engine.Report) error {
	u.Findings(r.Findings)
	if u.JSON {
		if err := u.Emit(r); err != nil {
			return err
		}
	}
	line, unfinished := view.Results(r)
	u.Printf("%s", line)
	if unfinished && r.Outcome != engine.Interrupted { // its error says it
		u.Notef("completed steps are kept: fix the cause, then run the same command again")
	}
	return ExitOfPass(r)
}

// Confirm asks whether to carry out the plan of a pass, as Agree does.
func (u *UI) Confirm(ctx context.Context, p *engine.Pass, made *plan.Plan) error {
	wayOn := "check the plan above, then run it with --yes"
	if !p.Destroy {
		wayOn += "; or save it with plan --out FILE, and apply that file"
	}
	return u.Agree(ctx, question(p, made), wayOn)
}

// Agree asks a question on the terminal; only "yes" agrees. Without a terminal it refuses, and names another way on.
// It returns the cause of ctx if that ends first.
func (u *UI) Agree(ctx context.Context, question, wayOn string) error {
	if !u.InTerminal {
		return ExitFailed.With(errors.New("cannot ask for confirmation without a terminal, so nothing was done\n" + wayOn))
	}
	fmt.Fprintf(u.Stderr, "%s\nType \"yes\" to continue: ", question)
	answer := make(chan string, 1)
	go func() {
		// Ends with the line or with the process: a read from a terminal cannot be cancelled.
		line, _ := bufio.NewReader(u.Stdin).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case text := <-answer:
		if text == "yes" {
			return nil
		}
		return ExitFailed.With(errors.New("not confirmed, so nothing was done"))
	case <-ctx.Done():
		u.Notef("") // ends the line of the question
		return context.Cause(ctx)
	}
}

// question names what there is to lose: the guests of a destruction, else the number of steps.
func question(p *engine.Pass, made *plan.Plan) string {
	if p.Destroy {
		return fmt.Sprintf("Destroy manifest %s on host %s, with all data of %s?", p.Manifest, p.Host, diag.Count(made.Summary.Delete, "guest"))
	}
	these := "this 1 step"
	if n := len(made.Steps); n != 1 {
		these = fmt.Sprintf("these %d steps", n)
	}
	return fmt.Sprintf("Do %s on host %s?", these, p.Host)
}
