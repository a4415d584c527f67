package debian

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// unit is the state of a unit that systemd has started, or that systemd-run made. Its files are read when needed.
type unit struct {
	active    string // active, inactive, failed, activating
	result    string
	main      *machine.Process
	run       string              // the id of its last run
	transient map[string][]string // the file of one that systemd-run made
	cancel    chan struct{}       // closed to stop a timer
}

// systemdFolders have the files of units, those that win first.
func systemdFolders() []string {
	return []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"}
}

// file finds the file of a unit, and its settings by name; masked if it is a link to nowhere. Of a
// template the file counts for all of its instances.
func (m systemd) unitFile(name string) (file string, settings map[string][]string, masked bool) {
	m.mu.Lock()
	u := m.units[name]
	m.mu.Unlock()
	if u != nil && u.transient != nil {
		return "/run/systemd/transient/" + name, u.transient, false
	}
	names := []string{name}
	if at := strings.IndexByte(name, '@'); at > 0 {
		names = append(names, name[:at+1]+path.Ext(name))
	}
	for _, dir := range systemdFolders() {
		for _, n := range names {
			file := dir + "/" + n
			i, err := m.K.FS.Lstat(machine.Cred{}, file)
			if err != nil {
				continue
			}
			if i.Kind == machine.SymbolicLink && i.Target == "/dev/null" {
				return file, map[string][]string{}, true
			}
			text, err := m.K.FS.ReadFile(file)
			if err == nil {
				return file, unitSettings(text + m.dropIns(n)), false
			}
		}
	}
	return "", nil, false
}

// dropIns are the texts of the files that complete the file of a unit (systemd.unit(5)).
func (m systemd) dropIns(name string) string {
	var out strings.Builder
	for _, dir := range systemdFolders() {
		list, _ := m.K.FS.ReadDir(machine.Cred{}, dir+"/"+name+".d")
		for _, f := range list {
			if text, err := m.K.FS.ReadFile(dir + "/" + name + ".d/" + f.Name); err == nil && strings.HasSuffix(f.Name, ".conf") {
				out.WriteString("\n" + text)
			}
		}
	}
	return out.String()
}

// unitSettings reads the file of a unit.
func unitSettings(text string) map[string][]string {
	out := map[string][]string{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(key, "#") {
			out[strings.TrimSpace(key)] = append(out[strings.TrimSpace(key)], strings.TrimSpace(value))
		}
	}
	return out
}

// unitName completes a name.
func unitName(name string) string {
	switch path.Ext(name) {
	case ".service", ".socket", ".timer", ".path", ".mount", ".target", ".swap", ".slice", ".automount":
		return name
	}
	return name + ".service"
}

// canonical is the name of the unit that a name is an alias of.
func (m systemd) canonical(name string) string {
	i, err := m.K.FS.Lstat(machine.Cred{}, "/etc/systemd/system/"+name)
	if err == nil && i.Kind == machine.SymbolicLink && i.Target != "/dev/null" {
		return path.Base(i.Target)
	}
	if name == "sshd.service" {
		return "ssh.service"
	}
	return name
}

// state returns systemd's state of a unit.
func (m systemd) state(name string) unit {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.units[name]
	if u == nil {
		return unit{active: "inactive", result: "success"}
	}
	return *u
}

func (m systemd) setState(name string, do func(*unit)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.units[name]
	if u == nil {
		u = &unit{active: "inactive", result: "success"}
		m.units[name] = u
	}
	do(u)
}

// links returns the links by which a unit is enabled.
func (m systemd) links(name string) []string {
	var out []string
	list, _ := m.K.FS.ReadDir(machine.Cred{}, "/etc/systemd/system")
	for _, dir := range list {
		if dir.Kind != machine.Folder {
			continue
		}
		link := "/etc/systemd/system/" + dir.Name + "/" + name
		if _, err := m.K.FS.Lstat(machine.Cred{}, link); err == nil {
			out = append(out, link)
		}
	}
	return out
}

