package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
)

// The tree, and a check of a node, over the socket of this machine.
func TestTreeVerb(t *testing.T) {
	t.Parallel()
	socket, _ := controltest.Serve(t, controltest.New(), "")
	env := map[string]string{"HOMESTAK_SOCKET": socket}
	code, out, stderr := runIn(t, env, "tree")
	require.Zero(t, code, stderr)
	require.Equal(t, "father  run  ready\n└── app  vm   run  ready\n", out)
	code, out, _ = runIn(t, env, "tree", "--json")
	require.Zero(t, code)
	var document struct{ Identity string }
	require.NoError(t, json.Unmarshal([]byte(out), &document))
	require.Equal(t, "father", document.Identity)

	code, out, stderr = runIn(t, env, "reconcile", "app")
	require.Zero(t, code, stderr)
	require.Equal(t, "app is asked to check itself\n", out)
	code, out, stderr = runIn(t, env, "reconcile", "away")
	require.Zero(t, code, stderr)
	require.Equal(t, "away does not wait at the moment: it checks itself when it asks its parent next, or when its timer says\n", out)
	code, out, _ = runIn(t, env, "reconcile", "away", "--json")
	require.Zero(t, code)
	require.JSONEq(t, `{"status": "kept"}`, out)
	code, _, stderr = runIn(t, env, "reconcile", "other")
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, `the agent serves no node "other", and none has reported one`)
}

// A node in mode push waits for no parent: the agent itself checks.
func TestN16ReconcileANodeInModePush(t *testing.T) {
	t.Parallel()
	agent := controltest.New()
	socket, _ := controltest.Serve(t, agent, "")
	code, out, stderr := runIn(t, map[string]string{"HOMESTAK_SOCKET": socket}, "reconcile", "web")
	require.Zero(t, code, stderr)
	require.Equal(t, "web has mode push: the agent applies its spec, and checks now. Without NODE, reconcile waits for the result\n", out)
	require.Equal(t, 1, agent.Checks())
}

func TestServerElsewhereNeedsPinAndKey(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"tree", "status", "events", "reconcile"} {
		code, _, stderr := runIn(t, nil, verb, "--server", "https://192.0.2.10:44443")
		require.Equal(t, ui.ExitFailed, code)
		require.Contains(t, stderr, "--server needs the pin of the server and a key")
		code, _, stderr = runIn(t, nil, verb, "--server", "http://192.0.2.10:44443", "--pin", "sha256:aa", "--key-file", "/nowhere")
		require.Equal(t, ui.ExitFailed, code)
		require.Contains(t, stderr, "is not a pin")
	}
}
