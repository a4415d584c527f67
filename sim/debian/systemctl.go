package debian

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
)

func (m systemd) systemctl(p *machine.Process, o userland.Options) int {
	rest := o.Args
	verb := rest[0]
	if p.Cred.UID != 0 && !slices.Contains([]string{"show", "status", "is-active", "is-enabled", "is-failed", "cat"}, verb) {
		return p.Failf("Interactive authentication required.")
	}
	var names []string
	for _, name := range rest[1:] {
		names = append(names, m.canonical(unitName(name)))
	}
	c := control{m: m, p: p, quiet: o.Has("quiet"), now: o.Has("now")}
	switch verb {
	case "daemon-reload", "daemon-reexec", "reset-failed", "preset":
		return 0
	case "show":
		properties := strings.Split(o.Text("property"), ",")
		for i, name := range names {
			if i > 0 {
				p.Printf("\n")
			}
			c.show(name, properties, o.Has("value"))
		}
		return 0
	case "is-active", "is-enabled", "is-failed":
		return c.is(verb, names)
	}
	code := 0
	for _, name := range names {
		if o.Has("no-block") && (verb == "start" || verb == "stop") {
			m.busy.Go(func() { _ = c.begin(verb, name) })
			continue
		}
		if one := c.do(verb, name); one != 0 {
			code = one
		}
	}
	return code
}

// control is one call of systemctl.
type control struct {
	m          systemd
	p          *machine.Process
	quiet, now bool
}

func (c control) fail(code int, err error) int {
	fmt.Fprintf(c.p.Err(), "%v\n", err)
	return code
}

// begin starts or stops a unit, and waits for that.
func (c control) begin(verb, name string) error {
	if verb == "start" {
		return c.m.startUnit(name)
	}
	c.m.stopUnit(name)
	return nil
}

// do does something to a unit.
func (c control) do(verb, name string) int {
	m := c.m
	active := m.state(name).active == "active"
	file, settings, masked := m.unitFile(name)
	missing := &unitError{"Failed to " + verb + " " + name + ": Unit " + name + " not found."}
	switch verb {
	case "start":
		ended := make(chan error, 1)
		m.busy.Go(func() { ended <- c.begin(verb, name) })
		select {
		case err := <-ended:
			if err != nil && file == "" {
				return c.fail(5, err)
			}
			if err != nil {
				return c.fail(1, err)
			}
		case <-c.p.Killed(): // the unit starts without it
			return 1
		}
	case "stop":
		if file == "" {
			return c.fail(5, &unitError{"Failed to stop " + name + ": Unit " + name + " not loaded."})
		}
		m.stopUnit(name)
	case "restart", "try-restart", "reload-or-restart", "try-reload-or-restart", "force-reload":
		if file == "" && strings.HasPrefix(verb, "try-") {
			return 0
		}
		if !active && strings.HasPrefix(verb, "try-") {
			return 0
		}
		m.stopUnit(name)
		return c.do("start", name)
	case "reload":
		if file == "" {
			return c.fail(5, missing)
		}
		if !active {
			return c.fail(1, &unitError{name + " is not active, cannot reload."})
		}
		pid := 0
		if main := m.state(name).main; main != nil {
			pid = main.PID
		}
		for _, line := range settings["ExecReload"] {
			if m.runLine(m.journal.open(m.state(name).run), line, pid) != 0 {
				return c.fail(1, &unitError{"Job for " + name + " failed."})
			}
		}
	case "enable", "reenable":
		switch {
		case masked:
			return c.fail(1, &unitError{"Failed to enable unit: Unit " + name + " is masked"})
		case file == "":
			return c.fail(1, &unitError{"Failed to enable unit: Unit " + name + " does not exist"})
		}
		for _, target := range slices.Concat(settings["WantedBy"], settings["RequiredBy"]) {
			for one := range strings.FieldsSeq(target) {
				dir := "/etc/systemd/system/" + one + ".wants"
				must(m.K.FS.MkdirAll(dir, 0o755))
				if err := m.K.FS.Symlink(machine.Cred{}, file, dir+"/"+name); err != nil && !errors.Is(err, syscall.EEXIST) {
					return c.fail(1, err)
				}
			}
		}
		if c.now {
			return c.do("start", name)
		}
	case "disable":
		if file == "" {
			return c.fail(1, &unitError{"Failed to disable unit: Unit " + name + " does not exist"})
		}
		for _, link := range m.links(name) {
			must(m.K.FS.Remove(machine.Cred{}, link))
		}
		if c.now {
			m.stopUnit(name)
		}
	case "mask":
		link := "/etc/systemd/system/" + name
		if i, err := m.K.FS.Lstat(machine.Cred{}, link); err == nil && i.Kind != machine.SymbolicLink {
			return c.fail(1, &unitError{"Failed to mask unit: File '" + link + "' already exists."})
		}
		if !masked {
			if err := m.K.FS.Remove(machine.Cred{}, link); err != nil && !errors.Is(err, syscall.ENOENT) {
				return c.fail(1, err)
			}
			must(m.K.FS.Symlink(machine.Cred{}, "/dev/null", link))
		}
		if c.now {
			m.stopUnit(name)
		}
	case "unmask":
		if masked {
			must(m.K.FS.Remove(machine.Cred{}, file))
		}
	case "status":
		if file == "" {
			return c.fail(4, &unitError{"Unit " + name + " could not be found."})
		}
		s := m.state(name)
		c.p.Printf("● %s\n     Loaded: loaded (%s; %s)\n     Active: %s (Result: %s)\n", name, file, m.fileState(name), s.active, s.result)
		if s.active != "active" {
			return 3
		}
	case "cat":
		text, err := m.K.FS.ReadFile(file)
		if file == "" || err != nil {
			return c.fail(1, &unitError{"No files found for " + name + "."})
		}
		c.p.Printf("# %s\n%s", file, text)
	default:
		return c.fail(1, &unitError{"Unknown command verb " + verb + "."})
	}
	return 0
}

