package guest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The record of an earlier version is moved with what it refers to, if it is root's. An agent that owns the earlier folder cannot
// swap it between a look at the owner and the copy: in place of stat runs a script that does so.
func TestMoveRecord(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const (
		record = "echo evil >$OLD/x; chown 65534 $OLD/x; mv $OLD/x $OLD/owned.json"
		link   = "rm -f $OLD/owned.json; ln -s secret $OLD/owned.json"
		found  = "mv $OLD/found $OLD/away; mkdir $OLD/found; echo evil >$OLD/found/f; chown -R 65534 $OLD/found"
		inside = "chown 65534 $OLD/found/f"
	)
	for name, c := range map[string]struct {
		file, swap string // which is swapped when its owner was looked at, and how
		want       []string
	}{
		"nothing":         {"", "", []string{"found", "found/f", "owned.json"}},
		"record":          {"owned.json", record, nil},
		"link":            {"owned.json", link, nil},
		"found":           {"found", found, []string{"owned.json"}},
		"a file of found": {"found", inside, []string{"owned.json"}},
	} {
		dir := t.TempDir()
		before, after, bin := filepath.Join(dir, "old"), filepath.Join(dir, "new"), filepath.Join(dir, "bin")
		require.NoError(t, os.MkdirAll(filepath.Join(before, "found"), 0o700))
		require.NoError(t, os.Mkdir(bin, 0o700))
		for _, file := range []string{"owned.json", "found/f", "secret"} {
			require.NoError(t, os.WriteFile(filepath.Join(before, file), []byte("root's"), 0o600))
		}
		usual, err := exec.LookPath("stat")
		require.NoError(t, err)
		stat := "#!/bin/sh\n" + usual + ` "$@"` + "\nif [ \"$3\" = \"$OLD/" + c.file + "\" ]; then " + c.swap + "\n:; fi\n"
		require.NoError(t, os.WriteFile(filepath.Join(bin, "stat"), []byte(stat), 0o700)) //nolint:gosec // it is run

		script := strings.NewReplacer(RecordFolder, after, earlierFolder, before).Replace(MoveRecord)
		run := exec.CommandContext(t.Context(), "sh", "-c", script)
		run.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "OLD="+before)
		out, err := run.CombinedOutput()
		require.NoError(t, err, name)
		require.Empty(t, string(out), name)
		var got []string
		_ = filepath.WalkDir(after, func(path string, _ os.DirEntry, err error) error {
			if rel, _ := filepath.Rel(after, path); err == nil && rel != "." {
				got = append(got, rel)
			}
			return err
		})
		require.Equal(t, c.want, got, name)
		require.NoDirExists(t, after+".new", name)
		if c.want != nil {
			info, err := os.Stat(after)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o755), info.Mode().Perm(), name)
			require.NoFileExists(t, filepath.Join(before, "owned.json"), name)
		}
	}
}
