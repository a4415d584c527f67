package aspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// users is accounts with their groups and shells. One that leaves the spec is locked or
// removed, and its home stays; one that was there before us gets its shell and groups back.
var users = Of[accounts]{
	Name: "users", Doc: "Users, their groups and shells.",
	Paths: []string{"access.user.*.shell", "access.user.*.groups", "access.user.*.locked", "access.groups"},
	Probe: func(*Query) string {
		// Only whether the password is locked, and the day of expiry (shadow(5)).
		return script(
			`cut -d: -f1,3,4,6,7 /etc/passwd | row passwd`, `cut -d: -f1,3,4 /etc/group | row group`,
			`sed -nE -e 's/^([^:]*):!([^:]*:){6}([^:]*):.*/\1:1:\3/p' -e 's/^([^:]*):([^:]*:){6}([^:]*):.*/\1:0:\3/p' /etc/shadow | row shadow`)
	},
	Parse: func(_ *Query, rows [][]string) (accounts, error) { return parseAccounts(rows) },
	Fill: func(q *Query, a accounts, have *spec.Spec) {
		for _, w := range q.Want.Access.Users {
			p, there := a.passwd[w.Name]
			if !there {
				continue
			}
			u := userOf(have, w.Name)
			u.Shell, u.Locked = p.shell, p.expired
			if w.Shell == "" {
				u.Shell = ""
			}
			u.Groups = a.shown(q, w)
		}
		for _, e := range entries(q, "users") {
			p, there := a.passwd[e.Item]
			if q.Want.User(e.Item) != nil || !there || !isSame(e, p) {
				continue
			}
			if e.Put["state"] == "locked" && p.expired {
				continue // withdrawn, and still so
			}
			u := userOf(have, e.Item)
			u.Shell, u.Groups = p.shell, strings.Fields(e.Put["groups"])
		}
		for _, g := range madeGroups(q) {
			if _, there := a.groups[g]; there {
				have.Access.Groups = append(have.Access.Groups, g)
			}
		}
	},
	Unmanaged: func(q *Query, a accounts) []string {
		var out []string
		for _, name := range slices.Sorted(maps.Keys(a.passwd)) {
			p := a.passwd[name]
			if p.uid < 1000 || p.uid >= 60000 || p.expired || q.isLogin(name) || name == q.Want.Access.FirstUser || q.Want.User(name) != nil || q.Record.Get("users", name) != nil {
				continue
			}
			out = append(out, "user "+name)
		}
		return out
	},
	Steps: func(q *Query, a accounts) []Step {
		var steps []Step
		for _, w := range q.Want.Access.Users {
			steps = append(steps, a.account(q, w)...)
		}
		for _, e := range entries(q, "users") {
			p, there := a.passwd[e.Item]
			if q.Want.User(e.Item) != nil || !there || !isSame(e, p) || e.Put["state"] == "locked" && p.expired {
				continue
			}
			steps = append(steps, a.withdraw(q, e))
		}
		if gone := madeGroups(q); len(gone) > 0 {
			steps = append(steps, withdrawGroups(gone))
		}
		return steps
	},
}

type account struct {
	uid, gid    int
	home, shell string
	locked      bool // its password
	expired     bool
}

type accounts struct {
	passwd map[string]account
	member map[string][]string // groups of a user, beside the one of the account
	groups map[string]int      // by name
}

