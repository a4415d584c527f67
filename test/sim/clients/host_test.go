package clients_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// host is what the verb sim serves, in this process, so that it can be looked at.
type host struct {
	*pve.Host
	api string

	seen   recorder // requests
	broken recorder // promises of the API table
}

// idle says whether no task runs.
func (h *host) idle() bool {
	return !slices.ContainsFunc(h.Snapshot().Tasks, func(t pve.Task) bool { return t.End.IsZero() })
}

// recorder keeps lines until somebody takes them.
type recorder struct {
	mu    sync.Mutex // Requests come on many goroutines.
	lines []string
}

func (r *recorder) note(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
}

// all takes the lines.
func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.lines
	r.lines = nil
	return lines
}

func startHost(t *testing.T, c pve.Config) *host {
	t.Helper()
	h := &host{}
	c.TaskTime, c.Promise = 50*time.Millisecond, h.broken.note
	c.Record = func(r *http.Request, body []byte, status int) {
		h.seen.note(fmt.Sprint(status, " ", r.Method, " ", r.URL, " ", string(body)))
	}
	h.Host = pve.New(c)
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h.api = "https://" + ln.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return h
}
