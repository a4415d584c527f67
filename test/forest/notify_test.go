package forest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/specserve/keys"
)

// people is who gets the messages, and the forge.
type people struct {
	t *testing.T

	mu   sync.Mutex // agents send side by side
	told []string
}

// RoundTrip implements http.RoundTripper.
func (p *people) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var m struct {
		State, Title, Context, Description string
	}
	text := r.URL.Host
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	switch r.URL.Host {
	case "ops.example.org":
		if _, err := keys.NewHookChecker(time.Now).Check("generic", []byte("the-signing-key"), r.Header, bytes.NewReader(body)); err != nil {
			return nil, err
		}
		text = m.State + " " + m.Title
	case "git.example.org":
		text = fmt.Sprintf("%.7s %s %s: %s", r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:], m.Context, m.State, m.Description)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, text)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// take gives what was told since the last call, sorted: messages to two receivers have no order.
func (p *people) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.told
	p.told = nil
	slices.Sort(out)
	return out
}

// The agent at the root tells of its tree: a commit that arrives everywhere, drift and its end, here and below, a host that is
// away, and a refused commit. Each is one message, also where the agent starts again in between.
func TestNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &people{t: t}
		w := newWorld(t, func(o *Options) {
			o.Web, o.Secrets = p, secrets+"passwords:\n  ops: the-signing-key\n  forge: token-of-forge\n"
		})
		defer w.end()
		s := newSite()
		s.leaf = false
		s.add("father")
		s.add("inner")
		files := func() map[string]string {
			out := s.files()
			out["notify.hcl"] = "notify \"ops\" {\n  type = \"webhook\"\n  to = \"https://ops.example.org/hook\"\n  secret = secret.passwords.ops\n}\n" +
				"notify \"forge\" {\n  type = \"gitea\"\n  to = \"https://git.example.org/home/site\"\n  secret = secret.passwords.forge\n}\n"
			return out
		}
		first := w.pushFiles(s, files(), "begin")
		w.until(30*time.Minute, "the tree is there", w.converged)
		w.live(10 * time.Minute)
		got := p.take()
		for _, text := range got {
			require.NotContains(t, text, "firing", "a tree that comes up is no incident")
		}
		for _, want := range []string{
			" homestak pending: applied on 1 of 2 hosts", " homestak success: applied on 2 of 2 hosts",
			" homestak/father success: applied", " homestak/inner success: applied", " homestak/inner pending: has not applied it yet",
		} {
			require.Equal(t, 1, count(got, first[:7]+want), "%s in %q", want, got)
		}

		byHand := func(machine, guest string) {
			id := w.Machine(machine).Guests()[guest].VMID
			w.Machine(machine).Host.Edit(func(e *pve.Edit) { e.Set(id, "tags", "homestak;mine") })
		}
		for machine, guest := range map[string]string{"father": "vm-1", "inner": "vm-2"} {
			byHand(machine, guest)
			w.until(10*time.Minute, "it is taken back", w.converged)
			w.live(time.Minute)
			require.Equal(t, []string{"firing " + machine + ": changed by hand"}, p.take())
			w.Machine("father").Kill() // and it starts again: no message is sent twice
			w.live(15 * time.Minute)
			require.Equal(t, []string{"resolved recovered: " + machine + ": changed by hand"}, p.take())
		}

		w.Network.Cut("inner", true)
		w.live(20 * time.Minute)
		require.Equal(t, []string{"firing inner: failed"}, p.take(), "and nothing of its guests")
		w.Network.Cut("inner", false)
		w.live(20 * time.Minute)
		require.Equal(t, []string{"resolved recovered: inner: failed"}, p.take())

		broken := files()
		broken["broken.hcl"] = "preset \"x\" {\n"
		second := w.pushFiles(s, broken, "a typo")
		w.live(20 * time.Minute)
		got = p.take()
		require.Len(t, got, 3, "%q", got)
		require.Contains(t, got[0], second[:7]+" homestak failure: refused: ")
		require.Contains(t, got[1], second[:7]+" homestak/father failure: refused: ")
		require.Equal(t, "firing father: refused a commit", got[2])
		broken["broken.hcl"] = "# nothing\n"
		third := w.pushFiles(s, broken, "without it")
		w.until(10*time.Minute, "it is there", w.converged)
		w.live(10 * time.Minute)
		got = p.take()
		require.Equal(t, 1, count(got, "resolved recovered: father: refused a commit"), "%q", got)
		require.Equal(t, 1, count(got, third[:7]+" homestak success: applied on 2 of 2 hosts"), "%q", got)

		ask := func(machine string) error {
			return service.Client(t.Context(), w.Machine(machine).Agent()).TestNotify(t.Context(), "ops")
		}
		require.NoError(t, ask("father"))
		require.Equal(t, []string{"test homestak: test"}, p.take())
		require.ErrorContains(t, ask("inner"), "the agent without one sends notifications")
		require.Empty(t, w.status("inner").Notify)
		require.Len(t, w.status("father").Notify, 2)
		require.Empty(t, w.status("father").Notify[0].Error)
	})
}

func count(list []string, text string) (n int) {
	for _, l := range list {
		if l == text {
			n++
		}
	}
	return n
}
