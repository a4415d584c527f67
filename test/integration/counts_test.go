package integration_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

// What a full check of a large host may cost it: goals P4 and P5. They are counts,
// so they hold on every machine.
func TestAFullCheckIsCheap(t *testing.T) {
	t.Parallel()
	const guests, concurrency = 500, proxmox.DefaultConcurrency
	for _, c := range []struct{ nodes, pools int }{{1, 0}, {4, 0}, {4, 6}} {
		t.Run(fmt.Sprintf("%d guests on %d nodes in %d pools", guests, c.nodes, c.pools), func(t *testing.T) {
			f := fleet.Fleet{Guests: guests, Nodes: nodeNames(c.nodes), Files: 5}
			s := beginWith(t, f)
			for i := range c.pools {
				s.pool(fmt.Sprintf("pool-%d", i), f.VMID(1+i), f.VMID(100+i))
			}
			s.forgetPeaks()
			before, asked := s.host.Snapshot(), len(s.requests())

			s.quietly(s.inSync)

			sent := s.requests()[asked:]
			after := s.host.Snapshot()
			require.LessOrEqual(t, len(sent), guests+3*c.nodes+5)
			require.LessOrEqual(t, after.Connections-before.Connections, concurrency+len(sent)/100+c.nodes)
			require.LessOrEqual(t, after.PeakRequests, concurrency)
			lists, read := 0, map[string]int{}
			for _, r := range sent {
				require.Equal(t, http.StatusOK, r.status, "%s", r)
				if r.path == "/cluster/resources" {
					lists++
				}
				if parts := strings.Split(r.path, "/"); len(parts) > 4 && parts[3] == "qemu" {
					read[parts[4]]++
				}
			}
			require.Equal(t, 1, lists, "the list of guests is fetched once")
			require.Len(t, read, guests)
			for vmid, n := range read {
				require.Equal(t, 1, n, "guest %s was read more than once", vmid)
			}
			for node, n := range s.peaks() {
				require.LessOrEqual(t, n, max(4, concurrency/c.nodes), "requests at once of node %q", node)
			}
		})
	}
}

// beginWith sets the scene with a host that holds a fleet, and its site. The first
// guest is created by a pass, the others are put beside it.
func beginWith(t *testing.T, f fleet.Fleet) *story {
	t.Helper()
	s := begin(t, pve.Config{Node: f.Nodes[0], Nodes: f.Nodes[1:]})
	s.name, s.keyless = "fleet", true // its guests are copies of the first
	for _, name := range []string{"site.hcl", "host.hcl"} {
		s.remove(name)
	}
	for name, text := range f.Site(fleet.Access{API: s.api, Token: s.host.Token(), Fingerprint: s.host.Fingerprint()}) {
		s.write(name, text)
	}
	first := s.pass("apply", func(p *engine.Pass) {
		p.Targets = []model.Address{{Kind: "vm", Name: f.Name(1)}}
	})
	require.Equal(t, engine.Done, first.Outcome, describe(first))
	one := s.guest(f.Name(1))
	s.byHand(func(e *pve.Edit) {
		for n := 2; n <= f.Guests; n++ {
			twin, err := f.Twin(one.Config, n)
			require.NoError(t, err)
			e.Add(pve.Guest{VMID: f.VMID(n), Node: f.Node(n), Config: twin, Running: true})
		}
	})
	return s
}

// pool makes a pool with some guests in it, as the administrator of the host does.
func (s *story) pool(name string, vmids ...int) {
	s.t.Helper()
	s.call(http.MethodPost, "/pools", map[string]string{"poolid": name})
	s.call(http.MethodPut, "/pools/"+name, map[string]string{"vms": strings.Trim(strings.ReplaceAll(fmt.Sprint(vmids), " ", ","), "[]")})
}

func nodeNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("pve%d", i+1)
	}
	return names
}
