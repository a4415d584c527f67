package proxmox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestRequestsPerClone counts what fifty clones cost, polls included: 50 VMs, ten
// at once, tasks of 2.2 s, 20 ms a request.
func TestRequestsPerClone(t *testing.T) {
	inTime(t, pve.Config{TaskTime: 2200 * time.Millisecond, Latency: 20 * time.Millisecond}, func(t *testing.T, w *world) {
		w.Template(9000, "golden")
		for i := range 50 {
			w.Node(fmt.Sprintf("web-%d", i+1), func(v *guest.VM) { v.Template = "golden" })
		}
		before := total(w)
		p := w.Plan()
		began := time.Now()
		for _, r := range apply.Run(t.Context(), p.Steps, apply.Options{Width: 10}, w.Driver.Apply) {
			require.NoError(t, r.Err)
		}
		took := time.Since(began)
		n := total(w) - before
		t.Logf("%d requests, %.1f a VM, %s; %v", n, float64(n)/50, took, w.Host.Snapshot().Requests)
		require.LessOrEqual(t, n, 10*50)
		w.Converged()
	})
}

func total(w *world) int {
	n := 0
	for _, c := range w.Host.Snapshot().Requests {
		n += c
	}
	return n
}

// TestRequestsPerImport counts the same for guests whose disk is imported from an image.
func TestRequestsPerImport(t *testing.T) {
	inTime(t, pve.Config{TaskTime: 2200 * time.Millisecond, Latency: 20 * time.Millisecond}, func(t *testing.T, w *world) {
		for i := range 50 {
			w.Node(fmt.Sprintf("web-%d", i+1), nil)
		}
		p := w.Plan()
		before := total(w)
		for _, r := range apply.Run(t.Context(), p.Steps, apply.Options{Width: 10}, w.Driver.Apply) {
			require.NoError(t, r.Err)
		}
		n := total(w) - before
		t.Logf("%d requests, %.1f a VM; %v", n, float64(n)/50, w.Host.Snapshot().Requests)
		require.LessOrEqual(t, n, 8*50)
		w.Converged()
	})
}