// fileState returns the output of is-enabled.
func (m systemd) fileState(name string) string {
	file, settings, masked := m.unitFile(name)
	switch {
	case masked:
		return "masked"
	case strings.HasPrefix(file, "/run/systemd/transient/"):
		return "transient"
	case file == "":
		return ""
	case len(m.links(name)) > 0:
		return "enabled"
	case len(settings["WantedBy"])+len(settings["RequiredBy"])+len(settings["Alias"])+len(settings["Also"]) == 0:
		return "static"
	}
	return "disabled"
}

// startAtBoot starts what is enabled, and what needs the network last. Masked units and those that fail stay off.
func (m systemd) startAtBoot() {
	var last []string
	for _, target := range []string{"sysinit.target", "multi-user.target", "timers.target", "sockets.target"} {
		list, _ := m.K.FS.ReadDir(machine.Cred{}, "/etc/systemd/system/"+target+".wants")
		for _, f := range list {
			if _, settings, _ := m.unitFile(f.Name); strings.Contains(strings.Join(settings["After"], " "), "network-online.target") {
				last = append(last, f.Name)
				continue
			}
			_ = m.startUnit(f.Name) // what fails is shown by its state
		}
	}
	for _, name := range last {
		_ = m.startUnit(name)
	}
}

// unitError is the message of systemctl for a unit that cannot be started.
type unitError struct{ text string }

func (e *unitError) Error() string { return e.text }

// startUnit starts a unit and waits until it is up.
func (m systemd) startUnit(name string) error {
	file, settings, masked := m.unitFile(name)
	switch {
	case masked:
		return &unitError{"Failed to start " + name + ": Unit " + name + " is masked."}
	case file == "":
		return &unitError{"Failed to start " + name + ": Unit " + name + " not found."}
	}
	switch s := m.state(name); {
	case s.active == "active":
		return nil
	case s.main != nil: // a oneshot service that runs
		s.main.Wait()
		return nil
	}
	switch path.Ext(name) {
	case ".timer":
		m.setState(name, func(u *unit) { u.active = "active" })
		m.runTimer(name, settings)
		return nil
	case ".service":
	default:
		m.setState(name, func(u *unit) { u.active = "active" })
		return nil
	}
	writes := m.journal.open(fmt.Sprintf("%032x", m.K.NextPID()))
	m.setState(name, func(u *unit) { u.run = writes.id })
	failed := func(result string) error {
		m.setState(name, func(u *unit) { u.active, u.result, u.main = "failed", result, nil })
		return &unitError{fmt.Sprintf("Job for %s failed because the control process exited with error code.\nSee \"systemctl status %[1]s\" and \"journalctl -xeu %[1]s\" for details.", name)}
	}
	kind := "simple"
	if len(settings["Type"]) > 0 {
		kind = settings["Type"][0]
	}
	for _, line := range settings["ExecStartPre"] {
		if m.runLine(writes, line, 0) != 0 && !strings.HasPrefix(line, "-") {
			return failed("exit-code")
		}
	}
	if kind == "oneshot" {
		m.setState(name, func(u *unit) { u.active = "activating" })
		for _, line := range settings["ExecStart"] {
			code, stopped := m.runMain(name, writes, line)
			if stopped {
				return &unitError{"Job for " + name + " canceled."}
			}
			if code != 0 && !strings.HasPrefix(line, "-") {
				return failed("exit-code")
			}
		}
		m.setState(name, func(u *unit) {
			u.active, u.result = "inactive", "success"
			if slices.Contains(settings["RemainAfterExit"], "yes") || slices.Contains(settings["RemainAfterExit"], "true") {
				u.active = "active"
			}
		})
		return nil
	}
	if len(settings["ExecStart"]) == 0 {
		return failed("resources")
	}
	p, err := m.launch(writes, settings["ExecStart"][0], 0, settings)
	if err != nil {
		return failed("exit-code")
	}
	m.setState(name, func(u *unit) { u.active, u.result, u.main = "active", "success", p })
	m.watch(name, p)
	m.serve(name, p)
	if kind == "notify" {
		select {
		case <-p.Up():
		case <-p.Done():
			return failed("exit-code")
		}
	}
	if m.state(name).active == "failed" {
		return failed("exit-code")
	}
	return nil
}

