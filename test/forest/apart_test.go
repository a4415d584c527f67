package forest_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/test/forest"
)

// grown is a tree of three levels that is as declared, with a VM on each machine: vm-1, vm-2 and vm-3.
func grown(t *testing.T, change func(*forest.Options)) (*world, *site) {
	t.Helper()
	w := newWorld(t, change)
	s := newSite()
	for _, on := range []string{"father", "inner", "leaf"} {
		s.add(on)
	}
	w.push(s, "begin")
	w.until(time.Hour, "the tree is there", w.converged)
	w.live(5 * time.Minute)
	return w, s
}

// vmid is that of a guest on a machine; 0 if it is not there.
func (w *world) vmid(machine, guest string) int {
	if m := w.Machine(machine); m != nil {
		return m.Guests()[guest].VMID
	}
	return 0
}

// status of a machine as text, for what it says to people.
func (w *world) says(machine string) string {
	w.t.Helper()
	text, err := json.Marshal(w.Machine(machine).Agent().StatusAndTree())
	require.NoError(w.t, err)
	return strings.NewReplacer(`\n`, "\n", `\"`, `"`).Replace(string(text))
}

func (w *world) deletes(machine, guest string) {
	id := w.vmid(machine, guest)
	w.Machine(machine).Host.Edit(func(e *pve.Edit) { e.Delete(id) })
}

// A child that is cut off for hours keeps what was in force, for its own children as well. Its parent shows it as stale and
// leaves it alone, also when a commit takes it out of the site. When the link is back it catches up.
func TestAPartitionForHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		before := w.head
		inner := w.vmid("father", "inner")
		w.Network.Cut("inner", true)

		s.vms["vm-3"]++
		s.add("inner")
		w.push(s, "more for inner and leaf")
		w.live(2 * time.Hour)
		require.Equal(t, before, w.status("inner").InForce.ID)
		require.Equal(t, before, w.status("leaf").InForce.ID)
		w.deletes("inner", "vm-2")
		w.deletes("leaf", "vm-3")
		w.live(10 * time.Minute)
		require.NotZero(t, w.vmid("inner", "vm-2"), "it is made again")
		require.NotZero(t, w.vmid("leaf", "vm-3"), "also by the child of the child")
		require.Contains(t, w.says("inner"), "no route to host")
		require.Empty(t, w.status("leaf").Parent.Error, "leaf has its parent")
		tree := w.Machine("father").Agent().Tree()
		require.False(t, tree.Ready)
		require.Contains(t, w.says("father"), "stale")
		w.Machine("inner").Kill()
		w.live(10 * time.Minute) // it starts again from what it keeps
		require.Equal(t, before, w.status("inner").Converged.ID)

		// A commit takes it out of the site: nothing is removed as long as it cannot say that it is empty.
		s.inner = false
		w.push(s, "inner leaves\n\nAllow-Deletes: 10")
		w.live(3 * time.Hour)
		require.Equal(t, inner, w.vmid("father", "inner"))
		require.NotZero(t, w.vmid("leaf", "vm-3"))
		require.Contains(t, w.says("father"), "if inner does not report any more, start it and check its agent; if it is lost, push a commit with the trailer \"Allow-Orphans: inner\"")
		s.inner = true
		w.push(s, "inner stays")
		w.live(time.Hour)

		w.Network.Cut("inner", false)
		w.until(20*time.Minute, "the tree catches up", w.converged)
		require.Equal(t, inner, w.vmid("father", "inner"), "it is the same machine as before")

		// The same once more, and this time it is meant.
		w.Network.Cut("inner", true)
		s.inner = false
		w.push(s, "inner leaves again\n\nAllow-Deletes: 10")
		w.live(2 * time.Hour)
		require.Equal(t, inner, w.vmid("father", "inner"))
		w.Network.Cut("inner", false)
		w.until(20*time.Minute, "inner goes, and all that is in it first", w.converged)
		require.Empty(t, w.broken)
	})
}

