package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/view"
)

func question(p *engine.Pass, made *plan.Plan) string {
	if p.Destroy {
		return fmt.Sprintf("Destroy manifest %s on host %s, with all data of %s?", p.Manifest, p.Host, view.Count(made.Summary.Delete, "guest"))
	}
	return fmt.Sprintf("Do %s on host %s?", thisMany(len(made.Steps)), p.Host)
}

func thisMany(n int) string {
	if n == 1 {
		return "this 1 step"
	}
	return fmt.Sprintf("these %d steps", n)
}

// confirm asks on the terminal whether to carry out a plan; only "yes" agrees.
// Where nobody can answer it refuses.
func confirm(ctx context.Context, a *app, p *engine.Pass, made *plan.Plan) error {
	if !a.inTerminal {
		wayOn := "check the plan above, then add --yes"
		if !p.Destroy {
			wayOn += "; or keep it with plan --out FILE, and apply that"
		}
		return exit.With(exit.Failed, errors.New("there is no terminal to ask on, so nothing was done\n"+wayOn))
	}
	a.ui.ask(question(p, made))
	answer := make(chan string, 1)
	go func() {
		// Ends with the line or with the process: a read from a terminal cannot be cancelled.
		line, _ := bufio.NewReader(a.stdin).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case text := <-answer:
		if text == "yes" {
			return nil
		}
		return exit.With(exit.Failed, errors.New("not confirmed, so nothing was done"))
	case <-ctx.Done():
		a.ui.notef("")
		return context.Cause(ctx)
	}
}
