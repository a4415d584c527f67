// Package machines_test applies specs to a real Debian with systemd, sshd and apt, which
// test/nspawn boots: that every field takes effect, is left alone when it is right, and is
// withdrawn when it is dropped, whatever was cut off in between.
//
// world_test.go is the machine and what the tests see of it, repository_test.go the
// packages that apt finds there; nothing of it needs a network.
package machines_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// debian is what the machines are booted from: what an image for the cloud has, as far as
// aspects touch it.
func debian(suite string) nspawn.Rootfs {
	return nspawn.Rootfs{
		Packages: nspawn.Systemd + ",openssh-server,sudo,iproute2,libpam-systemd,ifupdown,fail2ban,python3-systemd,e2fsprogs",
		Suite:    suite, Ready: "HOMESTAK_MACHINES_ROOTFS",
	}
}

// world is a machine, and the way into it.
type world struct {
	*nspawn.Machine
	t       *testing.T
	key     string // that signs the repository /srv/apt/extra; "" if nothing here can sign
	archive string // folder of the repositories
	// runs counts the commands that were run.
	runs int
	// instead replaces a script before it runs. May be nil.
	instead func(c guest.Command) guest.Command
	// over is the way into the machine, if not by entering its namespaces. May be nil.
	over converge.Machine
	// environment is that of what is run, beside the usual one.
	environment []string
}

// begin boots a machine that nothing was put on.
func begin(t *testing.T, binds ...nspawn.Bind) *world {
	t.Helper()
	nspawn.Need(t)
	dir, key := repository(t)
	w := &world{t: t, key: key, archive: dir}
	return w.boot(nspawn.Boot, binds...)
}

// beginFrom boots a machine from another folder. Its sources of apt are what they are.
func beginFrom(t *testing.T, base nspawn.Rootfs, binds ...nspawn.Bind) *world {
	t.Helper()
	nspawn.Need(t)
	dir, key := repository(t)
	w := &world{t: t, key: key, archive: dir}
	return w.bootFrom(nspawn.Boot, base, binds...)
}

// sibling boots another such machine, which installs from the same repositories.
func (w *world) sibling(t *testing.T, how func(testing.TB, nspawn.Rootfs, ...nspawn.Bind) *nspawn.Machine, binds ...nspawn.Bind) *world {
	t.Helper()
	return (&world{t: t, key: w.key, archive: w.archive}).boot(how, binds...)
}

func (w *world) boot(how func(testing.TB, nspawn.Rootfs, ...nspawn.Bind) *nspawn.Machine, binds ...nspawn.Bind) *world {
	w.t.Helper()
	w.bootFrom(how, debian(""), binds...)
	w.Run0("rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*; echo 'deb [trusted=yes] file:/srv/apt ./' >/etc/apt/sources.list")
	return w
}

func (w *world) bootFrom(how func(testing.TB, nspawn.Rootfs, ...nspawn.Bind) *nspawn.Machine, base nspawn.Rootfs, binds ...nspawn.Bind) *world {
	w.t.Helper()
	w.Machine = how(w.t, base, append(binds, nspawn.Bind{From: w.archive, To: "/srv/apt"})...)
	// systemd counts the starts of a unit, and a test makes many; fail2ban does not always
	// respond to a stop while it starts.
	w.Run0("cd /etc/systemd/system && mkdir -p service.d socket.d && printf '[Unit]\\nStartLimitIntervalSec=0\\n' | tee service.d/often.conf >socket.d/often.conf && printf '[Service]\\nTimeoutStopSec=3s\\n' >>service.d/often.conf && systemctl daemon-reload")
	return w
}

// Run0 runs a line of shell in the machine, and gives what it printed.
func (w *world) Run0(line string) string {
	w.t.Helper()
	return w.Run("sh", "-c", line)
}

// way is the way into the machine as an apply has it.
type way struct{ *world }

// Run is that of guest.Machine.
func (m way) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	if ctx.Err() != nil {
		return guest.Output{}, ctx.Err()
	}
	m.runs++
	if m.instead != nil {
		c = m.instead(c)
	}
	if m.over != nil {
		return m.over.Run(ctx, c)
	}
	cmd := m.Command(c.Args...)
	cmd.Env = append(cmd.Env, m.environment...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what kills itself kills nobody else
	var out, complaints bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(c.Stdin), &out, &complaints
	err := cmd.Run()
	o := guest.Output{Out: out.String(), Err: complaints.String()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		o.Code = exit.ExitCode()
		if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			o.Code, o.Signal = 0, int(s.Signal())
		}
	case err != nil:
		return o, err
	}
	return o, nil
}

// apply applies a spec, and requires that it succeeds.
func (w *world) apply(s *spec.Spec) *converge.State {
	w.t.Helper()
	state, err := converge.Apply(context.Background(), way{w}, s, converge.Options{})
	require.NoError(w.t, err)
	require.Empty(w.t, changes(state))
	return state
}

// observe reads the machine for a spec.
func (w *world) observe(s *spec.Spec) *converge.State {
	w.t.Helper()
	state, err := converge.Observe(context.Background(), way{w}, s)
	require.NoError(w.t, err)
	require.Empty(w.t, state.Unknown)
	return state
}

