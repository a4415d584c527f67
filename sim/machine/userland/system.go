package userland

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// Programs for processes, users and the machine.

// table is the lines of /etc/passwd or /etc/group, each with at least so many fields.
func table(p *machine.Process, name string, least int) [][]string {
	var out [][]string
	text, _ := p.K.FS.ReadFile("/etc/" + name)
	for line := range strings.Lines(text) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) >= least {
			out = append(out, f)
		}
	}
	return out
}

// account is a line of /etc/passwd.
type account struct {
	name     string
	uid, gid int
}

// userOf finds a user by name or number.
func userOf(p *machine.Process, name string) (account, bool) {
	for _, f := range table(p, "passwd", 7) {
		uid, err1 := strconv.Atoi(f[2])
		gid, err2 := strconv.Atoi(f[3])
		if (f[0] == name || f[2] == name) && errors.Join(err1, err2) == nil {
			return account{f[0], uid, gid}, true
		}
	}
	n, err := strconv.Atoi(name)
	return account{name, n, -1}, err == nil
}

func userName(p *machine.Process, uid int) string {
	u, _ := userOf(p, strconv.Itoa(uid))
	if u.gid < 0 {
		return "UNKNOWN"
	}
	return u.name
}

// groupOf finds the number of a group.
func groupOf(p *machine.Process, name string) (int, bool) {
	for _, f := range table(p, "group", 4) {
		if gid, err := strconv.Atoi(f[2]); err == nil && (f[0] == name || f[2] == name) {
			return gid, true
		}
	}
	n, err := strconv.Atoi(name)
	return n, err == nil
}

func groupName(p *machine.Process, gid int) string {
	for _, f := range table(p, "group", 4) {
		if f[2] == strconv.Itoa(gid) {
			return f[0]
		}
	}
	return "UNKNOWN"
}

// memberships are the groups of a user by number, that of the account first.
func memberships(p *machine.Process, u account) []int {
	out := []int{u.gid}
	for _, f := range table(p, "group", 4) {
		if gid, err := strconv.Atoi(f[2]); err == nil && gid != u.gid && slices.Contains(strings.Split(f[3], ","), u.name) {
			out = append(out, gid)
		}
	}
	return out
}

func id(p *machine.Process, o Options) int {
	u := account{name: userName(p, p.Cred.UID), uid: p.Cred.UID, gid: p.Cred.GID}
	list := append([]int{p.Cred.GID}, p.Cred.Groups...)
	if len(o.Args) > 0 {
		found, there := userOf(p, o.Args[0])
		if !there || found.gid < 0 {
			return p.Failf("'%s': no such user", o.Args[0])
		}
		u, list = found, memberships(p, found)
	}
	slices.Sort(list[1:])
	list = slices.Compact(list)
	shown := func(name func(*machine.Process, int) string, numbers ...int) string {
		var words []string
		for _, n := range numbers {
			words = append(words, strconv.Itoa(n))
			if o.Has("n") {
				words[len(words)-1] = name(p, n)
			}
		}
		return strings.Join(words, " ")
	}
	switch {
	case o.Has("u"):
		p.Printf("%s\n", shown(userName, u.uid))
	case o.Has("g"):
		p.Printf("%s\n", shown(groupName, u.gid))
	case o.Has("G"):
		p.Printf("%s\n", shown(groupName, list...))
	default:
		var groups []string
		for _, g := range list {
			groups = append(groups, fmt.Sprintf("%d(%s)", g, groupName(p, g)))
		}
		p.Printf("uid=%d(%s) gid=%d(%s) groups=%s\n", u.uid, u.name, u.gid, groupName(p, u.gid), strings.Join(groups, ","))
	}
	return 0
}

func uname(p *machine.Process, o Options) int {
	release, _ := p.K.FS.ReadFile("/proc/sys/kernel/osrelease")
	var out []string
	for _, part := range []struct{ flag, text string }{{"s", "Linux"}, {"n", p.K.Hostname()}, {"r", strings.TrimSpace(release)}, {"m", "x86_64"}} {
		if o.Has(part.flag) || len(o.flags) == 0 && part.flag == "s" {
			out = append(out, part.text)
		}
	}
	p.Printf("%s\n", strings.Join(out, " "))
	return 0
}

// hostname shows and sets the name. The full one is that of /etc/hosts.
func hostname(p *machine.Process, o Options) int {
	name := ""
	if o.Has("F") {
		text, err := p.ReadFile(o.Text("F"))
		if err != nil {
			return p.Failf("%s: %s", o.Text("F"), machine.ErrorText(err))
		}
		name = strings.TrimSpace(text)
	} else if len(o.Args) > 0 {
		name = o.Args[0]
	}
	if name != "" {
		if p.Cred.UID != 0 {
			return p.Failf("you must be root to change the host name")
		}
		p.K.SetHostname(name)
		return 0
	}
	own := p.K.Hostname()
	if o.Has("f") {
		hosts, _ := p.K.FS.ReadFile("/etc/hosts")
		for line := range strings.Lines(hosts) {
			line, _, _ = strings.Cut(line, "#")
			if f := strings.Fields(line); len(f) > 1 && slices.Contains(f[1:], own) {
				own = f[1]
				break
			}
		}
	}
	p.Printf("%s\n", own)
	return 0
}

// syncFiles has nothing to do: what is written is there. A name that is not there is an error.
func syncFiles(p *machine.Process, o Options) int {
	return eachName(p, o.Args, "error opening '%s': %s", func(name string) error {
		_, err := p.K.FS.Stat(p.Cred, name)
		return err
	})
}

