package node

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// broken is a machine that cannot be reached.
type broken struct{ err error }

func (b broken) Run(context.Context, guest.Command) (guest.Output, error) {
	return guest.Output{}, b.err
}

// An attempt that fails is recorded; one that was cancelled is not a failure.
func TestApplyRecordsFailure(t *testing.T) {
	f := Folder{Path: t.TempDir()}
	_, err := f.Store([]byte(one))
	require.NoError(t, err)
	want, err := f.Spec()
	require.NoError(t, err)

	_, err = Node{Folder: f, Machine: broken{errors.New("the disk is full")}}.Apply(t.Context(), want)
	require.ErrorContains(t, err, "the disk is full")
	failed, err := f.Failed()
	require.NoError(t, err)
	require.Equal(t, "E500", failed.Code)
	require.Contains(t, failed.Message, "the disk is full")

	stopped, stop := context.WithCancel(t.Context())
	stop()
	_, err = Node{Folder: f, Machine: broken{stopped.Err()}}.Apply(stopped, want)
	require.ErrorIs(t, err, context.Canceled)
	failed, err = f.Failed()
	require.NoError(t, err)
	require.Equal(t, 1, failed.Attempts)
	done, err := f.Complete()
	require.NoError(t, err)
	require.Nil(t, done)
}

// The plan of one machine has the form of every other plan.
func TestPlan(t *testing.T) {
	want, err := spec.Read([]byte(`{"version":1,"node":"web-1","spec":"base","identity":{"hostname":"web-1"}}`))
	require.NoError(t, err)
	s := &converge.State{Want: want, Have: spec.Empty("web-1"), Unmanaged: []string{"user bob"}, Unknown: []converge.Unknown{{Aspect: "packages", Why: "dpkg is broken"}}}
	p := Plan(s, time.Now())
	require.Equal(t, "user bob on web-1 is unmanaged", p.Findings[0].Summary)
	require.Equal(t, "packages of web-1", p.Unknown[0].Scope)
}

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
func (s *served) node(t *testing.T) (Server, Folder) {
	t.Helper()
	dir := t.TempDir()
	p := wire.Parent{Identity: "web-1", Server: s.URL, Pins: []wire.Pin{s.pin}, Token: "first"}
	file := filepath.Join(dir, "node.json")
	require.NoError(t, p.Save(file))
	return Server{Client: &client.Client{Parent: p}, File: file}, Folder{Path: filepath.Join(dir, "state")}
}

// A fetched spec is requested by its tag as long as it is the stored one.
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
	n := Node{Folder: f, Machine: broken{errors.New("the disk is full")}}
	fetch := func(ctx context.Context) error {
		_, err := f.Fetch(ctx, from)
		return err
	}
	_, _, err := n.Run(t.Context(), fetch)
	require.Equal(t, wire.CodeNoEndpoint, wire.CodeOf(err))
	require.NotErrorAs(t, err, new(*staleError))
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

// A spec that is pushed is fetched, and not applied. A node that applied its spec before goes on until a push has taken over, which
// removes the stored one, and one that took commands alone does not begin to apply.
func TestASpecThatIsPushed(t *testing.T) {
	s := serve(t)
	from, f := s.node(t)
	runs := 0
	n := Node{Folder: f, Machine: unsupported{&runs}}
	run := func(document string) error {
		s.spec, s.etag = `"version":1,"node":"web-1"`+document, `"`+document+`"`
		_, _, err := n.Run(t.Context(), func(ctx context.Context) error {
			_, err := f.Fetch(ctx, from)
			return err
		})
		return err
	}
	const pushed = `,"run":{"trigger":"webhook","pushed":true}`
	require.ErrorContains(t, run(`,"spec":"base","run":{"trigger":"manual"}`), "the machine runs")
	require.ErrorContains(t, run(`,"spec":"base"`+pushed), "the machine runs")
	require.NoError(t, os.Remove(filepath.Join(f.Path, specFile)))
	s.etag, runs = "", 0
	require.NoError(t, run(`,"spec":"base"`+pushed))
	require.NoError(t, run(`,"spec":"base"`))
	require.NoError(t, run(`,"spec":""`))
	require.Zero(t, runs)
	require.ErrorContains(t, run(`,"spec":"base","run":{"trigger":"manual"}`), "the machine runs")
}

