package userland

import (
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/drivers/simworld/files"
	"github.com/homestak/homestak-gitops/drivers/simworld/kernel"
)

// What works on processes, users and the machine.

// account is a line of /etc/passwd.
type account struct {
	name     string
	uid, gid int
	home     string
}

// userOf finds a user by name or number.
func userOf(p *kernel.Process, name string) (account, bool) {
	text, _ := p.K.FS.ReadFile("/etc/passwd")
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 7 || f[0] != name && f[2] != name {
			continue
		}
		uid, err1 := strconv.Atoi(f[2])
		gid, err2 := strconv.Atoi(f[3])
		if errors.Join(err1, err2) == nil {
			return account{f[0], uid, gid, f[5]}, true
		}
	}
	if n, err := strconv.Atoi(name); err == nil {
		return account{name, n, -1, "/"}, true
	}
	return account{}, false
}

func userName(p *kernel.Process, uid int) string {
	u, _ := userOf(p, strconv.Itoa(uid))
	if u.name == strconv.Itoa(uid) {
		return "UNKNOWN"
	}
	return u.name
}

// groupOf finds the number of a group.
func groupOf(p *kernel.Process, name string) (int, bool) {
	for _, g := range groups(p) {
		if g.name == name || strconv.Itoa(g.gid) == name {
			return g.gid, true
		}
	}
	n, err := strconv.Atoi(name)
	return n, err == nil
}

func groupName(p *kernel.Process, gid int) string {
	for _, g := range groups(p) {
		if g.gid == gid {
			return g.name
		}
	}
	return "UNKNOWN"
}

type group struct {
	name    string
	gid     int
	members []string
}

func groups(p *kernel.Process) []group {
	var out []group
	text, _ := p.K.FS.ReadFile("/etc/group")
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 {
			continue
		}
		gid, err := strconv.Atoi(f[2])
		if err == nil {
			out = append(out, group{f[0], gid, strings.FieldsFunc(f[3], func(r rune) bool { return r == ',' })})
		}
	}
	return out
}

// memberships are the groups of a user by number, that of the account first.
func memberships(p *kernel.Process, u account) []int {
	out := []int{u.gid}
	for _, g := range groups(p) {
		if slices.Contains(g.members, u.name) && g.gid != u.gid {
			out = append(out, g.gid)
		}
	}
	return out
}

func id(p *kernel.Process) int {
	o, ok := parse(p, "u g G n r user=u group=g groups=G name=n")
	if !ok {
		return 1
	}
	u := account{name: userName(p, p.Cred.UID), uid: p.Cred.UID, gid: p.Cred.GID}
	list := append([]int{p.Cred.GID}, p.Cred.Groups...)
	if len(o.args) > 0 {
		found, there := userOf(p, o.args[0])
		if !there || found.gid < 0 {
			return p.Failf("'%s': no such user", o.args[0])
		}
		u, list = found, memberships(p, found)
	}
	slices.Sort(list[1:])
	list = slices.Compact(list)
	number := func(n int, name func(*kernel.Process, int) string) string {
		if o.has["n"] {
			return name(p, n)
		}
		return strconv.Itoa(n)
	}
	var words, shown []string
	for _, g := range list {
		words = append(words, number(g, groupName))
		shown = append(shown, fmt.Sprintf("%d(%s)", g, groupName(p, g)))
	}
	switch {
	case o.has["u"]:
		p.Printf("%s\n", number(u.uid, userName))
	case o.has["g"]:
		p.Printf("%s\n", number(u.gid, groupName))
	case o.has["G"]:
		p.Printf("%s\n", strings.Join(words, " "))
	default:
		p.Printf("uid=%d(%s) gid=%d(%s) groups=%s\n", u.uid, userName(p, u.uid), u.gid, groupName(p, u.gid), strings.Join(shown, ","))
	}
	return 0
}

func whoami(p *kernel.Process) int {
	p.Printf("%s\n", userName(p, p.Cred.UID))
	return 0
}

func uname(p *kernel.Process) int {
	o, ok := parse(p, "n r s m a v")
	if !ok {
		return 1
	}
	release, _ := p.K.FS.ReadFile("/proc/sys/kernel/osrelease")
	var out []string
	for _, part := range []struct{ flag, text string }{{"s", "Linux"}, {"n", p.K.Hostname()}, {"r", strings.TrimSpace(release)}, {"m", "x86_64"}} {
		if o.has[part.flag] || o.has["a"] || len(o.has) == 0 && part.flag == "s" {
			out = append(out, part.text)
		}
	}
	p.Printf("%s\n", strings.Join(out, " "))
	return 0
}

