package proxmox

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

func write(t *testing.T, root, name, text string) {
	t.Helper()
	file := filepath.Join(root, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
}

// The files as a node writes them (pve-cluster, src/pmxcfs/status.c).
const (
	version = "{\n\"starttime\": 1700000000,\n\"clinfo\": 1,\n\"vmlist\": 7,\n\"corosync.conf\": 1,\n\"storage.cfg\": 2,\n\"kvstore\": {\n\"father\": {\n\"tasklist\": 12,\n\"nodes/father/version-info\": 3}\n}\n}\n"
	list    = "{\n\"version\": 7,\n\"ids\": {\n\"100\": { \"node\": \"father\", \"type\": \"qemu\", \"version\": 3 },\n\"101\": { \"node\": \"mother\", \"type\": \"lxc\", \"version\": 5 }}\n\n}\n"
)

func TestReadsWhatANodeWrites(t *testing.T) {
	root := t.TempDir()
	r := &nodeReader{Root: root}
	_, err := r.Read()
	require.ErrorIs(t, err, os.ErrNotExist)
	write(t, root, "etc/pve/.version", version)
	_, err = r.Read()
	require.ErrorIs(t, err, os.ErrNotExist, "a version without a list")
	write(t, root, "etc/pve/.vmlist", list)
	before, err := r.Read()
	require.NoError(t, err)
	require.Equal(t, map[int]listedGuest{100: {Node: "father", Version: 3}, 101: {Node: "mother", Version: 5}}, before.Guests)
	require.Empty(t, before.Running)

	since := func() []int {
		t.Helper()
		now, err := r.Read()
		require.NoError(t, err)
		changed, all := now.Since(before)
		require.False(t, all)
		before = now
		return changed
	}
	write(t, root, "etc/pve/.version", strings.Replace(version, "tasklist\": 12", "tasklist\": 13", 1))
	require.Empty(t, since(), "figures change all the time")
	write(t, root, "etc/pve/.vmlist", strings.Replace(list, `"version": 3`, `"version": 8`, 1))
	require.Empty(t, since(), "the list is read when its version says so")
	write(t, root, "etc/pve/.version", strings.Replace(version, "vmlist\": 7", "vmlist\": 8", 1))
	require.Equal(t, []int{100}, since())
	write(t, root, "etc/pve/.vmlist", "{\n\"version\": 9\n\n}\n")
	write(t, root, "etc/pve/.version", strings.Replace(version, "vmlist\": 7", "vmlist\": 9", 1))
	require.Equal(t, []int{100, 101}, since(), "they are gone")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/fs/cgroup/qemu.slice/100.scope"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/fs/cgroup/lxc/101/ns"), 0o700))
	write(t, root, "sys/fs/cgroup/qemu.slice/cgroup.procs", "")
	require.Equal(t, []int{100, 101}, since(), "they run")
	require.NoError(t, os.RemoveAll(filepath.Join(root, "sys/fs/cgroup/lxc/101")))
	require.Equal(t, []int{101}, since())

	// A machine stops and a container starts, and the kernel shows of the folders what it showed before.
	swap := func(from, to string) {
		t.Helper()
		folder := filepath.Join(root, "sys/fs/cgroup/qemu.slice")
		was, err := os.Stat(folder)
		require.NoError(t, err)
		require.NoError(t, os.Rename(filepath.Join(folder, from), filepath.Join(folder, to)))
		require.NoError(t, os.Chtimes(folder, was.ModTime(), was.ModTime()))
	}
	swap("100.scope", "101.scope")
	var changed []int
	for range 7 {
		changed = append(changed, since()...)
	}
	require.Equal(t, []int{100, 101}, changed, "it is found by the seventh reading at the latest")
	swap("101.scope", "100.scope")
	for range 7 {
		since()
	}

	// Entries after an unreadable one are not taken for known.
	write(t, root, "etc/pve/.version", strings.Replace(version, "vmlist\": 7", "vmlist\": 12", 1))
	require.NoError(t, os.Remove(filepath.Join(root, "etc/pve/.vmlist")))
	_, err = r.Read()
	require.ErrorIs(t, err, os.ErrNotExist)
	write(t, root, "etc/pve/.vmlist", list)
	require.Equal(t, []int{100, 101}, since(), "they are there again")

	write(t, root, "etc/pve/.version", strings.Replace(version, "1700000000", "1700000001", 1))
	now, err := r.Read()
	require.NoError(t, err)
	_, all := now.Since(before)
	require.True(t, all, "versions start again")
	for _, bad := range []string{"", "{", "[]", "{}", `{"starttime": -1, "vmlist": 3}`} {
		write(t, root, "etc/pve/.version", bad)
		_, err = r.Read()
		require.Error(t, err, bad)
	}
}

