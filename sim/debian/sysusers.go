package debian

import (
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
)

// sysusers makes the users, groups and memberships that files of sysusers.d(5) declare, as far as they are missing.
func (m accounts) sysusers(p *machine.Process, o userland.Options) int {
	for _, name := range o.Args {
		text, err := p.ReadFile(name)
		if err != nil {
			return p.Failf("Failed to open '%s': %v", name, err)
		}
		for line := range strings.Lines(text) {
			f := words(strings.TrimSpace(line), 0)
			if len(f) < 2 || strings.HasPrefix(f[0], "#") {
				continue
			}
			switch f[0] {
			case "u", "u!":
				m.systemUser(append(f, "-", "-", "-", "-")[:6])
			case "g":
				m.systemGroup(f[1])
			case "m":
				m.member(f[1], append(f, "-")[2])
			default:
				return p.Failf("%s: Unknown modifier '%s'.", name, f[0])
			}
		}
	}
	return 0
}

// systemUser makes a user: its type, name, number, comment, home and shell. A number is always chosen.
func (m accounts) systemUser(f []string) {
	users := m.table("passwd")
	if users.find(f[1]) != nil {
		return
	}
	m.systemGroup(f[1])
	gid := m.table("group").find(f[1])[2]
	uid := gid
	if users.byNumber(uid) != nil {
		uid = itoa(users.freeSystem())
	}
	home, shell, comment := f[4], f[5], f[3]
	if home == "-" {
		home = "/"
	}
	if shell == "-" {
		shell = "/usr/sbin/nologin"
	}
	if comment == "-" {
		comment = ""
	}
	m.write("shadow", append(m.table("shadow"), []string{f[1], "!*", "20000", "", "", "", "", "", ""}))
	m.write("passwd", append(users, []string{f[1], "x", uid, gid, comment, home, shell}))
}

func (m accounts) systemGroup(name string) {
	if all := m.table("group"); all.find(name) == nil {
		m.write("group", append(all, []string{name, "x", itoa(all.freeSystem()), ""}))
	}
}

// member makes a user one of a group.
func (m accounts) member(user, group string) {
	m.systemGroup(group)
	all := m.table("group")
	line := all.find(group)
	if slices.Contains(members(line), user) {
		return
	}
	line[3] = strings.TrimPrefix(line[3]+","+user, ",")
	m.write("group", all)
}

// freeSystem is an unused number below those of people.
func (t table) freeSystem() int {
	for n := 999; ; n-- {
		if t.byNumber(itoa(n)) == nil {
			return n
		}
	}
}