func parseAccounts(rows [][]string) (accounts, error) {
	a := accounts{passwd: map[string]account{}, member: map[string][]string{}, groups: map[string]int{}}
	for _, r := range rows {
		for line := range strings.Lines(r[1]) {
			f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
			if isCompat(f[0]) {
				continue
			}
			switch {
			case r[0] == "passwd" && len(f) == 5:
				uid, err1 := strconv.Atoi(f[1])
				gid, err2 := strconv.Atoi(f[2])
				if cmp.Or(err1, err2) != nil {
					return a, fmt.Errorf("the line of %q in /etc/passwd has no numbers", f[0])
				}
				a.passwd[f[0]] = account{uid: uid, gid: gid, home: f[3], shell: f[4]}
			case r[0] == "group" && len(f) == 3:
				a.groups[f[0]], _ = strconv.Atoi(f[1])
				for u := range strings.SplitSeq(f[2], ",") {
					if u != "" {
						a.member[u] = append(a.member[u], f[0])
					}
				}
			case r[0] == "shadow" && len(f) == 3:
				p, there := a.passwd[f[0]]
				if !there {
					continue
				}
				// An expiry in the past; 1 is what we set, and 0 is not to be used (shadow(5)).
				p.locked, p.expired = f[1] == "1", f[2] == "1" || f[2] == "0"
				a.passwd[f[0]] = p
			}
		}
	}
	return a, nil
}

// isCompat reports whether a line includes or excludes accounts of NIS (nsswitch.conf(5), compat) and is none itself, whatever
// it has in its other fields. The programs of shadow-utils keep such lines as they are.
func isCompat(name string) bool { return strings.HasPrefix(name, "+") || strings.HasPrefix(name, "-") }

// administrators are the groups whose members may become root on Debian and Ubuntu.
var administrators = []string{"sudo", "admin", "wheel"}

// shown lists the groups of a user that a spec has a say in: those that it names, those
// that we gave, and those of administrators, which only a user with sudo may be in.
func (a accounts) shown(q *Query, w spec.User) []string {
	var ours []string
	if e := q.Record.Get("users", w.Name); e != nil {
		ours = strings.Fields(e.Put["groups"])
	}
	var out []string
	for _, g := range a.member[w.Name] {
		admin := slices.Contains(administrators, g) && w.Sudo == spec.SudoNone
		if slices.Contains(w.Groups, g) || slices.Contains(ours, g) || admin {
			out = append(out, g)
		}
	}
	slices.Sort(out)
	return out
}

