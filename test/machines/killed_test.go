package machines_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// killAt replaces the script of one run by the same one that kills itself, and every
// program that it started, before its nth command.
func (w *world) killAt(run, command int) {
	seen := 0
	w.instead = func(c guest.Command) guest.Command {
		if seen++; seen != run {
			return c
		}
		return trapped(c, command, "kill -9 0")
	}
}

// trapped is a script that does something before its nth command.
func trapped(c guest.Command, command int, do string) guest.Command {
	head := fmt.Sprintf("_n=0; set -T; trap 'if [ $((_n += 1)) -eq %d ]; then %s; fi' DEBUG\n", command, do)
	return guest.Command{Args: []string{"bash", "-s"}, Stdin: append([]byte(head), c.Stdin...)}
}

// killed applies a spec and is killed. It reports whether it was.
func (w *world) killed(s *spec.Spec, run, command int) bool {
	w.t.Helper()
	w.killAt(run, command)
	defer func() { w.instead = nil }()
	_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{})
	return err != nil
}

var errCut = errors.New("cut off")

// isProbe reports whether a command reads the machine.
func isProbe(c guest.Command) bool { return bytes.Contains(c.Stdin, []byte("frame() {")) }

// attempt applies a spec whose nth script, probes not counted, is replaced. An apply that reaches it
// ends with it: nothing reaches the machine any more. It reports whether the apply was finished instead.
func (w *world) attempt(s *spec.Spec, n int, instead func(guest.Command) guest.Command) (done bool, last guest.Command) {
	w.t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	seen := 0
	w.instead = func(c guest.Command) guest.Command {
		if isProbe(c) {
			return c
		}
		if seen++; seen < n {
			return c
		}
		last = c
		cancel(errCut)
		return instead(c)
	}
	defer func() { w.instead = nil }()
	_, err := converge.Apply(ctx, way{w}, s, converge.Options{})
	if seen < n {
		require.NoError(w.t, err)
		return true, last
	}
	require.Error(w.t, err)
	return false, last
}

// everyStep applies a spec which is cut off at every step: in the middle of each by cut, at the
// commands given, and then again when the step is done. So each attempt comes one step further. It
// gives how many there were.
func (w *world) everyStep(s *spec.Spec, commands []int, cut func(c guest.Command, command int) guest.Command) (steps, cuts int) {
	w.t.Helper()
	as := func(c guest.Command, _ int) guest.Command { return c }
	before := changes(w.observe(s))
	for n, command := 1, 0; ; {
		how, at := cut, 0
		if command < len(commands) {
			at = commands[command]
		} else {
			how = as
		}
		done, c := w.attempt(s, n, func(c guest.Command) guest.Command { return how(c, at) })
		if done {
			return steps, cuts
		}
		cuts++
		now := changes(w.observe(s))
		command++
		switch {
		case !slices.Equal(before, now): // it was done, perhaps since it has no command of that number
			before, n, command = now, 1, 0
			steps++
		case command > len(commands): // what a step asks first is a script of its own, and so is what confirms it
			n, command = n+1, 0
			require.Less(w.t, n, 10, "nothing changes any more after %s", c.Stdin)
		}
	}
}

