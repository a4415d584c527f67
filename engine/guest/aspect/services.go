package aspect

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// services is units of systemd: whether they run, and whether they start with the machine.
var services = Of[map[string]unit]{
	Name: "services", Doc: "systemd units that run or do not run.",
	Paths: []string{"platform.services"},
	Probe: func(q *Query) string {
		names := q.Items("services", slices.Collect(maps.Keys(q.Want.Platform.Services)))
		if len(names) == 0 {
			return ":"
		}
		lines := []string{
			`[ -d /run/systemd/system ] && command -v systemctl >/dev/null || { say "systemd does not run here, and services are units of it: drop services and fail2ban from the spec, or use an image with systemd"; exit 3; }`,
			"_unit() {",
			`  _said=$(systemctl show -p LoadState,UnitFileState,ActiveState,Type,Result,TriggeredBy -- "$2")`,
			`  printf '%s\n' "$_said" | row unit "$1"`,
			`  for _u in $(printf '%s\n' "$_said" | sed -n 's/^TriggeredBy=//p'); do systemctl show -p UnitFileState,ActiveState -- "$_u" | row trigger "$1" "$_u"; done`,
			"}",
		}
		for _, n := range names {
			lines = append(lines, "_unit "+guest.QuoteWords([]string{n, unitFile(n)}))
		}
		return script(lines...)
	},
	Parse: func(_ *Query, rows [][]string) (map[string]unit, error) {
		found := map[string]unit{}
		for _, r := range rows {
			p := map[string]string{}
			for line := range strings.Lines(r[len(r)-1]) {
				key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
				p[key] = value
			}
			switch {
			case len(r) == 3 && r[0] == "unit":
				found[r[1]] = unit{
					load: p["LoadState"], file: p["UnitFileState"], active: p["ActiveState"], kind: p["Type"], result: p["Result"],
					triggers: map[string]trigger{},
				}
			case len(r) == 4 && r[0] == "trigger" && found[r[1]].triggers != nil:
				found[r[1]].triggers[r[2]] = trigger{file: p["UnitFileState"], active: p["ActiveState"]}
			}
		}
		return found, nil
	},
	Fill: func(q *Query, found map[string]unit, have *spec.Spec) {
		have.Platform.Services = map[string]string{}
		for name, want := range q.Want.Platform.Services {
			have.Platform.Services[name] = found[name].state(want)
		}
		for _, name := range q.Record.Items("services") {
			if _, wanted := q.Want.Platform.Services[name]; !wanted {
				have.Platform.Services[name] = found[name].state(q.Record.Get("services", name).Put["state"])
			}
		}
	},
	Steps: func(q *Query, found map[string]unit) []Step {
		var steps []Step
		for _, name := range slices.Sorted(maps.Keys(q.Want.Platform.Services)) {
			want, f := q.Want.Platform.Services[name], found[name]
			if f.state(want) == want {
				continue
			}
			// A unit of a package that comes in the same run was not there before.
			e := guest.RecordEntry{Aspect: "services", Item: name, Identity: "unit", Found: f.entry(want), Put: map[string]string{"state": want}}
			s := Step{Stage: StageStart, Text: "enable and start " + name, Keep: []guest.RecordEntry{e}, Needs: unitThere(name), Script: start(name)}
			if want == spec.Disabled {
				s.Stage, s.Text, s.Script = StageStop, "stop and disable "+name, stop(name, slices.Sorted(maps.Keys(f.triggers)))
			}
			steps = append(steps, s)
		}
		for _, name := range q.Record.Items("services") {
			if _, wanted := q.Want.Platform.Services[name]; wanted {
				continue
			}
			e := q.Record.Get("services", name)
			s := Step{Stage: StageStart, Text: "set " + name + " back to the state found", Drop: []guest.RecordKey{e.Key()}, Script: restore(name, e)}
			if e.Found["active"] != "active" {
				s.Stage = StageStop
			}
			steps = append(steps, s)
		}
		return steps
	},
}

// unit is the state of a unit as systemctl show has it.
type unit struct {
	load, file, active, kind, result string
	triggers                         map[string]trigger // sockets, timers and paths that start it
}

// trigger is the state of a unit that starts another one.
type trigger struct{ file, active string }

// state compares a unit with what is wanted, and gives that word if the unit is so.
func (u unit) state(want string) string {
	// A unit without an [Install] section cannot be enabled; something else starts it (systemctl(1), is-enabled).
	starts := slices.Contains([]string{"enabled", "static", "indirect", "generated", "alias", "linked", "transient"}, u.file)
	runs := u.active == "active" || u.active == "reloading" || u.active == "activating" ||
		u.kind == "oneshot" && u.active == "inactive" && u.result == "success"
	there := u.load != "not-found" && u.load != ""
	off := !there || u.load == "masked" || !slices.Contains([]string{"enabled", "enabled-runtime"}, u.file) &&
		u.active != "active" && u.active != "activating" && u.active != "reloading"
	starter := ""
	for _, name := range slices.Sorted(maps.Keys(u.triggers)) {
		if there && u.load != "masked" && u.triggers[name].active == "active" {
			starter = name
		}
	}
	switch {
	case want == spec.Enabled && there && u.load != "masked" && starts && runs:
		return spec.Enabled
	case want == spec.Disabled && off && starter == "":
		return spec.Disabled
	case !there:
		return "missing"
	case u.load == "masked":
		return "masked"
	}
	words := "stopped"
	if starter != "" {
		words += ", " + starter + " starts it"
	}
	switch u.active {
	case "failed":
		words = "failed"
	case "active", "activating", "reloading":
		words = "running"
	}
	return cmp.Or(u.file, "not enabled") + ", " + words
}