// account makes or changes one user.
func (a accounts) account(q *Query, w spec.User) []Step {
	p, there := a.passwd[w.Name]
	name := guest.Quote(w.Name)
	e := guest.RecordEntry{Aspect: "users", Item: w.Name, Identity: "name"}
	// Groups that we put the user into; of one that was found, not those it was in.
	given := slices.Clone(w.Groups)
	if old := q.Record.Get("users", w.Name); old != nil {
		e.Identity = old.Identity
		given = slices.DeleteFunc(given, func(g string) bool { return slices.Contains(strings.Fields(old.Found["groups"]), g) })
	} else if there {
		e.Identity = uidIdentity(p.uid)
		e.Found = map[string]string{"shell": p.shell, "groups": strings.Join(a.member[w.Name], " ")}
		given = slices.DeleteFunc(given, func(g string) bool { return slices.Contains(a.member[w.Name], g) })
	}
	e.Put = map[string]string{"groups": strings.Join(given, " ")}
	var lines, needs []string
	var made []guest.RecordEntry
	for _, g := range w.Groups {
		if _, exists := a.groups[g]; !exists {
			made = append(made, guest.RecordEntry{Aspect: "users", Item: groupItem + g, Identity: "name"})
			// A package that makes the group for the system does not take one that is there.
			needs = append(needs, "getent group "+guest.Quote(g)+" >/dev/null")
			lines = append(lines, fmt.Sprintf("getent group %s >/dev/null || groupadd -- %s", guest.Quote(g), guest.Quote(g)))
		}
	}
	shown := a.shown(q, w)
	s := Step{Stage: StageUsers, Keep: append(made, e)}
	if there {
		s.Text = "change user " + w.Name
		if w.Shell != "" && p.shell != w.Shell {
			needs = append(needs, "[ -x "+guest.Quote(w.Shell)+" ]")
			lines = append(lines, checkShell(w.Shell), "usermod --shell "+guest.Quote(w.Shell)+" -- "+name)
		}
		if p.expired {
			lines = append(lines, "usermod --expiredate '' -- "+name)
			if p.locked { // usermod refuses without a password behind the lock, and then there is nothing to unlock
				lines = append(lines, "usermod --unlock -- "+name+" >/dev/null 2>&1 || :")
			}
		}
		if slices.Equal(shown, w.Groups) && (w.Shell == "" || p.shell == w.Shell) && !p.expired {
			return nil
		}
	} else {
		s.Text = "make user " + w.Name
		needs = append(needs, "[ -x "+guest.Quote(w.Shell)+" ]", q.onDisk("/home/"+w.Name))
		lines = append(lines, checkShell(w.Shell), fmt.Sprintf(
			"if getent group %s >/dev/null; then _g='--gid %s'; else _g=--user-group; fi", name, w.Name),
			// A home that an earlier account of this name left keeps its owner.
			fmt.Sprintf("_u=; if [ -d /home/%[1]s ] && _id=$(stat -c %%u /home/%[1]s) && [ \"$_id\" -ge 1000 ] && ! getent passwd \"$_id\" >/dev/null; then _u=\"--uid $_id\"; fi", w.Name),
			fmt.Sprintf("if ! id -u -- %s >/dev/null 2>&1; then useradd --create-home $_g $_u --shell %s -- %s 2>&1 || die 'user %s could not be created'; fi", name, guest.Quote(w.Shell), name, w.Name))
	}
	for _, g := range w.Groups {
		if !slices.Contains(shown, g) {
			lines = append(lines, "usermod --append --groups "+guest.Quote(g)+" -- "+name)
		}
	}
	for _, g := range shown {
		if !slices.Contains(w.Groups, g) {
			lines = append(lines, "gpasswd --delete "+name+" "+guest.Quote(g)+" >/dev/null")
		}
	}
	if there && q.isLogin(w.Name) && (!slices.Equal(shown, w.Groups) || w.Shell != "" && p.shell != w.Shell) {
		s.Restore = p.restore(w.Name, a.member[w.Name])
	}
	s.Script, s.Needs = script(append(lines, "id -u -- "+name)...), all(needs...)
	s.Done = func(out string, s *Step) { // only now the number is known by which the account is recognised
		if words := strings.Fields(out); len(words) > 0 {
			e.Identity = "uid " + words[len(words)-1]
			s.After = []guest.RecordEntry{e}
		}
	}
	return []Step{s}
}

// restore is the script that makes an account what it was.
func (p account) restore(user string, groups []string) string {
	name := guest.Quote(user)
	lines := []string{"usermod --expiredate '' -- " + name, "usermod --shell " + guest.Quote(p.shell) + " -- " + name}
	if !p.locked {
		lines = append(lines, "usermod --unlock -- "+name+" >/dev/null 2>&1 || :")
	}
	for _, g := range groups {
		lines = append(lines, "usermod --append --groups "+guest.Quote(g)+" -- "+name)
	}
	return script(lines...)
}

func checkShell(name string) string {
	return "[ -x " + guest.Quote(name) + " ] || die " + guest.Quote("the shell "+name+" is not on this machine: add its package to packages")
}

func uidIdentity(uid int) string { return fmt.Sprintf("uid %d", uid) }

// isSame reports whether an account is the one of the record, and not another of its name.
func isSame(e guest.RecordEntry, p account) bool {
	return e.Identity == "name" || e.Identity == uidIdentity(p.uid)
}

// groupItem begins the item of a group; no user has a space in the name.
const groupItem = "group "

// madeGroups lists the groups that we made and nothing asks for any more.
func madeGroups(q *Query) []string {
	var out []string
	for _, item := range q.Record.Items("users") {
		g, isGroup := strings.CutPrefix(item, groupItem)
		if isGroup && !slices.ContainsFunc(q.Want.Access.Users, func(u spec.User) bool { return slices.Contains(u.Groups, g) }) {
			out = append(out, g)
		}
	}
	return out
}

