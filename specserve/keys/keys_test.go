package keys_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

func ensure(t *testing.T, dir string) keys.Ring {
	t.Helper()
	r, err := keys.Ensure(dir, now)
	require.NoError(t, err)
	return r
}

// However many servers start first, there is one key, and it stays.
func TestFirstStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "server")
	_, err := keys.Read(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "there is no signing key")
	_, err = keys.Rotate(dir, now)
	require.ErrorIs(t, err, os.ErrNotExist, "only a server makes the first key")

	rings := make([]keys.Ring, 8)
	var all sync.WaitGroup
	for i := range rings {
		all.Go(func() {
			var err error
			if rings[i], err = keys.Ensure(dir, now.Add(time.Duration(i)*time.Hour)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, r := range rings {
		require.Len(t, r, 1)
		require.Equal(t, rings[0], r)
	}
	require.Equal(t, rings[0], ensure(t, dir))
	info, err := os.Stat(filepath.Join(dir, keys.FileName))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	info, err = os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

// A token of the older key is accepted until the key is dropped, and is to be renewed.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	first := ensure(t, dir)
	minted, err := keys.MintToken(first[0].Key, keys.Claims{Node: "web-1", Spec: "base", Issued: now.Unix()})
	require.NoError(t, err)
	accepted := func(r keys.Ring) wire.Code {
		t.Helper()
		read, err := keys.Read(dir)
		require.NoError(t, err)
		require.Equal(t, r, read)
		c, err := r.Tokens().Verify(minted, "web-1", now)
		if err != nil {
			return wire.CodeOf(err)
		}
		require.Equal(t, r[0].ID != first[0].ID, r.Tokens().Due(c, now))
		return ""
	}
	require.Empty(t, accepted(first))

	second, err := keys.Rotate(dir, now.Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, first[0], second[1])
	require.NotEqual(t, first[0].ID, second[0].ID)
	require.Empty(t, accepted(second))

	third, err := keys.Rotate(dir, now.Add(2*time.Hour))
	require.NoError(t, err)
	require.Equal(t, second[0], third[1])
	require.Len(t, third, 2)
	require.Equal(t, wire.CodeRefused, accepted(third))

	alone, err := keys.DropOld(dir)
	require.NoError(t, err)
	require.Equal(t, third[:1], alone)
	require.Equal(t, wire.CodeRefused, accepted(alone))
}

// A file that cannot be used is never replaced: every token would be lost.
func TestUnusableFile(t *testing.T) {
	for content, why := range map[string]string{
		"":                          "not a JSON document",
		`{"version":2}`:             "version 2",
		`{"version":1,"keys":[]}`:   "it has 0 keys",
		`{"version":1,"keys":[{}]}`: "64 hexadecimal digits",
	} {
		dir := t.TempDir()
		name := filepath.Join(dir, keys.FileName)
		require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
		for _, read := range []func() (keys.Ring, error){
			func() (keys.Ring, error) { return keys.Read(dir) },
			func() (keys.Ring, error) { return keys.Ensure(dir, now) },
			func() (keys.Ring, error) { return keys.Rotate(dir, now) },
			func() (keys.Ring, error) { return keys.DropOld(dir) },
		} {
			_, err := read()
			require.ErrorContains(t, err, why)
			require.ErrorContains(t, err, "restore it from a backup")
		}
		kept, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, content, string(kept))
	}
	dir := t.TempDir()
	ring := ensure(t, dir)
	name := filepath.Join(dir, keys.FileName)
	require.NoError(t, os.WriteFile(name, []byte(`{"version":1,"keys":[{"key":"`+ring[0].Text()+`x"}]}`), 0o600))
	_, err := keys.Read(dir)
	require.ErrorContains(t, err, "not usable")
	require.NotContains(t, err.Error(), ring[0].Text())
	require.NoError(t, os.Chmod(name, 0o640))
	_, err = keys.Read(dir)
	require.ErrorContains(t, err, "chmod 600")
}
