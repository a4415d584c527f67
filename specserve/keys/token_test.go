package keys_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// at is when the tokens here are minted.
var at = time.Unix(1767225600, 0)

func key(t *testing.T, digit string) keys.Key {
	t.Helper()
	k, err := keys.ParseKey(strings.Repeat(digit, 64))
	require.NoError(t, err)
	return k
}

func mint(t *testing.T, k keys.Key, c keys.Claims) string {
	t.Helper()
	text, err := keys.MintToken(k, c)
	require.NoError(t, err)
	return text
}

// The golden vectors, of the key aaaa….
const (
	vectorPredecessor = "eyJ2IjoxLCJuIjoiZWRnZSIsInMiOiJiYXNlIiwiaWF0IjoxNzY3MjI1NjAwfQ.6lYeuOaP1HxpGL92syVDVpbLd1ljUGiZSZ3vmZZ-qpk"
	vectorWhole       = "eyJ2IjoxLCJuIjoiZWRnZSIsInMiOiJiYXNlIiwiaWF0IjoxNzY3MjI1NjAwLCJleHAiOjE3NjczMTIwMDAsImtpZCI6IjA5YTJhNzc5In0.u8BSJPsD9--sV4JEBQ31ulS0uDSGimdSGYKvZ-BeBwA"
)

func code(err error) wire.Code {
	if err == nil {
		return ""
	}
	return wire.CodeOf(err)
}

// The vectors were made with another implementation (Python's hmac, json and base64).
func TestGoldenVectors(t *testing.T) {
	k := key(t, "a")
	require.Equal(t, "09a2a779", k.ID)
	for _, v := range []struct {
		name   string
		key    keys.Key
		claims keys.Claims
		want   string
	}{
		{"as the predecessor mints", k.Predecessor(), keys.Claims{Node: "edge", Spec: "base", Issued: at.Unix()}, vectorPredecessor},
		{"with our keys", k, keys.Claims{Node: "edge", Spec: "base", Issued: at.Unix(), Expires: at.Unix() + 86400}, vectorWhole},
	} {
		got := mint(t, v.key, v.claims)
		require.Equal(t, v.want, got, v.name)
		v.claims.Version, v.claims.Key = keys.TokenVersion, v.key.ID
		c, err := keys.Keys{v.key}.Verify(got, "edge", at)
		require.NoError(t, err, v.name)
		require.Equal(t, v.claims, c, v.name)
		c, err = keys.InspectToken(got)
		require.NoError(t, err, v.name)
		require.Equal(t, v.claims, c, v.name)
	}
	require.Len(t, vectorPredecessor, 106)
}

