package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// decommission is a line of a node.
func decommission(policy string) string { return "decommission { policy = \"" + policy + "\" }" }

// backups are the backups on the host.
func (s *story) backups() []pve.Volume {
	var out []pve.Volume
	for _, v := range s.host.Snapshot().Volumes["local"] {
		if v.Content == "backup" {
			out = append(out, v)
		}
	}
	return out
}

// ST-11: what leaves the site leaves the host, by the policy that it was deployed
// with: the files that declared it are gone.
func TestAGuestLeavesAfterItsFinalBackup(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"apply", "destroy"} {
		t.Run(verb, func(t *testing.T) {
			s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
			s.deploy("web", vm("plain")+vm("precious", decommission("requires_final_backup")))
			s.apply()
			precious := s.vmidOf("precious")

			if verb == "destroy" {
				s.destroy("web")
			} else {
				s.remove("manifests/web.hcl")
				shown := s.says(4, "plan").out // the guard against an emptied site speaks, too
				require.Contains(t, shown, "after a final backup to local")
				s.apply()
			}

			require.Empty(t, s.ours())
			kept := s.backups()
			require.Len(t, kept, 1)
			require.Equal(t, precious, kept[0].VMID)
		})
	}
}

// ST-11: without its backup it does not leave, and the rest does.
func TestAGuestWithoutItsFinalBackupStays(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.deploy("web", vm("plain")+vm("precious", decommission("requires_final_backup")))
	s.apply()
	s.remove("manifests/web.hcl")
	s.byHand(func(e *pve.Edit) { e.Fill("local", true) })
	r := s.try()
	require.NotEqual(t, engine.Done, r.Outcome, describe(r))
	require.Contains(t, describe(r), "its final backup to local failed, so it is kept, stopped")
	require.Equal(t, []string{"precious"}, s.names())

	s.byHand(func(e *pve.Edit) { e.Fill("local", false) })
	s.apply()
	require.Empty(t, s.ours())
	require.Len(t, s.backups(), 1)
}

// ST-16: what may be in use is not destroyed; it takes a commit that stops it first.
func TestAGuestInUseIsNotDestroyed(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.deploy("web", vm("busy", decommission("requires_migration_first"))+vm("plain"))
	s.apply()
	s.deploy("web", vm("plain"))
	r := s.try()
	require.Equal(t, engine.Refused, r.Outcome, describe(r))
	requireFinding(t, r.Findings, "vm.busy", "it runs", "requires_migration_first")
	require.True(t, s.guest("busy").Running)

	s.deploy("web", vm("busy", decommission("requires_migration_first"), "power = \"stopped\"")+vm("plain"))
	s.apply()
	require.False(t, s.guest("busy").Running)
	s.deploy("web", vm("plain"))
	s.apply()
	require.Equal(t, []string{"plain"}, s.names())
	s.inSync()
}
