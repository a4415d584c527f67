package nspawn

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ownCgroups makes a group of this name below that of this process, in the tree that
// systemd counts its processes by: without one of its own, every guest of the machine
// would have the same. It gives the folders; removeCgroups takes them away.
func ownCgroups(t testing.TB, name string) []string {
	t.Helper()
	of := cgroupsOf(t, "/proc/self/cgroup")
	var dirs []string
	for _, m := range mounts(t) {
		tree := ""
		switch {
		case m.kind == "cgroup" && slices.Contains(strings.Split(m.options, ","), "name=systemd"):
			tree = "name=systemd"
		case m.kind != "cgroup2":
			continue
		}
		below, err := filepath.Rel(m.root, of[tree])
		if err != nil || strings.HasPrefix(below, "..") {
			continue
		}
		require.NoError(t, sweep(filepath.Join(m.at, below)))
		dir := filepath.Join(m.at, below, name)
		require.NoError(t, os.Mkdir(dir, 0o755), "a guest needs a cgroup of its own")
		dirs = append(dirs, dir)
	}
	return dirs
}

// sweep removes the groups of runs that were killed: nothing is in them any more.
func sweep(parent string) error {
	all, err := filepath.Glob(filepath.Join(parent, "hs-*-*"))
	for _, dir := range all {
		run := strings.Split(filepath.Base(dir), "-")[1]
		if _, gone := os.Stat("/proc/" + run); gone != nil {
			err = errors.Join(err, removeCgroups([]string{dir}))
		}
	}
	return err
}

// removeCgroups takes away groups that no process is in any more, and those below.
func removeCgroups(dirs []string) error {
	var err error
	for _, dir := range dirs {
		below, lerr := os.ReadDir(dir)
		if errors.Is(lerr, os.ErrNotExist) {
			continue
		}
		for _, e := range below {
			if e.IsDir() {
				err = errors.Join(err, removeCgroups([]string{filepath.Join(dir, e.Name())}))
			}
		}
		if rerr := os.Remove(dir); !errors.Is(rerr, os.ErrNotExist) { // it was removed meanwhile
			err = errors.Join(err, lerr, rerr)
		}
	}
	return err
}

// cgroupsOf reads a file as /proc/PID/cgroup: the group by its tree, that of cgroup2
// by "".
func cgroupsOf(t testing.TB, name string) map[string]string {
	t.Helper()
	of := map[string]string{}
	for _, line := range readLines(t, name) {
		if parts := strings.SplitN(line, ":", 3); len(parts) == 3 {
			of[parts[1]] = parts[2]
		}
	}
	return of
}

// mount is a line of /proc/self/mountinfo.
type mount struct{ root, at, kind, options string }

func mounts(t testing.TB) []mount {
	t.Helper()
	var all []mount
	for _, line := range readLines(t, "/proc/self/mountinfo") {
		first, second, _ := strings.Cut(line, " - ")
		what, how := strings.Fields(first), strings.Fields(second)
		require.True(t, len(what) > 4 && len(how) > 2, line)
		all = append(all, mount{root: what[3], at: what[4], kind: how[0], options: how[2]})
	}
	return all
}

func readLines(t testing.TB, name string) []string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}