// However an apply is cut off, at every step, the next one ends in the same state as an undisturbed one,
// and a withdrawal leaves the same machine behind.
func TestST14KilledAtEveryStep(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	quiet := begin(t)
	full, none := quiet.whole(), parse(t, `"config": {}`)
	quiet.apply(full)
	wanted := quiet.snapshot()
	quiet.apply(none)
	empty := quiet.snapshot()
	check := func(w *world, what string) {
		w.t.Helper()
		w.apply(full)
		same(w.t, wanted, w.snapshot(), what)
	}
	checkEmpty := func(w *world, what string) {
		w.t.Helper()
		w.apply(none)
		same(w.t, empty, w.snapshot(), what)
	}
	commands := []int{4, 16, 36}
	if n, err := strconv.Atoi(os.Getenv("HOMESTAK_MACHINES_KILLS")); err == nil {
		commands = nil
		for k := 1; k <= n; k++ {
			commands = append(commands, k)
		}
	}

	t.Run("the shell", func(t *testing.T) {
		t.Parallel()
		w := quiet.sibling(t, nspawn.Rootfs.Boot)
		kill := func(c guest.Command, command int) guest.Command { return trapped(c, command, "kill -9 0") }
		steps, cuts := w.everyStep(full, commands, kill)
		check(w, "applied")
		back, more := w.everyStep(none, commands, kill)
		checkEmpty(w, "withdrawn")
		t.Logf("killed %d times in %d steps, and %d times in %d steps of the withdrawal", cuts, steps, more, back)
		require.Greater(t, steps, 15)
		require.Greater(t, back, 8)
	})

	t.Run("the connection", func(t *testing.T) {
		t.Parallel()
		w := quiet.sibling(t, nspawn.Rootfs.Boot)
		way := w.login()
		w.over = way
		// A script continues after its connection is gone, while the next attempt begins.
		lose := func(c guest.Command, command int) guest.Command {
			way.lose = true
			return trapped(c, command, "touch /run/begun; sleep 0.7")
		}
		steps, cuts := w.everyStep(full, commands[1:2], lose)
		others := func(snapshot string) string { // without the user who logs in
			return regexp.MustCompile(`(?m)^.*(deploy|session-).*\n`).ReplaceAllString(snapshot, "")
		}
		w.apply(full)
		same(t, others(wanted), others(w.snapshot()), "applied")
		back, more := w.everyStep(none, commands[1:2], lose)
		w.apply(none)
		same(t, others(empty), others(w.snapshot()), "withdrawn")
		t.Logf("lost %d times in %d steps, and %d times in %d steps of the withdrawal", cuts, steps, more, back)
		require.Greater(t, steps, 12)
	})

	t.Run("the machine", func(t *testing.T) {
		t.Parallel()
		w := quiet.sibling(t, nspawn.Rootfs.BootKept)
		w.apply(full)
		w.PowerCycle()
		w.apply(full)
		booted := w.snapshot()
		w.apply(none)
		w.PowerCycle()
		w.apply(none)
		bootedEmpty := w.snapshot()
		cuts := 0
		for _, c := range []struct {
			spec  *spec.Spec
			every int // which of its steps, so that all of it takes no more than a minute
			want  string
		}{{full, 4, booted}, {none, 3, bootedEmpty}} {
			for n := 1; ; n += c.every {
				if w.powerCut(c.spec, n) {
					break
				}
				cuts++
			}
			w.apply(c.spec)
			w.PowerCycle()
			w.unchanged(c.spec)
			same(t, c.want, w.snapshot(), "after the machine was cut off")
		}
		w.Run0("touch /run/stop-in-postinst") // in the middle of dpkg
		w.cutOff(full, func() { w.PowerCycle() })
		w.apply(full)
		same(t, booted, w.snapshot(), "after dpkg was cut off")
		t.Logf("cut off %d times", cuts+1)
		require.Greater(t, cuts, 4)
	})

	t.Run("config apply", func(t *testing.T) {
		t.Parallel()
		w := quiet.sibling(t, nspawn.Rootfs.Boot, nspawn.Bind{From: program(t), To: "/mnt/homestak"})
		w.Run0("mkdir -p /var/lib/homestak-gitops /var/lib/homestak-gitops-spec") // so that it is there in all snapshots
		for _, c := range []struct {
			spec *spec.Spec
			want string
		}{{full, wanted}, {none, empty}} {
			document, err := json.Marshal(c.spec)
			require.NoError(t, err)
			w.Write("/run/spec.json", 0o600, string(document))
			kills := 0
			for w.killedProgram(c.spec, kills) {
				kills++
				require.Less(t, kills, 80, "no attempt comes further")
			}
			require.Greater(t, kills, 3)
			w.Run0("/mnt/homestak/homestak-gitops config apply --spec /run/spec.json")
			require.Empty(t, changes(w.observe(c.spec)))
			w.Run0("rm -rf /var/lib/homestak-gitops/*.json.keep; cd /var/lib/homestak-gitops && rm -f spec.json spec.prev.json config-complete.json")
			same(t, c.want, w.snapshot(), "applied by the program itself")
			t.Logf("killed %d times", kills)
		}
	})
}