// Every step of the verification, in its order: each token also has all that later steps refuse.
func TestOrderOfVerification(t *testing.T) {
	k, old, other := key(t, "a"), key(t, "b"), key(t, "c")
	signingKeys := keys.Keys{k, old}
	signed := func(k keys.Key, payload string) string {
		// Mint makes no wrong payload, so the signature is borrowed from the test's own HMAC.
		p := base64.RawURLEncoding.EncodeToString([]byte(payload))
		return p + "." + base64.RawURLEncoding.EncodeToString(sign(t, k, p))
	}
	good := mint(t, k, keys.Claims{Node: "edge", Spec: "base", Issued: at.Unix(), Expires: at.Unix() + 10})
	head, tail, _ := strings.Cut(good, ".")
	for _, c := range []struct {
		name, text string
		code       wire.Code
		says       string
	}{
		{"absent", "", wire.CodeNoCredential, "there is no token"},
		{"one segment", head, wire.CodeNoCredential, "two segments"},
		{"three segments", good + ".x", wire.CodeNoCredential, "two segments"},
		{"too long", strings.Repeat("a", 5000), wire.CodeNoCredential, "too long"},
		{"payload with padding", head + "=." + tail, wire.CodeNoCredential, "payload of the token is not base64url"},
		{"payload with a line break", head[:8] + "\n" + head[8:] + "." + tail, wire.CodeNoCredential, "payload of the token is not base64url"},
		{"signature with other letters", head + "." + tail[:42] + "+", wire.CodeNoCredential, "signature of the token is not base64url"},
		{"signature with stray bits", head + "." + tail[:42] + "_", wire.CodeNoCredential, "signature of the token is not base64url"},
		{"payload that is not JSON", "AAAA." + tail, wire.CodeNoCredential, "payload of the token is not what it should be"},
		{"payload that is a list", base64.RawURLEncoding.EncodeToString([]byte("[]")) + "." + tail, wire.CodeNoCredential, "payload of the token"},
		{"unknown key", mint(t, other, keys.Claims{Node: "edge", Spec: "base"}), wire.CodeRefused, "a key that this server does not have"},
		{"key of the predecessor, without one", mint(t, k.Predecessor(), keys.Claims{Node: "edge", Spec: "base"}), wire.CodeRefused, "a key that this server does not have"},
		{"empty signature", head + ".", wire.CodeRefused, "signature of the token is not valid"},
		{"kid of one key, signature of another", signed(old, `{"v":2,"kid":"`+k.ID+`"}`), wire.CodeRefused, "signature of the token is not valid"},
		{"version 2", signed(k, `{"v":2,"kid":"`+k.ID+`"}`), wire.CodeNoCredential, "version 2"},
		{"no node", signed(k, `{"v":1,"s":"base","exp":1,"kid":"`+k.ID+`"}`), wire.CodeNoCredential, "does not name a node"},
		{"no spec", signed(k, `{"v":1,"n":"web","exp":1,"kid":"`+k.ID+`"}`), wire.CodeNoCredential, "does not name a node"},
		{"expired", mint(t, k, keys.Claims{Node: "web", Spec: "base", Expires: at.Unix()}), wire.CodeExpired, "2026-01-01T00:00:00Z"},
		{"of another node", mint(t, k, keys.Claims{Node: "web", Spec: "base"}), wire.CodeNotYours, "another node"},
		{"good", good, "", ""},
		{"by the older key", mint(t, old, keys.Claims{Node: "edge", Spec: "base"}), "", ""},
	} {
		got, err := signingKeys.Verify(c.text, "edge", at)
		require.Equal(t, c.code, code(err), "%s: %v", c.name, err)
		if err != nil {
			require.ErrorContains(t, err, c.says, c.name)
			require.Empty(t, got, c.name)
			if len(c.text) > 20 {
				require.NotContains(t, err.Error(), c.text[:20], c.name)
			}
		}
	}
	_, err := keys.Keys(nil).Verify(good, "edge", at)
	require.Equal(t, wire.CodeRefused, code(err))
	_, err = keys.Keys{{}}.Verify(mint(t, k.Predecessor(), keys.Claims{Node: "edge", Spec: "base"}), "edge", at)
	require.Equal(t, wire.CodeRefused, code(err), "the zero key verifies nothing")
}

// No byte of a token can be another one.
func TestTamperedBytes(t *testing.T) {
	k := key(t, "a")
	good := mint(t, k, keys.Claims{Node: "edge", Spec: "base", Issued: at.Unix()})
	for i := range good {
		for _, b := range []byte("Az09-_.=+ \n\x00") {
			if good[i] == b {
				continue
			}
			_, err := keys.Keys{k}.Verify(good[:i]+string(b)+good[i+1:], "edge", at)
			require.Contains(t, []wire.Code{wire.CodeNoCredential, wire.CodeRefused}, code(err), "byte %d is %q", i, b)
		}
	}
}

func TestDue(t *testing.T) {
	k, old := key(t, "a"), key(t, "b")
	signingKeys := keys.Keys{k, old}
	claims := keys.Claims{Issued: at.Unix(), Expires: at.Unix() + 100, Key: k.ID}
	require.False(t, signingKeys.Due(claims, at.Add(49*time.Second)))
	require.True(t, signingKeys.Due(claims, at.Add(50*time.Second)))
	require.True(t, signingKeys.Due(keys.Claims{Key: old.ID}, at), "the older key")
	require.True(t, signingKeys.Due(keys.Claims{}, at), "the predecessor")
	require.False(t, signingKeys.Due(keys.Claims{Key: k.ID}, at.Add(time.Hour)), "it never expires")
}

