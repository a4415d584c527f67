package clients_test

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestFence switches guests off and on as clusters do that fence a node of theirs: with
// the agent of fence-agents, which logs in by password for every action.
func TestFence(t *testing.T) {
	if os.Getenv(requireVar) != "require" {
		t.Skip("not asked for: make clients")
	}
	agent, err := exec.LookPath("fence_pve")
	require.NoError(t, err, "install fence-agents")
	h := startHost(t, pve.Config{Guests: 6, Nodes: []string{"mother"}})
	address, port, _ := strings.Cut(strings.TrimPrefix(h.api, "https://"), ":")
	_, secret, _ := strings.Cut(h.Token(), "=")
	for kind, guest := range runningOnes(h) {
		t.Run(kind, func(t *testing.T) {
			fence := func(action string, more ...string) (code int, said string) {
				t.Helper()
				args := append([]string{
					"--ip=" + address, "--ipport=" + port, "--ssl-insecure", "--username=root@pam", "--password=" + secret, "--pve-node-auto",
					"--vmtype=" + kind, "--plug=" + strconv.Itoa(guest), "--action=" + action,
				}, more...)
				cmd := exec.CommandContext(t.Context(), agent, args...)
				out, err := cmd.CombinedOutput()
				if cmd.ProcessState == nil {
					require.NoError(t, err)
				}
				return cmd.ProcessState.ExitCode(), string(bytes.TrimSpace(out))
			}
			for _, step := range []struct {
				action string
				code   int
				said   string
				runs   bool
			}{
				{"status", 0, "Status: ON", true},
				{"off", 0, "Success: Powered OFF", false},
				{"status", 2, "Status: OFF", false},
				{"on", 0, "Success: Powered ON", true},
				{"reboot", 0, "Success: Rebooted", true},
			} {
				code, said := fence(step.action)
				require.Equal(t, step.code, code, said)
				require.Contains(t, said, step.said)
				now, _ := h.Snapshot().Guest(guest)
				require.Equal(t, step.runs, now.Running, step.action)
			}
			if kind == "qemu" {
				code, said := fence("reboot", "--method=cycle")
				require.Equal(t, 0, code, said)
			}
		})
	}
	require.Empty(t, h.broken.all(), "answers that are not what the API table promises")
}

// runningOnes are a guest that runs of either kind.
func runningOnes(h *host) map[string]int {
	found := map[string]int{}
	for _, g := range h.Snapshot().Guests {
		if g.Running {
			found[g.Kind] = g.VMID
		}
	}
	return found
}
