package machines_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// hostileStrings create /pwned, or a line that begins with PWNED, wherever something takes them for more than one
// word: a shell, an option of a command, a line of a file, a pattern, a format.
var hostileStrings = []string{
	"$(touch /pwned)", "`touch /pwned`", "a;touch /pwned", "a\ntouch /pwned\n", "a'$(touch /pwned)'", `a"$(touch /pwned)"`, "a' ; touch /pwned ; '", `a" ; touch /pwned ; "`,
	"a|touch /pwned", "a&touch /pwned&", "a&&touch /pwned", "${IFS}$(touch${IFS}/pwned)", "a\\\ntouch /pwned", "a\r\ntouch /pwned", "a #\ntouch /pwned", "a}\ntouch /pwned\n{",
	"a\n} </dev/null\ntouch /pwned\n{", "EOF\ntouch /pwned\nEOF", "a\x01touch /pwned", "a%stouch /pwned%n", "a(touch /pwned)", "a<(touch /pwned)", "a>/pwned", "a\nPWNED=1", "a\tPWNED",
	"-o APT::Update::Pre-Invoke::=touch /pwned", "--root=/pwned", "-e", "--", "-", "@", "a:b:c", "a:0:0", "../../../elsewhere", "/../../elsewhere", "~/elsewhere", "*", "[a-z]*", "{a,b}", "a b", "", " ", "\\", "'", `"`, "$", "$0", "!",
	"a/b", "a=b", "a\u202etouch", "a\u009b31m", "é", strings.Repeat("a", 300), strings.Repeat("../", 200) + "elsewhere", "a\n[Service]\nExecStart=/bin/touch /pwned", "a ALL=(ALL) NOPASSWD: ALL\nPWNED ALL=(ALL) NOPASSWD: ALL",
	"a\nProxyCommand touch /pwned\nPWNED", "command=\"touch /pwned\" ssh-ed25519 AAAA\nPWNED", "a] trusted=yes\nPWNED http://192.0.2.1/", "%i", "%%", "a::b", "0", "-1", "00", "1e9", "nan", "true", "null", "a,b", "a;b",
}

// hostileFields are the fields of a spec that hold text. declares writes one of them in a spec of the site's language;
// "" for a field that the language derives. document writes it in the document that a node is served.
var hostileFields = []struct{ name, declares, document string }{
	{"hostname", `identity { hostname = %s }`, `"identity": {"hostname": %s}`},
	{"domain", `identity { domain = %s }`, `"identity": {"hostname": "edge", "domain": %s}`},
	{"user", `access { user %s { ssh_keys = [] } }`, `"access": {"users": [{"name": %s, "sudo": "nopasswd", "ssh_keys": []}]}`},
	{"group", `access { user "ann" { groups = [%s] } }`, `"access": {"users": [{"name": "ann", "sudo": "none", "ssh_keys": [], "groups": [%s]}]}`},
	{"shell", `access { user "ann" { shell = %s } }`, `"access": {"users": [{"name": "ann", "sudo": "none", "ssh_keys": [], "shell": %s}]}`},
	{"sudo", "", `"access": {"users": [{"name": "ann", "sudo": %s, "ssh_keys": []}]}`},
	{"former users", `access { former_users = %s }`, `"access": {"former_users": %s, "users": []}`},
	{"port", "", `"posture": {"ssh": {"port": %s, "permit_root_login": "no", "password_authentication": "no"}}`},
	{"root login", "", `"posture": {"ssh": {"port": "22", "permit_root_login": %s, "password_authentication": "no"}}`},
	{"passwords", "", `"posture": {"ssh": {"port": "22", "permit_root_login": "no", "password_authentication": %s}}`},
	{"package", `platform { packages = [%s] }`, `"platform": {"packages": [%s]}`},
	{"service", `platform { services { enable = [%s] } }`, `"platform": {"services": {%s: "enabled"}}`},
	{"disabled service", `platform { services { disable = [%s] } }`, `"platform": {"services": {%s: "disabled"}}`},
	{"service state", "", `"platform": {"services": {"cron": %s}}`},
	{"timezone", `config { timezone = %s }`, `"config": {"timezone": %s}`},
	{"sysctl", `config { sysctl = { %s = "1" } }`, `"config": {"sysctl": {%s: "1"}}`},
	{"sysctl value", `config { sysctl = { "vm.swappiness" = %s } }`, `"config": {"sysctl": {"vm.swappiness": %s}}`},
	{"file", `config { file %s { content = "x" } }`, `"config": {"files": [{"path": %s, "content": "x", "mode": "0644", "owner": "root", "group": "root"}]}`},
	{"content", `config { file "/etc/app" { content = %s } }`, `"config": {"files": [{"path": "/etc/app", "content": %s, "mode": "0644", "owner": "root", "group": "root"}]}`},
	{"mode", `config { file "/etc/app" { content = "x", mode = %s } }`, `"config": {"files": [{"path": "/etc/app", "content": "x", "mode": %s, "owner": "root", "group": "root"}]}`},
	{"owner", `config { file "/etc/app" { content = "x", owner = %s } }`, `"config": {"files": [{"path": "/etc/app", "content": "x", "mode": "0644", "owner": %s, "group": "root"}]}`},
	{"file's group", `config { file "/etc/app" { content = "x", group = %s } }`, `"config": {"files": [{"path": "/etc/app", "content": "x", "mode": "0644", "owner": "root", "group": %s}]}`},
	{"restart", `config { file "/etc/app" { content = "x", restart = [%s] } }`, `"config": {"files": [{"path": "/etc/app", "content": "x", "mode": "0644", "owner": "root", "group": "root", "restart": [%s]}]}`},
	{"repository", `config { repository %s { url = "http://192.0.2.1/", suites = ["a"], components = ["b"] } }`, `"config": {"repositories": [{"name": %s, "url": "file:/srv/none", "suites": ["./"]}]}`},
	{"repository's url", `config { repository "r" { url = %s, suites = ["a"], components = ["b"] } }`, `"config": {"repositories": [{"name": "r", "url": %s, "suites": ["./"]}]}`},
	{"suite", `config { repository "r" { url = "http://192.0.2.1/", suites = [%s], components = ["b"] } }`, `"config": {"repositories": [{"name": "r", "url": "file:/srv/none", "suites": [%s]}]}`},
	{"component", `config { repository "r" { url = "http://192.0.2.1/", suites = ["a"], components = [%s] } }`, `"config": {"repositories": [{"name": "r", "url": "file:/srv/none", "suites": ["a"], "components": [%s]}]}`},
	{"repository's key", `config { repository "r" { url = "http://192.0.2.1/", suites = ["a"], components = ["b"], key = %s } }`, `"config": {"repositories": [{"name": "r", "url": "file:/srv/none", "suites": ["./"], "key": %s}]}`},
	{"command", `config { command %s { run = "true", creates = "/etc/hostname" } }`, `"config": {"commands": [{"name": %s, "run": "true", "unless": "true"}]}`},
	{"creates", `config { command "c" { run = "true", creates = %s } }`, `"config": {"commands": [{"name": "c", "run": "true", "creates": %s}]}`},
	{"bridge", `config { pve { bridge = %s } }`, `"config": {"pve": {"bridge": %s}}`},
	{"mount", `config { mount %s { disk = "data" } }`, `"config": {"mounts": [{"path": %s, "label": "data", "fstype": "ext4"}]}`},
	{"fstype", `config { mount "/srv/data" { disk = "data", fstype = %s } }`, `"config": {"mounts": [{"path": "/srv/data", "label": "data", "fstype": %s}]}`},
	{"mount option", `config { mount "/srv/data" { disk = "data", options = [%s] } }`, `"config": {"mounts": [{"path": "/srv/data", "label": "data", "fstype": "ext4", "options": [%s]}]}`},
	{"address", `network { ip = %s }`, `"network": {"ip": %s}`},
	{"gateway", `network { gateway = %s }`, `"network": {"ip": "192.0.2.9/24", "gateway": %s}`},
	{"name server", `network { dns = [%s] }`, `"network": {"ip": "dhcp", "dns": [%s]}`},
	{"trigger", `run { trigger = %s }`, `"run": {"trigger": %s, "interval_seconds": 60}`},
}

