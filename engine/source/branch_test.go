package source

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBranchNames(t *testing.T) {
	for _, good := range []string{"main", "feature/a-b", "v1.2", "ünïcode"} {
		require.NoError(t, checkBranch(good))
	}
	for _, bad := range []string{"-x", "a b", "a\nb", "a..b", "/a", "a/", "a//b", "a~1", "a^", "a:b", "x.lock", "refs*", "a\\b", "a\x7f"} {
		require.ErrorContains(t, checkBranch(bad), "not a branch name")
	}
}
