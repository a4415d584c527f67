package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// serverStage is an agent that serves nodes.
type serverStage struct {
	*agentStage
	server agent.ServerStatus
	access keys.Access
	client *http.Client
}

// newServerStage starts an agent, and waits until it serves what it converged to.
func newServerStage(t *testing.T) *serverStage {
	t.Helper()
	s := &serverStage{agentStage: newAgentStage(t, pve.Config{}, 1)}
	s.env["HOMESTAK_LISTEN"] = "127.0.0.1:0"
	s.begin(t)
	s.until(t, "father  healthy  idle")
	_, out, _ := runIn(t, s.env, "status", "--json")
	var status struct{ Server agent.ServerStatus }
	require.NoError(t, json.Unmarshal([]byte(out), &status))
	s.server = status.Server
	var err error
	s.access, err = keys.ReadAccess(keys.Files{Dir: s.keys()}, nil)
	require.NoError(t, err)
	pins, err := wire.ParsePins(s.server.Pins)
	require.NoError(t, err)
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: wire.PinnedTLS(pins), ForceAttemptHTTP2: true}}
	t.Cleanup(s.client.CloseIdleConnections)
	return s
}

func (s *serverStage) keys() string { return filepath.Join(s.data, daemon.Folder) }

// reply is an answer, to its end.
type reply struct {
	status int
	body   string
	err    error
}

// get sends a request, calls begun as soon as its answer begins, and reads that to its end.
func (s *serverStage) get(ctx context.Context, path, token string, begun func()) reply {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.server.Address+path, http.NoBody)
	if err != nil {
		return reply{err: err}
	}
	r.Header.Set("Authorization", "Bearer "+token)
	got, err := s.client.Do(r)
	if err != nil {
		return reply{err: err}
	}
	defer func() { _ = got.Body.Close() }()
	begun()
	text, err := io.ReadAll(got.Body)
	return reply{got.StatusCode, string(text), err}
}

// elsewhere are the flags of somebody on another machine.
func (s *serverStage) elsewhere(key string) []string {
	return []string{"--server", "https://" + s.server.Address, "--pin", s.server.Pins[0], "--key-file", filepath.Join(s.keys(), key)}
}

// A pass that is asked for from another machine is waited for, and its end is that of the verb, as on this one.
func TestReconcileElsewhere(t *testing.T) {
	t.Parallel()
	s := newServerStage(t)
	reconcile := func(args ...string) (int, string, string) {
		return runIn(t, nil, append(append([]string{"reconcile"}, args...), s.elsewhere(keys.OperatorFile)...)...)
	}
	site := filepath.Join(s.site, "site.hcl")
	text, err := os.ReadFile(site)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(site, []byte(strings.Replace(string(text), "count      = 1", "count      = 2", 1)), 0o600))
	s.commit(t, "one more")
	code, out, stderr := reconcile()
	require.Equal(t, ui.ExitDone, code, stderr)
	require.Len(t, s.host.Snapshot().Guests, 3, "it waited for the pass")
	require.Contains(t, out, ": 1 add\n")
	require.Contains(t, stderr, "then-2", "the steps are shown")
	code, out, _ = reconcile("--json")
	require.Equal(t, ui.ExitDone, code)
	var pass agent.PassStatus
	require.NoError(t, json.Unmarshal([]byte(out), &pass))
	require.NotEmpty(t, pass.Commit)

	require.NoError(t, os.WriteFile(site, []byte("nonsense"), 0o600))
	s.commit(t, "nonsense")
	code, _, stderr = reconcile()
	require.Equal(t, ui.ExitInvalid, code, stderr)
	require.Contains(t, stderr, "is refused: see the findings above")
	code, out, _ = reconcile("--no-wait")
	require.Equal(t, ui.ExitDone, code)
	require.Equal(t, "the server at https://"+s.server.Address+" checks now\n", out)
	code, _, stderr = runIn(t, nil, append([]string{"reconcile"}, s.elsewhere(keys.ReadFile)...)...)
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, "this is not the operator key")

	s.signals <- syscall.SIGTERM
	require.Equal(t, ui.ExitDone, s.end())
}

// SIGTERM ends an agent that serves within two seconds, whoever is connected: what waits is answered, streams end,
// and nobody who is silent delays it. Times are measured by the benchmarks; this one is printed.
func TestTheAgentEndsBesideItsClients(t *testing.T) {
	t.Parallel()
	s := newServerStage(t)
	minted, err := keys.Mint(s.keys(), "first", "base", time.Hour, time.Now())
	require.NoError(t, err)
	var renewed struct {
		Token string `json:"token"`
	}
	got := s.get(t.Context(), "/spec/first", minted.Token, func() {}) // a node that still has its minted token does not wait
	require.NoError(t, json.Unmarshal([]byte(got.body), &renewed), "%+v", got)
	waits, streams, begun := make(chan reply, 2), make(chan reply, 2), make(chan struct{}, 2)
	for range 2 {
		go func() { waits <- s.get(t.Context(), "/wait/first", renewed.Token, func() {}) }()
		go func() {
			streams <- s.get(t.Context(), "/events?follow=true", string(s.access.Read), func() { begun <- struct{}{} })
		}()
	}
	<-begun
	<-begun
	plain, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.server.Address)
	require.NoError(t, err)
	defer func() { _ = plain.Close() }()
	silent := tls.Client(plain, &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, silent.HandshakeContext(t.Context()))
	socket, err := (&net.Dialer{}).DialContext(t.Context(), "unix", filepath.Join(s.data, "agent.sock"))
	require.NoError(t, err)
	defer func() { _ = socket.Close() }()
	require.Eventually(t, func() bool {
		got := s.get(t.Context(), "/metrics", string(s.access.Read), func() {})
		return strings.Contains(got.body, "homestak_nodes_waiting 2\n")
	}, 5*time.Minute, 5*time.Millisecond)

	began := time.Now()
	s.signals <- syscall.SIGTERM
	require.Equal(t, ui.ExitDone, s.end())
	t.Logf("it ended after %v", time.Since(began).Round(time.Millisecond))
	for range 2 {
		require.Equal(t, reply{status: http.StatusNoContent}, <-waits, "nothing to do: ask again")
		stream := <-streams
		require.Equal(t, http.StatusOK, stream.status)
		require.NoError(t, stream.err, "the stream ended as it should")
		require.Contains(t, stream.body, "event: node-ready\n")
	}
	require.NotContains(t, s.err.String(), "does not answer any more")
}
