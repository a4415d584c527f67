package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

var pins = []string{"sha256:" + strings.Repeat("0a", 32), "sha256:" + strings.Repeat("0b", 32)}

// The answer is the spec with three members more.
func TestSpecDocument(t *testing.T) {
	s, err := spec.Read([]byte(`{"version":1,"node":"edge","spec":"base","platform":{"packages":["jq"]}}`))
	require.NoError(t, err)
	answer := Spec{Spec: s, Pins: pins, Token: "t", Agent: map[string]string{"linux-amd64": strings.Repeat("0c", 32)}}
	b, err := json.Marshal(answer)
	require.NoError(t, err)
	require.JSONEq(t, `{"version":1,"node":"edge","spec":"base","identity":{},"access":{},"posture":{},"platform":{"packages":["jq"]},"config":{},
		"pins":["`+pins[0]+`","`+pins[1]+`"],"token":"t","agent":{"linux-amd64":"`+strings.Repeat("0c", 32)+`"}}`, string(b))

	got, err := ReadSpec(b, "edge")
	require.NoError(t, err)
	require.Equal(t, pins, PinTexts(got.Pins))
	require.Equal(t, "t", got.Token)
	again, err := spec.Read(got.Spec)
	require.NoError(t, err)
	require.Equal(t, s, again)
}

// A server that is newer than the child says more; what it says is kept.
func TestNewerServer(t *testing.T) {
	got, err := ReadSpec([]byte(`{"zoo":[1, 2],"version":1,"node":"edge","spec":"base","pins":["`+pins[0]+`"]}`), "edge")
	require.NoError(t, err)
	require.JSONEq(t, `{"node":"edge","spec":"base","version":1,"zoo":[1,2]}`, string(got.Spec))
}

func TestReadSpecRefuses(t *testing.T) {
	for body, says := range map[string]string{
		``:                                       "not a JSON document",
		`[]`:                                     "not a JSON document",
		`{"version":1,"node":"edge","pins":"x"}`: "is not valid",
		`{"version":9,"node":"edge","pins":["` + pins[0] + `"]}`:                             "version 9",
		`{"version":1,"node":"web","pins":["` + pins[0] + `"]}`:                              `the spec of "web", and "edge" was asked for`,
		`{"version":1,"node":"edge"}`:                                                        "no good pins",
		`{"version":1,"node":"edge","pins":["x"]}`:                                           "no good pins",
		`{"version":1,"node":"edge","pins":["` + pins[0] + `"],"token":"a b"}`:               "a token that cannot be sent",
		`{"version":1,"node":"edge","pins":["` + pins[0] + `"],"agent":{"linux-amd64":"x"}}`: "no checksum of the agent",
	} {
		_, err := ReadSpec([]byte(body), "edge")
		require.ErrorContains(t, err, says, body)
	}
}

func TestToken(t *testing.T) {
	h := http.Header{}
	SetToken(h, "")
	require.Empty(t, h)
	SetToken(h, "abc")
	require.Equal(t, "Bearer abc", h.Get("Authorization"))
	for value, want := range map[string]string{"Bearer abc": "abc", "bearer abc ": "abc", "Basic abc": "", "Bearer": "", "Bearer ": "", "abc": "", "": ""} {
		h.Set("Authorization", value)
		require.Equal(t, want, Token(h), value)
	}
	require.Equal(t, "/spec/a%2F..%2Fb", SpecPath.Of("a/../b"))
	require.Equal(t, "/agent/linux-amd64", AgentPath.Of("linux-amd64"))
}

