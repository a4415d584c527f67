package wire_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

var pins = []string{"sha256:" + strings.Repeat("0a", 32), "sha256:" + strings.Repeat("0b", 32)}

// The answer is the spec with three members more.
func TestSpecDocument(t *testing.T) {
	s, err := spec.Read([]byte(`{"version":1,"node":"edge","spec":"base","platform":{"packages":["jq"]}}`))
	require.NoError(t, err)
	answer := wire.Spec{Spec: s, Pins: pins, Token: "t", Agent: map[string]string{"linux-amd64": strings.Repeat("0c", 32)}}
	b, err := answer.Document()
	require.NoError(t, err)
	require.JSONEq(t, `{"version":1,"node":"edge","spec":"base","identity":{},"access":{},"posture":{},"platform":{"packages":["jq"]},"config":{},
		"pins":["`+pins[0]+`","`+pins[1]+`"],"token":"t","agent":{"linux-amd64":"`+strings.Repeat("0c", 32)+`"}}`, string(b))

	got, err := wire.ReadSpec(b, "edge")
	require.NoError(t, err)
	require.Equal(t, pins, wire.PinTexts(got.Pins))
	require.Equal(t, "t", got.Token)
	again, err := spec.Read(got.Spec)
	require.NoError(t, err)
	require.Equal(t, s, again)

	tag, err := answer.ETag()
	require.NoError(t, err)
	require.Regexp(t, `^"[0-9a-f]{64}"$`, tag)
	answer.Token = ""
	same, err := answer.ETag()
	require.NoError(t, err)
	require.Equal(t, tag, same, "a new token is no new spec")
	answer.Pins = pins[:1]
	other, err := answer.ETag()
	require.NoError(t, err)
	require.NotEqual(t, tag, other, "new pins must arrive")
}

// A server that is newer than the child says more; what it says is kept.
func TestNewerServer(t *testing.T) {
	got, err := wire.ReadSpec([]byte(`{"zoo":[1, 2],"version":1,"node":"edge","spec":"base","pins":["`+pins[0]+`"]}`), "edge")
	require.NoError(t, err)
	require.JSONEq(t, `{"node":"edge","spec":"base","version":1,"zoo":[1,2]}`, string(got.Spec))
}

func TestReadSpecRefuses(t *testing.T) {
	for body, says := range map[string]string{
		``:                                       "not a JSON document",
		`[]`:                                     "not a JSON document",
		`{"version":1,"node":"edge","pins":"x"}`: "not what it should be",
		`{"version":9,"node":"edge","pins":["` + pins[0] + `"]}`:                             "version 9",
		`{"version":1,"node":"web","pins":["` + pins[0] + `"]}`:                              `the spec of "web", and "edge" was asked for`,
		`{"version":1,"node":"edge"}`:                                                        "no good pins",
		`{"version":1,"node":"edge","pins":["x"]}`:                                           "no good pins",
		`{"version":1,"node":"edge","pins":["` + pins[0] + `"],"token":"a b"}`:               "a token that cannot be sent",
		`{"version":1,"node":"edge","pins":["` + pins[0] + `"],"agent":{"linux-amd64":"x"}}`: "no checksum of the agent",
	} {
		_, err := wire.ReadSpec([]byte(body), "edge")
		require.ErrorContains(t, err, says, body)
	}
}

func TestToken(t *testing.T) {
	h := http.Header{}
	wire.SetToken(h, "")
	require.Empty(t, h)
	wire.SetToken(h, "abc")
	require.Equal(t, "Bearer abc", h.Get("Authorization"))
	for value, want := range map[string]string{"Bearer abc": "abc", "bearer abc ": "abc", "Basic abc": "", "Bearer": "", "Bearer ": "", "abc": "", "": ""} {
		h.Set("Authorization", value)
		require.Equal(t, want, wire.Token(h), value)
	}
	require.Equal(t, "/spec/a%2F..%2Fb", wire.SpecPath("a/../b"))
	require.Equal(t, "/agent/linux-amd64", wire.AgentPath("linux", "amd64"))
}

// An answer is refused, or it is a spec of that node without what is not part of it.
func FuzzReadSpec(f *testing.F) {
	f.Add([]byte(`{"version":1,"node":"edge","spec":"base","pins":["` + pins[0] + `"],"token":"t","agent":{}}`))
	f.Add([]byte(`{"version":1,"node":"edge","Token":"t","PINS":["` + pins[0] + `"]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := wire.ReadSpec(body, "edge")
		if err != nil {
			return
		}
		s, err := spec.Read(got.Spec)
		require.NoError(t, err)
		require.Equal(t, "edge", s.Node)
		require.NotEmpty(t, got.Pins)
		var members map[string]any
		require.NoError(t, json.Unmarshal(got.Spec, &members))
		for _, name := range []string{"pins", "token", "agent"} {
			require.NotContains(t, members, name)
		}
	})
}
