package integration_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/sim/pve"
)

const wellSite = `
site "home" {
  vmid_range "all" {
    from = 10000
    to   = 10999
  }
}
host "father" {
  api = "https://pve.test:8006"
}
image "debian" {
  url      = "https://images.test/debian.qcow2"
  checksum = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
}
spec "base" {
  check "agent" {
    agent = true
  }
  check "command" {
    command = "systemctl is-active web"
    expect  = "active"
  }
}
manifest "web" {
  pattern  = "flat"
  host     = "father"
  on_error = "ON_ERROR"
  node "web" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
    spec   = spec.base
    check "http" {
      http   = ":8080/health"
      expect = "ready"
    }
  }
  node "front" {
    type       = "vm"
    cores      = 1
    memory     = 512
    image      = image.debian
    depends_on = [node.web]
  }
}
`

// ward is a site, a simulated host, and what answers at the addresses of its guests.
type ward struct {
	site  *model.Site
	host  *pve.Host
	fault func(*http.Request) (int, bool)
	dial  func(ctx context.Context, network, addr string) (net.Conn, error)
}

func newWard(t *testing.T, onError string) *ward {
	t.Helper()
	w := &ward{}
	w.host = pve.New(pve.Config{
		TaskTime: time.Second,
		Exec: func(_ int, command []string, _ string) (string, string, int, bool) {
			return "active\n", "", 0, strings.Join(command, " ") == "/bin/sh -c systemctl is-active web"
		},
		Fault: func(r *http.Request) (int, bool) {
			if w.fault == nil {
				return 0, false
			}
			return w.fault(r)
		},
	})
	var found error
	site, l := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(strings.Replace(wellSite, "ON_ERROR", onError, 1))}}, hcl.Options{Kinds: proxmox.Kinds()})
	if l.HasErrors() {
		found = fmt.Errorf("%v", l)
	}
	require.NoError(t, found)
	w.site = site
	return w
}

// pass makes one pass with an own driver, as a new process does.
func (w *ward) pass(ctx context.Context) engine.Report {
	p := &engine.Pass{
		Verb: "apply", Host: "father",
		Load: func(context.Context) engine.Desired { return engine.Desired{Site: w.site} },
		Open: func(h *model.Host) (engine.Driver, error) {
			return proxmox.Open(proxmox.Config{Host: h, Site: "home", Owner: "father", Token: w.host.Token(), Transport: w.host, Keys: ownershipKeys("home")})
		},
		Verdict: func(context.Context, *plan.Plan) (bool, error) { return true, nil },
	}
	p.Health.Dial = w.dial
	return p.Run(ctx)
}

func (w *ward) guests() string {
	var names []string
	for _, g := range w.host.Snapshot().Guests {
		names = append(names, g.Name())
	}
	return strings.Join(names, " ")
}

// serve answers each connection in a bubble with an HTTP answer, without a network.
func serve(answer string) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			defer func() { _ = there.Close() }()
			buf := make([]byte, 4<<10)
			if _, err := there.Read(buf); err == nil {
				_, _ = there.Write([]byte(answer))
			}
		}()
		return here, nil
	}
}

const (
	isReady = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nready"
	isDown  = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 8\r\nConnection: close\r\n\r\nstarting"
)

// Two machines, of which one needs the other to be well: the first does not come up, so
// the second is not made; the next run goes on where this one ended.
func TestANodeThatIsNotWell(t *testing.T) {
	for onError, left := range map[string]string{"stop": "web", "continue": "web", "rollback": ""} {
		t.Run(onError, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWard(t, onError)
				w.dial = serve(isDown)
				r := w.pass(t.Context())
				require.Equal(t, engine.Partly, r.Outcome)
				require.Equal(t, left, w.guests())
				require.ErrorContains(t, r.Err, "check http (site.hcl:34:5) failed: 10.0.")
				require.ErrorContains(t, r.Err, ":8080: answered 503, first line: starting; tried 60 times since ")
				web := r.Nodes[1]
				require.Equal(t, "web", web.Name)
				require.Equal(t, []bool{true, true, false}, []bool{web.Checks[0].OK, web.Checks[1].OK, web.Checks[2].OK})
				require.Equal(t, "exit 0, stdout: active", web.Checks[1].Detail)
				require.True(t, strings.HasPrefix(web.IP, "10.0."), "by the guest agent: %s", web.IP)

				w.dial = serve(isReady)
				before := w.host.Snapshot().Writes
				r = w.pass(t.Context())
				require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
				require.ElementsMatch(t, []string{"web", "front"}, strings.Fields(w.guests()))
				require.Greater(t, w.host.Snapshot().Writes, before)

				asked := agentRequests(w.host)
				require.Equal(t, engine.Done, w.pass(t.Context()).Outcome)
				require.Equal(t, asked, agentRequests(w.host), "nothing changes, so no guest is asked")
			})
		})
	}
}

func agentRequests(h *pve.Host) int {
	n := 0
	for what, count := range h.Snapshot().Requests {
		if strings.Contains(what, "/agent/") {
			n += count
		}
	}
	return n
}

// Whichever request of the wait fails, with or without effect: the wait goes on, and
// the guest is made once.
func TestEveryRequestOfAWaitMayFail(t *testing.T) {
	story := func(t *testing.T, status int, effect bool, at int64) (seen int64) {
		synctest.Test(t, func(t *testing.T) {
			w := newWard(t, "stop")
			w.dial = serve(isReady)
			var started atomic.Bool
			var n atomic.Int64
			w.fault = func(r *http.Request) (int, bool) {
				if strings.HasSuffix(r.URL.Path, "/10001/status/start") {
					started.Store(true)
				}
				waits := strings.Contains(r.URL.Path, "/agent/") || strings.HasSuffix(r.URL.Path, "/10001/pending")
				if started.Load() && waits && n.Add(1) == at {
					return status, effect
				}
				return 0, false
			}
			r := w.pass(t.Context())
			require.Equal(t, engine.Done, r.Outcome, "request %d: %v", at, r.Err)
			require.ElementsMatch(t, []string{"web", "front"}, strings.Fields(w.guests()))
			seen = n.Load()
		})
		return seen
	}
	total := story(t, 0, false, 0)
	require.Greater(t, total, int64(5))
	for _, status := range []int{500, 595, 596, -1} {
		for _, effect := range []bool{false, true} {
			for at := int64(1); at <= total; at++ {
				story(t, status, effect, at)
			}
		}
	}
}

// The same over a real network: a server of this machine stands at the guest's address.
func TestANodeIsAskedOverTheNetwork(t *testing.T) {
	t.Parallel()
	var hits atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		if r.URL.Path == "/health" {
			fmt.Fprint(w, "all is ready")
		}
	}))
	defer s.Close()
	w := newWard(t, "stop")
	w.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if !strings.HasPrefix(addr, "10.0.") || !strings.HasSuffix(addr, ":8080") {
			return nil, errors.New("nobody is at " + addr)
		}
		return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
	}
	r := w.pass(t.Context())
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	require.Equal(t, int64(1), hits.Load())
	require.True(t, r.Nodes[1].Checks[2].OK)
}
