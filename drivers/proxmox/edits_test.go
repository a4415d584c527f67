package proxmox_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// planNamed plans with the names of those who changed what differs.
func (w *world) planNamed() *plan.Plan {
	w.T.Helper()
	want, _ := w.Site.Want("father")
	have, err := w.Driver.Observe(w.T.Context(), want)
	require.NoError(w.T, err)
	have.Edits = have.ReadEdits(w.T.Context(), w.PlanFor(want, have).Differing)
	return w.PlanFor(want, have)
}

// TestDriftHasAName: a plan names who changed what differs, as far as the token may see the logs, and asks for no log
// if nothing differs.
func TestDriftHasAName(t *testing.T) {
	const anna = "anna@pve!gitops"
	for name, c := range map[string]struct {
		token func(*world) string
		names map[string]string
	}{
		"all logs": {func(w *world) string { return w.Host.Token() }, map[string]string{"web cores": anna, "web onboot": anna, "db power": anna}},
		"tasks":    {func(w *world) string { return w.least(true) }, map[string]string{"web cores": anna, "db power": anna}},
		"no logs":  {func(w *world) string { return w.least(false) }, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				colleague := w.tokenOf("anna@pve", map[string]string{"/vms": guestPrivs})
				token := c.token(w)
				w.reopenAs(token)
				w.Node("web", func(v *guest.VM) { v.Description = "of the site" })
				w.Node("db", nil)
				w.Apply()
				asked := w.Host.Snapshot().Requests
				require.Empty(t, w.planNamed().Steps)
				after := w.Host.Snapshot().Requests
				require.Equal(t, asked["GET /cluster/log"], after["GET /cluster/log"], "nothing differs")

				time.Sleep(time.Hour)
				at := time.Now().UTC()
				const web, db = "/nodes/father/qemu/10001", "/nodes/father/qemu/10000"
				w.As(colleague, http.MethodPost, web+"/config", url.Values{"cores": {"7"}, "protection": {"1"}})
				w.As(colleague, http.MethodPost, db+"/status/stop", nil)
				time.Sleep(time.Minute)
				w.As(colleague, http.MethodPut, web+"/config", url.Values{"onboot": {"1"}})
				w.As(token, http.MethodPut, web+"/config", url.Values{"protection": {"1"}}) // the last one counts
				time.Sleep(time.Minute)
				p := w.planNamed()
				names, reasons := map[string]string{}, map[string]string{}
				for _, s := range p.Steps {
					reasons[s.Address.Name] = s.Reason
					for _, e := range s.Edits {
						names[s.Address.Name+" "+e.Path] = e.User
						require.WithinDuration(t, at, e.At, 2*time.Minute)
						require.Regexp(t, "^(UPID:father:.*:|)$", e.Task)
					}
				}
				require.Equal(t, c.names, names)
				if len(c.names) > 0 {
					require.Contains(t, reasons["db"], "; last logged change of power: anna@pve!gitops at "+at.Format("2006-01-02 15:04 MST")+" (UPID:father:")
				}
			})
		})
	}
}
