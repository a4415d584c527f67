package aspect

import (
	"fmt"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// commands are scripts of a site for what no other attribute can express. Their effects are unknown and never
// undone.
var commands = Of[map[string]bool]{
	Name: "commands", Doc: "Commands that are run.",
	Paths: []string{"config.command"},
	Probe: func(q *Query) string {
		lines := []string{":"}
		for _, c := range q.Want.Config.Commands {
			if test := holds(c); test != "" {
				lines = append(lines, "if "+test+"; then echo "+guest.Quote(c.Name)+"; fi")
			}
		}
		return script(lines...)
	},
	Parse: func(q *Query, rows [][]string) (map[string]bool, error) {
		done := map[string]bool{}
		for _, r := range rows {
			done[r[0]] = true
		}
		for _, c := range q.Want.Config.Commands {
			if e := q.Record.Get("commands", c.Name); holds(c) == "" && e != nil && e.Put["sha256"] == guest.ContentSum(c.Run) {
				done[c.Name] = true
			}
		}
		return done, nil
	},
	Fill: func(q *Query, done map[string]bool, have *spec.Spec) {
		for _, name := range q.Items("commands", commandNames(q.Want)) {
			switch c := q.Want.Command(name); {
			case c == nil:
				have.Config.Commands = append(have.Config.Commands, spec.Command{Name: name, Run: "(was run)"})
			case done[name]:
				have.Config.Commands = append(have.Config.Commands, *c)
			}
		}
	},
	Steps: func(q *Query, done map[string]bool) []Step {
		var steps []Step
		for _, c := range q.Want.Config.Commands { // in the order of the files
			if !done[c.Name] {
				steps = append(steps, runCommand(c, q.Want.IsSensitive("config.command."+c.Name)))
			}
		}
		for _, name := range q.Record.Items("commands") {
			if q.Want.Command(name) == nil {
				steps = append(steps, Step{
					Stage: StageCommands, Text: "forget command " + name + ", what it did stays",
					Drop: []guest.RecordKey{{Aspect: "commands", Item: name}}, Script: ":\n",
				})
			}
		}
		return steps
	},
}

func commandNames(s *spec.Spec) []string {
	var out []string
	for _, c := range s.Config.Commands {
		out = append(out, c.Name)
	}
	return out
}

// holds is a test that succeeds where the command need not run; "" if only the record
// knows that. Scripts of a site come on standard input, since they may hold secrets.
func holds(c spec.Command) string {
	test := ""
	if c.Creates != "" {
		test = "[ -e " + guest.Quote(c.Creates) + " ]"
	}
	if c.Unless != "" {
		unless := guest.PrintBytes(c.Unless) + " | timeout 60 sh -s >/dev/null 2>&1"
		if test != "" {
			return "{ " + test + " || " + unless + "; }"
		}
		test = unless
	}
	return test
}

// runCommand runs one command. Whether it ran is recorded when it has: one that was cut off
// runs again.
func runCommand(c spec.Command, secret bool) Step {
	e := guest.RecordEntry{Aspect: "commands", Item: c.Name, Identity: "name"}
	after := e
	after.Put = map[string]string{"sha256": guest.ContentSum(c.Run)}
	show := `printf '%s\n' "$_said" | tail -n 10 >&2`
	if secret {
		show = "say 'its output is not shown, since it is made from a secret'"
	}
	lines := []string{
		// Its background processes must not hold the lock (descriptor 9).
		"_said=$({ " + guest.PrintBytes(c.Run) + " | sh -s 9>&-; } 2>&1) && _code=0 || _code=$?",
		fmt.Sprintf(`if [ "$_code" -ne 0 ]; then %s; die %s"$_code"; fi`, show, guest.Quote("command "+c.Name+" ended with exit code ")),
	}
	if test := holds(c); test != "" {
		lines = append(lines, "if ! "+test+"; then die "+guest.Quote("command "+c.Name+" succeeded, and what creates or unless ask for still does not hold")+"; fi")
	}
	// The needs of a command are unknown, so it waits for every package.
	return Step{Stage: StageCommands, Text: "run command " + c.Name, Needs: "false", Keep: []guest.RecordEntry{e}, After: []guest.RecordEntry{after}, Script: script(lines...)}
}