// quoteHCL writes text as a literal of the site's language.
func quoteHCL(t *testing.T, text string) string {
	t.Helper()
	b, err := json.Marshal(text)
	require.NoError(t, err)
	return strings.NewReplacer("${", "$${", "%{", "%%{", `\u0026`, "&", `\u003c`, "<", `\u003e`, ">").Replace(string(b))
}

// declare loads a site whose one node has a spec with this body. ok is false if the site or the spec is refused.
func declare(t *testing.T, body string) (s *spec.Spec, ok bool) {
	t.Helper()
	body = strings.NewReplacer("{ ", "{\n", " }", "\n}", ", ", "\n").Replace(body)
	site, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(`site "home" {
}
spec "base" {
` + body + `
}
manifest "m" {
  pattern = "flat"
  node "edge" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
    spec   = spec.base
    disk "data" {
      size = 8
    }
  }
}
image "debian" {
  url      = "https://images.example/debian.qcow2"
  checksum = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
}
`)}}, hcl.Options{Kinds: proxmox.Kinds(), Secrets: &model.Secrets{}})
	if len(problems(found)) > 0 {
		return nil, false
	}
	s, found = spec.Resolve(site, site.Manifests["m"].Nodes[0])
	return s, len(problems(found)) == 0
}

// Every string in every field of a spec is one word of every script: it runs nothing, and it adds no line to a file
// of the system. The first holds even for a document that no site could have made.
func TestS7HostileStringsInASpec(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	tried, accepted := 0, 0
	try := func(name string, s *spec.Spec) {
		state, err := converge.Observe(t.Context(), way{w}, s)
		if err != nil {
			return
		}
		for _, step := range state.Steps() {
			for _, script := range []string{step.Ask, step.Script, step.Change, step.Check, step.Finish, step.Restore} {
				if script != "" {
					_, err := way{w}.Run(t.Context(), guest.Script("set -e\n"+script))
					require.NoError(t, err, name)
				}
			}
		}
		tried++
	}
	for _, f := range hostileFields {
		if f.declares == "" {
			continue
		}
		for _, text := range hostileStrings {
			if s, ok := declare(t, strings.ReplaceAll(f.declares, "%s", quoteHCL(t, text))); ok {
				accepted++
				try(fmt.Sprintf("%s %q", f.name, text), s)
			}
		}
		require.Empty(t, w.Run0("ls -d /pwned* 2>/dev/null || :"), f.name)
		require.Empty(t, w.Run0("grep -rl ^PWNED /etc 2>/dev/null | grep -vxF /etc/app || :"), f.name)
	}
	for _, f := range hostileFields {
		for _, text := range hostileStrings {
			if !strings.Contains(text, "pwned") {
				continue // it would run nothing
			}
			b, err := json.Marshal(text)
			require.NoError(t, err)
			if s, err := spec.Read([]byte(`{"version": 1, "node": "edge", "spec": "test", ` + strings.ReplaceAll(f.document, "%s", string(b)) + `}`)); err == nil {
				try(fmt.Sprintf("%s %q in a document", f.name, text), s)
			}
		}
		require.Empty(t, w.Run0("ls -d /pwned* 2>/dev/null || :"), f.name)
	}
	t.Logf("%d specs tried, %d of them accepted from a site", tried, accepted)
	require.Greater(t, accepted, 100)
}

