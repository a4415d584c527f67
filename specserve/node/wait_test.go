package node_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/node"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

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
		far := &listener{calls: make(chan net.Conn)}
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
		open := func() (node.Server, error) {
			p := wire.Parent{Identity: "web-1", Server: "https://192.0.2.10:44443", Pins: []wire.Pin{key}, Token: "first"}
			return node.Server{Client: &client.Client{Parent: p, Dial: far.dial}}, nil
		}
		var starts int
		var notes []string
		var fails error
		f := node.Folder{Path: t.TempDir()}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- f.Wait(ctx, open, func(context.Context) error {
				starts++
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
	open := func() (node.Server, error) {
		p, err := wire.LoadParent(from.File)
		return node.Server{Client: &client.Client{Parent: p}, File: from.File}, err
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- f.Wait(ctx, open, func(context.Context) error { return errors.New("nothing is to be applied") }, func(err error) {
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

// listener is a network in memory.
type listener struct {
	calls chan net.Conn
}

func (l *listener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.calls <- far:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *listener) Accept() (net.Conn, error) {
	c, open := <-l.calls
	if !open {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l *listener) Close() error {
	close(l.calls)
	return nil
}

func (*listener) Addr() net.Addr { return &net.TCPAddr{} }