// A token from the future counts, since a clock that was set back must not lock nodes out. It is replaced at once, or one from a
// clock that was ahead by a year would be good for a year.
func TestS7ClockTokensFromTheFuture(t *testing.T) {
	k := key(t, "a")
	signingKeys := keys.Keys{k}
	text := mint(t, k, keys.Claims{Node: "inner", Spec: "base", Issued: at.Unix(), Expires: at.Add(keys.TokenLifetime).Unix(), Number: 1})
	for back, due := range map[time.Duration]bool{
		0: false, time.Minute: false, keys.Skew: false, keys.Skew + time.Second: true, 24 * time.Hour: true, 20 * 365 * 24 * time.Hour: true,
	} {
		c, err := signingKeys.Verify(text, "inner", at.Add(-back))
		require.NoError(t, err, back)
		require.Equal(t, due, signingKeys.Due(c, at.Add(-back)), back)
	}
	require.False(t, signingKeys.Due(keys.Claims{Issued: at.Unix(), Key: k.ID, Number: 1}, at.AddDate(-1, 0, 0)), "one without an end is never replaced")
}

func TestMintRefuses(t *testing.T) {
	k := key(t, "a")
	for _, c := range []struct {
		key    keys.Key
		claims keys.Claims
		says   string
	}{
		{keys.Key{}, keys.Claims{Node: "edge", Spec: "base"}, "no signing key"},
		{k, keys.Claims{Spec: "base"}, "needs the names"},
		{k, keys.Claims{Node: "edge"}, "needs the names"},
		{k, keys.Claims{Node: strings.Repeat("n", 800), Spec: "base"}, "1024 are the most"},
	} {
		_, err := keys.MintToken(c.key, c.claims)
		require.ErrorContains(t, err, c.says)
	}
}

// A key is 32 bytes, and nothing that prints one shows it.
func TestKeys(t *testing.T) {
	for _, bad := range []string{"", "abc", strings.Repeat("a", 62), strings.Repeat("a", 66), strings.Repeat("g", 64), strings.Repeat("0", 64)} {
		_, err := keys.ParseKey(bad)
		require.Error(t, err, bad)
		if len(bad) > 3 {
			require.NotContains(t, err.Error(), bad)
		}
	}
	k := keys.NewKey()
	require.NotEqual(t, k, keys.NewKey())
	again, err := keys.ParseKey(k.Text() + "\n")
	require.NoError(t, err)
	require.Equal(t, k, again)
	for _, shown := range []string{fmt.Sprint(k), fmt.Sprintf("%+v", k), fmt.Sprintf("%#v", k), fmt.Sprintf("%v", keys.Keys{k}), fmt.Sprintf("%x", k)} {
		require.NotContains(t, shown, k.Text()[:8])
	}
}

// Whatever a request has, it is refused with a code of credentials, and only a signed one is not.
func FuzzVerify(f *testing.F) {
	k, err := keys.ParseKey(strings.Repeat("a", 64))
	require.NoError(f, err)
	f.Add(vectorPredecessor)
	f.Add(vectorWhole)
	f.Add("a.b")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"v":1,"n":"edge","s":"base","kid":"09a2a779"}`)) + ".AAAA")
	keys := keys.Keys{k, k.Predecessor()}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := keys.Verify(text, "edge", at)
		if err == nil {
			require.Contains(t, []string{vectorPredecessor, vectorWhole}, text, "a signature was forged")
			require.Equal(t, "edge", c.Node)
			return
		}
		require.Contains(t, []wire.Code{wire.CodeNoCredential, wire.CodeRefused, wire.CodeNotYours, wire.CodeExpired}, wire.CodeOf(err))
		require.Empty(t, c)
	})
}

// raw is a key as bytes.
func raw(t *testing.T, k keys.Key) []byte {
	t.Helper()
	b, err := hex.DecodeString(k.Text())
	require.NoError(t, err)
	return b
}

func sign(t *testing.T, k keys.Key, payload string) []byte {
	t.Helper()
	mac := hmac.New(sha256.New, raw(t, k))
	mac.Write([]byte(payload))
	return mac.Sum(nil)
}