func changes(s *converge.State) []string {
	var out []string
	for _, c := range s.Changes() {
		out = append(out, c.String())
	}
	return out
}

// snapshot is everything on the machine that an apply could change, item by item: packages, units,
// accounts with their shadow flags, keys, sudo, sshd, fail2ban, kernel parameters, name, time zone,
// repositories, and every file and folder of /etc, of homes and of what people add. What differs by
// itself, such as times and numbers of processes, is not in it.
func (w *world) snapshot() string {
	w.t.Helper()
	const places = "/etc /home /root /srv /opt /usr/local /var/spool /var/lib/homestak-gitops"
	return w.Run0(strings.Join([]string{
		"echo name $(uname -n) $(hostname -f 2>/dev/null)", "echo zone $(readlink /etc/localtime) $(date +%Z)",
		"dpkg-query -W -f='package ${Package} ${Version} ${db:Status-Abbrev}\n' | grep -v '^package .* rc '", "apt-mark showmanual | sed 's/^/manual /'",
		"apt-cache policy | grep -E '^ +(-?[0-9]+ |release )'",
		"systemctl list-unit-files --no-legend --no-pager | awk '{print \"unit file\", $1, $2}' | grep -v ' run-\\|\\.mount\\|homestak-gitops-revert'",
		"systemctl list-units --no-legend --no-pager --plain --type=service,socket,timer --state=active | awk '{print \"unit\", $1, $3}' | grep -v 'user-runtime-dir\\|user@\\|homestak-gitops-revert\\|apt-daily\\|dpkg-db\\|e2scrub\\|systemd-tmpfiles-clean\\|fstrim\\|systemd-hostnamed\\|systemd-random\\|ifup@\\|session-'",
		"cut -d: -f1,6,7 /etc/passwd | sort", "cut -d: -f1,4 /etc/group | sort", "awk -F: '{print \"shadow\", $1, substr($2,1,1), $4, $5, $6, $7, $8}' /etc/shadow | sort",
		"cut -d: -f1 /etc/subuid /etc/subgid | sort",
		"find " + places + " -xdev -printf '%p %y %m %u %g %l\\n' 2>/dev/null | grep -vE '" + passing + "' | sort",
		"find " + places + " -xdev -type f -print0 2>/dev/null | grep -zvE '" + passing + "|^/etc/(passwd|group|shadow|gshadow|subuid|subgid)$|/owned.json$|/config-[a-z]*.json$' | sort -z | xargs -0 sha256sum",
		"for f in /root/.ssh/* /home/*/.ssh/* /etc/hosts /etc/hostname /etc/timezone /etc/sudoers.d/* /etc/ssh/sshd_config.d/* /etc/sysctl.d/zz* /etc/fail2ban/jail.d/* /etc/apt/sources.list.d/* /etc/homestak-test/*; do if [ -f $f ]; then sed \"s|^|$f: |\" $f; fi; done",
		"[ -d /run/sshd ] || mkdir /run/sshd; sshd -T | sort | sed 's/^/sshd /'", "if systemctl is-active -q fail2ban; then fail2ban-client status | sed 's/^/fail2ban /'; fi",
		"grep -r . /proc/sys/net 2>/dev/null | grep -v '/nf_conntrack_count\\|/stat/\\|random\\|_secret' | sort",
		"visudo -c 2>&1 | sort", "ls /var/lib/dpkg/info | sort",
	}, "; echo ---; "))
}

// passing is what changes by itself below /etc and homes: backups of accounts, caches, and what the
// login of a user leaves.
const passing = `^/etc/[a-z]+-( |$)|^/etc/(\.pwd\.lock|machine-id|ld\.so\.cache|resolv\.conf|\.updated)( |$)|\.homestak-new|^/var/spool/.*/(log|state)|/\.ansible`

// whole is the spec with everything in it. Without gpg it has no repository.
func (w *world) whole() *spec.Spec {
	w.t.Helper()
	key, err := json.Marshal(w.key)
	require.NoError(w.t, err)
	s := parse(w.t, strings.Replace(whole, `"KEY"`, string(key), 1))
	if w.key == "" {
		s.Config.Repositories = nil
	}
	return s
}

// same requires that two snapshots agree, and shows only where they do not.
func same(t *testing.T, want, got, when string) {
	t.Helper()
	if want == got {
		return
	}
	lines := func(s string) map[string]bool {
		of := map[string]bool{}
		for line := range strings.Lines(s) {
			of[line] = true
		}
		return of
	}
	a, b := lines(want), lines(got)
	for line := range strings.Lines(want) {
		if !b[line] {
			t.Errorf("%s: missing: %s", when, line)
		}
	}
	for line := range strings.Lines(got) {
		if !a[line] {
			t.Errorf("%s: not wanted: %s", when, line)
		}
	}
	t.Fatalf("%s: the machine differs", when)
}

// parse makes a spec of a document without the fields that every one has.
func parse(t *testing.T, document string) *spec.Spec {
	t.Helper()
	s, err := spec.Read([]byte(fmt.Sprintf(`{"version": 1, "node": "edge", "spec": "test", %s}`, document)))
	require.NoError(t, err)
	return s
}
