package proxmox_test

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
)

func TestLockedGuestIsTemporary(t *testing.T) {
	inTime(t, pvesim.Config{}, func(t *testing.T, w *world) {
		w.node("web-1", nil)
		w.apply()
		w.vm("web-1").Tags = []string{"new"}
		p := w.plan()
		w.host.Edit(func(e *pvesim.Edit) { e.Lock(10000, "backup") })
		err := w.d.Apply(t.Context(), p.Steps[0])
		require.ErrorContains(t, err, "locked (backup)")
		var busy interface{ Temporary() bool }
		require.True(t, errors.As(err, &busy) && busy.Temporary())

		p = w.plan() // the lock is part of what was observed
		unlock := time.AfterFunc(2*time.Second, func() { w.host.Edit(func(e *pvesim.Edit) { e.Lock(10000, "") }) })
		defer unlock.Stop()
		for _, r := range apply.Run(t.Context(), p.Steps, apply.Options{}, apply.Retry(w.d.Apply, apply.Backoff{})) {
			require.NoError(t, r.Err)
		}
		w.converged()
	})
}

func TestHostThatVanishesDuringATaskIsSaid(t *testing.T) {
	var gone atomic.Bool
	fault := func(r *http.Request) (int, bool) {
		if strings.HasSuffix(r.URL.Path, "/qemu") && r.Method == http.MethodPost {
			gone.Store(true)
			return 0, false
		}
		if gone.Load() {
			return -1, false
		}
		return 0, false
	}
	inTime(t, pvesim.Config{TaskTime: 10 * time.Minute, Fault: fault}, func(t *testing.T, w *world) {
		w.node("web-1", nil)
		began := time.Now()
		failed := w.run(w.plan())
		require.ErrorContains(t, failed[model.Address{Kind: "vm", Name: "web-1"}], "the host has not answered for")
		require.Less(t, time.Since(began), 20*time.Minute)
	})
}
