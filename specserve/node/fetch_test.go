package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/node"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// served is a parent for tests: what it answers, and what it was asked.
type served struct {
	*httptest.Server
	pin    wire.Pin
	status int    // 0: 200
	spec   string // members of the spec
	etag   string
	pins   []wire.Pin // beside its own
	token  string
	tags   []string // of the requests
	tokens []string
}

func serve(t *testing.T) *served {
	t.Helper()
	s := &served{spec: `"version":1,"node":"web-1","spec":"base"`, etag: `"one"`}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.tags, s.tokens = append(s.tags, r.Header.Get("If-None-Match")), append(s.tokens, r.Header.Get("Authorization"))
		switch {
		case s.status != 0:
			w.WriteHeader(s.status)
		case r.Header.Get("If-None-Match") == s.etag && s.token == "":
			w.WriteHeader(http.StatusNotModified)
		default:
			pins, _ := json.Marshal(wire.PinTexts(append([]wire.Pin{s.pin}, s.pins...)))
			w.Header().Set("ETag", s.etag)
			_, _ = w.Write([]byte("{" + s.spec + `,"pins":` + string(pins) + `,"token":"` + s.token + `"}`))
		}
	}))
	t.Cleanup(s.Close)
	s.pin = wire.PinOf(s.Certificate())
	return s
}

// node is a child of the server, with its file.
func (s *served) node(t *testing.T) (node.Server, node.Folder) {
	t.Helper()
	dir := t.TempDir()
	p := wire.Parent{Identity: "web-1", Server: s.URL, Pins: []wire.Pin{s.pin}, Token: "first"}
	file := filepath.Join(dir, "node.json")
	require.NoError(t, p.Save(file))
	return node.Server{Client: &client.Client{Parent: p}, File: file}, node.Folder{Path: filepath.Join(dir, "state")}
}

// What was fetched is asked for by its tag, as long as it is what is stored.
func TestFetchByTag(t *testing.T) {
	s := serve(t)
	from, f := s.node(t)
	fetch := func(changed bool) {
		t.Helper()
		got, err := f.Fetch(t.Context(), from)
		require.NoError(t, err)
		require.Equal(t, changed, got)
	}
	fetch(true)
	fetch(false)
	require.Equal(t, []string{"", `"one"`}, s.tags)
	require.Equal(t, []string{"fetched.json", "spec.json"}, files(t, f))

	_, err := f.Store([]byte(two)) // by hand
	require.NoError(t, err)
	fetch(true)
	require.Equal(t, []string{"", `"one"`, ""}, s.tags, "that is not what the parent sent")
	require.NoError(t, os.Remove(filepath.Join(f.Path, "spec.json")))
	fetch(true)
	require.Empty(t, s.tags[3], "there is nothing to have a tag of")

	s.spec, s.etag = `"version":1,"node":"web-1","spec":"edge"`, `"two"`
	fetch(true)
	want, err := f.Spec()
	require.NoError(t, err)
	require.Equal(t, "edge", want.Name)
	before, err := os.ReadFile(filepath.Join(f.Path, "spec.prev.json"))
	require.NoError(t, err)
	require.JSONEq(t, `{"version":1,"node":"web-1","spec":"base"}`, string(before))
}

// Pins and token that the parent renews are used from then on, also where the spec is the same.
func TestFetchRenews(t *testing.T) {
	s := serve(t)
	from, f := s.node(t)
	_, err := f.Fetch(t.Context(), from)
	require.NoError(t, err)
	p, err := wire.LoadParent(from.File)
	require.NoError(t, err)
	require.Equal(t, from.Client.Parent, p, "nothing is new")

	next := wire.Pin{7}
	s.pins, s.token = []wire.Pin{next}, "second"
	changed, err := f.Fetch(t.Context(), from)
	require.NoError(t, err)
	require.False(t, changed)
	p, err = wire.LoadParent(from.File)
	require.NoError(t, err)
	require.Equal(t, []wire.Pin{s.pin, next}, p.Pins)
	require.Equal(t, "second", p.Token)

	from.Client = &client.Client{Parent: p}
	s.token = ""
	_, err = f.Fetch(t.Context(), from)
	require.NoError(t, err)
	require.Equal(t, []string{"Bearer first", "Bearer first", "Bearer second"}, s.tokens)
	again, err := wire.LoadParent(from.File)
	require.NoError(t, err)
	require.Equal(t, p, again, "an answer without a token leaves it")

	b, err := os.ReadFile(filepath.Join(f.Path, "fetched.json"))
	require.NoError(t, err)
	require.NotContains(t, string(b), "second")
}

// Where pins cannot be kept the answer is not taken: its tag would hide them from then on.
func TestFetchKeepsNothingWithoutPins(t *testing.T) {
	s := serve(t)
	from, f := s.node(t)
	s.token, from.File = "second", "/proc/nowhere/node.json"
	_, err := f.Fetch(t.Context(), from)
	require.ErrorContains(t, err, "keeping the new pins and token")
	_, err = f.Spec()
	require.ErrorIs(t, err, os.ErrNotExist)
}

// While the parent refuses, the spec that is here is applied, and both are recorded.
func TestRunWithoutAnswer(t *testing.T) {
	s := serve(t)
	from, f := s.node(t)
	s.status = http.StatusNotFound
	n := node.Node{Folder: f, Machine: broken{errors.New("the disk is full")}}
	fetch := func(ctx context.Context) error {
		_, err := f.Fetch(ctx, from)
		return err
	}
	_, _, err := n.Run(t.Context(), fetch)
	require.Equal(t, wire.CodeNoEndpoint, wire.CodeOf(err))
	require.NotErrorAs(t, err, new(*node.StaleError))
	failed, err := f.Failed()
	require.NoError(t, err)
	require.Equal(t, "E100", failed.Code)

	s.status = 0
	_, _, err = n.Run(t.Context(), fetch)
	require.ErrorContains(t, err, "the disk is full")
	failed, err = f.Failed()
	require.NoError(t, err)
	require.Equal(t, "E500", failed.Code)
	require.Equal(t, 2, failed.Attempts)

	s.status = http.StatusUnauthorized
	runs := 0
	n.Machine = unsupported{&runs}
	want, _, err := n.Run(t.Context(), fetch)
	require.ErrorContains(t, err, "the machine runs")
	require.Equal(t, 1, runs, "it went on with the spec that is here")
	require.Equal(t, "base", want.Name)
}

// unsupported is a machine that answers, and is no Debian.
type unsupported struct{ runs *int }

func (u unsupported) Run(context.Context, guest.Command) (guest.Output, error) {
	*u.runs++
	return guest.Output{Out: "x"}, errors.New("the machine runs something else")
}

// Two runs take turns, and one that is stopped does not wait.
func TestLock(t *testing.T) {
	f := node.Folder{Path: t.TempDir()}
	unlock, err := f.Lock(t.Context(), func() { t.Error("nobody has it") })
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	waited := 0
	_, err = f.Lock(ctx, func() { waited++ })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, 1, waited)
	unlock()
	unlock, err = f.Lock(t.Context(), nil)
	require.NoError(t, err)
	unlock()
}
