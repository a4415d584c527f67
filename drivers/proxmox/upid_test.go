package proxmox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// What the host ran for a step stands in its result, so that a receipt leads to the
// logs of PVE.
func TestResultsNameTheTasksThatTheHostRan(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Node("web-2", nil)
		seen := 0
		for _, change := range []func(){func() {}, func() { w.Drop("web-2") }} {
			change()
			var noted []string
			for _, r := range apply.Run(t.Context(), w.Plan().Steps, apply.Options{}, w.Driver.Apply) {
				require.NoError(t, r.Err)
				require.NotEmpty(t, r.Tasks, r.Step.Address)
				noted = append(noted, r.Tasks...)
			}
			var ran []string
			for _, task := range w.Host.Snapshot().Tasks[seen:] {
				ran = append(ran, task.UPID)
			}
			require.ElementsMatch(t, ran, noted)
			seen += len(ran)
		}
	})
}
