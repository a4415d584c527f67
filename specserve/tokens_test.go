package specserve_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
)

// The whole life of a node's tokens, over the wire: it joins, renews, is revoked, and joins again.
func TestS8TokensOverTheWire(t *testing.T) {
	s := serve(t, unlimited())
	clock := func() time.Time { return time.Unix(s.now.Load(), 0) }
	ring, err := keys.Ensure(s.dir, clock())
	require.NoError(t, err)
	book, err := keys.OpenBook(s.dir)
	require.NoError(t, err)
	c, found := specserve.MakeCatalog(specserve.CatalogInput{Site: site(), Commit: "a", Policies: s.set})
	require.Empty(t, found)
	s.Publish(specserve.View{Catalog: c, Keys: ring.Tokens(), Book: book, Access: s.access, Pins: s.pins})
	mint := func() string {
		m, err := keys.Mint(s.dir, "own", "own", keys.TokenLifetime, clock())
		require.NoError(t, err)
		return m.Token
	}
	fetch := func(text string) (next string) {
		t.Helper()
		got := s.ask("GET", "/spec/own", bearer(text)...)
		require.Equal(t, 200, got.status, got.body)
		var sent struct{ Token string }
		require.NoError(t, json.Unmarshal([]byte(got.body), &sent))
		return sent.Token
	}
	waits := func(text string) string {
		t.Helper()
		got := s.ask("GET", "/wait/own", append(bearer(text), "If-None-Match", `"other"`)...)
		require.Equal(t, 200, got.status, got.body)
		var sent specserve.Done
		require.NoError(t, json.Unmarshal([]byte(got.body), &sent))
		return sent.Status
	}
	join := mint()
	require.Equal(t, "token", waits(join), "it is to get its own first")
	own := fetch(join)
	require.NotEmpty(t, own)
	require.Empty(t, fetch(own))
	require.Equal(t, "spec", waits(own))
	s.now.Add(61)
	got := s.ask("GET", "/spec/own", bearer(join)...)
	require.Equal(t, "E301", got.code())
	require.Contains(t, s.log.String(), "good for one use")

	s.now.Add(8 * 24 * 3600) // it was off for a week
	require.Equal(t, "token", waits(own))
	next := fetch(own)
	require.NotEmpty(t, next)
	require.Empty(t, fetch(next))
	require.Equal(t, "E303", s.ask("GET", "/spec/own", bearer(own)...).code(), "of the two only the newer one was renewed")

	_, err = keys.Revoke(s.dir, "own", clock())
	require.NoError(t, err)
	for _, path := range []string{"/spec/own", "/wait/own", "/agent/linux-amd64", "/site.git/info/refs?service=git-upload-pack"} {
		require.Equal(t, "E301", s.ask("GET", path, bearer(next)...).code(), path)
	}
	require.Equal(t, 200, s.ask("GET", "/spec/own", bearer(ownToken)...).status, "a token of the site is its own matter")
	require.NotEmpty(t, fetch(mint()))
}