// words takes a line of Exec… apart.
func words(line string, main int) []string {
	line = strings.TrimLeft(line, "-@:+!")
	line = strings.NewReplacer("$$", "$", "$MAINPID", strconv.Itoa(main)).Replace(line)
	var out []string
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		if q := line[0]; q == '"' || q == '\'' {
			if end := strings.IndexByte(line[1:], q); end >= 0 {
				out, line = append(out, line[1:end+1]), line[end+2:]
				continue
			}
		}
		word, rest, _ := strings.Cut(line, " ")
		out, line = append(out, word), rest
	}
	return out
}

// launch starts a line of Exec… as a process of a run of its unit.
func (m systemd) launch(of *journalOf, line string, main int, settings map[string][]string) (*machine.Process, error) {
	args := words(line, main)
	if len(args) == 0 {
		return nil, syscall.ENOENT
	}
	s := m.Root(args...)
	if user := settings["User"]; len(user) > 0 {
		u, ok := m.User(user[0])
		if !ok {
			return nil, syscall.ENOENT
		}
		for _, name := range settings["SupplementaryGroups"] {
			if g := m.table("group").find(name); g != nil {
				gid, _ := strconv.Atoi(g[2])
				u.Cred.Groups = append(u.Cred.Groups, gid)
			}
		}
		s = m.Start(u, args...)
	}
	for _, e := range settings["Environment"] {
		s.Env = append(s.Env, words(e, 0)...)
	}
	if dir := settings["WorkingDirectory"]; len(dir) > 0 {
		s.Dir = dir[0]
	}
	s.In, s.Out, s.Err = strings.NewReader(""), of, of
	p, err := m.K.Start(s)
	if err != nil {
		of.failed(args[0], err)
	}
	return p, err
}

// runLine runs a line of Exec… and waits for its end.
func (m systemd) runLine(of *journalOf, line string, main int) int {
	p, err := m.launch(of, line, main, nil)
	if err != nil {
		return 203
	}
	return p.Wait()
}

// runMain runs a line of ExecStart of a oneshot service, and waits for its end, or until the service is stopped.
func (m systemd) runMain(name string, of *journalOf, line string) (code int, stopped bool) {
	p, err := m.launch(of, line, 0, nil)
	if err != nil {
		return 203, false
	}
	m.setState(name, func(u *unit) { u.main = p })
	code = p.Wait()
	m.setState(name, func(u *unit) {
		if stopped = u.main != p; !stopped {
			u.main = nil
		}
	})
	return code, stopped
}

// watch notes the end of a service that was not stopped.
func (m systemd) watch(name string, p *machine.Process) {
	m.busy.Go(func() {
		code, signal := p.Ended()
		again := false
		_, settings, _ := m.unitFile(name)
		m.setState(name, func(u *unit) {
			if u.main != p {
				return
			}
			u.main, u.active, u.result = nil, "inactive", "success"
			again = slices.Contains(settings["Restart"], "always")
			if code != 0 && signal != syscall.SIGTERM {
				u.active, u.result = "failed", "exit-code"
				again = again || slices.Contains(settings["Restart"], "on-failure")
			}
		})
		if !again {
			return
		}
		t := m.K.Clock.Timer(span(append(settings["RestartSec"], "100ms")[0]))
		defer t.Stop()
		select {
		case <-t.C:
			_ = m.startUnit(name) // its state shows what went wrong
		case <-m.Down():
		}
	})
}