// powerCut applies a spec, and kills the machine in the middle of the nth script. It reports whether the apply
// was finished before that.
func (w *world) powerCut(s *spec.Spec, n int) (done bool) {
	w.t.Helper()
	seen := 0
	w.instead = func(c guest.Command) guest.Command {
		if isProbe(c) {
			return c
		}
		if seen++; seen != n {
			return c
		}
		return trapped(c, 9+6*(n%3), "touch /run/stopped; while :; do sleep 1000; done")
	}
	defer func() { w.instead = nil }()
	w.cutOff(s, func() { w.instead = nil; w.PowerCycle() })
	return seen < n
}

// cutOff applies a spec, and does something once the machine says that it has stopped on the way; nothing if
// the apply is finished without.
func (w *world) cutOff(s *spec.Spec, do func()) {
	w.t.Helper()
	done := false
	ended := make(chan error, 1)
	go func() {
		_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{})
		ended <- err
	}()
	var err error
	w.Until("it stops on the way, or ends", func() bool {
		select {
		case err = <-ended:
			done = true
		default:
		}
		if done {
			return true
		}
		_, code := w.Try("test", "-e", "/run/stopped")
		return code == 0
	})
	if done {
		require.NoError(w.t, err)
		return
	}
	do()
	require.Error(w.t, <-ended)
}

// killedProgram lets the program apply the spec of /run/spec.json, and kills it in its second step: the
// program alone, or with everything that it started. It reports whether it was.
func (w *world) killedProgram(s *spec.Spec, n int) bool {
	w.t.Helper()
	steps := w.observe(s).Steps()
	if len(steps) < 2 {
		return false
	}
	unit := fmt.Sprintf("apply-%d", n)
	w.Run0("rm -f /run/said; systemd-run --quiet --collect --unit=" + unit + " -p StandardOutput=file:/run/said -p StandardError=file:/run/said /mnt/homestak/homestak-gitops config apply --spec /run/spec.json")
	w.Until("its second step has begun: "+steps[1].Text, func() bool {
		said, _ := w.Try("cat", "/run/said")
		_, active := w.Try("systemctl", "is-active", "--quiet", unit)
		return strings.Contains(said, steps[1].Text) || active != 0
	})
	who := "main"
	if n%2 == 1 {
		who = "all"
	}
	_, code := w.Try("systemctl", "kill", "--kill-who="+who, "--signal=KILL", unit)
	w.Until("what is left of it has ended", func() bool {
		_, active := w.Try("systemctl", "is-active", "--quiet", unit)
		return active != 0
	})
	w.Run0("systemctl reset-failed " + unit + " 2>/dev/null || :")
	return code == 0
}

// login is a way into the machine by SSH, as a user who may become root.
func (w *world) login() *connection {
	w.t.Helper()
	w.Run0("useradd -m -s /bin/bash deploy && install -d -m 700 -o deploy /home/deploy/.ssh && ssh-keygen -q -t ed25519 -N '' -f /run/key && install -m 600 -o deploy /run/key.pub /home/deploy/.ssh/authorized_keys")
	w.Run0("echo 'deploy ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/90-deploy; chmod 440 /etc/sudoers.d/90-deploy")
	c := &connection{w: w, key: w.Run0("cat /run/key") + "\n"}
	w.t.Cleanup(func() {
		if c.conn != nil {
			_ = c.conn.Close() // the machine would wait for it when it powers off
		}
	})
	return c
}

// connection is that way; it logs in where the server listens. With lose, the connection is cut while the
// next command runs.
type connection struct {
	w    *world
	key  string
	conn *ssh.Machine
	lose bool
}

