package durable_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// Each way to change a file is noticed, in each of the folders; a folder that is not there is no error.
func TestNotice(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	one, other := t.TempDir(), t.TempDir()
	name := filepath.Join(other, "key")
	notices := durable.Notice(ctx, one, filepath.Join(one, "none"), other)
	for _, change := range []func() error{
		func() error { return os.WriteFile(name, []byte("a"), 0o600) },
		func() error { return os.WriteFile(name, []byte("b"), 0o600) },
		func() error { return durable.Replace(name, []byte("c")) },
		func() error { return os.Chmod(name, 0o400) },
		func() error { return os.Remove(name) },
		func() error { return os.Symlink("/nowhere", filepath.Join(one, "link")) },
	} {
		require.NoError(t, change())
		<-notices
		for done := false; !done; { // one change may be several events
			require.NoError(t, os.WriteFile(filepath.Join(one, "last"), nil, 0o600))
			<-notices
			done = len(notices) == 0
		}
	}
}