// stopUnit stops a unit and waits for it.
func (m systemd) stopUnit(name string) {
	s := m.state(name)
	if s.cancel != nil {
		close(s.cancel)
	}
	if s.main != nil {
		m.setState(name, func(u *unit) { u.main = nil })
		s.main.Signal(syscall.SIGTERM)
		<-s.main.Done()
	}
	if _, settings, _ := m.unitFile(name); s.active == "active" {
		for _, line := range settings["ExecStop"] {
			m.runLine(m.journal.open(s.run), line, 0)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := m.units[name]; u != nil {
		u.active, u.result, u.cancel = "inactive", "success", nil
		if u.transient != nil {
			delete(m.units, name)
		}
	}
}

// runTimer starts the unit of a timer when its time has come: OnActiveSec, OnBootSec and OnUnitActiveSec.
func (m systemd) runTimer(name string, settings map[string][]string) {
	after, every := time.Duration(-1), time.Duration(-1)
	for _, key := range []string{"OnActiveSec", "OnBootSec", "OnStartupSec"} {
		if len(settings[key]) > 0 {
			after = span(settings[key][0])
		}
	}
	for _, key := range []string{"OnUnitActiveSec", "OnUnitInactiveSec"} {
		if len(settings[key]) > 0 {
			every = span(settings[key][0])
		}
	}
	if after < 0 {
		if every < 0 {
			return // times of a calendar are not simulated
		}
		after = every
	}
	service := strings.TrimSuffix(name, ".timer") + ".service"
	if list := settings["Unit"]; len(list) > 0 {
		service = list[0]
	}
	cancel := make(chan struct{})
	m.setState(name, func(u *unit) { u.cancel = cancel })
	m.busy.Go(func() {
		for wait := after; wait >= 0; wait = every {
			t := m.K.Clock.Timer(wait)
			select {
			case <-t.C:
			case <-cancel:
				t.Stop()
				return
			case <-m.Down():
				t.Stop()
				return
			}
			_ = m.startUnit(service) // its state shows what went wrong
		}
		m.setState(name, func(u *unit) {
			if u.cancel != cancel {
				return
			}
			if u.cancel = nil; u.transient != nil { // RemainAfterElapse= is off for these alone
				u.active = "inactive"
			}
		})
	})
}

// span reads a time as systemd.time(7) has it: 90, 1min 30s, 5m.
func span(text string) time.Duration {
	total := time.Duration(0)
	units := map[string]time.Duration{"": time.Second, "s": time.Second, "sec": time.Second, "m": time.Minute, "min": time.Minute, "h": time.Hour, "hr": time.Hour, "d": 24 * time.Hour, "ms": time.Millisecond}
	for part := range strings.FieldsSeq(text) {
		digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		n, _ := strconv.Atoi(digits)
		total += time.Duration(n) * units[part[len(digits):]]
	}
	return total
}

// systemdRun makes a service that is not in any file: at once, or after a time.
func (m systemd) systemdRun(p *machine.Process) int {
	unitNamed, after, wait := "", "", false
	args := p.Args[1:]
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, given := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
		args = args[1:]
		switch name {
		case "unit", "u", "on-active", "p", "property", "timer-property", "description", "uid":
			if !given && len(args) > 0 {
				value, args = args[0], args[1:]
			}
		}
		switch name {
		case "unit", "u":
			unitNamed = strings.TrimSuffix(value, ".service")
		case "on-active":
			after = value
		case "wait", "pipe", "P", "pty", "t":
			wait = true
		}
	}
	if len(args) == 0 || p.Cred.UID != 0 {
		return p.Failf("a command is missing, or the rights to start one")
	}
	unitNamed = cmp.Or(unitNamed, fmt.Sprintf("run-u%d", m.K.NextPID()))
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = "\"" + a + "\""
	}
	service := map[string][]string{"ExecStart": {strings.Join(quoted, " ")}, "Type": {"simple"}}
	for _, name := range []string{unitNamed + ".service", unitNamed + ".timer"} {
		if s := m.state(name); s.active == "active" || s.active == "activating" {
			return p.Failf("Failed to start transient unit: Unit %s was already loaded or has a fragment file.", name)
		}
	}
	m.setState(unitNamed+".service", func(u *unit) { u.transient = service })
	if after != "" {
		m.setState(unitNamed+".timer", func(u *unit) { u.transient = map[string][]string{"OnActiveSec": {after}} })
		_ = m.startUnit(unitNamed + ".timer")
		return 0
	}
	if err := m.startUnit(unitNamed + ".service"); err != nil {
		return p.Failf("%v", err)
	}
	if main := m.state(unitNamed + ".service").main; wait && main != nil {
		return main.Wait()
	}
	return 0
}
