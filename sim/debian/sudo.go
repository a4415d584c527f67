package debian

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
)

// rule is a line of sudoers: who may do all or nothing, and whether a password is asked for.
type rule struct {
	who      string
	none     bool
	password bool
}

// rules reads sudoers. The last one that matches counts.
func (m sudoers) rules(name string) ([]rule, error) {
	text, err := m.K.FS.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("unable to open %s: %s", name, machine.ErrorText(err))
	}
	var out []rule
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		f := strings.Fields(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "#include"):
			continue
		case strings.HasPrefix(line, "Defaults"):
			continue
		case len(f) == 2 && (f[0] == "@includedir" || f[0] == "#includedir"):
			list, _ := m.K.FS.ReadDir(machine.Cred{}, f[1])
			for _, file := range list {
				if strings.Contains(file.Name, ".") || strings.HasSuffix(file.Name, "~") {
					continue
				}
				more, err := m.rules(f[1] + "/" + file.Name)
				if err != nil {
					return nil, err
				}
				out = append(out, more...)
			}
			continue
		}
		one, ok := parseRule(line)
		if !ok {
			return nil, fmt.Errorf("%s:%d:1: syntax error\n%s\n^", name, n, line)
		}
		out = append(out, one)
	}
	return out, nil
}

// parseRule reads USER HOSTS=(RUNAS) [PASSWD:|NOPASSWD:] COMMANDS.
func parseRule(line string) (rule, bool) {
	who, rest, ok := strings.Cut(strings.ReplaceAll(line, "\t", " "), " ")
	hosts, what, equal := strings.Cut(rest, "=")
	if !ok || !equal || strings.TrimSpace(hosts) != "ALL" {
		return rule{}, false
	}
	what = strings.TrimSpace(what)
	if strings.HasPrefix(what, "(") {
		end := strings.IndexByte(what, ')')
		if end < 0 {
			return rule{}, false
		}
		what = strings.TrimSpace(what[end+1:])
	}
	r := rule{who: who, password: true}
	for tag := true; tag; {
		switch {
		case strings.HasPrefix(what, "NOPASSWD:"):
			r.password, what = false, strings.TrimSpace(strings.TrimPrefix(what, "NOPASSWD:"))
		case strings.HasPrefix(what, "PASSWD:"):
			r.password, what = true, strings.TrimSpace(strings.TrimPrefix(what, "PASSWD:"))
		default:
			tag = false
		}
	}
	r.none = what == "!ALL"
	return r, what != "" && (what == "ALL" || r.none || strings.HasPrefix(what, "/"))
}

// visudo is visudo -c, of all files or of one.
func (m sudoers) visudo(p *machine.Process, o userland.Options) int {
	name := cmp.Or(o.Text("f"), "/etc/sudoers")
	if _, err := m.rules(name); err != nil {
		fmt.Fprintf(p.Err(), "%v\n", err)
		return 1
	}
	p.Printf("%s: parsed OK\n", name)
	return 0
}

// allowed finds the rule for a user; nil if there is none.
func (m sudoers) allowed(u User) (*rule, error) {
	all, err := m.rules("/etc/sudoers")
	if err != nil {
		return nil, err
	}
	var found *rule
	for i, r := range all {
		group, isGroup := strings.CutPrefix(r.who, "%")
		line := m.table("group").find(group)
		if r.who == u.Name || r.who == "ALL" || isGroup && line != nil && slices.Contains(members(line), u.Name) {
			found = &all[i]
		}
	}
	return found, nil
}

// sudo runs a program as root for whom the rules let.
func (m sudoers) sudo(p *machine.Process) int {
	args := p.Args[1:]
	list, of := false, ""
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		a := args[0]
		args = args[1:]
		if a == "--" {
			break
		}
		switch {
		case a == "-l":
			list = true
		case (a == "-u" || a == "-g" || a == "-U") && len(args) > 0:
			if a == "-U" {
				of = args[0]
			}
			args = args[1:]
		}
	}
	name := of
	if name == "" {
		for _, line := range m.table("passwd") {
			if line[2] == fmt.Sprint(p.Cred.UID) {
				name = line[0]
			}
		}
	}
	u, there := m.User(name)
	if !there {
		return p.Failf("you do not exist in the passwd database")
	}
	found, err := m.allowed(u)
	if err != nil {
		fmt.Fprintf(p.Err(), "%v\n", err)
		return 1
	}
	switch {
	case list:
		if found == nil || found.none {
			p.Printf("User %s is not allowed to run sudo on %s.\n", name, m.K.Hostname())
			return 0
		}
		p.Printf("User %s may run the following commands:\n    (ALL : ALL) %s: ALL\n", name, map[bool]string{true: "PASSWD", false: "NOPASSWD"}[found.password])
		return 0
	case p.Cred.UID != 0 && (found == nil || found.none):
		fmt.Fprintf(p.Err(), "Sorry, user %s may not run sudo on %s.\n", name, m.K.Hostname())
		return 1
	case p.Cred.UID != 0 && found.password:
		return p.Failf("a password is required")
	case len(args) == 0:
		return p.Failf("a command is missing")
	}
	p.Cred = machine.Cred{}
	p.Env = m.Root().Env
	p.Setenv("SUDO_USER", name)
	code, err := p.Exec(args)
	if err != nil {
		p.Args = []string{"sudo"}
		return p.Failf("%s: command not found", args[0])
	}
	return code
}