const (
	annKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGs3bGZ6c2FrZGpoZmtqc2RoZmtqaHNkZmtqaHNka2Y= ann"
	bobKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHs3bGZ6c2FrZGpoZmtqc2RoZmtqaHNkZmtqaHNka2Y= bob"
)

// besieged is a machine with a user ann who does what she can. The way in is SSH, as another user.
type besieged struct {
	*world
	before string
}

func besiege(t *testing.T) *besieged {
	t.Helper()
	b := &besieged{world: begin(t)}
	b.over = b.login()
	b.Run0("useradd --create-home --shell /bin/bash ann; useradd --create-home --shell /bin/bash bob; install -d -m 700 -o ann -g ann ~ann/.ssh")
	b.before = b.roots()
	return b
}

// roots is everything in the folders of root, with the times at which it changed. What the specs of these tests declare is in /srv.
func (b *besieged) roots() string {
	b.t.Helper()
	return b.Run0(`find /etc /root /usr /boot /opt /var/spool -xdev -printf '%p %y %m %U %G %s %C@ %l\n' | sort`)
}

// ann runs a line of shell as that user.
func (b *besieged) ann(line string) {
	b.t.Helper()
	b.Run("setpriv", "--reuid=ann", "--regid=ann", "--init-groups", "env", "HOME=/home/ann", "sh", "-c", "cd && "+line)
}

// meanwhile runs a program of Python as ann until the function that it gives is called.
func (b *besieged) meanwhile(program string) (stop func()) {
	b.t.Helper()
	b.Write("/srv/attack.py", 0o644, program)
	cmd := b.Command("setpriv", "--reuid=ann", "--regid=ann", "--init-groups", "env", "HOME=/home/ann", "python3", "/srv/attack.py")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	require.NoError(b.t, err)
	require.NoError(b.t, cmd.Start())
	ready := make([]byte, 1)
	_, err = out.Read(ready) // it has begun
	require.NoError(b.t, err, said.String())
	return func() {
		b.t.Helper()
		_, _ = b.Try("pkill", "-KILL", "-u", "ann")
		var exit *exec.ExitError
		require.ErrorAs(b.t, cmd.Wait(), &exit, said.String())
		require.Equal(b.t, -1, exit.ExitCode(), said.String())
	}
}

// wants is a spec with keys of both users, and a file that comes behind the keys.
func (b *besieged) wants(n int, more string) *spec.Spec {
	b.t.Helper()
	return parse(b.t, fmt.Sprintf(`"access": {"users": [{"name": "ann", "sudo": "none", "ssh_keys": [%q]}, {"name": "bob", "sudo": "none", "ssh_keys": [%q]}]},
		"config": {"files": [{"path": "/srv/behind", "content": "%d", "mode": "0644", "owner": "root", "group": "root"}%s]}`, annKey, bobKey, n, more))
}

// apply applies a spec while ann is at work. It may fail for what is hers; it must end.
func (b *besieged) apply(s *spec.Spec) (*converge.State, error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 5*time.Minute)
	defer cancel()
	state, err := converge.Apply(ctx, way{b.world}, s, converge.Options{})
	require.NoError(b.t, ctx.Err(), "it hangs")
	return state, err
}

// untouched requires that nothing of root has changed, and that bob and the file behind have what the spec says.
func (b *besieged) untouched(n int, when string) {
	b.t.Helper()
	same(b.t, b.before, b.roots(), when)
	require.Equal(b.t, fmt.Sprint(n), b.Run0("cat /srv/behind"), when)
	require.Equal(b.t, bobKey, b.Run0("cat ~bob/.ssh/authorized_keys"), when)
	b.Run0("rm -f ~bob/.ssh/authorized_keys; flock -w 60 /run/homestak-gitops.lock true")
	require.Empty(b.t, b.Run0("find / /srv /etc -xdev -maxdepth 2 -name '*homestak-new*' 2>/dev/null"), when)
}

