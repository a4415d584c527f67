package keys_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

func TestMintAndInspect(t *testing.T) {
	dir := t.TempDir()
	_, err := keys.Mint(dir, "web-1", "base", time.Hour, now)
	require.ErrorIs(t, err, os.ErrNotExist, "minting makes no key")
	require.NoFileExists(t, dir+"/"+keys.FileName)
	ring := ensure(t, dir)
	_, err = keys.Mint(dir, "web-1", "", time.Hour, now)
	require.ErrorContains(t, err, "has no spec")
	_, err = keys.Mint(dir, "web-1", "base", -time.Hour, now)
	require.ErrorContains(t, err, "less than a minute")

	m, err := keys.Mint(dir, "web-1", "base", time.Hour, now)
	require.NoError(t, err)
	require.Equal(t, "2026-01-02T04:04:05Z", m.Expires.Format(time.RFC3339))
	i, err := keys.Inspect(m.Token + "\n")
	require.NoError(t, err)
	require.Equal(t, `node     "web-1"
spec     "base"
key      "`+ring[0].ID+`"
issued   2026-01-02T03:04:05Z
expires  2026-01-02T04:04:05Z
valid    not verified
`, i.Text())
	good, err := i.Verified(ring, nil, m.Token+"\n", now)
	require.NoError(t, err)
	require.True(t, *good.Valid)
	require.Contains(t, good.Text(), "\nvalid    yes\n")
	late, err := i.Verified(ring, nil, m.Token, now.Add(time.Hour))
	require.Equal(t, wire.CodeExpired, wire.CodeOf(err))
	require.False(t, *late.Valid)
	require.Contains(t, late.Text(), "valid    no: the token has expired at 2026-01-02T04:04:05Z")
	_, err = keys.Inspect("x")
	require.Equal(t, wire.CodeNoCredential, wire.CodeOf(err))

	forever, err := keys.Mint(dir, "web-1", "base", 0, now)
	require.NoError(t, err)
	require.Nil(t, forever.Expires)
	i, err = keys.Inspect(forever.Token)
	require.NoError(t, err)
	require.Contains(t, i.Text(), "expires  never")
}

func TestDescribe(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir)
	ring, err := keys.Rotate(dir, now.AddDate(0, 1, 0))
	require.NoError(t, err)
	require.Equal(t, "key "+ring[0].ID+" of 2026-02-02 signs\nkey "+ring[1].ID+" of 2026-01-02 is still accepted\n", ring.Describe())
	require.Len(t, ring.Document().Keys, 2)
	require.NotContains(t, ring.Describe(), ring[0].Text())
}
