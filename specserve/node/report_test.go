package node_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/node"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// The parent gets what the folder says, in a form that it accepts.
func TestReport(t *testing.T) {
	now := time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)
	status := http.StatusAccepted
	var got []wire.Report
	parentServer := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/report/web-1" || r.Header.Get("Authorization") != "Bearer first" {
			t.Errorf("asked for %s %s", r.Method, r.URL.Path)
		}
		read, err := wire.ReadReport(r.Body, "web-1", now)
		if err != nil {
			t.Errorf("a report that is not accepted: %v", err)
		}
		got = append(got, read)
		w.WriteHeader(status)
	}))
	t.Cleanup(parentServer.Close)
	f := node.Folder{Path: t.TempDir()}
	to := node.Server{Client: &client.Client{Agent: "homestak-gitops/1.2.3", Parent: wire.Parent{
		Identity: "web-1", Server: parentServer.URL, Pins: []wire.Pin{wire.PinOf(parentServer.Certificate())}, Token: "first",
	}}}
	send := func() wire.Report {
		t.Helper()
		require.NoError(t, f.Report(t.Context(), to, now))
		return got[len(got)-1]
	}
	empty := wire.Report{Version: 1, Identity: "web-1", Agent: "1.2.3", At: now, Phase: wire.PhaseConfig, Findings: diag.List{}, Nodes: []wire.ReportNode{}}
	require.Equal(t, empty, send())

	_, err := f.Store([]byte(one))
	require.NoError(t, err)
	want, err := f.Spec()
	require.NoError(t, err)
	require.NoError(t, f.Fail(errors.New("apt is locked\nwait for it"), now))
	failed := empty
	failed.Findings = diag.List{{Severity: diag.Error, Summary: "apt is locked", Detail: "wait for it"}}
	require.Equal(t, failed, send())

	require.NoError(t, f.Applied(want, 1, now))
	failed.Phase = wire.PhaseRun
	require.Equal(t, failed, send(), "applied once, and not the last time")

	require.NoError(t, f.Recovered())
	ready := empty
	ready.Phase, ready.Ready = wire.PhaseRun, true
	require.Equal(t, ready, send())

	status = http.StatusForbidden
	err = f.Report(t.Context(), to, now)
	require.Equal(t, wire.CodeNotYours, wire.CodeOf(err))
	require.ErrorContains(t, err, "sending the report of web-1 to "+parentServer.URL)
	require.NotContains(t, err.Error(), "first")

	require.NoError(t, os.WriteFile(filepath.Join(f.Path, "config-failed.json"), []byte("{"), 0o600))
	require.ErrorContains(t, f.Report(t.Context(), to, now), "making the report")
}