// Whatever ann puts in place of her keys, and whatever she does to processes that read them, root's files stay as they are, other
// users get their keys, and later steps are done.
func TestS7HostileKeys(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	b := besiege(t)
	_, err := b.apply(b.wants(0, ""))
	require.NoError(t, err)
	const hers = "echo '# hers' >.ssh/authorized_keys; chmod 600 .ssh/authorized_keys"
	n := 0
	b.before = b.roots() // with the rule of sudo
	b.untouched(0, "in peace")
	for _, c := range []struct{ name, plant, says string }{
		{"a link to /etc", "ln -s /etc .ssh", "could not be written"},
		{"a link to the folder of root", "ln -s /root/.ssh .ssh", "keys are not written"},
		{"a file instead of the folder", "echo x >.ssh", "keys are not written"},
		{"a fifo", "mkdir .ssh; mkfifo .ssh/authorized_keys", "is not a plain file"},
		{"a link to the shadow file", "mkdir .ssh; ln -s /etc/shadow .ssh/authorized_keys", "could not be read as the user"},
		{"a link without an end", "mkdir .ssh; ln -s /dev/zero .ssh/authorized_keys", "is larger than 64 KiB"},
		{"a link to itself", "mkdir .ssh; ln -s authorized_keys .ssh/authorized_keys", "is not a plain file"},
		{"a folder", "mkdir -p .ssh/authorized_keys/x", "could not be read as the user"},
		{"a file without an end", "mkdir .ssh; truncate -s 1T .ssh/authorized_keys", "is larger than 64 KiB"},
		{"a folder that is read-only", "mkdir -m 500 .ssh", "could not be written"},
		{"a file without permissions", "mkdir .ssh; echo x >.ssh/authorized_keys; chmod 000 .ssh/authorized_keys", "could not be read as the user"},
		{"control characters", `mkdir .ssh; printf 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJs3bGZ6c2FrZGpoZmtqc2RoZmtqaHNkZmtqaHNka2Y= \033]0;x\007\033[2J\001\n\000\377\n' >.ssh/authorized_keys`, ""},
		{"many keys", `mkdir .ssh; yes 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJs3bGZ6c2FrZGpoZmtqc2RoZmtqaHNkZmtqaHNka2Y= x' | head -n 200000 >.ssh/authorized_keys`, "is larger than 64 KiB"},
	} {
		n++
		b.ann("chmod -R u+rwx .ssh; rm -rf .ssh; " + c.plant)
		_, err := b.apply(b.wants(n, ""))
		if c.says == "" {
			require.NoError(t, err, c.name)
		} else {
			require.ErrorContains(t, err, c.says, c.name)
			require.ErrorContains(t, err, "set the keys of ann", c.name)
		}
		b.untouched(n, c.name)
	}
	for _, c := range []struct {
		name, plant, program string
		rounds               int
	}{
		{"swaps the folder", hers, swapping(`"/home/ann/.ssh"`, `"/etc", "/root/.ssh", "/home/bob"`), 4},
		{"swaps the file", hers, swapping(`"/home/ann/.ssh/authorized_keys"`, `"/etc/shadow", "/root/.bashrc", "/dev/zero", "FIFO", "PLAIN"`), 4},
		{"stops, traces and robs the reader", hers, robbing, 2},
		{"stops, traces and robs the writer", ":", robbing, 1},
	} {
		b.ann("chmod -R u+rwx .ssh; rm -rf .ssh .away*; mkdir -m 700 .ssh; " + c.plant)
		stop := b.meanwhile(c.program)
		for range c.rounds {
			n++
			_, err := b.apply(b.wants(n, ""))
			t.Logf("%s: %v", c.name, err)
			b.untouched(n, c.name)
		}
		stop()
	}
	n++
	b.ann("rm -rf .ssh")
	_, err = b.apply(b.wants(n, ""))
	require.NoError(t, err, "in peace again")
	require.Equal(t, annKey, b.Run0("cat ~ann/.ssh/authorized_keys"))
	b.untouched(n, "in peace again")
}

// swapping is a program that puts links to targets, and back, in the place of something.
func swapping(place, targets string) string {
	return `import os, itertools
place, targets = ` + place + `, [` + targets + `]
away = os.path.join(os.path.expanduser("~"), ".away")
os.write(1, b".")
for n, target in enumerate(itertools.cycle(targets)):
    try:
        os.rename(place, away + "-kept")
    except OSError:
        pass
    try:
        if target == "FIFO":
            os.mkfifo(away)
        elif target == "PLAIN":
            open(away, "w").write("# plain\n")
        else:
            os.symlink(target, away)
        os.rename(away, place)
    except OSError:
        pass
    try:
        os.unlink(place)
    except OSError:
        pass
    try:
        os.rename(away + "-kept", place)
    except OSError:
        pass
`
}

// robbing is a program that delays every process that opens ann's file of keys by a lease (fcntl(2), F_SETLEASE), stops every process
// with her number, and takes all open files of such a process, so that the reader or writer of the other end waits.
const robbing = `import os, fcntl, signal, ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
me, mine, taken = os.getuid(), os.getpid(), []
signal.signal(signal.SIGIO, lambda *_: None)
os.write(1, b".")
while True:
    try:
        f = os.open("/home/ann/.ssh/authorized_keys", os.O_RDWR)
        fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        os.close(f) if len(taken) > 200 else taken.append(f)
    except OSError:
        pass
    for p in os.listdir("/proc"):
        if not p.isdigit() or int(p) == mine:
            continue
        try:
            ids = [l for l in open("/proc/%s/status" % p) if l.startswith("Uid:")][0].split()[1:]
            if str(me) not in ids:
                continue
            os.kill(int(p), signal.SIGSTOP)
            pidfd = libc.syscall(434, int(p), 0)
            for n in range(16):
                fd = libc.syscall(438, pidfd, n, 0)
                if fd >= 0:
                    taken.append(fd)
            os.close(pidfd)
        except (OSError, IndexError):
            pass
`

