package proxmox_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// managed makes vm.db and puts it under the HA manager, as an administrator does.
func managed(w *world, edit func(*guest.VM)) {
	w.T.Helper()
	w.Node("db", edit)
	w.Apply()
	_, err := w.Driver.Post(w.T.Context(), "/cluster/ha/resources", map[string]any{"sid": "vm:10000", "state": "started"})
	require.NoError(w.T, err)
	time.Sleep(time.Minute)
	w.Converged()
}

// quietly is a plan without steps; what it says is returned.
func saidQuietly(w *world) string {
	w.T.Helper()
	p := w.Plan()
	require.Empty(w.T, p.Steps, "%s", proxmoxtest.Describe(p))
	var b strings.Builder
	for _, f := range p.Findings {
		b.WriteString(f.Summary + "\n" + f.Detail + "\n")
	}
	return b.String()
}

// TestManagedGuestIsStartedAndStopped through the HA manager: the tasks of the
// requests end at once, the steps only when the guest is as it shall be.
func TestManagedGuestIsStartedAndStopped(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		managed(w, nil)
		w.VM("db").Power = "stopped"
		began := time.Now()
		w.Apply()
		require.False(t, w.Guest(10000).Running)
		require.Equal(t, "stopped", w.Guest(10000).HA, "or the manager would start it again")
		require.Greater(t, time.Since(began), 5*time.Second)
		require.Contains(t, tasksOf(w, 10000), "hastop")
		time.Sleep(5 * time.Minute)
		require.False(t, w.Guest(10000).Running)
		w.Converged()

		w.VM("db").Power = "running"
		w.Apply()
		require.True(t, w.Guest(10000).Running)
		require.Equal(t, "started", w.Guest(10000).HA)
		time.Sleep(time.Minute)
		w.Converged()
	})
}

// TestManagedGuestIsRemoved: stopped by its manager, and taken out of it with the guest.
func TestManagedGuestIsRemoved(t *testing.T) {
	for _, policy := range []string{"", "requires_final_backup"} {
		t.Run(policy, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				managed(w, nil)
				w.Drop("db")
				w.Node("db", nil).Decomm = &model.Decomm{Policy: policy}
				w.Apply()
				w.Drop("db")
				w.Apply()
				require.Empty(t, w.Host.Snapshot().Guests)
				var list []any
				require.NoError(t, w.Driver.Get(t.Context(), "/cluster/ha/resources", &list))
				require.Empty(t, list)
				if policy != "" {
					require.Len(t, backups(w), 1)
				}
			})
		})
	}
}

// TestWhatTheHAManagerIsDoingIsLeftToIt: a guest that was killed is started again by
// the manager; a step of ours beside that would be a fight.
func TestWhatTheHAManagerIsDoingIsLeftToIt(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		managed(w, nil)
		before := w.Host.Snapshot().Requests
		w.Converged()
		after := w.Host.Snapshot().Requests
		require.Equal(t, before["GET /nodes/{node}/qemu/{vmid}/status/current"], after["GET /nodes/{node}/qemu/{vmid}/status/current"], "a look at a managed guest asks nothing more")

		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
		said := saidQuietly(w)
		require.Contains(t, said, "vm.db does not run: that is left to the HA manager, which has it (state started)")
		time.Sleep(time.Minute)
		require.True(t, w.Guest(10000).Running)
		w.Converged()

		// Stopped by hand through the API it stays stopped: that is drift, and is put back.
		_, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/status/stop", nil)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.False(t, w.Guest(10000).Running)
		p := w.Apply()
		require.Equal(t, []string{"power"}, proxmoxtest.Paths(p.Steps[0]))
		require.True(t, w.Guest(10000).Running)
		require.Equal(t, "started", w.Guest(10000).HA)
	})
}

