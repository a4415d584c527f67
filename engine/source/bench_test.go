package source_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// BenchmarkNothingNew is a look at a repository in which nothing changed, over https
// from the same server, beside git's own.
func BenchmarkNothingNew(b *testing.B) {
	r := sourcetest.New(b)
	r.Commit(map[string]string{"a": "1"}, "first")
	s := r.HTTPS()
	b.Run("ours", func(b *testing.B) {
		repo, err := source.OpenRepository(source.Options{Dir: b.TempDir(), URL: s.URL, Auth: source.Auth{CAFile: s.CAFile}})
		require.NoError(b, err)
		_, err = repo.Head(b.Context())
		require.NoError(b, err)
		before := s.Requests()
		for b.Loop() {
			if _, err := repo.Head(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(s.Requests()-before)/float64(b.N), "requests/op")
	})
	b.Run("git ls-remote", func(b *testing.B) {
		before := s.Requests()
		for b.Loop() {
			cmd := exec.CommandContext(b.Context(), "git", "ls-remote", s.URL, "refs/heads/main")
			cmd.Env = append(cmd.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME=/nonexistent", "GIT_SSL_CAINFO="+s.CAFile)
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		}
		b.ReportMetric(float64(s.Requests()-before)/float64(b.N), "requests/op")
	})
	b.Run("ours, by file", func(b *testing.B) {
		repo, err := source.OpenRepository(source.Options{Dir: b.TempDir(), URL: r.URL()})
		require.NoError(b, err)
		for b.Loop() {
			if _, err := repo.Head(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