// The same of a file that a spec declares in a folder of hers.
func TestS7HostileFolderOfAFile(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	b := besiege(t)
	const hers = `, {"path": "/home/ann/app/conf", "content": "of the spec\n", "mode": "0644", "owner": "root", "group": "root"}`
	_, err := b.apply(b.wants(0, hers))
	require.NoError(t, err)
	b.before = b.roots()
	b.untouched(0, "in peace")
	n := 0
	for _, c := range []struct{ name, plant, says string }{
		{"a link to /etc", "ln -s /etc app", "/home/ann/app is a symbolic link"},
		{"a link", "mkdir app; ln -s /etc/shadow app/conf", "is a symbolic link"},
		{"a fifo", "mkdir app; mkfifo app/conf", ""},
		{"a folder", "mkdir -p app/conf/x", "is a folder"},
		{"a file without an end", "mkdir app; truncate -s 1T app/conf", "a file of more than 64 MiB"},
		{"a folder in place of the new file", "mkdir -p app/.conf.homestak-new/x; chmod 000 app/.conf.homestak-new", ""},
	} {
		n++
		b.Run0("rm -rf ~ann/app")
		b.ann(c.plant)
		state, err := b.apply(b.wants(n, hers))
		if c.says == "" {
			require.NoError(t, err, c.name)
			require.Empty(t, changes(state), c.name)
		} else {
			require.ErrorContains(t, err, c.says, c.name)
		}
		b.untouched(n, c.name)
	}
	for _, c := range []struct{ name, program string }{
		{"swaps the folder", swapping(`"/home/ann/app"`, `"/etc", "/root", "/home/bob"`)},
		{"swaps the file", swapping(`"/home/ann/app/conf"`, `"/etc/shadow", "FIFO", "PLAIN", "/dev/zero"`)},
	} {
		b.Run0("rm -rf ~ann/app ~ann/.away*; install -d -o ann -g ann ~ann/app; echo hers >~ann/app/conf; chown ann ~ann/app/conf")
		stop := b.meanwhile(c.program)
		for range 4 {
			n++
			state, err := b.apply(b.wants(n, hers))
			t.Logf("%s: %v", c.name, err)
			if state != nil {
				for _, line := range changes(state) {
					require.NotContains(t, line, "root:", "what only root reads is not shown")
				}
			}
			b.untouched(n, c.name)
		}
		stop()
	}
	require.Empty(t, b.Run0("grep -rl root: /var/lib/homestak-gitops-spec || :"), "nor kept")
}

// A file in a folder of a user goes there, and not where a link of that user leads: neither when it is written, nor
// when it is withdrawn.
func TestST02AFileInAFolderOfAUser(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	w.Run0("useradd --create-home ann; setpriv --reuid=ann --regid=ann --clear-groups ln -s /etc /home/ann/conf; echo mine >/etc/app; mkdir /srv/real; ln -s real /srv/link")
	file := func(path string) *spec.Spec {
		return parse(t, `"config": {"files": [{"path": "`+path+`", "content": "of the spec\n", "mode": "0644", "owner": "ann", "group": "ann"}]}`)
	}
	const planted = "/home/ann/conf is a symbolic link, and others than root may change it"
	for _, path := range []string{"/home/ann/conf/new", "/home/ann/conf/app.d/new", "/home/ann/conf/app"} {
		w.refused(file(path), planted)
	}
	require.Equal(t, "("+planted+")", w.observe(file("/home/ann/conf/app")).Have.File("/home/ann/conf/app").Content)
	w.Run0("ln -sT /etc /home/ann/.ssh; chown -h ann: /home/ann/.ssh") // of a file that is restored unless a login succeeds
	restored := file("/home/ann/.ssh/app")
	step := w.observe(restored).Steps()[0]
	require.Equal(t, "write /home/ann/.ssh/app", step.Text)
	out, code := w.Try("sh", "-c", string(guest.Script("set -e\n"+step.Ask).Stdin))
	require.Equal(t, guest.ExitBlocked, code)
	require.NotContains(t, out, base64.StdEncoding.EncodeToString([]byte("mine\n")))
	w.refused(restored, "/home/ann/.ssh is a symbolic link, and others than root may change it")
	require.Equal(t, "mine", w.Run0("cat /etc/app"))
	require.Empty(t, w.Run0("ls -d /etc/new /etc/app.d 2>/dev/null || :"))

	w.Run0("rm /home/ann/conf /home/ann/.ssh")
	s := file("/home/ann/d/app")
	w.apply(s)
	w.unchanged(s)
	w.Run0("setpriv --reuid=ann --regid=ann --clear-groups sh -c 'mv ~ann/d ~ann/old 2>/dev/null; ls -ld ~ann/d' || :; rm -r /home/ann/d; ln -s /etc /home/ann/d; chown -h ann: /home/ann/d")
	w.refused(parse(t, `"config": {}`), "/home/ann/d is a symbolic link")
	require.Equal(t, "mine", w.Run0("cat /etc/app"))

	linked := file("/srv/link/app") // one of root
	w.Run0("rm /home/ann/d")
	w.apply(linked)
	require.Equal(t, "of the spec", w.Run0("cat /srv/real/app"))
	w.apply(parse(t, `"config": {}`))
	require.Empty(t, w.Run0("ls -A /srv/real"))
}

