package guest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// What was observed stays as it is, whatever is decided from it.
func TestDecisionsChangeNoFacts(t *testing.T) {
	for name, c := range map[string]struct {
		running bool
		ha      string
		facts   guest.Facts
		power   string // that counts
		says    string
	}{
		"as PVE lists it":             {running: true, power: "running"},
		"the HA manager starts it":    {ha: "started", power: "running", says: "that is left to the HA manager, which has it (state started)"},
		"the HA manager gave up":      {ha: "error", power: "running", says: "vm.web-1 does not run"},
		"the HA manager leaves it":    {ha: "stopped", power: "stopped"},
		"somebody paused it":          {running: true, facts: guest.Facts{QMP: "paused"}, power: "paused"},
		"a disk failed":               {running: true, facts: guest.Facts{QMP: "io-error"}, power: "running", says: "io-error"},
		"a backup has its process":    {running: true, facts: guest.Facts{QMP: "prelaunch", Lock: &guest.Lock{Value: "backup", Tasks: []string{"UPID:x"}}}, power: "stopped"},
		"a task that died locked it":  {running: true, facts: guest.Facts{Lock: &guest.Lock{Value: "backup"}}, power: "running", says: "is locked (backup) and cannot be changed"},
		"its tasks cannot be listed":  {running: true, facts: guest.Facts{Lock: &guest.Lock{Value: "backup", NotListed: true}}, power: "running"},
		"its lock ended meanwhile":    {running: true, facts: guest.Facts{Lock: &guest.Lock{}}, power: "running"},
		"no restart is due, none bad": {running: true, facts: guest.Facts{UselessRestart: "it failed"}, power: "running"},
	} {
		t.Run(name, func(t *testing.T) {
			r := observed(false, nil, nil)
			if r.Guest.HA = c.ha; !c.running {
				r.Guest.Running, r.Spec.(*guest.VM).Power = false, "stopped"
			}
			before := r.Spec.(*guest.VM).Power
			have := guest.WithFacts(r, c.facts)
			require.Equal(t, before, r.Spec.(*guest.VM).Power)

			seen := model.Clone(have.Spec)
			remarks := guest.Remarks(&model.Host{Name: "father"}, wantedVM(nil), have)
			aligned := *have
			aligned.Spec = model.Clone(have.Spec)
			guest.VMSchema().Align(wantedVM(nil), &aligned)
			require.Equal(t, c.power, aligned.Spec.(*guest.VM).Power)
			require.Equal(t, seen, have.Spec, "the observation is only read")

			var text string
			for _, f := range remarks.Findings {
				text += f.Summary + "\n"
			}
			if c.says == "" {
				require.Empty(t, text)
			}
			require.Contains(t, text, c.says)
		})
	}
}

// A time that a clock wrote which was a year ahead asks for no restart: none would help for a year.
func TestS7ClockDocumentsFromTheFuture(t *testing.T) {
	now := time.Now()
	const year = 365 * 24 * time.Hour
	for seeded, want := range map[time.Time]bool{
		now: true, now.Add(-10 * time.Minute): true, now.Add(10 * time.Minute): true, now.Add(-2 * time.Hour): false, now.Add(year): false, now.Add(-year): false,
	} {
		require.Equal(t, want, guest.CloudInitPending(seeded.Unix(), 3600), "%s", seeded.Sub(now))
	}
}
