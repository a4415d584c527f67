package model_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
)

// The key of an owner follows from the name of the site and his own alone. The vectors are from another implementation of
// HKDF (RFC 5869), with the salt "homestak-gitops ownership 1": with other values no guest there is would be proved.
func TestS1DerivedKeys(t *testing.T) {
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(i)
	}
	for owner, want := range map[string]string{
		"father": "5dedb82deda7c09836a8d470b399933e9f6ccae7d7cbb3f5f56512814c001807",
		"inner":  "2ab6706f92230cbfb222bc91ecfc8815af657f9e480f299d45b04881d2426191",
	} {
		require.Equal(t, want, hex.EncodeToString(model.DeriveOwnershipKey(key, "home", owner)))
	}
	require.NotEqual(t, model.DeriveOwnershipKey(key, "home", "father"), model.DeriveOwnershipKey(key, "other", "father"))
	require.NotEqual(t, model.DeriveOwnershipKey(key, "a", "b"), model.DeriveOwnershipKey(key, "ab", ""))
}

func secretsOf(auth map[string]string) *model.Secrets {
	return &model.Secrets{Values: map[string]map[string]string{"auth": auth}}
}

// Whoever has the key of the site has the keys of all owners, and two at once during a rotation. Whoever has derived ones
// has those, and nothing else.
func TestS1KeysOfAnOwner(t *testing.T) {
	now, before := strings.Repeat("0a", 32), strings.Repeat("0b", 32)
	site := secretsOf(map[string]string{"ownership_key": now, "ownership_key_previous": before})
	keys := site.OwnershipKeys("home", "father")
	require.Len(t, keys, 2)
	current, err := model.ParseOwnershipKey(now)
	require.NoError(t, err)
	require.Equal(t, model.DeriveOwnershipKey(current, "home", "father"), keys[0], "the current one comes first")
	require.False(t, site.OwnershipKeyMissing("home", "cli:ops@laptop"))

	given := secretsOf(site.DerivedOwnershipKeys("home", "father"))
	require.Equal(t, keys, given.OwnershipKeys("home", "father"))
	require.Equal(t, given.Values["auth"], given.DerivedOwnershipKeys("home", "father"), "they are passed on as they are")
	require.Empty(t, given.OwnershipKeys("home", "mother"))
	require.True(t, given.OwnershipKeyMissing("home", "mother"))

	for name, c := range map[string]struct {
		secrets      *model.Secrets
		has, missing bool
	}{
		"no secrets":        {nil, false, false},
		"no key":            {secretsOf(map[string]string{"site_token": "x"}), false, false},
		"a name alone":      {secretsOf(map[string]string{"ownership_key": ""}), true, true},
		"that of another":   {secretsOf(map[string]string{"ownership_keys.mother": now}), true, true},
		"its own, derived":  {secretsOf(map[string]string{"ownership_key": "", "ownership_keys.father": now}), true, false},
		"only the previous": {secretsOf(map[string]string{"ownership_key_previous": now}), true, false},
	} {
		require.Equal(t, c.has, c.secrets.HasOwnershipKey(), name)
		require.Equal(t, c.missing, c.secrets.OwnershipKeyMissing("home", "father"), name)
	}
}

// A new key is another one each time, and no error shows what was read.
func TestS1NewKey(t *testing.T) {
	a, b := model.NewOwnershipKey(), model.NewOwnershipKey()
	require.NotEqual(t, a, b)
	_, err := model.ParseOwnershipKey(a)
	require.NoError(t, err)
	for _, bad := range []string{"", "canary", a + "00", a[:62], "zz" + a[2:]} {
		_, err := model.ParseOwnershipKey(bad)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "canary")
		require.NotContains(t, err.Error(), "'z'")
	}
}
