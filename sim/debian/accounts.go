package debian

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
)

// accountsAtFirst are the users and groups of the image.
func (d *Disk) accountsAtFirst() {
	passwd, shadow, group := "root:x:0:0:root:/root:/bin/bash\n", "root:*:20000:0:99999:7:::\n", ""
	for i, name := range []string{"daemon", "bin", "sys"} {
		passwd += fmt.Sprintf("%s:x:%d:%d:%[1]s:/:/usr/sbin/nologin\n", name, i+1, i+1)
		shadow += name + ":*:20000:0:99999:7:::\n"
	}
	for name, uid := range map[string]int{"sshd": 100, "www-data": 33, "nobody": 65534, "_apt": 42, "messagebus": 101, "systemd-network": 998, "systemd-timesync": 997} {
		passwd += fmt.Sprintf("%s:x:%d:%d::/nonexistent:/usr/sbin/nologin\n", name, uid, uid)
		shadow += name + ":!*:20000::::::\n"
	}
	for name, gid := range map[string]int{
		"root": 0, "daemon": 1, "bin": 2, "sys": 3, "adm": 4, "tty": 5, "disk": 6, "mail": 8, "www-data": 33, "sudo": 27, "audio": 29, "video": 44, "plugdev": 46, "staff": 50, "games": 60,
		"users": 100, "dialout": 20, "cdrom": 24, "netdev": 102, "systemd-journal": 999, "systemd-network": 998, "shadow": 42, "utmp": 43, "crontab": 103, "nogroup": 65534, "messagebus": 101, "kvm": 104, "render": 105, "input": 106,
	} {
		group += fmt.Sprintf("%s:x:%d:\n", name, gid)
	}
	sorted := func(text string) string {
		list := strings.Split(strings.TrimSpace(text), "\n")
		slices.SortStableFunc(list, func(a, b string) int { return number(a) - number(b) })
		return strings.Join(list, "\n") + "\n"
	}
	d.put("/etc/passwd", sorted(passwd), 0o644)
	d.put("/etc/group", sorted(group), 0o644)
	must(d.fs.WriteFile("/etc/shadow", shadow, 0o640, 0, 42))
}

func number(line string) int {
	f := strings.Split(line, ":")
	n, _ := strconv.Atoi(f[2])
	return n
}

// table is one of the files of accounts: lines of fields.
type table [][]string

func (m *Machine) table(name string) table {
	accounts, _ := m.accountLines(name)
	var out table
	for _, line := range accounts {
		out = append(out, strings.Split(line, ":"))
	}
	return out
}

// accountLines splits a file into the lines of accounts, and those of NIS.
func (m *Machine) accountLines(name string) (accounts, nis []string) {
	text, _ := m.K.FS.ReadFile("/etc/" + name)
	for line := range strings.Lines(text) {
		switch line = strings.TrimRight(line, "\n"); {
		case line == "":
		case line[0] == '+' || line[0] == '-':
			nis = append(nis, line)
		default:
			accounts = append(accounts, line)
		}
	}
	return accounts, nis
}

// write replaces the accounts of a file. Its NIS entries stay after them (add_one_entry_nis in lib/commonio.c of
// shadow-utils).
func (m *Machine) write(name string, t table) {
	var b strings.Builder
	for _, line := range t {
		b.WriteString(strings.Join(line, ":") + "\n")
	}
	_, nis := m.accountLines(name)
	for _, line := range nis {
		b.WriteString(line + "\n")
	}
	must(m.K.FS.WriteText("/etc/"+name, b.String()))
}

// find is the line of a name, nil if there is none.
func (t table) find(name string) []string {
	for _, line := range t {
		if line[0] == name {
			return line
		}
	}
	return nil
}

// byNumber is the line with a number in its third field.
func (t table) byNumber(n string) []string {
	for _, line := range t {
		if len(line) > 2 && line[2] == n {
			return line
		}
	}
	return nil
}

// free is the lowest unused number from 1000 on.
func (t table) free() int {
	n := 1000
	for _, line := range t {
		if used := number(strings.Join(line, ":")); used >= n && used < 60000 {
			n = used + 1
		}
	}
	return n
}

func (t table) without(name string) table {
	return slices.DeleteFunc(t, func(line []string) bool { return line[0] == name })
}

// members are those of a line of /etc/group.
func members(line []string) []string {
	return strings.FieldsFunc(line[3], func(r rune) bool { return r == ',' })
}

// User is an account as a login needs it.
type User struct {
	Name, Home, Shell string
	Cred              machine.Cred
	Expired, Locked   bool
}

