package integration_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// What a full check costs where VMs with user data and checks live beside containers,
// on several nodes: goals P4 and P5, as for a fleet of plain VMs.
func TestAFullCheckOfAllKindsIsCheap(t *testing.T) {
	const each, nodes, concurrency = 20, 3, proxmox.DefaultConcurrency
	s := containers(t, pve.Config{Nodes: []string{"mother", "uncle"}})
	s.edit("host.hcl", "node        =", "nodes       = [\"father\", \"mother\", \"uncle\"]\n  node        =")
	s.write("pool.hcl", "pool \"prod\" {\n  host = host.father\n}\n")
	s.deploy("web", vm("web", fmt.Sprintf("count = %d", each), "user_data = \"#cloud-config\\npackages: [nginx]\\n\"", "check \"up\" {\n      agent = true\n    }")+
		ct("cache", fmt.Sprintf("count = %d", each)))
	s.apply()
	ours := s.ours()
	s.byHand(func(e *pve.Edit) {
		for i, g := range slices.Collect(maps.Values(ours)) {
			e.Delete(g.VMID)
			g.Node = []string{"father", "mother", "uncle"}[i%nodes]
			e.Add(g)
		}
	})
	s.apply() // what a first boot leaves to do
	before, asked := s.host.Snapshot(), len(s.requests())

	s.quietly(s.inSync)

	sent := s.requests()[asked:]
	after := s.host.Snapshot()
	t.Logf("%d requests and %d connections for %d guests on %d nodes", len(sent), after.Connections-before.Connections, 2*each, nodes)
	require.LessOrEqual(t, len(sent), 2*each+3*nodes+5)
	require.LessOrEqual(t, after.Connections-before.Connections, concurrency+len(sent)/100+nodes)
	read := map[string]int{}
	for _, r := range sent {
		require.Equal(t, http.StatusOK, r.status, "%s", r)
		if parts := strings.Split(r.path, "/"); len(parts) > 4 && (parts[3] == "qemu" || parts[3] == "lxc") {
			read[parts[3]+parts[4]]++
		}
	}
	require.Len(t, read, 2*each)
}