// show gives properties of a unit.
func (c control) show(name string, properties []string, onlyValues bool) {
	file, settings, masked := c.m.unitFile(name)
	s := c.m.state(name)
	all := map[string]string{"Id": name, "LoadState": "loaded", "UnitFileState": c.m.fileState(name), "ActiveState": s.active, "SubState": "dead", "Type": "", "Result": s.result, "TriggeredBy": "", "MainPID": "0", "FragmentPath": file, "InvocationID": s.run, "NeedDaemonReload": "no"}
	if strings.HasSuffix(name, ".service") {
		all["Type"] = "simple"
		if t := settings["Type"]; len(t) > 0 {
			all["Type"] = t[0]
		}
		var triggers []string
		for _, kind := range []string{".socket", ".timer", ".path"} {
			other := strings.TrimSuffix(name, ".service") + kind
			if f, _, off := c.m.unitFile(other); f != "" && !off && c.m.state(other).active == "active" {
				triggers = append(triggers, other)
			}
		}
		all["TriggeredBy"] = strings.Join(triggers, " ")
	}
	switch {
	case masked:
		all["LoadState"] = "masked"
	case file == "":
		all["LoadState"] = "not-found"
	}
	if s.active == "active" {
		all["SubState"] = "running"
	}
	if s.main != nil {
		all["MainPID"] = fmt.Sprint(s.main.PID)
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if len(properties) == 1 && properties[0] == "" || slices.Contains(properties, key) {
			if onlyValues {
				c.p.Printf("%s\n", all[key])
			} else {
				c.p.Printf("%s=%s\n", key, all[key])
			}
		}
	}
}

func (c control) is(verb string, names []string) int {
	code := 1
	for _, name := range names {
		word, good := c.m.state(name).active, "active"
		switch verb {
		case "is-enabled":
			word = c.m.fileState(name)
			if word == "" {
				fmt.Fprintf(c.p.Err(), "not-found\n")
				return 4
			}
			if slices.Contains([]string{"static", "alias", "indirect", "generated", "transient"}, word) {
				good = word
			} else {
				good = "enabled"
			}
		case "is-failed":
			good = "failed"
		}
		if !c.quiet {
			c.p.Printf("%s\n", word)
		}
		if word == good {
			code = 0
		} else if verb == "is-active" {
			code = max(code, 3)
		}
	}
	return code
}