// withdrawGroups removes groups, except those that have members by now, and those that a
// package made in the meantime: a group for the system has a number below 1000.
func withdrawGroups(groups []string) Step {
	s := Step{Stage: StageWithdrawGroups, Text: "remove groups " + list(groups) + " if they are empty"}
	var lines []string
	for _, g := range groups {
		s.Drop = append(s.Drop, guest.RecordKey{Aspect: "users", Item: groupItem + g})
		lines = append(lines, fmt.Sprintf("if _g=$(getent group %[1]s) && [ -z \"${_g##*:}\" ] && _id=${_g#*:*:} && [ \"${_id%%%%:*}\" -ge 1000 ]; then groupdel -- %[1]s; fi", guest.Quote(g)))
	}
	s.Script = script(lines...)
	return s
}

// withdraw takes back what we did to a user.
func (a accounts) withdraw(q *Query, e guest.RecordEntry) Step {
	name := guest.Quote(e.Item)
	s := Step{Stage: StageWithdrawUsers, Drop: []guest.RecordKey{e.Key()}}
	var lines []string
	terminate := "loginctl terminate-user " + name + " >/dev/null 2>&1 || :"
	if q.isLogin(e.Item) {
		s.Restore = a.passwd[e.Item].restore(e.Item, a.member[e.Item])
		terminate = ":" // it would end this script
	}
	groups := strings.Fields(e.Put["groups"])
	switch {
	case e.Found != nil:
		s.Text = "give user " + e.Item + " back shell and groups"
		if e.Found["shell"] != "" {
			lines = append(lines, "usermod --shell "+guest.Quote(e.Found["shell"])+" -- "+name)
		}
		for g := range strings.FieldsSeq(e.Found["groups"]) {
			lines = append(lines, fmt.Sprintf("if getent group %s >/dev/null; then usermod --append --groups %s -- %s; fi", guest.Quote(g), guest.Quote(g), name))
		}
		for _, g := range groups {
			lines = append(lines, "gpasswd --delete "+name+" "+guest.Quote(g)+" >/dev/null 2>&1 || :")
		}
	case q.Want.Access.FormerUsers == "remove" && q.isLogin(e.Item):
		s.Text, s.Restore = "remove user "+e.Item, ""
		lines = append(lines, "die "+guest.Quote("this machine is entered as user "+e.Item+": enter it as another user first (vm_user), or declare the user again"))
	case q.Want.Access.FormerUsers == "remove":
		s.Text = "remove user " + e.Item + ", whose home stays"
		lines = append(lines, terminate, "userdel --force -- "+name+" >/dev/null 2>&1 || ! id -u -- "+name+" >/dev/null 2>&1")
	default:
		s.Text = "lock user " + e.Item
		e.Put = map[string]string{"state": "locked"}
		s.Drop, s.After = nil, []guest.RecordEntry{e}
		for _, g := range groups {
			lines = append(lines, "gpasswd --delete "+name+" "+guest.Quote(g)+" >/dev/null 2>&1 || :")
		}
		// An expired account cannot log in by key either.
		lines = append(lines, "usermod --lock --expiredate 1 -- "+name, terminate)
	}
	s.Script = script(lines...)
	return s
}

// entries lists what of an aspect is recorded, without groups.
func entries(q *Query, aspect string) []guest.RecordEntry {
	var out []guest.RecordEntry
	for _, e := range q.Record.Entries {
		if e.Aspect == aspect && !strings.HasPrefix(e.Item, groupItem) {
			out = append(out, e)
		}
	}
	return out
}

// userOf finds or makes a user in what is observed.
func userOf(have *spec.Spec, name string) *spec.User {
	if u := have.User(name); u != nil {
		return u
	}
	have.Access.Users = append(have.Access.Users, spec.User{Name: name})
	return &have.Access.Users[len(have.Access.Users)-1]
}
