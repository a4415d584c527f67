package keys_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/keys"
)

// A revocation is something new, also when a request noticed it first; a token that was minted is not.
func TestS8ARevocationIsNoticed(t *testing.T) {
	dir := t.TempDir()
	k, err := keys.OpenCredentials(keys.CredentialsOptions{Access: keys.Files{Dir: dir}, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	k.Check()
	require.False(t, k.Check())
	minted, err := keys.Mint(dir, "web-1", "base", time.Hour, time.Now())
	require.NoError(t, err)
	require.False(t, k.Check(), "nobody waits for that")
	_, err = keys.Revoke(dir, "web-1", time.Now())
	require.NoError(t, err)
	_, err = k.Ring().Tokens().VerifyBy(k.Book(), minted.Token, "web-1", time.Now())
	require.ErrorContains(t, err, "revoked")
	require.True(t, k.Check())
	require.False(t, k.Check())
}