// An answer is refused, or it is a spec of that node without what is not part of it.
func FuzzReadSpec(f *testing.F) {
	f.Add([]byte(`{"version":1,"node":"edge","spec":"base","pins":["` + pins[0] + `"],"token":"t","agent":{}}`))
	f.Add([]byte(`{"version":1,"node":"edge","Token":"t","PINS":["` + pins[0] + `"]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := ReadSpec(body, "edge")
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

func TestBackoff(t *testing.T) {
	near := func(want, got time.Duration) {
		t.Helper()
		require.InDelta(t, want, got, float64(want)/5)
	}
	b := Backoff{Most: 2 * time.Minute}
	for range 2 {
		for _, want := range []time.Duration{5, 10, 20, 40, 80, 120, 120} {
			near(want*time.Second, b.Next())
		}
		b.Reset()
	}
	first := b.Next()
	require.Eventually(t, func() bool { b.Reset(); return b.Next() != first }, time.Minute, time.Nanosecond, "clients do not come together")
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.True(t, Sleep(t.Context(), time.Hour, nil))
		require.Equal(t, time.Hour, time.Since(began))
		before := make(chan struct{}, 1)
		before <- struct{}{}
		require.True(t, Sleep(t.Context(), time.Hour, before))
		ended, end := context.WithCancel(t.Context())
		end()
		require.False(t, Sleep(ended, time.Hour, nil))
		require.Equal(t, time.Hour, time.Since(began))
	})
}

const canary = "canary-token"

func whole(t *testing.T) Parent {
	t.Helper()
	pins, err := ParsePins([]string{strings.Repeat("0a", 32), strings.Repeat("0b", 32)})
	require.NoError(t, err)
	return Parent{Identity: "edge", Server: "https://[fd00::1]:44443", Pins: pins, Token: canary}
}

func TestSaveAndLoad(t *testing.T) {
	name := filepath.Join(t.TempDir(), "etc", "homestak-gitops", "node.json")
	_, err := LoadParent(name)
	require.ErrorIs(t, err, ErrNoParent)
	p := whole(t)
	require.NoError(t, p.Save(name))
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	got, err := LoadParent(name)
	require.NoError(t, err)
	require.Equal(t, p, got)
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, `{
  "version": 1,
  "identity": "edge",
  "server": "https://[fd00::1]:44443",
  "pins": [
    "sha256:`+strings.Repeat("0a", 32)+`",
    "sha256:`+strings.Repeat("0b", 32)+`"
  ],
  "token": "canary-token"
}
`, string(b))

	p.Server = "http://x"
	require.ErrorContains(t, p.Save(name), "want https://HOST:PORT")
	for _, shown := range []string{fmt.Sprint(p), fmt.Sprintf("%+v", p), fmt.Sprintf("%#v", p)} {
		require.NotContains(t, shown, canary)
	}
}

// A reader of the file could fetch the spec, so its mode is checked; and it must be a file.
func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "node.json")
	require.NoError(t, whole(t).Save(name))
	for _, mode := range []fs.FileMode{0o640, 0o604, 0o620} {
		require.NoError(t, os.Chmod(name, mode))
		_, err := LoadParent(name)
		require.ErrorContains(t, err, "chmod 600 "+name)
	}
	require.NoError(t, os.Chmod(name, 0o400))
	_, err := LoadParent(name)
	require.NoError(t, err)
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(name, link))
	for _, other := range []string{link, dir} {
		_, err = LoadParent(other)
		require.ErrorContains(t, err, "is not a regular file")
	}
	large := filepath.Join(dir, "large")
	require.NoError(t, os.WriteFile(large, make([]byte, 1<<20), 0o600))
	_, err = LoadParent(large)
	require.ErrorContains(t, err, "1048576 bytes")
	require.NoError(t, os.WriteFile(large, []byte("{"), 0o600))
	_, err = LoadParent(large)
	require.ErrorContains(t, err, large+": it is not the JSON document")
}

// Every mistake is named, and the token is not shown.
func TestReadIsStrict(t *testing.T) {
	good := string(whole(t).Document())
	edit := func(old, with string) string {
		require.Contains(t, good, old)
		return strings.Replace(good, old, with, 1)
	}
	a := `"sha256:` + strings.Repeat("0a", 32) + `"`
	for text, says := range map[string]string{
		"":                                   "EOF",
		"[]":                                 "not the JSON document",
		"nil":                                "not the JSON document",
		good + "{}":                          "something follows",
		edit(`"version": 1`, `"version": 2`): "version is 2",
		edit(`"identity"`, `"extra": 1, "identity"`):                `unknown field "extra"`,
		edit(`"edge"`, `""`):                                        "not the name of a node",
		edit(`"edge"`, `"../x"`):                                    "not the name of a node",
		edit(`"edge"`, `7`):                                         "not the JSON document",
		edit(`https://[fd00::1]:44443`, `http://a:1`):               "want https://HOST:PORT",
		edit(`https://[fd00::1]:44443`, `https://a:1/x`):            "nothing behind it",
		edit(`https://[fd00::1]:44443`, `https://a:1?q`):            "nothing behind it",
		edit(`https://[fd00::1]:44443`, `https://u:`+canary+`@a:1`): "nothing behind it",
		edit(`https://[fd00::1]:44443`, `https://:1`):               "names no host",
		edit(`https://[fd00::1]:44443`, `https://a:99999`):          "names no host",
		edit(`https://[fd00::1]:44443`, `https://a:x`):              "not a URL",
		edit(a, `"x"`):                             "is not a pin",
		edit(`"canary-token"`, `"canary token"`):   "characters that a token does not have",
		edit(`"canary-token"`, `"canary-token\n"`): "characters that a token does not have",
		`{"version":1,"identity":"edge","server":"https://a:1","pins":[],"token":"canary-token"}`: "there are no pins",
	} {
		_, err := ReadParent([]byte(text))
		require.ErrorContains(t, err, says, text)
		require.NotContains(t, err.Error(), "canary", text)
	}
	p, err := ReadParent([]byte(`{"version":1,"identity":"edge","server":"https://a/","pins":[` + a + `]}`))
	require.NoError(t, err)
	require.Empty(t, p.Token, "the posture may need none")
}

// By hand the token is in a file, which is as private as node.json.
func TestByHand(t *testing.T) {
	want, name := whole(t), filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(name, []byte(canary+"\n"), 0o600))
	got, err := ParentByHand("edge", want.Server, name, PinTexts(want.Pins))
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, os.Chmod(name, 0o644))
	_, err = ParentByHand("edge", want.Server, name, PinTexts(want.Pins))
	require.ErrorContains(t, err, "chmod 600")
	got, err = ParentByHand("edge", want.Server, "", PinTexts(want.Pins))
	require.NoError(t, err)
	require.Empty(t, got.Token)
	_, err = ParentByHand("edge", want.Server, "", nil)
	require.ErrorContains(t, err, "there are no pins")
	_, err = ParentByHand("edge", "192.0.2.1", "", PinTexts(want.Pins))
	require.ErrorContains(t, err, "want https://HOST:PORT")
	_, err = ParentByHand("edge", want.Server, name+"x", PinTexts(want.Pins))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestParse(t *testing.T) {
	digits := strings.Repeat("0a", 32)
	for _, text := range []string{digits, "sha256:" + digits, " sha256:" + strings.ToUpper(digits) + "\n"} {
		p, err := ParsePin(text)
		require.NoError(t, err)
		require.Equal(t, "sha256:"+digits, p.String())
	}
	for _, bad := range []string{"", "sha256:", "sha1:" + digits, digits[2:], digits + "00", strings.Repeat("zz", 32)} {
		_, err := ParsePin(bad)
		require.ErrorContains(t, err, "is not a pin", bad)
	}
	a, b := "sha256:"+digits, "sha256:"+strings.Repeat("0b", 32)
	got, err := ParsePins([]string{a, b, digits})
	require.NoError(t, err)
	require.Equal(t, []string{a, b}, PinTexts(got))
	_, err = ParsePins(nil)
	require.ErrorContains(t, err, "there are no pins")
	many := []string{a, b, "sha256:" + strings.Repeat("0c", 32), "sha256:" + strings.Repeat("0d", 32), "sha256:" + strings.Repeat("0e", 32)}
	_, err = ParsePins(many)
	require.ErrorContains(t, err, "5 pins, 4 are the most")
}

