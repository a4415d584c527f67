package daemon_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// A revocation counts at once and over a restart, shows in the tree, and makes the node one that the next pass gives a token.
func TestS8RevokedWhileServing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "server")
	r := startIn(t, dir, "127.0.0.1:0")
	serving := func() {
		r.until(listening)
		r.inForce("4444444444444444444444444444444444444444", site(vm("web-1"), vm("web-2")))
	}
	serving()
	given := map[string]string{}
	for _, name := range []string{"web-1", "web-2"} {
		p, err := r.Parent(name, "base")
		require.NoError(t, err)
		given[name] = p.Token
		body, err := json.Marshal(wire.Report{Version: wire.ReportVersion, Identity: name, Agent: "1", At: time.Now(), Phase: wire.PhaseRun, Ready: true})
		require.NoError(t, err)
		status, text := r.ask(http.MethodPost, "/report/"+name, p.Token, bytes.NewReader(body))
		require.Equal(t, 202, status, text)
		require.True(t, r.HasReported(name))
	}
	tree := func(node string) wire.ReportNode {
		own := wire.Report{Version: 1, Identity: "father", Phase: wire.PhaseRun, At: time.Now()}
		for name := range given {
			own.Nodes = append(own.Nodes, wire.ReportNode{Name: name, Type: "vm", Parent: "father", Phase: wire.PhaseRun, Ready: true})
		}
		for _, n := range r.Tree(own, time.Now()).Nodes {
			if n.Name == node {
				return n
			}
		}
		return wire.ReportNode{}
	}
	require.True(t, tree("web-1").Ready)

	_, err := keys.Revoke(dir, "web-1", time.Now())
	require.NoError(t, err)
	for range 2 {
		status, body := r.get("/spec/web-1", given["web-1"])
		require.Equal(t, 401, status, body)
		require.ErrorContains(t, r.Accepts("web-1", given["web-1"]), "the token was revoked")
		require.NoError(t, r.Accepts("web-2", given["web-2"]))
		r.CheckNow()
		require.False(t, r.HasReported("web-1"), "its report was from before")
		require.True(t, r.HasReported("web-2"))
		require.Contains(t, tree("web-1").Error, "its tokens were revoked at")
		require.False(t, tree("web-1").Ready)
		require.True(t, tree("web-2").Ready)
		r.stop()
		r = startIn(t, dir, "127.0.0.1:0")
		serving()
	}
	p, err := r.Parent("web-1", "base")
	require.NoError(t, err)
	status, body := r.get("/spec/web-1", p.Token)
	require.Equal(t, 200, status, body)
	require.True(t, tree("web-1").Ready)
}