// unsupported is a machine that answers, and is no Debian.
type unsupported struct{ runs *int }

func (u unsupported) Run(context.Context, guest.Command) (guest.Output, error) {
	*u.runs++
	return guest.Output{Out: "x"}, errors.New("the machine runs something else")
}

// Two runs take turns, and one that is stopped does not wait.
func TestLock(t *testing.T) {
	f := Folder{Path: t.TempDir()}
	unlock, err := f.Lock(t.Context(), func() { t.Error("the lock is free") })
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

const (
	one = `{"version":1,"node":"web-1","spec":"base"}`
	two = `{"version":1,"node":"web-1","spec":"edge"}`
)

func files(t *testing.T, f Folder) []string {
	t.Helper()
	entries, err := os.ReadDir(f.Path)
	require.NoError(t, err)
	out := []string{}
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode(), e.Name())
		out = append(out, e.Name())
	}
	return out
}

// A spec is complete until another one arrives; the one before it is kept.
func TestFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := Folder{Path: filepath.Join(t.TempDir(), "var", "lib")}
		_, err := f.Spec()
		require.ErrorIs(t, err, fs.ErrNotExist)

		changed, err := f.Store([]byte(one))
		require.NoError(t, err)
		require.True(t, changed)
		require.Equal(t, []string{"spec.json"}, files(t, f))
		s, err := f.Spec()
		require.NoError(t, err)
		require.Equal(t, "base", s.Name)

		first := time.Now()
		require.NoError(t, f.Fail(errors.New("apt is locked"), first))
		time.Sleep(time.Hour)
		require.NoError(t, f.Fail(wire.Errorf(wire.CodeConnection, "no route"), time.Now()))
		failed, err := f.Failed()
		require.NoError(t, err)
		require.Equal(t, &Failed{Version: 1, Code: "E501", Message: wire.Errorf(wire.CodeConnection, "no route").Error(), Attempts: 2, First: first.UTC(), Last: first.UTC().Add(time.Hour)}, failed)

		require.NoError(t, f.Applied(s, 7, time.Now()))
		require.Equal(t, []string{"config-complete.json", "config-failed.json", "spec.json"}, files(t, f), "the parent may still be away")
		require.NoError(t, f.Recovered())
		require.Equal(t, []string{"config-complete.json", "spec.json"}, files(t, f))
		done, err := f.Complete()
		require.NoError(t, err)
		require.Equal(t, &Complete{Version: 1, Node: "web-1", Spec: "base", At: time.Now().UTC(), Changed: 7}, done)

		time.Sleep(time.Hour)
		require.NoError(t, f.Applied(s, 0, time.Now()))
		again, err := f.Complete()
		require.NoError(t, err)
		require.Equal(t, done, again, "nothing is written")

		changed, err = f.Store([]byte(one))
		require.NoError(t, err)
		require.False(t, changed, "the same document")
		require.Len(t, files(t, f), 2, "it stays complete")

		changed, err = f.Store([]byte(two))
		require.NoError(t, err)
		require.True(t, changed)
		require.Equal(t, []string{"spec.json", "spec.prev.json"}, files(t, f))
		before, err := os.ReadFile(filepath.Join(f.Path, "spec.prev.json"))
		require.NoError(t, err)
		require.JSONEq(t, one, string(before))
	})
}

// A document that is not a spec is refused, and the stored one stays.
func TestStoreRefuses(t *testing.T) {
	f := Folder{Path: t.TempDir()}
	_, err := f.Store([]byte(one))
	require.NoError(t, err)
	for _, bad := range []string{"", "null and void", `{"version":2,"node":"web-1"}`, one[:20]} {
		_, err := f.Store([]byte(bad))
		require.Error(t, err, bad)
	}
	require.Equal(t, []string{"spec.json"}, files(t, f))
	s, err := f.Spec()
	require.NoError(t, err)
	require.Equal(t, "base", s.Name)
}