// The codes and their status are a contract with children of other versions.
func TestTable(t *testing.T) {
	var got []string
	for _, k := range allProblems() {
		require.NotEmpty(t, k.Message, k.Code)
		require.NotEmpty(t, k.Hint, k.Code)
		require.Equal(t, k, k.Code.Kind())
		got = append(got, fmt.Sprintf("%s %d", k.Code, k.Status))
	}
	require.Equal(t, []string{
		"E100 404", "E101 400", "E200 404", "E201 404", "E202 404", "E300 401", "E301 401", "E302 403", "E303 401",
		"E400 422", "E429 429", "E500 500", "E501 0",
	}, got)
	require.Equal(t, CodeInternal, Code("E999").Kind().Code)
}

func TestError(t *testing.T) {
	err := error(Errorf(CodeConnection, "reading: %w", io.ErrUnexpectedEOF))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, "E501: reading: unexpected EOF\ncheck that the server runs, that its address is right, and that no firewall is in between", err.Error())
	require.Equal(t, CodeConnection, CodeOf(fmt.Errorf("fetching: %w", err)))
	require.Equal(t, CodeInternal, CodeOf(errors.New("any")))
	require.Equal(t, http.StatusForbidden, (&Error{Code: CodeNotYours}).Status())
	require.Equal(t, http.StatusInternalServerError, (&Error{Code: CodeConnection}).Status(), "what only a client notices is no answer")
}

// A client reads the documents of a server.
func TestBody(t *testing.T) {
	for _, k := range allProblems() {
		e := &Error{Code: k.Code}
		require.Equal(t, &Error{Code: k.Code, Message: k.Message, Hint: k.Hint}, ReadProblem(e.Status(), e.Body()))
	}
	require.JSONEq(t, `{"error":{"code":"E200","message":"no node \"web\"","hint":"check it"}}`,
		string((&Error{Code: CodeNotFound, Message: `no node "web"`, Hint: "check it"}).Body()))
}

// An answer may come from anybody, such as a proxy.
func TestReadAnything(t *testing.T) {
	for _, body := range []string{"<html>no", "", `{"error":{"code":"E9"}}`, `{"error":[]}`, `{"error":{"message":"x"}}`} {
		require.Equal(t, &Error{Code: CodeNoEndpoint, Message: "the server answered 404 Not Found"}, ReadProblem(http.StatusNotFound, []byte(body)), body)
	}
	require.Equal(t, CodeNotYours, ReadProblem(http.StatusNotFound, []byte(`{"error":{"code":"E302"}}`)).Code, "the document is more exact than the status")
	require.Equal(t, CodeInternal, ReadProblem(http.StatusBadGateway, nil).Code)
	require.Equal(t, CodeInternal, ReadProblem(http.StatusTeapot, nil).Code)
	long := ReadProblem(404, (&Error{Code: CodeNotFound, Message: "\x1b[31m" + strings.Repeat("ü", 400)}).Body())
	require.NotContains(t, long.Message, "\x1b")
	require.LessOrEqual(t, len(long.Message), 500+len("…"))
}