// zone is the time zone of the machine, of which the file has the name and the offset in it.
func zone(p *machine.Process) *time.Location {
	text, err := p.K.FS.ReadFile("/etc/localtime")
	name, offset, found := strings.Cut(strings.TrimSpace(text), " ")
	seconds, nerr := strconv.Atoi(offset)
	if err != nil || nerr != nil || !found {
		return time.UTC
	}
	return time.FixedZone(name, seconds)
}

// date shows the time of the machine, by a format of strftime(3) as far as layouts has it.
func date(p *machine.Process, o Options) int {
	now := p.K.Clock.Now().In(zone(p))
	if o.Has("u") {
		now = now.UTC()
	}
	form := "+%a %b %e %H:%M:%S %Z %Y"
	if len(o.Args) > 0 {
		form = o.Args[0]
	}
	layouts := map[string]string{
		"%Y": "2006", "%m": "01", "%d": "02", "%H": "15", "%M": "04", "%S": "05", "%Z": "MST", "%z": "-0700",
		"%F": "2006-01-02", "%T": "15:04:05", "%a": "Mon", "%b": "Jan", "%e": "_2",
	}
	pairs := []string{"%%", "%", "%s", strconv.FormatInt(now.Unix(), 10)}
	for spec, layout := range layouts {
		pairs = append(pairs, spec, now.Format(layout))
	}
	p.Printf("%s\n", strings.NewReplacer(pairs...).Replace(strings.TrimPrefix(form, "+")))
	return 0
}

// duration reads a number of seconds, or of what its last letter says.
func duration(text string) (time.Duration, error) {
	unit := time.Second
	if text != "" {
		if of, there := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[text[len(text)-1]]; there {
			text, unit = text[:len(text)-1], of
		}
	}
	n, err := strconv.ParseFloat(text, 64)
	return time.Duration(n * float64(unit)), err
}

func sleep(p *machine.Process) int {
	for _, a := range p.Args[1:] {
		d, err := duration(a)
		if err != nil && a != "infinity" {
			return p.Failf("invalid time interval '%s'", a)
		}
		if a == "infinity" {
			<-p.Killed()
		}
		p.Sleep(d)
	}
	return 0
}

func timeout(p *machine.Process, o Options) int {
	d, err := duration(o.Args[0])
	if err != nil {
		p.Failf("invalid time interval '%s'", o.Args[0])
		return 125
	}
	child := p.Fork()
	if err := child.Launch(o.Args[1:]); err != nil {
		child.Discard()
		return cannot(p, o.Args[1], err)
	}
	limit := p.K.Clock.Timer(d)
	defer limit.Stop()
	select {
	case <-child.Done():
		return child.Wait()
	case <-limit.C:
	case <-p.Killed():
	}
	child.Signal(syscall.SIGTERM)
	child.Wait()
	return 124
}

// cannot says why a program did not run, with the code for it.
func cannot(p *machine.Process, name string, err error) int {
	p.Failf("%s: %s", name, machine.ErrorText(err))
	if errors.Is(err, syscall.ENOENT) {
		return 127
	}
	return 126
}

// exec runs a program in place of this one.
func exec(p *machine.Process, args []string) int {
	name := path.Base(p.Args[0])
	code, err := p.Exec(args)
	if errors.Is(err, syscall.ENOEXEC) {
		code, err = p.Exec(append([]string{"/bin/sh"}, args...))
	}
	if err != nil {
		p.Args = []string{name}
		return cannot(p, args[0], err)
	}
	return code
}

// setsid runs a program. Sessions make no difference here.
func setsid(p *machine.Process) int {
	if len(p.Args) < 2 || strings.HasPrefix(p.Args[1], "-") {
		return p.Failf("a command is missing, or this option")
	}
	return exec(p, p.Args[1:])
}

// flock is that of util-linux for a descriptor.
func flock(p *machine.Process, o Options) int {
	const noLimit = 100000 * time.Hour
	wait, err := noLimit, error(nil)
	if o.Has("w") {
		wait, err = duration(o.Text("w"))
	}
	n, notNumber := strconv.Atoi(o.Args[0])
	if errors.Join(err, notNumber) != nil || len(o.Args) > 1 {
		p.Failf("this is not simulated: %s", strings.Join(o.Args, " "))
		return 64
	}
	if o.Has("n") {
		wait = 0
	}
	f := p.FD(n)
	switch {
	case f == nil:
		p.Failf("%d: Bad file descriptor", n)
		return 65
	case o.Has("u"):
		p.K.Unlock(f)
	case !p.Lock(f, wait):
		return 1
	}
	return 0
}

func setpriv(p *machine.Process, o Options) int {
	c := p.Cred
	user, named := account{}, false
	for _, which := range []string{"reuid", "euid"} { // a process has one number of a user here
		if !o.Has(which) {
			continue
		}
		if user, named = userOf(p, o.Text(which)); !named {
			p.Failf("failed to parse %s: '%s'", which, o.Text(which))
			return 127
		}
		c.UID = user.uid
	}
	if o.Has("regid") {
		gid, there := groupOf(p, o.Text("regid"))
		if !there {
			p.Failf("failed to parse regid: '%s'", o.Text("regid"))
			return 127
		}
		c.GID = gid
	}
	switch {
	case o.Has("init-groups"):
		c.Groups = memberships(p, user)[1:]
	case o.Has("clear-groups"):
		c.Groups = nil
	}
	if p.Cred.UID != 0 && c.UID != p.Cred.UID {
		p.Failf("setresuid failed: Operation not permitted")
		return 127
	}
	p.Cred = c
	return exec(p, o.Args)
}