// Damaged files are reported; a new failure replaces them.
func TestDamagedFiles(t *testing.T) {
	f := Folder{Path: t.TempDir()}
	for _, name := range []string{"config-complete.json", "config-failed.json", "spec.json"} {
		require.NoError(t, os.WriteFile(filepath.Join(f.Path, name), []byte("{"), 0o600))
	}
	_, err := f.Complete()
	require.ErrorContains(t, err, "config-complete.json: ")
	_, err = f.Failed()
	require.ErrorContains(t, err, "config-failed.json: ")
	_, err = f.Spec()
	require.ErrorContains(t, err, "spec.json: reading the spec")
	require.NoError(t, f.Fail(errors.New("why"), time.Now()))
	failed, err := f.Failed()
	require.NoError(t, err)
	require.Equal(t, 1, failed.Attempts)
}

// The parent gets what the folder says, in a form that it accepts.
func TestReport(t *testing.T) {
	now := time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)
	status := http.StatusAccepted
	var got []wire.Report
	parentServer := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/report/web-1" || r.Header.Get("Authorization") != "Bearer first" {
			t.Errorf("asked for %s %s", r.Method, r.URL.Path)
		}
		read, err := wire.ReadReport(r.Body, "web-1", now)
		if err != nil {
			t.Errorf("a report that is not accepted: %v", err)
		}
		got = append(got, read)
		w.WriteHeader(status)
	}))
	t.Cleanup(parentServer.Close)
	f := Folder{Path: t.TempDir()}
	to := Server{Client: &client.Client{Agent: "homestak-gitops/1.2.3", Parent: wire.Parent{
		Identity: "web-1", Server: parentServer.URL, Pins: []wire.Pin{wire.PinOf(parentServer.Certificate())}, Token: "first",
	}}}
	send := func() wire.Report {
		t.Helper()
		require.NoError(t, f.Report(t.Context(), to, now))
		return got[len(got)-1]
	}
	empty := wire.Report{Version: 1, Identity: "web-1", Agent: "1.2.3", At: now, Phase: wire.PhaseConfig, Findings: diag.List{}, Nodes: []wire.ReportNode{}}
	require.Equal(t, empty, send())

	_, err := f.Store([]byte(one))
	require.NoError(t, err)
	want, err := f.Spec()
	require.NoError(t, err)
	require.NoError(t, f.Fail(errors.New("apt is locked\nwait for it"), now))
	failed := empty
	failed.Findings = diag.List{{Severity: diag.Error, Summary: "apt is locked", Detail: "wait for it"}}
	require.Equal(t, failed, send())

	require.NoError(t, f.Applied(want, 1, now))
	failed.Phase = wire.PhaseRun
	require.Equal(t, failed, send(), "applied once, and not the last time")

	require.NoError(t, f.Recovered())
	ready := empty
	ready.Phase, ready.Ready = wire.PhaseRun, true
	require.Equal(t, ready, send())

	status = http.StatusForbidden
	err = f.Report(t.Context(), to, now)
	require.Equal(t, wire.CodeNotYours, wire.CodeOf(err))
	require.ErrorContains(t, err, "sending the report of web-1 to "+parentServer.URL)
	require.NotContains(t, err.Error(), "first")

	require.NoError(t, os.WriteFile(filepath.Join(f.Path, "config-failed.json"), []byte("{"), 0o600))
	require.ErrorContains(t, f.Report(t.Context(), to, now), "making the report")
}

// news is a parent that answers long polls.
type news struct {
	answers chan string // "": nothing for now
	tags    []string    // that were asked with
}