// The token of a child may be from a clock that goes ahead, or have expired while the child was off for a week. One that
// expired long ago is refused, and both say what to do.
func TestAChildWithATokenOfAnotherTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		give := func(life time.Duration, at time.Time) {
			inner := w.Machine("inner")
			inner.Kill()
			minted, err := keys.Mint(filepath.Join(w.Machine("father").Data, "data", daemon.Folder), "inner", "plain", life, at)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(inner.Data, "token"), []byte(minted.Token), 0o600))
			require.NoError(t, inner.Start())
		}
		give(time.Hour, time.Now().Add(30*time.Minute))
		s.vms["vm-2"]++
		w.push(s, "a change")
		w.until(10*time.Minute, "a token from the future is good", w.converged)

		give(time.Hour, time.Now().AddDate(0, 0, -7))
		s.vms["vm-2"]++
		w.push(s, "after a week")
		w.until(10*time.Minute, "its newest token is replaced", w.converged)

		give(time.Hour, time.Now().AddDate(0, 0, -31))
		s.vms["vm-2"]++
		w.push(s, "another change")
		w.live(10 * time.Minute)
		require.NotEqual(t, w.head, w.status("inner").InForce.ID)
		parent := w.status("inner").Parent.Error
		require.Contains(t, parent, "E303")
		require.Contains(t, parent, "homestak-gitops token mint", "it names the next step")
		give(time.Hour, time.Now())
		w.until(10*time.Minute, "with another token it catches up", w.converged)
	})
}

// Where the clocks of all go on by a year, since nothing ran or no clock was right, the tree goes on, although nobody has a token
// that counts by its date.
func TestS7ClockOfATree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		expires := func() time.Time {
			i, err := keys.Inspect(w.knows("inner").Token)
			require.NoError(t, err)
			return *i.Expires
		}
		for _, m := range w.Machines() {
			m.Kill()
		}
		<-time.After(365 * 24 * time.Hour)
		require.True(t, expires().Before(time.Now().Add(-300*24*time.Hour)))
		for _, m := range w.Machines() {
			require.NoError(t, m.Start())
		}
		s.vms["vm-2"]++
		w.push(s, "a year later")
		w.until(20*time.Minute, "the tree goes on", w.converged)
		require.True(t, expires().After(time.Now()))
		require.Empty(t, w.broken)
	})
}

// A parent that comes back from an old backup of its repository does not take its child back, and the child says why.
func TestAParentFromAnOldBackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		old, was := w.head, s.copy()
		s.vms["vm-2"]++
		s.add("inner")
		newer := w.push(s, "a change")
		w.until(10*time.Minute, "the tree has it", w.converged)
		w.repo.Reset(old)
		w.live(30 * time.Minute)
		require.Equal(t, old, w.status("father").InForce.ID, "the git server decides about the host")
		require.Equal(t, newer, w.status("inner").InForce.ID)
		require.NotZero(t, w.vmid("inner", "vm-4"))
		require.Contains(t, w.says("inner"), fmt.Sprintf("commit %.8s is older than %.8s", old, newer))
		require.Contains(t, w.says("inner"), "let it fetch its repository; if the older state is meant, push it as a new commit")
		w.push(was, "the older state is meant\n\nAllow-Deletes: 2")
		w.until(10*time.Minute, "the tree is at the older state", w.converged)
		require.Zero(t, w.vmid("inner", "vm-4"))
	})
}

// copyFolder copies files with their modes, as a backup does.
func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, _ := filepath.Rel(from, name)
		info, err := d.Info()
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rest), info.Mode())
		case !d.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rest), data, info.Mode())
	}))
}

// A child whose data folder is from an old backup has an old token and an old commit. It fetches the newest one, and what
// was in force since does not count less.
func TestAChildFromAnOldBackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		inner := w.Machine("inner")
		data, backup := filepath.Join(inner.Data, "data"), filepath.Join(inner.Data, "backup")
		inner.Kill()
		copyFolder(t, data, backup)
		w.live(time.Minute)
		s.vms["vm-2"]++
		gone := s.add("inner")
		w.push(s, "a change")
		w.until(10*time.Minute, "the tree has it", w.converged)
		delete(s.vms, gone)
		delete(s.on, gone)
		newest := w.push(s, "one less")
		w.until(10*time.Minute, "the tree has it", w.converged)

		inner.Kill()
		require.NoError(t, os.RemoveAll(data))
		copyFolder(t, backup, data)
		id := w.vmid("inner", "vm-2")
		w.live(10 * time.Minute)
		require.Equal(t, newest, w.status("inner").Converged.ID)
		require.True(t, w.converged(), w.why())
		require.Equal(t, id, w.vmid("inner", "vm-2"))
		require.Empty(t, w.broken)
	})
}