// fileAt is a spec with a file of root.
func fileAt(t *testing.T, path, content string) *spec.Spec {
	t.Helper()
	text, err := json.Marshal(content)
	require.NoError(t, err)
	return parse(t, `"config": {"files": [{"path": "`+path+`", "content": `+string(text)+`, "mode": "0440", "owner": "root", "group": "root"}]}`)
}

// A file of sshd, sudo or PAM is checked before it is in force, and is reverted unless a login succeeds afterwards.
func TestST02AFileThatDecidesWhoGetsIn(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	const sshd, sudo, pam = "/etc/ssh/sshd_config.d/10-site.conf", "/etc/sudoers.d/site", "/etc/pam.d/sshd"
	before := w.snapshot()
	w.refused(fileAt(t, sshd, "Prot 1\n"), "sshd refuses the settings")
	w.refused(fileAt(t, sudo, "ann ALL=(ALL ALL\n"), "visudo refuses /etc/sudoers.d/site")
	w.refused(fileAt(t, "/etc/sudoers", "Defaults env_reset\nroot ALL=(ALL ALL\n"), "visudo refuses /etc/sudoers")
	for _, s := range []*spec.Spec{fileAt(t, sshd, "Port 2200\n"), fileAt(t, sudo, "Defaults lecture=never\n"), fileAt(t, pam, "auth required pam_deny.so\n"), fileAt(t, "/etc/nologin", "closed\n")} {
		asked := 0
		_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{Confirm: func(context.Context, *spec.Spec, aspect.Step) error {
			asked++
			return errNoWayIn
		}})
		require.ErrorIs(t, err, errNoWayIn, s.Config.Files[0].Path)
		require.ErrorContains(t, err, "the old state is restored")
		require.Equal(t, 1, asked)
		require.NotEmpty(t, changes(w.observe(s)))
	}
	w.listensSoon("22")
	w.Run0("rm -r /var/lib/homestak-gitops-spec; apt-get clean")
	same(t, before, w.snapshot(), "after the refused and the unconfirmed changes")

	// An unconfirmed one is applied again, and reverted to the state before all that.
	port := fileAt(t, sshd, "Port 2200\n")
	for range 2 {
		ctx, gone := context.WithCancel(context.Background())
		_, err := converge.Apply(ctx, way{w}, port, converge.Options{Confirm: func(context.Context, *spec.Spec, aspect.Step) error {
			gone()
			return errNoWayIn
		}})
		require.Error(t, err)
		w.Until("the SSH server listens on 2200, too", func() bool { return w.listens("2200") })
		require.Contains(t, strings.Join(changes(w.observe(port)), "\n"), "unconfirmed")
	}
	w.Run0("sh /var/lib/homestak-gitops-spec/revert/files-*.sh")
	w.listensSoon("22")
	require.Empty(t, w.Run0("ls "+sshd+" 2>/dev/null || :"))

	w.apply(port)
	require.True(t, w.listens("2200"))
	w.unchanged(port)
	w.refused(fileAt(t, sshd, "Prot 2\n"), "sshd refuses the settings")
	w.Until("the SSH server listens where it did", func() bool { return w.listens("2200") }) // it reads what was restored
	w.apply(port)
	w.unchanged(port)
	w.apply(fileAt(t, pam, w.Run0("cat "+pam)+"\n# of the site\n"))
	w.Until("the SSH server has its old port", func() bool { return !w.listens("2200") })
	require.Contains(t, w.Run0("cat "+pam), "of the site")
	w.apply(parse(t, `"config": {}`))
	require.NotContains(t, w.Run0("cat "+pam), "of the site")
	require.Empty(t, w.Run0("ls -A /var/lib/homestak-gitops-spec/found /var/lib/homestak-gitops-spec/revert | grep -v : || :"))
}

// The state found is stored until its return is confirmed, and removed then, wherever the withdrawal is cut off.
func TestST02AnUnconfirmedWithdrawal(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	const pam = "/etc/pam.d/sshd"
	found, none := w.Run0("cat "+pam), parse(t, `"config": {}`)
	s := fileAt(t, pam, found+"\n# of the site\n")
	w.apply(s)
	for range 2 {
		_, err := converge.Apply(context.Background(), way{w}, none, converge.Options{Confirm: neverConfirms})
		require.ErrorIs(t, err, errNoWayIn)
		require.ErrorContains(t, err, "the old state is restored")
		require.Contains(t, w.Run0("cat "+pam), "# of the site")
	}
	w.apply(none)
	finished := func(when string) {
		t.Helper()
		require.Equal(t, found, w.Run0("cat "+pam), when)
		require.Empty(t, w.Run0("ls -A /var/lib/homestak-gitops-spec/found /var/lib/homestak-gitops-spec/revert | grep -v : || :"), when)
		require.JSONEq(t, `{"version": 1, "entries": []}`, w.Run0("cat /var/lib/homestak-gitops-spec/owned.json"), when)
		w.unchanged(none)
	}
	finished("after it was taken back twice")

	const confirmation = 5 // two observations, the question and the step come before
	kills := 0
	for point := 1; ; point += 3 {
		w.apply(s)
		if !w.killed(none, confirmation, point) {
			finished("it was not killed any more")
			break
		}
		kills++
		w.apply(none)
		w.Run0("systemctl stop 'homestak-gitops-revert-*.timer'; rm -f /var/lib/homestak-gitops-spec/revert/*.confirmed")
		finished(fmt.Sprintf("killed at command %d of the confirmation", point))
	}
	t.Logf("killed %d times", kills)
	require.Greater(t, kills, 8)
}