// TestStateOfTheHAManagerMayBeOld: right after a stop it still says started, which is
// no reason to stop the guest again; and a guest that it is stopping by hand is not
// started before it has stopped.
func TestStateOfTheHAManagerMayBeOld(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		managed(w, nil)
		w.VM("db").Power = "stopped"
		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
		require.Empty(t, saidQuietly(w))
		time.Sleep(time.Minute) // nobody told the manager, which started it again
		require.True(t, w.Guest(10000).Running)
		require.Equal(t, []string{"power"}, proxmoxtest.Paths(w.Apply().Steps[0]))
		require.Empty(t, saidQuietly(w))

		_, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/status/start", nil)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		upid, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/status/shutdown", nil)
		require.NoError(t, err)
		require.NoError(t, w.Driver.WaitTask(t.Context(), upid))
		time.Sleep(10500 * time.Millisecond)
		require.True(t, w.Guest(10000).Running)
		require.Contains(t, saidQuietly(w), "vm.db still runs: that is left to the HA manager")
	})
}

// TestHAManagerThatGaveUp is said with its way back, and no start is tried.
func TestHAManagerThatGaveUp(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		managed(w, nil)
		volume, _, _ := strings.Cut(w.Guest(10000).Config["scsi0"], ",")
		w.Host.Edit(func(e *pve.Edit) { e.RemoveVolume(volume); e.Stop(10000) })
		time.Sleep(5 * time.Minute)
		said := saidQuietly(w)
		require.Contains(t, said, "vm.db does not run")
		require.Contains(t, said, "`ha-manager set vm:10000 --state disabled`")
	})
}

// stuckHA takes requests for the HA manager and lets nothing follow from them, until
// the guest is taken out of it, which may be denied.
func stuckHA(w *world, denied bool) {
	const upid = "UPID:father:000003F0:000595FB:386D43BC:hastop:10000:root@pam!sim:"
	released := false
	d, err := proxmox.Open(proxmox.Config{
		Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(),
		Transport: proxmox.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			switch path := r.URL.Path; {
			case strings.Contains(path, "/ha/resources/") && denied:
				return canned(r, http.StatusForbidden, `{"data":null,"message":"Permission check failed (/, Sys.Console)\n"}`), nil
			case strings.Contains(path, "/ha/resources/"):
				released = true
			case strings.HasSuffix(path, "/status/shutdown") && !released:
				return canned(r, http.StatusOK, `{"data":"`+upid+`"}`), nil
			case strings.Contains(path, "/tasks/UPID") && strings.Contains(path, ":hastop:"):
				return canned(r, http.StatusOK, `{"data":{"status":"stopped","exitstatus":"OK"}}`), nil
			}
			return w.Host.RoundTrip(r)
		}),
	})
	require.NoError(w.T, err)
	w.Driver = d
}

// canned is an answer that no host gave.
func canned(r *http.Request, status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}
}

// TestStuckHAManagerIsTakenOutOfTheWay of a guest that shall go, where we may; else
// the error says what that takes. A guest that stays is never taken out.
func TestStuckHAManagerIsTakenOutOfTheWay(t *testing.T) {
	for _, denied := range []bool{false, true} {
		inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
			managed(w, nil)
			stuckHA(w, denied)
			w.VM("db").Power = "stopped"
			require.ErrorContains(t, w.Run(w.Plan())[dbAddr], "the HA manager has not stopped VM 10000 within 4m0s (its state there: started): `ha-manager status`")
			require.Equal(t, "started", w.Guest(10000).HA)

			w.Drop("db")
			err := w.Run(w.Plan())[dbAddr]
			if denied {
				require.ErrorContains(t, err, "needs Sys.Console on /: grant it, or `ha-manager remove vm:10000`")
				require.True(t, w.Guest(10000).Running)
				return
			}
			require.NoError(t, err)
			require.Empty(t, w.Host.Snapshot().Guests)
		})
	}
}

// TestWaitForTheHAManagerEnds with the context, at once.
func TestWaitForTheHAManagerEnds(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		managed(w, nil)
		w.VM("db").Power = "stopped"
		p := w.Plan()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, w.Driver.Apply(ctx, p.Steps[0]), context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(began))
	})
}