// With control groups of version 1 the file with the process of a VM shows that it runs, and the groups of systemd that a
// container does.
func TestR7NoticesStopsWithControlGroupsOfVersion1(t *testing.T) {
	root := t.TempDir()
	write(t, root, "etc/pve/.version", version)
	write(t, root, "etc/pve/.vmlist", list)
	write(t, root, "sys/fs/cgroup/systemd/cgroup.procs", "")
	for _, name := range []string{"100.pid", "100.qmp", "100.vnc"} {
		write(t, root, "run/qemu-server/"+name, "")
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/fs/cgroup/systemd/lxc/101"), 0o700))
	r := &nodeReader{Root: root}
	before, err := r.Read()
	require.NoError(t, err)
	require.Equal(t, map[int]bool{100: true, 101: true}, before.Running)
	since := func() (changed []int) {
		t.Helper()
		for range 7 { // the kernel may show the same of a folder
			now, err := r.Read()
			require.NoError(t, err)
			more, _ := now.Since(before)
			before, changed = now, append(changed, more...)
		}
		return changed
	}
	require.NoError(t, os.Remove(filepath.Join(root, "run/qemu-server/100.vnc")))
	require.Empty(t, since(), "it still runs")
	require.NoError(t, os.Remove(filepath.Join(root, "run/qemu-server/100.pid")))
	require.Equal(t, []int{100}, since())
	require.NoError(t, os.Remove(filepath.Join(root, "sys/fs/cgroup/systemd/lxc/101")))
	require.Equal(t, []int{101}, since())

	// With version 2 the control groups count as soon as there are any.
	require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/fs/cgroup/qemu.slice/100.scope"), 0o700))
	require.Equal(t, []int{100}, since())
	write(t, root, "run/qemu-server/102.pid", "")
	require.Empty(t, since())
}

// A watcher notices with its next reading what is done to guests that matter on a simulated host, and nothing else.
func TestNoticesChanges(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		host := pve.New(pve.Config{Files: root})
		for _, id := range []int{100, 101} {
			host.Edit(func(e *pve.Edit) {
				e.Add(pve.Guest{VMID: id, Kind: "qemu", Config: map[string]string{"name": "g"}})
			})
		}
		noticed := make(chan []int, 10)
		w := &Watcher{Root: root, Changed: func(guests []int) { noticed <- slices.Clone(guests) }}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w.Ignore([]int{101})
		go w.Run(ctx)
		after := func() []int {
			t.Helper()
			<-time.After(watchEvery)
			synctest.Wait()
			select {
			case guests := <-noticed:
				return guests
			default:
				return nil
			}
		}
		require.Nil(t, after())
		require.NoError(t, w.Err())
		host.Edit(func(e *pve.Edit) { e.Set(101, "cores", "3") })
		require.Nil(t, after(), "it does not matter")
		host.Edit(func(e *pve.Edit) { e.Set(100, "cores", "3") })
		require.Equal(t, []int{100}, after())
		host.Edit(func(e *pve.Edit) { e.Start(100) })
		require.Equal(t, []int{100}, after())
		require.Nil(t, after())

		require.NoError(t, os.Remove(filepath.Join(root, "etc/pve/.version")))
		require.Nil(t, after())
		require.Error(t, w.Err())
	})
}

// Where there are no files, as on every machine that is no node, they are looked for once a minute in the end; once they are
// there, as often as ever.
func TestMissingFoldersAreCheckedSeldom(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		noticed := make(chan []int, 1)
		w := &Watcher{Root: root, Changed: func(guests []int) { noticed <- slices.Clone(guests) }}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.Run(ctx)
		pass := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}
		pass(5*time.Minute + time.Second)
		require.ErrorIs(t, w.Err(), os.ErrNotExist)
		write(t, root, "etc/pve/.version", version)
		write(t, root, "etc/pve/.vmlist", list)
		pass(2 * watchEvery)
		require.ErrorIs(t, w.Err(), os.ErrNotExist, "it sleeps")
		pass(watchAbsent)
		require.NoError(t, w.Err())
		write(t, root, "etc/pve/.vmlist", strings.Replace(list, `"version": 3`, `"version": 8`, 1))
		write(t, root, "etc/pve/.version", strings.Replace(version, "vmlist\": 7", "vmlist\": 8", 1))
		pass(watchEvery)
		require.Equal(t, []int{100}, <-noticed)
	})
}

// BenchmarkRead is what a second costs an agent on a node with 1,000 guests that run, as long as nothing changes (P20).
func BenchmarkRead(b *testing.B) {
	root := b.TempDir()
	host := pve.New(pve.Config{Files: root})
	host.Edit(func(e *pve.Edit) {
		for id := range 1000 {
			e.Add(pve.Guest{VMID: 100 + id, Running: true})
		}
	})
	r := &nodeReader{Root: root}
	for b.Loop() {
		if _, err := r.Read(); err != nil {
			b.Fatal(err)
		}
	}
}
