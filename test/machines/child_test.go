package machines_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// raising is a machine that becomes a child. Nobody listens where its parent should be.
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
	f, err := push.ObserveAgent(ctx, m, r.want)
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
	f, err := push.ObserveAgent(r.t.Context(), way{r.world}, r.want)
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
		Roles: []push.AgentRole{{Name: "R", Path: "/vms", Privs: []string{"VM.Audit"}, Or: [][]string{{"VM.GuestAgent.Audit"}, {"VM.Monitor"}}}},
	}}
	r.Write("/usr/bin/pveum", 0o755, drivertest.PVEum)
	r.Run0("chmod 755 /usr/bin/pveum")
	const clean = "systemctl disable --now homestak-gitops 2>/dev/null; rm -rf /etc/homestak-gitops /etc/pve /usr/local/bin/* /usr/local/bin/.homestak* /usr/local/lib/systemd /usr/local/lib/sysusers.d /etc/systemd/system/homestak* /var/lib/homestak-gitops; " +
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