// Run is that of guest.Machine.
func (c *connection) Run(ctx context.Context, command guest.Command) (guest.Output, error) {
	if c.conn == nil {
		c.w.Until("the SSH server listens", func() bool { return c.w.listens("22") || c.w.listens("2222") })
		port := 22
		if c.w.listens("2222") {
			port = 2222
		}
		m, err := ssh.New(ssh.Config{
			Address: "127.0.0.1", Port: port, User: "deploy", Keys: []string{c.key}, Dial: c.w.Dial,
			Learn: func(context.Context, string) error { return nil },
		})
		if err != nil {
			return guest.Output{}, err
		}
		c.conn = m
	}
	conn := c.conn
	if !c.lose {
		return conn.Run(ctx, command)
	}
	c.lose, c.conn = false, nil
	c.w.Run0("rm -f /run/begun")
	ended := make(chan struct{})
	var failed error
	go func() {
		defer close(ended)
		_, failed = conn.Run(context.WithoutCancel(ctx), command)
	}()
	c.w.Until("the command runs, or has ended", func() bool {
		select {
		case <-ended:
			return true
		default:
		}
		_, code := c.w.Try("test", "-e", "/run/begun")
		return code == 0
	})
	err := conn.Close()
	<-ended
	return guest.Output{}, errors.Join(guest.ErrOutcomeLost, err, failed)
}

// The same at every single command of the step that has most to lose: a file that was there
// before, and a service that reads it.
func TestST14KilledAtEveryCommand(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	w.Run0("apt-get update && apt-get -y install hs-daemon && chmod 640 /etc/hs-daemon.conf")
	full := parse(t, `"config": {"files": [{"path": "/etc/hs-daemon.conf", "content": "mine\n", "mode": "0644", "owner": "root", "group": "root", "restart": ["hs-daemon"]}]}`)
	none := parse(t, `"config": {}`)
	const state = "stat -c %a /etc/hs-daemon.conf; cat /etc/hs-daemon.conf; ls -A /var/lib/homestak-gitops-spec/found /etc | grep -c 'homestak-new' || :; systemctl show -p MainPID hs-daemon"
	for command, more := 1, true; more; command++ {
		more = false
		for _, c := range []struct {
			spec *spec.Spec
			want string
		}{{full, "644\nmine\n0\n"}, {none, "640\nshipped\n0\n"}} {
			before := w.Run0("systemctl show -p MainPID hs-daemon")
			run := 2
			if c.spec == none {
				run = 3 // the record names what the spec does not, so it is read twice
			}
			more = w.killed(c.spec, run, command) || more
			w.apply(c.spec)
			got := w.Run0(state)
			require.True(t, strings.HasPrefix(got, c.want), "killed at command %d: %s", command, got)
			require.NotContains(t, got, before, "killed at command %d: the service was not restarted", command)
		}
		require.Less(t, command, 200)
		if !more {
			t.Logf("killed at each of %d commands", command-1)
		}
	}
	require.JSONEq(t, `{"version": 1, "entries": []}`, w.Run0("cat /var/lib/homestak-gitops-spec/owned.json"))
}

// raising is a machine that becomes a child. No server listens at the address of its parent.
type raising struct {
	*world
	want    push.AgentWant
	program []byte
}

// runs makes another program the wanted one: the same, with something behind it.
func (r *raising) runs(whole []byte, more string) {
	r.program = slices.Concat(whole, []byte(more))
	sum := sha256.Sum256(r.program)
	r.want.Program = push.Program{Sum: hex.EncodeToString(sum[:]), System: runtime.GOOS + "-" + runtime.GOARCH, Version: more}
}

// install makes the machine what it has to be. Its nth command that changes something is replaced; 0: none is.
func (r *raising) install(n int, instead func(guest.Command) guest.Command) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	r.instead = func(c guest.Command) guest.Command {
		if isProbe(c) || len(c.Args) != 2 {
			return c
		}
		if n--; n == 0 {
			cancel(errCut)
			return instead(c)
		}
		return c
	}
	defer func() { r.instead = nil }()
	m := way{r.world}
	f, err := r.want.Observe(ctx, m)
	if err != nil {
		return err
	}
	if f.Outdated() {
		if err := push.SendProgram(ctx, m, r.want.Program.Sum, r.program); err != nil {
			return err
		}
	}
	var given *wire.Parent
	if !f.Connects() {
		given = &wire.Parent{Identity: "inner", Server: r.want.Server, Pins: r.want.Pins, Token: "token"}
	}
	upgrade := f.Upgrades()
	err = f.Change(ctx, m, given, f.Outdated())
	if err == nil {
		err = push.StartAgent(ctx, m)
	}
	if err == nil && upgrade {
		err = push.FinishAgent(ctx, m)
	}
	return err
}

