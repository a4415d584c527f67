package proxmox_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/doctor"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// leaves allocates a volume as a creation that died left it.
func (w *world) leaves(storage, name, vmid string) {
	w.Root(http.MethodPost, "/nodes/father/storage/"+storage+"/content", url.Values{"vmid": {vmid}, "filename": {name}, "size": {"4M"}})
}

// recalling plans as an agent does that was told something by the pass before.
func (w *world) recalling(words []string) (*plan.Plan, []string) {
	want, _ := w.Site.Want("father")
	with := *want
	with.SweepHints = words
	have, err := w.Driver.Observe(w.T.Context(), &with)
	require.NoError(w.T, err)
	return w.PlanFor(&with, have), have.SweepHints
}

// disksAsked counts the lists of disks that were asked for.
func disksAsked(w *world) int {
	n := 0
	for what, times := range w.Host.Snapshot().Requests {
		if strings.HasPrefix(what, "GET ") && strings.Contains(what, "/storage/") && strings.HasSuffix(what, "/content") {
			n += times
		}
	}
	return n
}

const leftText = "storage local-lvm on node father has volumes of VMIDs that no guest has: local-lvm:vm-10005-disk-0"

// TestVolumesOfADeadCreation are reported from when a guest is unfinished until they are gone, and never removed. A check
// without such a reason asks for no list of disks.
func TestVolumesOfADeadCreation(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.leaves("local-lvm", "vm-10005-disk-0", "10005")
		w.leaves("local-lvm", "vm-60001-disk-0", "60001") // nobody's VMID by the files
		asked := disksAsked(w)
		p, words := w.recalling(nil)
		require.Empty(t, words)
		require.True(t, p.InSync(), card(p))
		steady := disksAsked(w) - asked
		require.NotZero(t, steady, "of images; so they are counted")

		half := w.Guest(10000)
		half.VMID, half.Running, half.Config = 10007, false, map[string]string{"lock": "create"}
		w.Host.Edit(func(e *pve.Edit) { e.Add(half) })
		w.leaves("local-lvm", "vm-10007-disk-0", "10007") // of a guest that is there
		p, words = w.recalling(nil)
		require.Equal(t, []string{"volumes"}, words)
		require.True(t, p.InSync(), "a finding, and nothing to do: %s", card(p))
		require.Contains(t, card(p), leftText)
		require.Contains(t, card(p), "on node father, if nothing uses them: `pvesm free local-lvm:vm-10005-disk-0`\n")
		require.NotContains(t, card(p), "60001")
		require.NotContains(t, card(p), "vm-10007")
		require.Contains(t, card(p), "VM 10007 on node father is unfinished: PVE began to create it, and no task works on it; its VMID is not used meanwhile\n"+
			"if it is not being created: `qm unlock 10007 && qm destroy 10007` on node father")

		w.Host.Edit(func(e *pve.Edit) { e.Delete(10007) })
		p, words = w.recalling(words)
		require.Equal(t, []string{"volumes"}, words)
		require.Contains(t, card(p), leftText)
		require.Contains(t, volumeIDs(w, "local-lvm"), "local-lvm:vm-10005-disk-0")

		w.Host.Edit(func(e *pve.Edit) {
			for _, id := range []string{"10005", "10007"} {
				e.RemoveVolume("local-lvm:vm-" + id + "-disk-0")
			}
		})
		p, words = w.recalling(words)
		require.Empty(t, words)
		require.True(t, p.InSync())
		asked = disksAsked(w)
		w.Converged()
		require.Equal(t, steady, disksAsked(w)-asked)
	})
}

// TestFailedCreationNamesWhatItLeft, at once, with what frees it.
func TestFailedCreationNamesWhatItLeft(t *testing.T) {
	fault, err := pve.ParseFault("POST /nodes/*/qemu status=500")
	require.NoError(t, err)
	inTime(t, pve.Config{TaskTime: time.Second, Fault: pve.Faults(fault)}, func(t *testing.T, w *world) {
		w.leaves("local-lvm", "vm-10000-disk-0", "10000")
		w.leaves("local-lvm", "vm-10005-disk-0", "10005")
		w.Node("web-1", nil)
		err := w.Run(w.Plan())[model.Address{Kind: "vm", Name: "web-1"}]
		require.ErrorContains(t, err, "no guest has VMID 10000 now, and this is left of it: on node father, `pvesm free local-lvm:vm-10000-disk-0` frees it")
		require.Contains(t, volumeIDs(w, "local-lvm"), "local-lvm:vm-10000-disk-0")
	})
}

// TestDoctorOnLeftovers: it lists them, or says which privilege would show them, with the commands that give it.
func TestDoctorOnLeftovers(t *testing.T) {
	w := newWorld(t, pve.Config{})
	w.Node("web-1", nil)
	w.leaves("local-lvm", "vm-10005-disk-0", "10005")
	token := w.least(true)
	found := func(token string) []doctor.Check {
		return slices.DeleteFunc(w.examine(func(d *doctor.Doctor) { d.Token = token }), func(c doctor.Check) bool { return c.Name != "leftovers" })
	}
	list := found(token)
	require.Len(t, list, 1)
	require.Equal(t, doctor.NotChecked, list[0].Result)
	require.Equal(t, "the token may not list the disks on storage local-lvm: Datastore.Audit on /storage/local-lvm", list[0].Seen)
	require.Contains(t, strings.Join(list[0].Fix, "\n"), "--privs \"Datastore.AllocateSpace,Datastore.Audit\"")

	w.Root(http.MethodPut, "/access/roles/homestak-storage-local-lvm", url.Values{"privs": {"Datastore.AllocateSpace,Datastore.Audit"}})
	list = found(token)
	require.Len(t, list, 1)
	require.Equal(t, doctor.Warning, list[0].Result)
	require.Equal(t, []string{"pvesm free local-lvm:vm-10005-disk-0"}, list[0].Fix)

	w.Host.Edit(func(e *pve.Edit) { e.RemoveVolume("local-lvm:vm-10005-disk-0") })
	require.Empty(t, found(token))
}