// hostname shows and sets the name. The full one is that of /etc/hosts.
func hostname(p *kernel.Process) int {
	o, ok := parse(p, "f s F: fqdn=f short=s file:=F I")
	if !ok {
		return 1
	}
	name := ""
	if o.has["F"] {
		text, err := p.ReadFile(o.text["F"])
		if err != nil {
			return p.Failf("%s: %s", o.text["F"], files.Text(err))
		}
		name = strings.TrimSpace(text)
	} else if len(o.args) > 0 {
		name = o.args[0]
	}
	if name != "" {
		if p.Cred.UID != 0 {
			return p.Failf("you must be root to change the host name")
		}
		p.K.SetHostname(name)
		return 0
	}
	own := p.K.Hostname()
	if o.has["f"] {
		hosts, _ := p.K.FS.ReadFile("/etc/hosts")
		for line := range strings.Lines(hosts) {
			line, _, _ = strings.Cut(line, "#")
			if f := strings.Fields(line); len(f) > 1 && slices.Contains(f[1:], own) {
				own = f[1]
				break
			}
		}
	}
	if o.has["s"] {
		own, _, _ = strings.Cut(own, ".")
	}
	p.Printf("%s\n", own)
	return 0
}

func basename(p *kernel.Process) int {
	if len(p.Args) < 2 {
		return p.Failf("missing operand")
	}
	name := path.Base(p.Args[1])
	if len(p.Args) > 2 && name != p.Args[2] {
		name = strings.TrimSuffix(name, p.Args[2])
	}
	p.Printf("%s\n", name)
	return 0
}

func dirname(p *kernel.Process) int {
	for _, name := range p.Args[1:] {
		p.Printf("%s\n", path.Dir(name))
	}
	return 0
}

// syncFiles has nothing to do: what is written is there. A name that is not there is an error.
func syncFiles(p *kernel.Process) int {
	o, ok := parse(p, "d f data=d file-system=f")
	if !ok {
		return 1
	}
	code := 0
	for _, name := range o.args {
		if _, err := p.K.FS.Stat(p.Cred, p.Path(name)); err != nil {
			code = p.Failf("error opening '%s': %s", name, files.Text(err))
		}
	}
	return code
}

// zone is the time zone of the machine, of which the file has the name and the offset in it.
func zone(p *kernel.Process) *time.Location {
	text, err := p.K.FS.ReadFile("/etc/localtime")
	name, offset, found := strings.Cut(strings.TrimSpace(text), " ")
	seconds, nerr := strconv.Atoi(offset)
	if err != nil || nerr != nil || !found {
		return time.UTC
	}
	return time.FixedZone(name, seconds)
}

func date(p *kernel.Process) int {
	o, ok := parse(p, "u d: I R utc=u date:=d iso-8601=I")
	if !ok {
		return 1
	}
	now := p.K.Clock.Now().In(zone(p))
	if o.has["u"] {
		now = now.UTC()
	}
	if o.has["d"] {
		n, err := strconv.ParseInt(strings.TrimPrefix(o.text["d"], "@"), 10, 64)
		if err != nil {
			return p.Failf("invalid date '%s'", o.text["d"])
		}
		now = time.Unix(n, 0).In(now.Location())
	}
	form := "+%a %b %e %H:%M:%S %Z %Y"
	if len(o.args) > 0 {
		form = o.args[0]
	}
	r := strings.NewReplacer("%s", strconv.FormatInt(now.Unix(), 10), "%N", fmt.Sprintf("%09d", now.Nanosecond()), "%Y", now.Format("2006"), "%m", now.Format("01"),
		"%d", now.Format("02"), "%H", now.Format("15"), "%M", now.Format("04"), "%S", now.Format("05"), "%Z", now.Format("MST"), "%z", now.Format("-0700"),
		"%F", now.Format("2006-01-02"), "%T", now.Format("15:04:05"), "%a", now.Format("Mon"), "%b", now.Format("Jan"), "%e", now.Format("_2"), "%%", "%")
	p.Printf("%s\n", r.Replace(strings.TrimPrefix(form, "+")))
	return 0
}

func duration(text string) (time.Duration, error) {
	unit := time.Second
	for suffix, of := range map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour} {
		if plain, ok := strings.CutSuffix(text, suffix); ok {
			text, unit = plain, of
			break
		}
	}
	n, err := strconv.ParseFloat(text, 64)
	return time.Duration(n * float64(unit)), err
}

func sleep(p *kernel.Process) int {
	total := time.Duration(0)
	for _, a := range p.Args[1:] {
		if a == "infinity" {
			a = "36500d"
		}
		d, err := duration(a)
		if err != nil {
			return p.Failf("invalid time interval '%s'", a)
		}
		total += d
	}
	p.Sleep(total)
	return 0
}