// User finds an account; false if there is none.
func (m *Machine) User(name string) (User, bool) {
	line := m.table("passwd").find(name)
	if len(line) < 7 {
		return User{}, false
	}
	u := User{Name: name, Home: line[5], Shell: line[6]}
	u.Cred.UID, _ = strconv.Atoi(line[2])
	u.Cred.GID, _ = strconv.Atoi(line[3])
	for _, g := range m.table("group") {
		if len(g) > 3 && slices.Contains(members(g), name) {
			n, _ := strconv.Atoi(g[2])
			u.Cred.Groups = append(u.Cred.Groups, n)
		}
	}
	if s := m.table("shadow").find(name); len(s) > 7 {
		day, err := strconv.Atoi(s[7])
		u.Expired = err == nil && int64(day) <= m.K.Clock.Now().Unix()/86400
		u.Locked = strings.HasPrefix(s[1], "!")
	}
	return u, true
}

// Start returns how a program of this user starts: in the home.
func (m *Machine) Start(u User, args ...string) machine.Start {
	s := m.Root(args...)
	s.Cred, s.Dir = u.Cred, "/"
	if i, err := m.K.FS.Stat(u.Cred, u.Home); err == nil && i.Kind == machine.Folder {
		s.Dir = u.Home
	}
	path := "/usr/local/bin:/usr/bin:/bin:/usr/games"
	if u.Cred.UID == 0 {
		path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	s.Env = []string{"PATH=" + path, "HOME=" + u.Home, "USER=" + u.Name, "LOGNAME=" + u.Name, "SHELL=" + u.Shell, "LANG=C.UTF-8"}
	return s
}

func (m accounts) getent(p *machine.Process) int {
	if len(p.Args) < 2 {
		return p.Failf("a database is missing")
	}
	if p.Args[1] == "ahosts" {
		return packages(m).ahosts(p)
	}
	if !slices.Contains([]string{"passwd", "group", "shadow"}, p.Args[1]) {
		return p.Failf("Unknown database: %s", p.Args[1])
	}
	if p.Args[1] == "shadow" && p.Cred.UID != 0 {
		return 2
	}
	t := m.table(p.Args[1])
	if len(p.Args) == 2 {
		for _, line := range t {
			p.Printf("%s\n", strings.Join(line, ":"))
		}
		return 0
	}
	for _, key := range p.Args[2:] {
		line := t.find(key)
		if line == nil && p.Args[1] != "shadow" {
			line = t.byNumber(key)
		}
		if line == nil {
			return 2
		}
		p.Printf("%s\n", strings.Join(line, ":"))
	}
	return 0
}

// asRoot runs a program that only root may.
func (accounts) asRoot(run func(*machine.Process, userland.Options) int) func(*machine.Process, userland.Options) int {
	return func(p *machine.Process, o userland.Options) int {
		if p.Cred.UID != 0 {
			return p.Failf("Permission denied.")
		}
		return run(p, o)
	}
}

func validName(name string) bool {
	return name != "" && len(name) <= 32 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == "" && (name[0] == '_' || name[0] >= 'a' && name[0] <= 'z')
}

func (m accounts) useradd(p *machine.Process, o userland.Options) int {
	name := o.Args[0]
	users, all, shadow := m.table("passwd"), m.table("group"), m.table("shadow")
	switch {
	case !validName(name):
		p.Failf("invalid user name '%s'", name)
		return 3
	case users.find(name) != nil:
		p.Failf("user '%s' already exists", name)
		return 9
	}
	uid := cmp.Or(o.Text("uid"), strconv.Itoa(users.free()))
	if users.byNumber(uid) != nil {
		p.Failf("UID %s is not unique", uid)
		return 4
	}
	gid := ""
	if g := o.Text("gid"); g != "" {
		line := all.find(g)
		if line == nil {
			line = all.byNumber(g)
		}
		if line == nil {
			p.Failf("group '%s' does not exist", g)
			return 6
		}
		gid = line[2]
	} else {
		if all.find(name) != nil {
			p.Failf("group %s exists - if you want to add this user to that group, use -g.", name)
			return 9
		}
		gid = uid
		if all.byNumber(gid) != nil {
			gid = strconv.Itoa(all.free())
		}
		all = append(all, []string{name, "x", gid, ""})
	}
	for g := range strings.SplitSeq(o.Text("groups"), ",") {
		if g == "" {
			continue
		}
		line := all.find(g)
		if line == nil {
			p.Failf("group '%s' does not exist", g)
			return 6
		}
		line[3] = strings.Join(append(members(line), name), ",")
	}
	home := cmp.Or(o.Text("home-dir"), "/home/"+name)
	users = append(users, []string{name, "x", uid, gid, o.Text("comment"), home, cmp.Or(o.Text("shell"), "/bin/sh")})
	shadow = append(shadow, []string{name, "!", strconv.FormatInt(p.K.Clock.Now().Unix()/86400, 10), "0", "99999", "7", "", "", ""})
	m.write("group", all)
	m.write("shadow", shadow)
	m.write("passwd", users)
	if o.Has("create-home") {
		m.makeHome(home, uid, gid)
	}
	return 0
}

// makeHome makes a home from /etc/skel, unless there is one.
func (m accounts) makeHome(home, uid, gid string) {
	if _, err := m.K.FS.Stat(machine.Cred{}, home); err == nil {
		return
	}
	u, _ := strconv.Atoi(uid)
	g, _ := strconv.Atoi(gid)
	must(m.K.FS.MkdirAll(home, 0o755))
	must(m.K.FS.Chmod(machine.Cred{}, home, 0o700))
	must(m.K.FS.Chown(machine.Cred{}, home, u, g, true))
	list, _ := m.K.FS.ReadDir(machine.Cred{}, "/etc/skel")
	for _, f := range list {
		text, err := m.K.FS.ReadFile("/etc/skel/" + f.Name)
		if err == nil {
			must(m.K.FS.WriteFile(home+"/"+f.Name, text, f.Perm, u, g))
		}
	}
}

func (m accounts) usermod(p *machine.Process, o userland.Options) int {
	users, all, shadow := m.table("passwd"), m.table("group"), m.table("shadow")
	name := o.Args[0]
	user, secret := users.find(name), shadow.find(name)
	if user == nil || secret == nil {
		p.Failf("user '%s' does not exist", name)
		return 6
	}
	if s := o.Text("shell"); s != "" {
		user[6] = s
	}
	if h := o.Text("home"); h != "" {
		user[5] = h
	}
	if o.Has("expiredate") {
		secret[7] = o.Text("expiredate")
	}
	if o.Has("lock") {
		if !strings.HasPrefix(secret[1], "!") {
			secret[1] = "!" + secret[1]
		}
	}
	if o.Has("unlock") {
		if secret[1] == "!" || secret[1] == "!*" {
			p.Failf("unlocking the user's password would result in a passwordless account.")
			return 1
		}
		secret[1] = strings.TrimPrefix(secret[1], "!")
	}
	if list := o.Text("groups"); list != "" {
		wanted := strings.Split(list, ",")
		for _, g := range wanted {
			if all.find(g) == nil {
				p.Failf("group '%s' does not exist", g)
				return 6
			}
		}
		for _, line := range all {
			in := slices.Contains(members(line), name)
			switch want := slices.Contains(wanted, line[0]); {
			case want && !in:
				line[3] = strings.Join(append(members(line), name), ",")
			case !want && in && !o.Has("append"):
				line[3] = strings.Join(slices.DeleteFunc(members(line), func(u string) bool { return u == name }), ",")
			}
		}
	}
	m.write("group", all)
	m.write("shadow", shadow)
	m.write("passwd", users)
	return 0
}

func (m accounts) userdel(p *machine.Process, o userland.Options) int {
	name := o.Args[0]
	user := m.table("passwd").find(name)
	if user == nil {
		p.Failf("user '%s' does not exist", name)
		return 6
	}
	all := m.table("group")
	for _, line := range all {
		line[3] = strings.Join(slices.DeleteFunc(members(line), func(u string) bool { return u == name }), ",")
	}
	if own := all.find(name); own != nil && own[2] == user[3] && own[3] == "" {
		all = all.without(name)
	}
	m.write("group", all)
	m.write("shadow", m.table("shadow").without(name))
	m.write("passwd", m.table("passwd").without(name))
	if o.Has("remove") {
		must(m.K.FS.RemoveAll(machine.Cred{}, user[5]))
	}
	return 0
}

func (m accounts) groupadd(p *machine.Process, o userland.Options) int {
	all := m.table("group")
	if all.find(o.Args[0]) != nil {
		if o.Has("force") {
			return 0
		}
		p.Failf("group '%s' already exists", o.Args[0])
		return 9
	}
	m.write("group", append(all, []string{o.Args[0], "x", cmp.Or(o.Text("gid"), strconv.Itoa(all.free())), ""}))
	return 0
}

func (m accounts) groupdel(p *machine.Process, o userland.Options) int {
	all := m.table("group")
	line := all.find(o.Args[0])
	if line == nil {
		p.Failf("group '%s' does not exist", o.Args[0])
		return 6
	}
	for _, u := range m.table("passwd") {
		if u[3] == line[2] {
			p.Failf("cannot remove the primary group of user '%s'", u[0])
			return 8
		}
	}
	m.write("group", all.without(o.Args[0]))
	return 0
}

func (m accounts) gpasswd(p *machine.Process, o userland.Options) int {
	all := m.table("group")
	line := all.find(o.Args[0])
	if line == nil {
		p.Failf("group '%s' does not exist in /etc/group", o.Args[0])
		return 3
	}
	name := o.Text("delete")
	if !slices.Contains(members(line), name) {
		p.Failf("user '%s' is not a member of '%s'", name, o.Args[0])
		return 3
	}
	line[3] = strings.Join(slices.DeleteFunc(members(line), func(u string) bool { return u == name }), ",")
	m.write("group", all)
	return 0
}

func itoa(n int) string { return strconv.Itoa(n) }
