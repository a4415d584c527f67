package site

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
)

func TestFindWord(t *testing.T) {
	for _, c := range []struct {
		text, word string
		found      bool
	}{
		{"host web down", "web", true},
		{"web.example.com", "web", true},
		{"http://web:80/", "web", true},
		{"web-2 cobweb web_a Web", "web", false},
		{"web-2, web", "web", true},
		{"10.0.0.100", "100", false},
		{"vmid: 100.", "100", true},
		{"vm-100-disk-0", "100", false},
		{"1100 1001", "100", false},
		{"10.0.0.5/24", "10.0.0.5", true},
		{"10.0.0.5:22", "10.0.0.5", true},
		{"10.0.0.51 110.0.0.5", "10.0.0.5", false},
		{"is 10.0.0.5.", "10.0.0.5", true},
		{"2001:db8::5", "2001:db8::5", true},
	} {
		require.Equal(t, c.found, findWord([]byte(c.text), c.word) >= 0, "%q in %q", c.word, c.text)
	}
}

func TestReferences(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("registry/hosts", "# hosts\n10.0.0.5 web\n")
	write("registry/.git/index", "db")
	write("dns", "one\nmail IN A 10.0.0.9\n")
	web, db, mail := model.Address{Kind: "vm", Name: "web"}, model.Address{Kind: "vm", Name: "db"}, model.Address{Kind: "vm", Name: "mail"}
	words := map[model.Address][]string{web: {"web", "10.0.0.5"}, db: {"db", "10001"}, mail: {"mail"}}
	r := references{fstest.MapFS{"docs/a.md": {Data: []byte("see web-2")}, "docs/b.md": {Data: []byte("\n\nVM 10001")}}, []string{filepath.Join(dir, "registry"), filepath.Join(dir, "dns"), "docs"}}
	got := r.find(t.Context(), words)
	require.Equal(t, map[model.Address]string{
		web:  "it is still referenced at " + dir + "/registry/hosts:2 (10.0.0.5), " + dir + "/registry/hosts:2 (web)",
		db:   "it is still referenced at docs/b.md:3 (10001)",
		mail: "it is still referenced at " + dir + "/dns:2 (mail)",
	}, got)

	other := model.Address{Kind: "vm", Name: "other"}
	require.Empty(t, r.find(t.Context(), map[model.Address][]string{other: {"other"}}))
	r.paths = append(r.paths, filepath.Join(dir, "gone"))
	got = r.find(t.Context(), map[model.Address][]string{other: {"other"}})
	require.Contains(t, got[other], "whether it is still referenced is unknown: "+dir+"/gone could not be searched", "what cannot be read is no proof of absence")
	write("large", strings.Repeat("x", mostReferenceFile+1))
	r.paths = []string{filepath.Join(dir, "large")}
	require.Contains(t, r.find(t.Context(), map[model.Address][]string{other: {"other"}})[other], "more than 8 MiB")
}

// A path that is no file was searched as an empty one.
func TestADeviceIsNotSearched(t *testing.T) {
	web := model.Address{Kind: "vm", Name: "web"}
	got := references{fstest.MapFS{}, []string{os.DevNull}}.find(t.Context(), map[model.Address][]string{web: {"web"}})
	require.Contains(t, got[web], "it is neither a file nor a folder")
}