func timeout(p *kernel.Process) int {
	o, ok := parse(p, "+ s: k: signal:=s kill-after:=k preserve-status=P foreground=f")
	if !ok || len(o.args) < 2 {
		return 125
	}
	d, err := duration(o.args[0])
	if err != nil {
		p.Failf("invalid time interval '%s'", o.args[0])
		return 125
	}
	child := p.Fork()
	if err := child.Launch(o.args[1:]); err != nil {
		child.Discard()
		return cannot(p, o.args[1], err)
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
func cannot(p *kernel.Process, name string, err error) int {
	p.Failf("%s: %s", name, files.Text(err))
	if errors.Is(err, syscall.ENOENT) {
		return 127
	}
	return 126
}

// exec runs a program in place of this one.
func exec(p *kernel.Process, args []string) int {
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

func environment(p *kernel.Process) int {
	args := p.Args[1:]
	for len(args) > 0 {
		switch a := args[0]; {
		case a == "-i" || a == "-":
			p.Env = nil
		case a == "-u" && len(args) > 1:
			args = args[1:]
			p.Env = slices.DeleteFunc(slices.Clone(p.Env), func(pair string) bool { return strings.HasPrefix(pair, args[0]+"=") })
		case strings.Contains(a, "="):
			name, value, _ := strings.Cut(a, "=")
			p.Setenv(name, value)
		case strings.HasPrefix(a, "-"):
			p.Failf("invalid option '%s'", a)
			return 125
		default:
			return exec(p, args)
		}
		args = args[1:]
	}
	for _, pair := range p.Env {
		p.Printf("%s\n", pair)
	}
	return 0
}

// wrap is a program that runs another one, in a way that makes no difference here.
func wrap(p *kernel.Process) int {
	args := p.Args[1:]
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		value := args[0] == "-n" || args[0] == "-c"
		args = args[1:]
		if value && len(args) > 0 {
			args = args[1:]
		}
	}
	if len(args) == 0 {
		return p.Failf("a command is missing")
	}
	return exec(p, args)
}

func xargs(p *kernel.Process) int {
	o, ok := parse(p, "+ 0 r n: I: no-run-if-empty=r null=0")
	if !ok {
		return 1
	}
	text, err := io.ReadAll(p.In())
	if err != nil {
		return 1
	}
	words := strings.Fields(string(text))
	if o.has["0"] {
		words = strings.FieldsFunc(string(text), func(r rune) bool { return r == 0 })
	}
	command := o.args
	if len(command) == 0 {
		command = []string{"echo"}
	}
	if len(words) == 0 && o.has["r"] {
		return 0
	}
	most := len(words)
	if o.has["n"] {
		most, _ = strconv.Atoi(o.text["n"])
	}
	code := 0
	for first := true; first || len(words) > 0; first = false {
		n := min(max(most, 1), len(words))
		ended, err := p.Run(slices.Concat(command, words[:n]))
		if err != nil {
			return cannot(p, command[0], err)
		}
		if ended != 0 {
			code = 123
		}
		words = words[n:]
	}
	return code
}

// flock is that of util-linux for a descriptor, and for a file with a command.
func flock(p *kernel.Process) int {
	o, ok := parse(p, "+ w: n u x s c: e timeout:=w nonblock=n unlock=u exclusive=x")
	if !ok || len(o.args) == 0 {
		return 64
	}
	wait := 100000 * time.Hour
	if o.has["w"] {
		d, err := duration(o.text["w"])
		if err != nil {
			return 64
		}
		wait = d
	}
	if o.has["n"] {
		wait = 0
	}
	if n, err := strconv.Atoi(o.args[0]); err == nil && len(o.args) == 1 {
		f := p.FD(n)
		if f == nil {
			p.Failf("%d: Bad file descriptor", n)
			return 65
		}
		if o.has["u"] {
			p.K.Unlock(f)
			return 0
		}
		if !p.Lock(f, wait) {
			return 1
		}
		return 0
	}
	f, err := p.Open(o.args[0], 0x42, 0o666) // O_RDWR|O_CREAT
	if err != nil {
		p.Failf("cannot open lock file %s: %s", o.args[0], files.Text(err))
		return 66
	}
	p.SetFD(200, f)
	if !p.Lock(f, wait) {
		return 1
	}
	command := o.args[1:]
	if o.has["c"] {
		command = []string{"/bin/sh", "-c", o.text["c"]}
	}
	if len(command) == 0 {
		return 0
	}
	code, err := p.Run(command)
	if err != nil {
		return cannot(p, command[0], err)
	}
	return code
}

func setpriv(p *kernel.Process) int {
	o, ok := parse(p, "+ reuid: regid: clear-groups init-groups groups: no-new-privs inh-caps: bounding-set:")
	if !ok || len(o.args) == 0 {
		return 127
	}
	c := p.Cred
	user, named := account{}, false
	if o.has["reuid"] {
		if user, named = userOf(p, o.text["reuid"]); !named {
			p.Failf("failed to parse reuid: '%s'", o.text["reuid"])
			return 127
		}
		c.UID = user.uid
	}
	if o.has["regid"] {
		gid, there := groupOf(p, o.text["regid"])
		if !there {
			p.Failf("failed to parse regid: '%s'", o.text["regid"])
			return 127
		}
		c.GID = gid
	}
	switch {
	case o.has["init-groups"]:
		c.Groups = memberships(p, user)[1:]
	case o.has["clear-groups"]:
		c.Groups = nil
	}
	if p.Cred.UID != 0 && c.UID != p.Cred.UID {
		p.Failf("setresuid failed: Operation not permitted")
		return 127
	}
	p.Cred = c
	return exec(p, o.args)
}

func which(p *kernel.Process) int {
	code := 0
	for _, name := range p.Args[1:] {
		file, err := p.Find(name)
		if err != nil {
			code = 1
			continue
		}
		p.Printf("%s\n", file)
	}
	return code
}