// entry returns what is needed to restore the unit. Its triggers are stopped with it, not disabled.
func (u unit) entry(want string) map[string]string {
	e := map[string]string{"load": u.load, "file": u.file, "active": u.active}
	if want == spec.Disabled && len(u.triggers) > 0 {
		names := slices.Sorted(maps.Keys(u.triggers))
		e["triggers"] = strings.Join(names, " ")
		for _, name := range names {
			e[triggerKey(name)] = u.triggers[name].file + " " + u.triggers[name].active
		}
	}
	return e
}

// triggerKey returns the key in an entry for the state of a unit that starts another one: "enabled active".
func triggerKey(name string) string { return "trigger " + name }

func unitFile(name string) string {
	if i := strings.LastIndexByte(name, '.'); i >= 0 && slices.Contains([]string{"service", "socket", "timer", "path", "mount", "target", "automount", "swap", "slice"}, name[i+1:]) {
		return name
	}
	return name + ".service"
}

func start(name string) string {
	u := guest.Quote(unitFile(name))
	return script(
		"_load=$(systemctl show -p LoadState --value -- "+u+")", "_was=$(systemctl show -p ActiveState --value -- "+u+")",
		"if [ \"$_load\" = masked ]; then systemctl unmask -- "+u+" 2>&1 || die 'unmasking failed'; systemctl daemon-reload; fi",
		"if [ \"$_load\" = not-found ]; then die "+guest.Quote("this machine has no unit "+unitFile(name)+": check the spelling, and that its package is in packages")+"; fi",
		"systemctl enable -- "+u+" >/dev/null 2>&1 || [ \"$(systemctl is-enabled -- "+u+" 2>/dev/null)\" != disabled ] || die "+guest.Quote(name+" cannot be enabled"),
		"unit start "+u,
		// systemd counts a simple service as started once its program runs. One that failed before may fail again.
		"if [ \"$_was\" = failed ]; then",
		"  for _n in 1 2 3 4 5 6 7 8 9 10; do",
		"    case $(systemctl show -p ActiveState --value -- "+u+") in failed|inactive) [ \"$(systemctl show -p Result --value -- "+u+")\" = success ] || unit_failed "+u+" ;; esac",
		"    sleep 0.2", "  done", "fi")
}

func stop(name string, triggers []string) string {
	units := []string{unitFile(name)}
	units = append(units, triggers...)
	return script(
		"for _u in "+guest.QuoteWords(units)+"; do",
		"  if [ \"$(systemctl show -p LoadState --value -- \"$_u\")\" = not-found ]; then continue; fi",
		"  systemctl disable -- \"$_u\" >/dev/null 2>&1 || :",
		"done",
		"for _u in "+guest.QuoteWords(slices.Concat(triggers, units[:1]))+"; do",
		"  if [ \"$(systemctl show -p LoadState --value -- \"$_u\")\" = not-found ]; then continue; fi",
		"  systemctl stop -- \"$_u\" || die \"$_u does not stop\"",
		"done")
}

// restore sets a unit back. Of one that did not exist before, its package decides.
func restore(name string, e *guest.RecordEntry) string {
	u, found := guest.Quote(unitFile(name)), e.Found
	lines := []string{"if [ \"$(systemctl show -p LoadState --value -- " + u + ")\" != not-found ]; then"}
	switch found["load"] {
	case "masked":
		lines = append(lines, "systemctl stop -- "+u+" || :", "systemctl mask -- "+u+" >/dev/null 2>&1")
	case "not-found", "":
		lines = append(lines, ":") // it goes with its package, or stays as that package wants it
	default:
		switch found["file"] {
		case "enabled":
			lines = append(lines, "systemctl enable -- "+u+" >/dev/null 2>&1 || :")
		case "disabled":
			lines = append(lines, "systemctl disable -- "+u+" >/dev/null 2>&1 || :")
		}
		if found["active"] != "active" {
			lines = append(lines, "systemctl stop -- "+u+" || :")
		}
		// A socket does not start while its service runs (systemd.socket(5)).
		lines = append(lines, restoreTriggers(e)...)
		if found["active"] == "active" {
			lines = append(lines, "systemctl start -- "+u+" || :")
		}
	}
	return script(append(lines, "fi")...)
}

// restoreTriggers sets back what starts a unit, where we stopped it.
func restoreTriggers(e *guest.RecordEntry) []string {
	var lines []string
	for t := range strings.FieldsSeq(e.Found["triggers"]) {
		state, known := e.Found[triggerKey(t)]
		file, active, _ := strings.Cut(state, " ")
		if !known { // by an earlier version, which recorded them also of units that it did not stop
			if e.Put["state"] != spec.Disabled {
				continue
			}
			file, active = "enabled", "active"
		}
		name := guest.Quote(t)
		switch file {
		case "enabled":
			lines = append(lines, "systemctl enable -- "+name+" >/dev/null 2>&1 || :")
		case "disabled":
			lines = append(lines, "systemctl disable -- "+name+" >/dev/null 2>&1 || :")
		}
		if active == "active" {
			lines = append(lines, "systemctl start -- "+name+" || :")
		} else {
			lines = append(lines, "systemctl stop -- "+name+" || :")
		}
	}
	return lines
}

func itoa(n int) string { return strconv.Itoa(n) }
