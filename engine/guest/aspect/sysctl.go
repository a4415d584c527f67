package aspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// sysctlFile comes behind 99-sysctl.conf, so that it has the last word (sysctl.d(5)).
const sysctlFile = "/etc/sysctl.d/zz-homestak-gitops.conf"

// sysctl is kernel parameters: their values now, and after a restart of the machine.
var sysctl = Of[sysctlFound]{
	Name: "sysctl", Doc: "Kernel parameters.",
	Paths: []string{"config.sysctl"},
	Probe: func(q *Query) string {
		lines := []string{"if [ -f " + sysctlFile + " ]; then row file <" + sysctlFile + "; fi"}
		for _, name := range q.Items("sysctl", slices.Collect(maps.Keys(q.Want.Config.Sysctl))) {
			f := guest.Quote(procPath(name))
			lines = append(lines, fmt.Sprintf("if [ -r %s ]; then row value %s <%s; fi", f, guest.Quote(name), f))
		}
		return script(lines...)
	},
	Parse: func(_ *Query, rows [][]string) (sysctlFound, error) {
		f := sysctlFound{running: map[string]string{}, kept: map[string]string{}}
		for _, r := range rows {
			switch {
			case r[0] == "value" && len(r) == 3:
				f.running[r[1]] = strings.Join(strings.Fields(r[2]), " ")
			case r[0] == "file":
				f.text = r[1]
				for line := range strings.Lines(f.text) {
					if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
						f.kept[strings.TrimSpace(name)] = strings.TrimSpace(value)
					}
				}
			}
		}
		return f, nil
	},
	Fill: func(q *Query, f sysctlFound, have *spec.Spec) {
		for _, name := range q.Items("sysctl", slices.Collect(maps.Keys(q.Want.Config.Sysctl))) {
			value, there := f.running[name]
			if kept, ok := f.kept[name]; !ok && there {
				value += " (until the next restart)"
			} else if there && kept != value {
				value += " (" + kept + " after the next restart)"
			}
			if _, wanted := q.Want.Config.Sysctl[name]; wanted || there {
				if have.Config.Sysctl == nil {
					have.Config.Sysctl = map[string]string{}
				}
				have.Config.Sysctl[name] = value
			}
		}
	},
	Steps: func(q *Query, f sysctlFound) []Step {
		want := q.Want.Config.Sysctl
		var steps []Step
		if names := slices.Sorted(maps.Keys(want)); len(names) > 0 {
			s := Step{Stage: StageSysctl, Text: "set " + list(names)}
			var lines []string
			for _, name := range names {
				s.Keep = append(s.Keep, guest.RecordEntry{
					Aspect: "sysctl", Item: name, Identity: "name", Found: map[string]string{"value": f.running[name]}, Put: map[string]string{"value": want[name]},
				})
				lines = append(lines, setSysctl(name, want[name]))
				s.Needs = all(s.Needs, "[ -e "+guest.Quote(procPath(name))+" ]")
			}
			s.Script = script(append(lines, guest.PutFile(sysctlFile, sysctlText(want), "0644", "root", "root"))...)
			steps = append(steps, s)
		}
		var back Step
		for _, name := range q.Record.Items("sysctl") {
			if _, wanted := want[name]; wanted {
				continue
			}
			e := q.Record.Get("sysctl", name)
			back.Drop = append(back.Drop, e.Key())
			if e.Found["value"] != "" {
				back.Script += setSysctl(name, e.Found["value"]) + "\n"
			}
		}
		if len(back.Drop) > 0 {
			// Settings that leave the file are gone after the next restart anyway.
			first := guest.PutFile(sysctlFile, sysctlText(want), "0644", "root", "root")
			if len(want) == 0 {
				first = "drop " + sysctlFile
			}
			back.Stage, back.Text, back.Script = StageSysctl, "set back what was found of sysctl", first+"\n"+back.Script
			steps = append(steps, back)
		}
		return steps
	},
}

type sysctlFound struct {
	running map[string]string
	kept    map[string]string // by our file
	text    string            // of our file
}

// procPath is the path of a parameter in /proc/sys. As in sysctl(8), the first separator decides: with a slash, a
// dot is part of a name.
func procPath(name string) string {
	if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '.' {
		name = strings.ReplaceAll(name, ".", "/")
	}
	return "/proc/sys/" + name
}

func setSysctl(name, value string) string {
	f := guest.Quote(procPath(name))
	return "[ -e " + f + " ] || die " + guest.Quote("this kernel has no parameter "+name) + "\n" +
		"printf '%s\\n' " + guest.Quote(value) + " 2>/dev/null >" + f + " || die " + guest.Quote("the kernel does not take "+name+" = "+value+" (in a container most parameters belong to the host)")
}

func sysctlText(values map[string]string) string {
	var b strings.Builder
	b.WriteString(heading)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		b.WriteString(name + " = " + values[name] + "\n")
	}
	return b.String()
}

// Heading is the first line of files that are ours alone.
const Heading = "# Written by homestak-gitops. Edit the site instead: changes here are reverted.\n"

const heading = Heading
