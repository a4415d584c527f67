package machines_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

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

// Whatever ann puts where her keys belong, and whatever she does to those who look, root's files stay as they are, others get
// their keys, and what comes behind is done.
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
		{"a folder that nobody writes", "mkdir -m 500 .ssh", "could not be written"},
		{"a file that nobody reads", "mkdir .ssh; echo x >.ssh/authorized_keys; chmod 000 .ssh/authorized_keys", "could not be read as the user"},
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
		{"stops, traces and robs whoever reads", hers, robbing, 2},
		{"stops, traces and robs whoever writes", ":", robbing, 1},
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

// robbing is a program that holds up whoever opens ann's file of keys by a lease (fcntl(2), F_SETLEASE), stops every process with
// her number, and takes all that such a process has open, so that who reads or writes the other end waits.
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
	require.Empty(t, b.Run0("grep -rl root: /var/lib/homestak-gitops || :"), "nor kept")
}
