package daemon_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	sites "github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/specserve/daemon"
)

// The repository is served at the commit in force and at the last one that was converged to, and never at one
// that has secrets in plain text.
func TestSnapshotOfTwoCommits(t *testing.T) {
	remote := sourcetest.New(t)
	repo, err := source.OpenRepository(source.Options{Dir: t.TempDir(), URL: remote.URL(), Branch: remote.Branch, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	var kept []string
	commit := func(files map[string]string) string {
		id := remote.Commit(files, "a change")
		_, err := repo.Head(t.Context())
		require.NoError(t, err)
		kept = append(kept, id)
		require.NoError(t, repo.Keep(kept...))
		return id
	}
	one := commit(map[string]string{"site.hcl": "one"})
	bad := commit(map[string]string{"secrets.yaml": "passwords:\n  app: \"a long password of app\"\n"})
	two := commit(map[string]string{"secrets.yaml": sourcetest.Gone, "site.hcl": "two"})
	s := &daemon.Copy{Repository: repo, Branch: remote.Branch, Most: 1, Clear: sites.Clear{Files: repo.Tree, Log: slog.New(slog.DiscardHandler)}}
	for _, c := range []struct{ name, inForce, lastGood, served string }{
		{"both the same", two, two, two},
		{"one that is older", two, one, one},
		{"none yet", two, "", two},
		{"one with secrets in plain text", two, bad, two},
		{"one that is not here", two, "0123456789abcdef0123456789abcdef01234567", two},
	} {
		t.Run(c.name, func(t *testing.T) {
			snapshot, why, err := s.At(c.inForce, c.lastGood)
			require.NoError(t, err)
			require.Empty(t, why)
			refs := string(snapshot.Refs())
			require.Contains(t, refs, c.inForce+" HEAD\x00")
			require.Contains(t, refs, c.inForce+" refs/heads/main\n")
			require.Contains(t, refs, c.served+" refs/homestak/last-good\n")
			require.NotContains(t, refs, bad)
		})
	}
}
