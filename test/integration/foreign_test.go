package integration_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// ST-12: what does not prove to be ours is listed and left alone, however much it
// looks like ours.
func TestGuestsWithoutAMarkAreForeign(t *testing.T) {
	s := begin(t, pve.Config{Guests: 6})
	s.byHand(func(e *pve.Edit) {
		e.Add(stranger(10000, "web-1", "tags", "homestak"))       // our name, our tag, our range
		e.Add(stranger(10001, "web-3", "description", "# web-2")) // in our range
	})
	s.deploy("web", vm("web-1")+vm("web-2"))
	before := s.host.Snapshot().Guests

	r := s.try()

	// web-1 may be the guest that already has that name, so no second one is made.
	require.Equal(t, []string{"create image.debian-12", "create vm.web-2"}, steps(r.Plan))
	requireFinding(t, r.Findings, "vm.web-1", "10000", "is unmanaged")
	require.Equal(t, engine.Refused, r.Outcome, describe(r))
	require.Len(t, r.Plan.Unmanaged, len(before))
	require.NotContains(t, []int{10000, 10001}, s.vmidOf("web-2"))
	s.unchanged(before)

	s.destroy("web")
	s.unchanged(before)
}

// ST-12: a guest was destroyed by hand, and somebody else's got its VMID.
func TestARecycledVMIDIsNotOurs(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("web", vm("chosen")+vm("declared", "vmid = 10050"))
	s.apply()
	chosen := s.vmidOf("chosen")
	s.byHand(func(e *pve.Edit) {
		for _, id := range []int{chosen, 10050} {
			e.Delete(id)
			e.Add(stranger(id, "theirs"))
		}
	})
	before := s.host.Snapshot().Guests

	r := s.try()

	require.NotEqual(t, chosen, s.vmidOf("chosen"), "another VMID was free")
	requireFinding(t, r.Findings, "vm.declared", "10050")
	require.NotContains(t, s.everyName(), "declared")
	s.unchanged(before)
	s.remove("manifests/web.hcl")
	s.apply()
	s.unchanged(before)
}

// ST-12: a copy carries the ownership tag of the guest it was made from, and is another
// machine all the same.
func TestACopiedMarkProvesNothing(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("web", vm("web-1"))
	s.apply()
	ours := s.guest("web-1")
	copied := maps.Clone(ours.Config)
	copied["smbios1"] = "uuid=5ec0dcb1-0000-4000-8000-000000000001"
	s.byHand(func(e *pve.Edit) { e.Add(pve.Guest{VMID: 10777, Config: copied}) })

	p := s.plan()
	require.Empty(t, steps(p))
	require.Contains(t, why(p, 10777), "copy")

	// Whatever happens to the original, the copy stays as it is.
	s.edit("manifests/web.hcl", "preset = preset.vm-small", "preset = preset.vm-small\n    cores = 4")
	s.apply()
	s.remove("manifests/web.hcl")
	s.apply()
	snap := s.host.Snapshot()
	require.Nil(t, guestIn(snap, ours.VMID))
	require.Equal(t, copied, guestIn(snap, 10777).Config)
}

// ST-12: a backup of a guest was restored beside it. Both now prove to be the same
// one, so neither is touched until somebody decides.
func TestARestoredBackupMakesTwoOfOne(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.withoutKey()
	s.deploy("web", vm("web-1")+vm("web-2"))
	s.apply()
	backup := pve.Guest{VMID: 10900, Config: s.guest("web-1").Config}
	first := s.vmidOf("web-1")
	s.byHand(func(e *pve.Edit) { e.Add(backup) })
	before := s.host.Snapshot().Guests

	s.edit("manifests/web.hcl", "preset = preset.vm-small", "preset = preset.vm-small\n    onboot = true")
	for range 2 {
		r := s.try()
		require.Empty(t, steps(r.Plan))
		requireFinding(t, r.Findings, "vm.web-1", "neither is changed")
		require.Contains(t, why(r.Plan, first), "identity of vm.web-1")
		require.Contains(t, why(r.Plan, 10900), "identity of vm.web-1")
		s.unchanged(before)
	}

	// Nor is one of them destroyed with its manifest; and without a key, no other guest either.
	r := s.pass("destroy", func(p *engine.Pass) { p.Manifest, p.Destroy = "web", true })
	require.NotEqual(t, engine.Done, r.Outcome, describe(r))
	require.Equal(t, []int{first, 10900}, s.vmidsOf("web-1"))
	require.Len(t, s.vmidsOf("web-2"), 1)

	// Once there is one again, all goes on.
	s.byHand(func(e *pve.Edit) { e.Delete(10900) })
	s.apply()
	require.Equal(t, []int{first}, s.vmidsOf("web-1"))
	s.inSync()
}

// stranger is somebody else's VM; further words are keys and values.
func stranger(vmid int, name string, further ...string) pve.Guest {
	g := pve.Guest{VMID: vmid, Running: true, Config: map[string]string{
		"name": name, "cores": "4", "memory": "8192",
		"smbios1": fmt.Sprintf("uuid=f0e1d2c3-0000-4000-8000-%012d", vmid),
	}}
	for i := 0; i < len(further); i += 2 {
		g.Config[further[i]] = further[i+1]
	}
	return g
}
