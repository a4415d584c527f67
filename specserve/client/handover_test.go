package client

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// A host turns only to a server that proves that it knows the handover key, and shows that server nothing that another one takes.
func TestHandOver(t *testing.T) {
	key, other := []byte("the handover key of branch-7......"), []byte("another key.......................")
	var asked wire.Join
	var proves []byte // what the server knows
	var pin wire.Pin
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if json.NewDecoder(r.Body).Decode(&asked) != nil || r.Header.Get("Authorization") != "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		answer := wire.NewJoined("branch-7", "a-token", []string{pin.String()}, false, nil)
		if proves != nil {
			answer.Proof = wire.HandoverParent.Proof(proves, "branch-7", pin, asked.Key)
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer s.Close()
	pin = wire.PinOf(s.Certificate())
	c := &Client{Parent: wire.Parent{Identity: "branch-7", Server: s.URL, Token: "the-former-token"}}

	for _, wrong := range [][]byte{nil, other} {
		proves = wrong
		_, err := c.handOver(t.Context(), [][]byte{key})
		require.ErrorContains(t, err, "did not prove that it is a parent of this site")
	}
	require.NotEqual(t, asked.Proof, wire.HandoverChild.Proof(key, "branch-7", wire.Pin{1}, asked.Key), "it is worth nothing to a server in between")
	require.NotEqual(t, asked.Proof, wire.HandoverParent.Proof(key, "branch-7", pin, asked.Key), "nor as an answer")
	proves = key
	p, err := c.handOver(t.Context(), [][]byte{other, key})
	require.NoError(t, err)
	require.Equal(t, wire.Parent{Identity: "branch-7", Server: s.URL, Pins: []wire.Pin{pin}, Token: "a-token"}, p)
	_, err = c.handOver(t.Context(), nil)
	require.ErrorContains(t, err, "there is no handover key")
}
