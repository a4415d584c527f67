package source_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// A first commit is pushed to an empty repository elsewhere; one that builds on nothing there is refused.
func TestRemoteAuthorPushes(t *testing.T) {
	t.Parallel()
	tree := fstest.MapFS{"site.hcl": &fstest.MapFile{Data: []byte("site \"home\" {\n}\n")}}
	for name, reach := range map[string]func(*sourcetest.Repo) (string, source.Auth){
		"https": func(r *sourcetest.Repo) (string, source.Auth) {
			s := r.HTTPS()
			return s.URL, source.Auth{CAFile: s.CAFile}
		},
		"ssh": func(r *sourcetest.Repo) (string, source.Auth) {
			s := r.SSH()
			return s.URL, source.Auth{KeyFile: s.KeyFile, KnownHostsFile: s.KnownHostsFile}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo := sourcetest.New(t)
			url, auth := reach(repo)
			for _, first := range []bool{true, false} {
				author, err := source.NewRemoteAuthor(url, auth, filepath.Join(t.TempDir(), "checkout"), tree)
				require.NoError(t, err)
				before := ""
				if !first {
					before = repo.Head()
				}
				id, err := author.Push(t.Context(), fmt.Sprint("first: ", first)) // the same in one second would be one commit
				if first {
					require.NoError(t, err)
					require.Equal(t, id, repo.Head())
				} else {
					require.ErrorIs(t, err, source.ErrAhead)
					require.Equal(t, before, repo.Head())
				}
			}
		})
	}
	folder, err := source.NewRemoteAuthor("/srv/site.git", source.Auth{}, filepath.Join(t.TempDir(), "checkout"), tree)
	require.NoError(t, err)
	_, err = folder.Push(t.Context(), "first")
	require.ErrorContains(t, err, "is a folder: a push from here takes https or ssh")
}