// Without connections from outside, as in mode pull, the SSH server has to answer after a change of its settings.
func TestST02AnSSHServerThatDoesNotAnswer(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	s := parse(t, lockout)
	w.Run0("systemd-run --quiet --unit=taken python3 -m http.server --bind 0.0.0.0 2222")
	w.Until("the port is taken", func() bool { return w.listens("2222") })
	standsAlone := strings.Contains(w.Run0("systemctl is-active ssh.socket || :"), "inactive") // else its socket fails, as on Ubuntu
	unanswered := func(port string) string {
		if standsAlone {
			return "it does not work, so the old state is restored: the SSH server does not answer on port " + port + " with a host key of this machine"
		}
		return "ssh.socket does not restart"
	}
	w.refused(s, unanswered("2222"))
	w.Run0("systemctl stop taken")
	w.listensSoon("22")
	require.Empty(t, w.Run0("ls /etc/ssh/sshd_config.d /var/lib/homestak-gitops-spec/revert | grep -v : || :"))
	w.apply(s)
	w.listensSoon("2222")

	// A port that is taken altogether ends the server.
	w.Run0("systemd-run --quiet --unit=taken python3 -m http.server --bind :: 2200")
	w.Until("the port is taken", func() bool { return w.listens("2200") })
	w.refused(parse(t, strings.Replace(lockout, "2222", "2200", 1)), unanswered("2200"))
	w.Run0("systemctl stop taken")
	w.listensSoon("2222")

	// A host key without its public half is one. A server that did not run before does not have to answer.
	w.Run0("rm /etc/ssh/ssh_host_*_key.pub")
	w.apply(parse(t, strings.Replace(lockout, "2222", "22", 1)))
	w.listensSoon("22")
	w.Run0("systemctl stop ssh.service")
	w.apply(s)
}

// There, a machine that allows a login keeps allowing one.
func TestST02LoginStaysPossible(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	w.Run0("install -d -m 700 /root/.ssh; echo '" + keyA + "' >/root/.ssh/authorized_keys")
	s := parse(t, lockout)
	w.refused(s, "no user could log in by SSH any more, as root can now")
	w.listensSoon("22")
	w.apply(parse(t, lockout+`, "access": {"users": [{"name": "ann", "sudo": "none", "ssh_keys": ["`+keyB+`"], "shell": "/bin/bash"}]}`))
	w.listensSoon("2222")

	w = begin(t) // by what the server says of each user
	w.Run0("install -d -m 700 /root/.ssh; echo '" + keyA + "' >/root/.ssh/authorized_keys")
	const site = "/etc/ssh/sshd_config.d/10-site.conf"
	for _, settings := range []string{
		"PubkeyAuthentication no\n", "AllowUsers ann bob\n", "DenyUsers ann ro*\n", "AllowGroups staff\n", "DenyGroups root\n", "Match User root\n  PubkeyAuthentication no\n",
		"Match Address 127.0.0.0/8\n  AuthorizedKeysFile none\n", "Match Group root LocalPort 22\n  ForceCommand internal-sftp\n", "AuthorizedKeysFile /etc/ssh/keys/%u\n", "AuthenticationMethods publickey,password\n",
	} {
		w.refused(fileAt(t, site, settings), "no user could log in by SSH any more, as root can now")
		require.Empty(t, w.Run0("ls /etc/ssh/sshd_config.d"), settings)
	}
	for _, settings := range []string{
		"AllowUsers ann root@192.0.2.0/24\nDenyUsers root@192.0.2.7\n", "AllowGroups staff r*\n", "Match User ann\n  PubkeyAuthentication no\n", "Match Address 192.0.2.0/24\n  PubkeyAuthentication no\n",
		"AuthorizedKeysFile %h/.ssh/%u .ssh/authorized_keys\n", "AuthenticationMethods publickey,password publickey\n",
	} {
		w.apply(fileAt(t, site, settings))
	}
	w.apply(parse(t, `"config": {}`))

	w = begin(t) // with a password
	w.Run0("rm -f /root/.ssh/authorized_keys; useradd --create-home bob; echo bob:secret | chpasswd; echo 'PasswordAuthentication yes' >/etc/ssh/sshd_config.d/50-cloud-init.conf")
	w.refused(s, "no user could log in by SSH any more, as bob can now")
}

