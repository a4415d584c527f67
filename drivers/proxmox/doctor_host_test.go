package proxmox_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/doctor"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// hears lets the doctor hear another answer under a path.
func (w *world) hears(path string, how reply) func(*doctor.Doctor) {
	return func(d *doctor.Doctor) {
		d.Transport = proxmox.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			truth := func() (*http.Response, error) { return w.Host.RoundTrip(r) }
			if strings.TrimPrefix(r.URL.Path, "/api2/json") == path {
				return how(r, truth)
			}
			return truth()
		})
	}
}

// Every version between the oldest and the newest that the program is tried with is good.
func TestDoctorJudgesTheVersion(t *testing.T) {
	for version, want := range map[string]doctor.Result{
		"7.4-17": doctor.Failed, "8.3.5": doctor.Failed, "8.4.0": doctor.OK, "8.4-1": doctor.OK, "8.10.2": doctor.OK,
		"9.0.3": doctor.OK, "9.2.11": doctor.OK, "10.0.1": doctor.Warning, "unknown": doctor.Warning,
	} {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t, pve.Config{})
			got := said(t, w.examine(w.hears("/version", fixed(http.StatusOK, fmt.Sprintf(`{"data":{"version":%q}}`, version)))), "version")
			require.Equal(t, want, got.Result, got.Seen)
			require.Contains(t, got.Seen, version)
			require.Equal(t, want != doctor.OK, len(got.Fix) > 0)
		})
	}
}

// Without quorum no change is taken, however healthy all else looks.
func TestDoctorMissesTheQuorum(t *testing.T) {
	w := newWorld(t, pve.Config{Nodes: []string{"mother"}})
	require.Equal(t, doctor.OK, said(t, w.examine(nil), "quorum").Result)
	w.Host.Edit(func(e *pve.Edit) { e.Quorum(false) })
	got := said(t, w.examine(nil), "quorum")
	require.Equal(t, doctor.Failed, got.Result)
	require.Contains(t, got.Seen, "has no quorum")
	require.Contains(t, got.Fix[0], "pvecm status")
}

// A node of the site that is down is a failure where guests are made on it, and a
// warning where they could only have moved there.
func TestDoctorFindsNodesThatAreDown(t *testing.T) {
	w := newWorld(t, pve.Config{Nodes: []string{"mother"}, Offline: []string{"mother"}})
	w.Site.Hosts["father"].Nodes = []string{"father", "mother"}
	got := said(t, w.examine(nil), "nodes")
	require.Equal(t, doctor.Warning, got.Result)
	require.Contains(t, got.Fix[0], "then start mother")
	w.Site.Hosts["father"].Node = "mother"
	got = said(t, w.examine(nil), "nodes")
	require.Equal(t, doctor.Failed, got.Result)
	require.Equal(t, "node mother is offline", got.Seen)
	require.Contains(t, got.Fix[0], "then start mother")
}

// Nodes that are hosts themselves need the instructions of virtualisation; others do not.
func TestDoctorLooksForVirtualisation(t *testing.T) {
	for flags, want := range map[string]struct {
		result doctor.Result
		says   string
	}{
		"fpu vmx sse": {doctor.OK, "/sys/module/kvm_intel/parameters/nested"},
		"fpu svm sse": {doctor.OK, "/sys/module/kvm_amd/parameters/nested"},
		"fpu vmxx":    {doctor.Failed, "shows neither vmx nor svm"},
	} {
		t.Run(flags, func(t *testing.T) {
			w := newWorld(t, pve.Config{})
			n := w.Node("inner", nil)
			how := w.hears("/nodes/father/status", fixed(http.StatusOK, fmt.Sprintf(`{"data":{"cpuinfo":{"flags":%q}}}`, flags)))
			for _, c := range w.examine(how) {
				require.NotEqual(t, "nested virtualisation", c.Name, "nobody needs it")
			}
			n.Type, n.Resource.Addr = "pve", model.Address{Kind: "pve", Name: "inner"}
			got := said(t, w.examine(how), "nested virtualisation")
			require.Equal(t, want.result, got.Result)
			require.Contains(t, got.Seen, want.says)
			if want.result == doctor.Failed {
				require.Contains(t, got.Why, "pve.inner")
				require.Contains(t, got.Fix[0], "qm set VMID --cpu host")
			}
		})
	}
}

// A storage that the node does not get at is told from one that is not there.
func TestDoctorFindsAStorageThatIsAway(t *testing.T) {
	w := newWorld(t, pve.Config{})
	w.Node("web", nil)
	got := said(t, w.examine(w.hears("/nodes/father/storage", bent(func(e map[string]any) map[string]any {
		if e["storage"] == "local-lvm" {
			e["active"] = 0
		}
		return e
	}))), "storage local-lvm")
	require.Equal(t, doctor.Failed, got.Result)
	require.Contains(t, got.Seen, "it is not active")
	require.Contains(t, got.Fix[0], "on node father: pvesm status")
}
