package source_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// usage is how much a folder holds: bytes of files, and how many.
func usage(t *testing.T, dir string) (bytes int64, files int) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		bytes, files = bytes+info.Size(), files+1
		return err
	}))
	return bytes, files
}

// The local copy of a branch that gets a commit between any two looks.
func TestTheCopyStaysSmall(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("thousands of fetches take some seconds")
	}
	dir := sourcetest.TempDir(t)
	r := sourcetest.New(t)
	files := map[string]string{}
	for i := range 20 {
		files[fmt.Sprintf("hosts/%02d.hcl", i)] = fmt.Sprintf("host %d %s\n", i, noise(t, 1000+i))
	}
	last := r.Commit(files, "first")
	o := source.Options{URL: r.URL(), Dir: filepath.Join(dir, "copy")}
	repo := openRepository(t, o)
	head(t, repo)
	require.NoError(t, repo.Keep(last))
	var mostBytes int64
	var mostFiles int
	for i := range fetches {
		id := r.Commit(map[string]string{fmt.Sprintf("hosts/%02d.hcl", i%20): fmt.Sprintf("host %d\n", i)}, fmt.Sprint("change ", i))
		c, err := repo.Head(t.Context())
		require.NoError(t, err)
		require.Equal(t, id, c.ID)
		since, err := repo.Since(t.Context(), last, id)
		require.NoError(t, err)
		require.Len(t, since, 1+i%3)
		if i%3 == 2 { // of three commits one converges
			require.NoError(t, repo.Keep(id))
			last = id
		}
		if i%50 == 0 {
			bytes, n := usage(t, o.Dir)
			mostBytes, mostFiles = max(mostBytes, bytes), max(mostFiles, n)
		}
	}
	t.Logf("after %d fetches: at most %d KiB in %d files", fetches, mostBytes>>10, mostFiles)
	require.Less(t, mostBytes, int64(180<<10)) // 20 bytes kept of each would be too much
	require.Less(t, mostFiles, 80)
	fsck(t, o.Dir)
	require.Equal(t, r.Head(), head(t, openRepository(t, o)).ID, "and it can be opened again")
}

// Looks at a branch where nothing happens leave nothing behind.
func TestLooksThatFindNothingNewLeaveNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of looks take a second")
	}
	r := sourcetest.New(t)
	id := r.Commit(map[string]string{"a": "1"}, "first")
	o := source.Options{URL: r.URL(), Dir: filepath.Join(sourcetest.TempDir(t), "copy")}
	repo := openRepository(t, o)
	head(t, repo)
	bytes, files := usage(t, o.Dir)
	descriptors := openFiles(t)
	for range fetches {
		require.Equal(t, id, head(t, repo).ID)
	}
	b, f := usage(t, o.Dir)
	require.Equal(t, bytes, b)
	require.Equal(t, files, f)
	require.LessOrEqual(t, openFiles(t), descriptors)
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}