// A machine that applies its spec itself keeps a new address only if its parent answers over it.
func TestST02AnAddressWithoutTheParent(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := beginLAN(t, withIfupdown, eniStatic)
	s := static(t, "10.9.0.6/24", "10.9.0.1")
	asked := 0
	_, err := converge.Apply(context.Background(), way(w), s, converge.Options{ConfirmWithin: 5 * time.Second, Parent: func(context.Context) error {
		asked++
		require.Equal(t, "10.9.0.6/24", w.address())
		return errNoWayIn
	}})
	require.ErrorIs(t, err, errNoWayIn)
	require.ErrorContains(t, err, "it does not work, so the old state is restored: the parent does not answer over the new network")
	require.Greater(t, asked, 1)
	require.Equal(t, "10.9.0.5/24", w.address())
	require.Empty(t, w.Run0("ls /var/lib/homestak-gitops-spec/revert"))
	asked = 0
	_, err = converge.Apply(context.Background(), way(w), s, converge.Options{Parent: func(context.Context) error {
		if asked++; asked == 1 {
			return errNoWayIn
		}
		return nil
	}})
	require.NoError(t, err)
	require.Equal(t, 2, asked)
	require.Equal(t, "10.9.0.6/24", w.address())
}

// Address and bridge go in any order, together too, and leave the file as it was before both.
func TestST11AddressAndBridgeGoTogether(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := beginLAN(t, "ifupdown2,isc-dhcp-client", `printf 'auto lo\niface lo inet loopback\n\nallow-hotplug eth0\niface eth0 inet static\n\taddress 10.9.0.5/24\n\tgateway 10.9.0.1\n\n# of the owner\n' >/etc/network/interfaces`,
		"echo nameserver 10.9.0.1 >/etc/resolv.conf", "ifup lo", "ifup eth0")
	const files = "cat /etc/network/interfaces /etc/resolv.conf"
	before := w.Run0(files)
	of := func(address string, bridge bool) *spec.Spec {
		s := spec.Empty("edge")
		if address != "" {
			s = static(t, address, "10.9.0.1")
		}
		if bridge {
			s.Config.PVE.Bridge = "vmbr0"
		}
		return s
	}
	for _, c := range []struct {
		name  string
		steps []*spec.Spec
	}{
		{"together", []*spec.Spec{of("10.9.0.6/24", true)}},
		{"the address first", []*spec.Spec{of("10.9.0.6/24", true), of("", true)}},
		{"the bridge first", []*spec.Spec{of("10.9.0.6/24", true), of("10.9.0.6/24", false)}},
		{"the bridge was there first", []*spec.Spec{of("", true), of("10.9.0.6/24", true)}},
		{"the bridge was there first, and goes first", []*spec.Spec{of("", true), of("10.9.0.6/24", true), of("10.9.0.6/24", false)}},
		{"another address in between", []*spec.Spec{of("10.9.0.6/24", true), of("10.9.0.7/24", true), of("10.9.0.7/24", false)}},
		{"another address together with the bridge", []*spec.Spec{of("10.9.0.6/24", true), of("10.9.0.7/24", false)}},
	} {
		for _, s := range append(c.steps, spec.Empty("edge")) {
			_, err := converge.Apply(context.Background(), way(w), s, converge.Options{Started: func(st aspect.Step) { t.Log(c.name + ": " + st.Text) }})
			require.NoError(t, err, w.Run0("ip addr; "+files))
			dev, want := "eth0", "10.9.0.5/24"
			if s.Config.PVE.Bridge != "" {
				dev = "vmbr0"
			}
			if s.Network != nil {
				want = s.Network.IP
			}
			require.Equal(t, want, w.Run0("ip -4 -o addr show dev "+dev+" scope global | awk '{print $4}'"), c.name)
			require.True(t, w.ping(strings.TrimSuffix(want, "/24")), c.name)
		}
		require.Equal(t, before, w.Run0(files), c.name)
		require.JSONEq(t, `{"version": 1, "entries": []}`, w.Run0("cat /var/lib/homestak-gitops-spec/owned.json"), c.name)
	}
}

// A package may replace another one, as it declares, and the other one comes back. What it
// would remove beside that is an error.
func TestST11AReplacedPackageComesBack(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	w.Run0("apt-get update && apt-get -y install hs-mailer hs-lib && apt-mark auto hs-lib")
	install := func(names string) *spec.Spec { return parse(t, `"platform": {"packages": [`+names+`]}`) }
	w.refused(install(`"hs-enemy"`), "installing hs-enemy would remove what is on this machine: hs-mailer")
	w.refused(install(`"hs-postman", "hs-mailer"`), "would remove what is on this machine: hs-mailer")
	state := func() string {
		return w.Run0("dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' 'hs-*' | grep ^ii; apt-mark showauto | grep hs- || :")
	}
	before := state()
	for _, automatic := range []bool{false, true} {
		if automatic {
			w.Run0("apt-mark auto hs-mailer")
			before = state()
		}
		s := install(`"hs-postman"`)
		w.apply(s)
		require.Equal(t, "postman", w.Run0("hs-postman"))
		require.NotContains(t, state(), "hs-mailer")
		w.unchanged(s)
		w.apply(install(""))
		require.Equal(t, before, state())
		require.JSONEq(t, `{"version": 1, "entries": []}`, w.Run0("cat /var/lib/homestak-gitops-spec/owned.json"))
	}
}