// A child whose data folder is lost is given a token again, and goes on. If it left the site meanwhile it removes nothing,
// since nothing shows that it ever was in it: both it and its parent say how to let it go.
func TestAChildThatLostItsData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		guests := func() []int { return []int{w.vmid("inner", "vm-2"), w.vmid("inner", "leaf"), w.vmid("leaf", "vm-3")} }
		ids := guests()
		w.loseData(w.Machine("inner"))
		w.until(20*time.Minute, "the tree is as before", w.converged)
		require.Equal(t, ids, guests(), "no guest is made again")

		w.Network.Cut("leaf", true)
		s.leaf = false
		w.push(s, "leaf leaves\n\nAllow-Deletes: 5")
		w.live(10 * time.Minute)
		w.Network.Cut("leaf", false)
		w.loseData(w.Machine("leaf"))
		w.live(30 * time.Minute)
		require.Equal(t, ids[2], w.vmid("leaf", "vm-3"))
		require.Contains(t, w.says("leaf"), "no commit is known that had it and was in force here, so nothing is removed: the guests of this site could not be seen: the key")
		require.Contains(t, w.says("leaf"), "let it go at its parent with --allow-orphans leaf")
		require.Contains(t, w.says("inner"), `push a commit with the trailer "Allow-Orphans: leaf"`)
		w.allowed["leaf"] = true
		w.pushFiles(s, map[string]string{"note.txt": "x"}, "let it go\n\nAllow-Orphans: leaf\nAllow-Deletes: 5")
		w.until(20*time.Minute, "it goes with what is in it", w.converged)
		require.Empty(t, w.broken)
	})
}

// A guest that moves between manifests, with the machine that holds it, stays as it is. One that gets another parent is made there
// and removed here. A machine with another name is another machine: the new one comes, and the old one goes child first.
func TestNodesMoveAndGetOtherNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		guests := func() []int { return []int{w.vmid("father", "inner"), w.vmid("inner", "vm-2"), w.vmid("leaf", "vm-3")} }
		ids := guests()
		files := s.files()
		files["tree.hcl"] = strings.Replace(files["tree.hcl"], `manifest "tree"`, `manifest "forest"`, 1)
		w.pushFiles(s, files, "another manifest")
		w.until(10*time.Minute, "it is the same tree", w.converged)
		require.Equal(t, ids, guests())

		s.on["vm-3"] = "inner"
		s.add("leaf")
		w.push(s, "vm-3 gets another parent\n\nAllow-Deletes: 2")
		w.until(20*time.Minute, "it is on inner, and not on leaf", w.converged)
		require.NotZero(t, w.vmid("inner", "vm-3"))
		require.Zero(t, w.vmid("leaf", "vm-3"))

		files = s.files()
		files["tree.hcl"] = strings.ReplaceAll(strings.ReplaceAll(files["tree.hcl"], `node "inner"`, `node "outer"`), "node.inner", "node.outer")
		w.pushFiles(s, files, "inner is outer now\n\nAllow-Deletes: 10")
		w.until(time.Hour, "outer is there, and inner is not", func() bool {
			outer, leaf := w.Machine("outer"), w.Machine("leaf")
			return outer != nil && leaf != nil && leaf.Parent == outer && slices.Equal(w.Machine("father").Managed(), []string{"outer", "vm-1"}) &&
				slices.Equal(outer.Managed(), s.below("inner")) && slices.Equal(leaf.Managed(), s.below("leaf"))
		})
		require.Nil(t, w.Machine("inner"))
		require.Empty(t, w.broken)
	})
}