func (r *raising) changes() []string {
	r.t.Helper()
	before := r.world.runs
	f, err := r.want.Observe(r.t.Context(), way{r.world})
	require.NoError(r.t, err)
	require.Equal(r.t, 1, r.world.runs-before)
	var out []string
	for _, c := range plan.Differences(push.WantedAgent("inner"), f.Agent()) {
		out = append(out, c.String())
	}
	return out
}

// state is what an installation leaves.
func (r *raising) state() string {
	return r.Run0(`cd /; find etc/homestak-gitops etc/pve usr/local/bin usr/local/lib etc/systemd/system/homestak* etc/systemd/system/multi-user.target.wants/homestak* -printf '%p %y %m %u %g %l\n' | grep -v 'tokens-made\|python' | sort
		sha256sum /usr/local/bin/homestak-gitops; cat /etc/pve/acl /etc/pve/roles/*; systemctl is-active homestak-gitops; systemctl is-enabled homestak-gitops; getent passwd homestak-gitops`)
}

// However the installation or an upgrade of the agent of a child is killed, the next one ends in the same state, with the agent running
// under the real systemd.
func TestST14KilledWhileAChildIsMade(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	whole, err := os.ReadFile(filepath.Join(program(t), "homestak-gitops"))
	require.NoError(t, err)
	pins, err := wire.ParsePins([]string{strings.Repeat("1", 64)})
	require.NoError(t, err)
	r := &raising{world: begin(t), want: push.AgentWant{
		Identity: "inner", Server: "https://127.0.0.1:1", Pins: pins,
		Accepts: func(token string) error {
			if token != "token" {
				return errors.New("it is another one")
			}
			return nil
		},
		Roles: []kind.ChildRole{{Name: "R", Path: "/vms", Privs: []string{"VM.Audit"}, Or: [][]string{{"VM.GuestAgent.Audit"}, {"VM.Monitor"}}}},
	}}
	r.Write("/usr/bin/pveum", 0o755, drivertest.PVEum)
	r.Run0("chmod 755 /usr/bin/pveum")
	const clean = "systemctl disable --now homestak-gitops 2>/dev/null; rm -rf /etc/homestak-gitops /etc/pve /usr/local/bin/* /usr/local/bin/.homestak* /usr/local/lib/systemd /usr/local/lib/sysusers.d /etc/systemd/system/homestak* /var/lib/homestak-gitops /var/lib/homestak-gitops-spec; " +
		"if getent passwd homestak-gitops >/dev/null; then userdel homestak-gitops; fi; systemctl daemon-reload"
	type cut struct{ run, command int } // a script, and the command in it
	for what, cuts := range map[string][]cut{"install": {{1, 5}, {1, 60}, {1, 150}, {2, 3}}, "upgrade": {{1, 20}, {1, 120}, {2, 6}, {3, 4}}} {
		r.Run0(clean)
		again := func() {
			r.Run0(clean)
			if what == "upgrade" {
				r.runs(whole, "first")
				require.NoError(t, r.install(0, nil))
			}
			r.runs(whole, "second")
		}
		again()
		require.NoError(t, r.install(0, nil), what)
		require.Empty(t, r.changes(), what)
		end := r.state()
		for _, at := range cuts {
			again()
			require.Error(t, r.install(at.run, func(c guest.Command) guest.Command { return trapped(c, at.command, "kill -9 0") }), "%s %v", what, at)
			require.NoError(t, r.install(0, nil), "%s %v", what, at)
			require.Empty(t, r.changes(), "%s %v", what, at)
			require.Equal(t, end, r.state(), "%s %v", what, at)
		}
	}
}
