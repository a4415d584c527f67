package machines_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

const lockout = `"posture": {"ssh": {"port": "2222", "permit_root_login": "no", "password_authentication": "no"}}`

var errNoWayIn = errors.New("connection refused")

// nobody cannot connect afterwards.
func nobody(context.Context, *spec.Spec, aspect.Step) error { return errNoWayIn }

// listens reports whether the SSH server listens on the port.
func (w *world) listens(port string) bool {
	return w.Run0("ss -tln | grep -c ':"+port+" ' || :") != "0"
}

// listensSoon waits for it: the server reads its settings again after it was told to.
func (w *world) listensSoon(port string) {
	w.t.Helper()
	w.Until("the SSH server listens on "+port+" and nowhere else", func() bool {
		return w.listens(port) && w.Run0("ss -Htln | grep -c .") == w.Run0("ss -Htln | grep -c ':"+port+" '")
	})
}

// Settings that would lock us out are taken back at once where the way in still works.
func TestST02WhatLocksUsOutIsTakenBack(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	s := parse(t, lockout)
	_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{Confirm: nobody})
	require.ErrorIs(t, err, errNoWayIn)
	require.ErrorContains(t, err, "the old state is restored")
	w.listensSoon("22")
	require.Empty(t, w.Run0("ls /etc/ssh/sshd_config.d /var/lib/homestak-gitops/revert | grep -v :"))
	require.Contains(t, changes(w.observe(s)), "posture.ssh.port 22 → 2222")
	w.apply(s)
	w.listensSoon("2222")
	// The same the other way round: what is restored is our own file.
	open := parse(t, `"posture": {"ssh": {"port": "22", "permit_root_login": "yes", "password_authentication": "yes"}}`)
	_, err = converge.Apply(context.Background(), way{w}, open, converge.Options{Confirm: nobody})
	require.ErrorIs(t, err, errNoWayIn)
	w.listensSoon("2222")
	w.unchanged(s)
}

// They are taken back by the machine alone where the way in is closed by them, or where
// who applied them is gone: by systemd, and without it.
func TestST02TheMachineTakesBackWhatNobodyConfirms(t *testing.T) {
	nspawn.Need(t)
	for _, c := range []struct{ name, before string }{
		{name: "by systemd"}, {name: "without systemd-run", before: "chmod a-x /usr/bin/systemd-run;"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := begin(t)
			w.Run0(c.before + " :")
			s := parse(t, lockout)
			ctx, gone := context.WithCancel(context.Background())
			defer gone()
			_, err := converge.Apply(ctx, way{w}, s, converge.Options{ConfirmWithin: 2 * time.Second, Confirm: func(context.Context, *spec.Spec, aspect.Step) error {
				w.listensSoon("2222")
				require.Contains(t, changes(w.observe(s)), "posture.ssh.unconfirmed true → false") //nolint:contextcheck // an observation of its own
				gone()
				return errNoWayIn
			}})
			require.Error(t, err)
			w.Until("the machine listens where it did", func() bool { return w.listens("22") && !w.listens("2222") })
			w.Until("nothing is left of it", func() bool {
				return w.Run0("ls /etc/ssh/sshd_config.d /var/lib/homestak-gitops/revert | grep -v : || :") == ""
			})
			require.Contains(t, changes(w.observe(s)), "posture.ssh.port 22 → 2222")
			w.apply(s)
			w.listensSoon("2222")
			w.unchanged(s)
		})
	}
}

// A state that nobody confirmed is applied again while the timer runs, and what is restored
// is still the state before all that.
func TestST02UnconfirmedIsAppliedAgain(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	s := parse(t, lockout)
	for range 2 {
		ctx, gone := context.WithCancel(context.Background())
		_, err := converge.Apply(ctx, way{w}, s, converge.Options{Confirm: func(context.Context, *spec.Spec, aspect.Step) error {
			gone()
			return errNoWayIn
		}})
		require.Error(t, err)
		w.listensSoon("2222")
	}
	w.Run0("sh /var/lib/homestak-gitops/revert/sshd.sh")
	w.listensSoon("22")
	w.apply(s)
	w.unchanged(s)
	require.Empty(t, w.Run0("systemctl list-timers --all --no-legend | grep homestak || :"))
}

// A restart of the machine takes them back, too: by a unit that is there only so long.
func TestST02ARestartTakesBackWhatNobodyConfirmed(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	s := parse(t, lockout)
	ctx, gone := context.WithCancel(context.Background())
	_, err := converge.Apply(ctx, way{w}, s, converge.Options{Confirm: func(context.Context, *spec.Spec, aspect.Step) error {
		gone()
		return errNoWayIn
	}})
	require.Error(t, err)
	w.listensSoon("2222")
	w.Run0("systemctl stop homestak-gitops-revert-sshd.timer; systemctl daemon-reload") // as a restart does
	require.Contains(t, w.Run0("systemctl list-dependencies --plain multi-user.target"), "homestak-gitops-revert-sshd-boot.service")
	w.Run0("cd /var/lib/homestak-gitops/revert && mv sshd.sh sshd.sh.4711") // where the restart cut off what restored
	w.Run0("systemctl start homestak-gitops-revert-sshd-boot.service")
	w.listensSoon("22")
	w.apply(s)
	w.listensSoon("2222")
	require.Empty(t, w.Run0("ls /etc/systemd/system /etc/systemd/system/multi-user.target.wants | grep homestak || :"))
}

// sshd is asked before anything is reloaded.
func TestST02SettingsThatDoNotTakeEffect(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	w.Run0("echo 'Port 2200' >>/etc/ssh/sshd_config; systemctl reload ssh")
	s := parse(t, lockout)
	_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{})
	require.ErrorContains(t, err, "another line adds a port")
	require.ErrorContains(t, err, "Port 2200")
	require.Empty(t, w.Run0("ls /etc/ssh/sshd_config.d /var/lib/homestak-gitops/revert | grep -v : || :"))
	w.Run0("sed -i 's/^Port 2200/Prot 1/' /etc/ssh/sshd_config")
	_, err = converge.Apply(context.Background(), way{w}, s, converge.Options{})
	require.ErrorContains(t, err, "sshd refuses the settings")
	require.ErrorContains(t, err, "Prot")
	w.Run0("sed -i '/^Prot/d' /etc/ssh/sshd_config")
	w.apply(s)
	w.unchanged(s)
}
