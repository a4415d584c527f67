package wire_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

const canary = "canary-token"

func whole(t *testing.T) wire.Parent {
	t.Helper()
	pins, err := wire.ParsePins([]string{strings.Repeat("0a", 32), strings.Repeat("0b", 32)})
	require.NoError(t, err)
	return wire.Parent{Identity: "edge", Server: "https://[fd00::1]:44443", Pins: pins, Token: canary}
}

func TestSaveAndLoad(t *testing.T) {
	name := filepath.Join(t.TempDir(), "etc", "homestak-gitops", "node.json")
	_, err := wire.LoadParent(name)
	require.ErrorIs(t, err, wire.ErrNoParent)
	p := whole(t)
	require.NoError(t, p.Save(name))
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	got, err := wire.LoadParent(name)
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

// Whoever may read the file could fetch the spec, so its mode is checked; and it is a file.
func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "node.json")
	require.NoError(t, whole(t).Save(name))
	for _, mode := range []fs.FileMode{0o640, 0o604, 0o620} {
		require.NoError(t, os.Chmod(name, mode))
		_, err := wire.LoadParent(name)
		require.ErrorContains(t, err, "chmod 600 "+name)
	}
	require.NoError(t, os.Chmod(name, 0o400))
	_, err := wire.LoadParent(name)
	require.NoError(t, err)
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(name, link))
	for _, other := range []string{link, dir} {
		_, err = wire.LoadParent(other)
		require.ErrorContains(t, err, "is not a regular file")
	}
	large := filepath.Join(dir, "large")
	require.NoError(t, os.WriteFile(large, make([]byte, 1<<20), 0o600))
	_, err = wire.LoadParent(large)
	require.ErrorContains(t, err, "1048576 bytes")
	require.NoError(t, os.WriteFile(large, []byte("{"), 0o600))
	_, err = wire.LoadParent(large)
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
		_, err := wire.ReadParent([]byte(text))
		require.ErrorContains(t, err, says, text)
		require.NotContains(t, err.Error(), "canary", text)
	}
	p, err := wire.ReadParent([]byte(`{"version":1,"identity":"edge","server":"https://a/","pins":[` + a + `]}`))
	require.NoError(t, err)
	require.Empty(t, p.Token, "the posture may need none")
}

// By hand the token is in a file, which is as private as node.json.
func TestByHand(t *testing.T) {
	want, name := whole(t), filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(name, []byte(canary+"\n"), 0o600))
	got, err := wire.ParentByHand("edge", want.Server, name, wire.PinTexts(want.Pins))
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, os.Chmod(name, 0o644))
	_, err = wire.ParentByHand("edge", want.Server, name, wire.PinTexts(want.Pins))
	require.ErrorContains(t, err, "chmod 600")
	got, err = wire.ParentByHand("edge", want.Server, "", wire.PinTexts(want.Pins))
	require.NoError(t, err)
	require.Empty(t, got.Token)
	_, err = wire.ParentByHand("edge", want.Server, "", nil)
	require.ErrorContains(t, err, "there are no pins")
	_, err = wire.ParentByHand("edge", "192.0.2.1", "", wire.PinTexts(want.Pins))
	require.ErrorContains(t, err, "want https://HOST:PORT")
	_, err = wire.ParentByHand("edge", want.Server, name+"x", wire.PinTexts(want.Pins))
	require.ErrorIs(t, err, fs.ErrNotExist)
}
