package integration_test

import (
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// ST-10 on a node of Proxmox VE: the agent notices what somebody changes there long before the next full check, and asks
// its API for nothing until then.
func TestAgentOnANodeNoticesChanges(t *testing.T) {
	root := t.TempDir()
	f := follow(t, pve.Config{Files: root}, byFile())
	f.root = root
	text, err := os.ReadFile(f.config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(f.config, []byte(strings.Replace(string(text), `drift_every = "1s"`, `drift_every = "24h"`, 1)), 0o600))
	f.deploy("web", vm("web-1")+vm("web-2"))
	commit := f.push("two guests")
	f.begins()
	f.converged(commit)
	require.Empty(t, f.until("it watches", func(s agent.Status) bool { return s.Watch != nil }).Watch.Error)

	first := f.vmidOf("web-1")
	f.byHand(func(e *pve.Edit) { e.Set(first, "tags", "homestak;mine") })
	f.until("the change is put back", func(agent.Status) bool { return f.guest("web-1").Config["tags"] == "homestak" })
	f.byHand(func(e *pve.Edit) { e.Stop(first) })
	f.until("it runs again", func(agent.Status) bool { return f.guest("web-1").Running })
	f.byHand(func(e *pve.Edit) { e.Delete(first) })
	f.until("it is there again", func(agent.Status) bool { return len(f.names()) == 2 })

	client, err := control.Dial(t.Context(), f.socket())
	require.NoError(t, err)
	pass, err := client.Reconcile(t.Context()) // about the whole host, and so about the agent's own last change, too
	require.NoError(t, err)
	require.Equal(t, engine.Done, pass.Outcome)
	// The agent may notice its own last change after that pass, and checks it once, a moment later.
	for polls, quiet := 0, 0; quiet < 3; polls++ {
		require.Less(t, polls, 10, "nothing changes, but the API is asked again and again")
		before := f.host.Snapshot().Requests
		if f.asksGitAgain(); maps.Equal(before, f.host.Snapshot().Requests) {
			quiet++
		} else {
			quiet = 0
		}
	}
	f.ends()
}