// A node starts when its parent has news, and asks no more often than it should while something is wrong.
func TestWait(t *testing.T) {
	s := serve(t)
	cert, key := s.TLS, s.pin
	synctest.Test(t, func(t *testing.T) {
		n := &news{answers: make(chan string)}
		at, network := netip.MustParseAddrPort("192.0.2.10:44443"), new(machine.Net)
		far, err := network.Listen(at, at)
		require.NoError(t, err)
		h := &http.Server{TLSConfig: cert.Clone(), ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n.tags = append(n.tags, r.URL.Path+" "+r.Header.Get("If-None-Match"))
			select {
			case what := <-n.answers:
				switch what {
				case "":
					w.WriteHeader(http.StatusNoContent)
				case "broken":
					w.WriteHeader(http.StatusInternalServerError)
				default:
					_, _ = io.WriteString(w, `{"status":"`+what+`"}`)
				}
			case <-r.Context().Done():
			}
		})}
		served := make(chan error, 1)
		go func() { served <- h.ServeTLS(far, "", "") }()
		open := func() (Server, error) {
			p := wire.Parent{Identity: "web-1", Server: "https://192.0.2.10:44443", Pins: []wire.Pin{key}, Token: "first"}
			return Server{Client: &client.Client{Parent: p, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return network.Dial(ctx, at, at) }}}, nil
		}
		var starts int
		var notes []string
		var fails error
		f := Folder{Path: t.TempDir()}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- f.Wait(ctx, open, func(_ context.Context, what string) error {
				if what != "" {
					starts++
				}
				return fails
			}, func(err error) { notes = append(notes, err.Error()) })
		}()
		say := func(what string) (took time.Duration) {
			began := time.Now()
			n.answers <- what
			synctest.Wait()
			return time.Since(began)
		}
		say("reconcile")
		require.Equal(t, 1, starts)
		require.Less(t, say(""), 3*time.Second, "a pause between two polls, and no longer one")
		require.Equal(t, 1, starts)
		require.Empty(t, notes)

		// The spec that the parent has does not come here.
		say("spec")
		require.Equal(t, 2, starts)
		require.Contains(t, notes[0], "it was not fetched")
		var last time.Duration
		for range 9 {
			last = say("spec")
		}
		require.Greater(t, last, 3*time.Minute)
		require.Less(t, last, 7*time.Minute)
		require.Len(t, notes, 1, "it is said once")
		fails = errors.New("systemd does not run")
		say("reconcile")
		require.Equal(t, "systemd does not run", notes[1])
		fails = nil
		say("reconcile")
		say("broken")
		require.Len(t, notes, 3)
		for _, tag := range n.tags {
			require.Equal(t, "/wait/web-1", strings.TrimSpace(tag))
		}
		end()
		require.ErrorIs(t, <-ended, context.Canceled)
		require.NoError(t, h.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
		<-time.After(time.Minute) // connections end by themselves
	})
}

// A node whose token is to be replaced fetches the next one, and applies nothing for that.
func TestS8WaitRenewsTheToken(t *testing.T) {
	s := serve(t)
	from, f := s.node(t)
	s.token = "second"
	polls := make(chan string, 1)
	handler := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/wait/") {
			handler.ServeHTTP(w, r)
			return
		}
		select {
		case polls <- r.Header.Get("Authorization"):
			_, _ = io.WriteString(w, `{"status":"token"}`)
		case <-r.Context().Done():
		}
	})
	open := func() (Server, error) {
		p, err := wire.LoadParent(from.File)
		return Server{Client: &client.Client{Parent: p}, File: from.File}, err
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- f.Wait(ctx, open, func(context.Context, string) error { return errors.New("nothing is to be applied") }, func(err error) {
			if ctx.Err() == nil {
				t.Error(err)
			}
		})
	}()
	require.Equal(t, "Bearer first", <-polls)
	require.Equal(t, "Bearer second", <-polls)
	_, err := f.Spec()
	require.ErrorIs(t, err, fs.ErrNotExist, "the spec comes with the next run")
	end()
	require.ErrorIs(t, <-ended, context.Canceled)
}
