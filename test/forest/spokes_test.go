package forest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/test/released"
)

// hub is a site of a hub, father, and hosts below it, of which the first ones have levels of their own.
type hub struct {
	spokes []string
	parent map[string]string // of a spoke; father unless set
	deep   int               // so many of them have three levels: a node of type pve, one in that, and a VM
	rev    int
	server map[string]string // URLs of hosts, for those that move there
}

func newHub(spokes, deep int) *hub {
	h := &hub{parent: map[string]string{}, deep: deep, rev: 1}
	for i := range spokes {
		h.spokes = append(h.spokes, fmt.Sprintf("branch-%d", i+1))
	}
	return h
}

func (h *hub) files() map[string]string {
	var b strings.Builder
	b.WriteString("site \"home\" {}\nhost \"father\" {\n  api = \"https://192.0.2.10:8006\"\n}\nimage \"debian-12\" {\n  url = \"https://images.example/debian-12.qcow2\"\n  checksum = \"sha256:" + strings.Repeat("aa", 32) + "\"\n}\nspec \"plain\" {}\n")
	node := func(name, kind, parent string) {
		fmt.Fprintf(&b, "  node %q {\n    type = %q\n    cores = 1\n    memory = 512\n    image = image.debian-12\n    tags = [\"rev-%d\"]\n", name, kind, h.rev)
		if kind == "pve" {
			b.WriteString("    spec = spec.plain\n")
		}
		if parent != "" {
			fmt.Fprintf(&b, "    parent = node.%s\n", parent)
		}
		b.WriteString("  }\n")
	}
	b.WriteString("manifest \"hub\" {\n  pattern = \"flat\"\n  host = host.father\n")
	node("vm-of-father", "vm", "")
	b.WriteString("}\n")
	for i, name := range h.spokes {
		parent := "father"
		if h.parent[name] != "" {
			parent = h.parent[name]
		}
		server := ""
		if h.server[name] != "" {
			server = fmt.Sprintf("  server = %q\n", h.server[name])
		}
		fmt.Fprintf(&b, "host %q {\n  parent = host.%s\n%s}\nmanifest \"of-%s\" {\n  pattern = \"tiered\"\n  host = host.%s\n", name, parent, server, name, name)
		node("vm-of-"+name, "vm", "")
		if i < h.deep {
			node("inner-"+name, "pve", "")
			node("leaf-"+name, "pve", "inner-"+name)
			node("app-"+name, "vm", "leaf-"+name)
		}
		b.WriteString("}\n")
	}
	return map[string]string{"site.hcl": b.String()}
}

func (h *hub) secrets() string {
	var b strings.Builder
	b.WriteString("api_tokens:\n  father: \"a@pve!b=canary-of-father\"\n")
	for _, name := range h.spokes {
		fmt.Fprintf(&b, "  %s: \"a@pve!b=canary-of-%s\"\n", name, name)
	}
	return b.String() + released.Auth
}

// newFleet makes the machines of a hub. None of the spokes has an agent yet.
func newFleet(t *testing.T, h *hub) *world {
	t.Helper()
	w := newWorld(t, func(o *Options) {
		// Notices through the tree arrive at once. The rest need not happen often in two days.
		o.Secrets, o.Env = h.secrets(), map[string]string{"HOMESTAK_DRIFT_EVERY": "4h", "HOMESTAK_REPOSITORY_POLL": "10m"}
	})
	for _, name := range h.spokes {
		_, err := w.Add(name, w.Machine("father"))
		require.NoError(t, err)
	}
	w.now = newSite()
	return w
}

// hubStory is a story of a hub of which all hosts below are there.
func hubStory(t *testing.T, h *hub, story func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newFleet(t, h)
		defer w.end()
		w.pushHub(h, "begin")
		w.until(2*time.Hour, "all are there", func() bool { return w.follows(h) == "" })
		story(t, w)
		require.Empty(t, w.broken)
	})
}

// ask gets a page of the server of a machine, with its read key.
func (w *world) ask(m *Machine, path string) string {
	w.t.Helper()
	key, err := os.ReadFile(filepath.Join(server(m), "read.key"))
	require.NoError(w.t, err)
	pins, err := wire.ParsePins(m.Agent().Server().State().Pins)
	require.NoError(w.t, err)
	q, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "https://"+m.At.String()+path, http.NoBody)
	require.NoError(w.t, err)
	wire.SetToken(q.Header, strings.TrimSpace(string(key)))
	got, err := (&http.Transport{DialContext: w.Network.dial(m), TLSClientConfig: wire.PinnedTLS(pins), DisableKeepAlives: true}).RoundTrip(q)
	require.NoError(w.t, err)
	text, err := io.ReadAll(got.Body)
	require.NoError(w.t, errors.Join(err, got.Body.Close()))
	require.Equal(w.t, http.StatusOK, got.StatusCode, string(text))
	return string(text)
}

func (w *world) pushHub(h *hub, what string) {
	w.t.Helper()
	w.pushFiles(newSite(), h.files(), what)
}

// follows says what of a hub is not as its files say; "" if all is.
func (w *world) follows(h *hub) string {
	hosts := map[string][]string{"father": {"vm-of-father"}}
	for i, name := range h.spokes {
		hosts[name] = []string{"vm-of-" + name}
		if i < h.deep {
			hosts[name] = []string{"inner-" + name, "vm-of-" + name}
			hosts["inner-"+name], hosts["leaf-"+name] = []string{"leaf-" + name}, []string{"app-" + name}
		}
	}
	for name, want := range hosts {
		m := w.Machine(name)
		switch {
		case m == nil:
			return name + " is not there"
		case !slices.Equal(m.Managed(), want):
			return fmt.Sprintf("%s has %v, and %v is declared", name, m.Managed(), want)
		}
		if s := w.status(name); s == nil || s.Converged == nil || s.Converged.ID != w.head || !s.Healthy {
			return fmt.Sprintf("the agent of %s is not at %.7s", name, w.head)
		}
	}
	return ""
}

// line is the line of a node in the tree of the hub; nil if it has none.
func (w *world) line(name string) *wire.ReportNode {
	for _, n := range w.Machine("father").Agent().Tree().Nodes {
		if n.Name == name {
			return &n
		}
	}
	return nil
}

// A hub with twenty hosts below, three levels below some: they get everything from it, each its own part, and the hub shows all.
func TestHubAndSpokes(t *testing.T) {
	h := newHub(20, 2)
	hubStory(t, h, func(t *testing.T, w *world) {
		w.until(10*time.Minute, "the hub knows", func() bool { return w.Machine("father").Agent().Tree().Ready })
		require.Len(t, w.Machine("father").Agent().Tree().Nodes, 1+20*2+2*3)
		st := w.Machine("father").Agent().StatusAndTree().Status
		require.Len(t, st.Hosts, 20)
		for _, host := range st.Hosts {
			require.True(t, host.Ready, host.Name)
			require.NotNil(t, host.Reported, host.Name)
			require.Equal(t, w.head, host.Commit, host.Name)
		}

		// Metrics and events have all hosts, at any depth.
		figures, events := w.ask(w.Machine("father"), "/metrics"), w.ask(w.Machine("father"), "/events?follow=false")
		require.Contains(t, figures, "\nhomestak_tree_nodes 47\n")
		require.Contains(t, figures, "\nhomestak_tree_nodes_not_ready 0\n")
		for host, parent := range map[string]string{"branch-1": "father", "branch-20": "father", "inner-branch-2": "branch-2", "leaf-branch-2": "inner-branch-2"} {
			labels := fmt.Sprintf(`{host=%q,parent=%q}`, host, parent)
			require.Contains(t, figures, "\nhomestak_host_ready"+labels+" 1\n")
			require.Contains(t, figures, "\nhomestak_host_report_age_seconds"+labels+" ")
			require.Regexp(t, `"type":"host-ready","agent":"[a-z0-9-]+","address":"host.`+host+`"`, events)
		}
		require.Equal(t, 24, strings.Count(figures, "\nhomestak_host_ready{"))

		// Each has its own secrets, and not those of another one.
		for _, name := range h.spokes {
			kept, err := os.ReadFile(filepath.Join(w.Machine(name).Data, "data", "parent.json"))
			require.NoError(t, err)
			require.Equal(t, 1, strings.Count(string(kept), "canary-of-"), name)
			require.Contains(t, string(kept), "canary-of-"+name+`"`)
		}

		// One that leaves the site empties itself. Then it is forgotten, and its token is worth nothing.
		left := h.spokes[19]
		token := w.knows(left).Token
		require.NoError(t, w.Machine("father").Agent().Server().Accepts(left, token))
		h.spokes = h.spokes[:19]
		w.pushHub(h, left+" leaves\n\nAllow-Deletes: 5")
		w.until(20*time.Minute, "it is empty, and forgotten", func() bool {
			return len(w.Machine(left).Managed()) == 0 && w.line(left) == nil && w.follows(h) == ""
		})
		require.Error(t, w.Machine("father").Agent().Server().Accepts(left, w.knows(left).Token))
		require.Len(t, w.Machine("father").Agent().StatusAndTree().Hosts, 19)

		// One that is lost when it leaves is let go by a person who revokes its tokens.
		lost := h.spokes[18]
		w.kill(w.Machine(lost), 1000*time.Hour)
		h.spokes = h.spokes[:18]
		w.pushHub(h, lost+" leaves\n\nAllow-Deletes: 5")
		w.live(30 * time.Minute)
		require.Contains(t, w.line(lost).Error, "left the site")
		_, err := keys.Folder(server(w.Machine("father"))).Revoke(lost, time.Now())
		require.NoError(t, err)
		w.until(30*time.Minute, "it is forgotten", func() bool { return w.line(lost) == nil && w.Machine("father").Agent().Tree().Ready })
	})
}

// The hub is away for two days: the hosts below continue with the commit in force, and revert changes by hand. The same holds when
// the hub has lost all of its data; then they need to join again, with their guests as they are.
func TestHubAway(t *testing.T) {
	h := newHub(2, 0)
	hubStory(t, h, func(t *testing.T, w *world) {
		before, guests := w.head, w.guests()

		w.kill(w.Machine("father"), 72*time.Hour)
		h.rev++
		w.pushHub(h, "a change that none of them hears of")
		w.rest(48 * time.Hour)
		require.Equal(t, guests, w.guests())
		require.Equal(t, before, w.status("branch-2").InForce.ID)
		require.Contains(t, w.status("branch-2").Parent.Error, "connection refused")
		vmid := w.vmid("branch-2", "vm-of-branch-2")
		w.Machine("branch-2").Host.Edit(func(e *pve.Edit) { e.Stop(vmid) })
		w.until(5*time.Hour, "what was stopped runs again", func() bool { return w.Machine("branch-2").Guests()["vm-of-branch-2"].Running })
		clear(w.down)
		w.until(30*time.Minute, "all catch up", func() bool { return w.follows(h) == "" })
		require.Equal(t, guests, w.guests())

		// A hub that is restored from nothing has another key. Its hosts keep what they have, and say so.
		father := w.Machine("father")
		father.Kill()
		require.NoError(t, os.RemoveAll(filepath.Join(father.Data, "data")))
		h.rev++
		w.pushHub(h, "a change after the loss")
		w.live(15 * time.Minute)
		require.Equal(t, guests, w.guests())
		require.NotEmpty(t, w.status("branch-2").Parent.Error)
		require.Equal(t, "has not reported yet", w.line("branch-2").Error)
		require.True(t, w.status("father").Healthy, "that does not hold up the hub")
		for _, name := range h.spokes {
			w.Machine(name).Kill()
			require.NoError(t, w.Machine(name).Reinstall(false))
		}
		w.until(20*time.Minute, "all are back", func() bool { return w.follows(h) == "" && father.Agent().Tree().Ready })
		require.Equal(t, guests, w.guests())

		// The order of upgrades is that of the site: a canary that falls silent halts those after it.
		keeps := func(version string) string {
			files := h.files()
			files["site.hcl"] = strings.Replace(files["site.hcl"], `site "home" {}`, "site \"home\" {\n  upgrade {\n    version = \""+version+"\"\n    canary = [\"branch-1\"]\n  }\n}", 1)
			w.pushFiles(newSite(), files, "upgrades to "+version)
			w.live(30 * time.Minute)
			known := w.Machine("branch-2").known
			known.Token = w.knows("branch-2").Token
			has, err := (&client.Client{Parent: known, Dial: w.Network.dial(w.Machine("branch-2"))}).Announced(t.Context(), runtime.GOOS, runtime.GOARCH)
			require.NoError(t, err)
			return has.Keep
		}
		require.Equal(t, "upgrade of the site is for version 1.1, and father runs 1.0", keeps("1.1"))
		require.Empty(t, keeps("1.0"))
		w.kill(w.Machine("branch-1"), 72*time.Hour)
		w.live(2 * time.Hour)
		require.Equal(t, "branch-1 is upgraded before it, and does not report", keeps("v1.0"))
	})
}

// A machine joins with a token, before the site has it: it waits until a commit does. The token is worth nothing to another
// machine, neither before it is used nor after, and opens nothing else.
func TestJoin(t *testing.T) {
	h := newHub(0, 0)
	hubStory(t, h, func(t *testing.T, w *world) {
		father := w.Machine("father")
		mint := func(life time.Duration) string {
			minted, err := keys.Folder(server(father)).MintJoin("branch-1", life, time.Now())
			require.NoError(t, err)
			return minted.Token
		}
		pins, err := wire.ParsePins(father.Agent().Server().State().Pins)
		require.NoError(t, err)
		own, other := strings.Repeat("a1", 32), strings.Repeat("b2", 32)
		refused := func(err error, code wire.Code, says string) {
			t.Helper()
			require.Equal(t, code, wire.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, says)
		}
		w.down["branch-1"] = time.Now().Add(1000 * time.Hour)
		m, err := w.Add("branch-1", father)
		require.NoError(t, err)

		late := mint(time.Hour)
		w.live(time.Hour)
		_, err = m.Join(late, own, pins)
		refused(err, wire.CodeExpired, "expired")
		token := mint(time.Hour)
		stolen := client.Client{Parent: wire.Parent{Identity: "branch-1", Server: "https://" + father.At.String(), Pins: pins, Token: token}, Dial: w.Network.dial(m)}
		_, err = stolen.Config(t.Context(), "")
		refused(err, wire.CodeNotYours, "for joining, and for nothing else")
		got, err := m.Join(token, own, pins)
		require.NoError(t, err)
		require.True(t, got.Waiting)
		_, err = m.Join(token, other, pins)
		refused(err, wire.CodeRefused, "used to join by another machine")
		again, err := m.Join(token, own, pins)
		require.NoError(t, err, "its answer may have been lost")
		require.NotEmpty(t, again.Token)
		has := client.Client{Parent: m.known, Dial: w.Network.dial(m)}
		announced, err := has.Announced(t.Context(), runtime.GOOS, runtime.GOARCH)
		require.NoError(t, err)
		require.Equal(t, "1.0", announced.Version)
		program, err := has.Program(t.Context(), runtime.GOOS, runtime.GOARCH, announced.Sum)
		require.NoError(t, err)
		require.Equal(t, "a program", string(program))
		_, err = stolen.Announced(t.Context(), runtime.GOOS, runtime.GOARCH)
		require.Error(t, err, "its token was used")

		clear(w.down)
		w.live(10 * time.Minute)
		require.Equal(t, "waiting: it joined from 10.9.0.2:40000, and no commit in force has a host of this name", w.line("branch-1").Error)
		require.Len(t, father.Agent().StatusAndTree().Server.Waiting, 1)
		require.Empty(t, m.Guests())
		h.spokes = []string{"branch-1"}
		w.pushHub(h, "it is declared")
		w.until(20*time.Minute, "it is accepted", func() bool { return w.follows(h) == "" && father.Agent().Tree().Ready })
		require.Empty(t, father.Agent().StatusAndTree().Server.Waiting)

		// Another machine of that name takes its place: what the first one has ends.
		first := w.knows("branch-1").Token
		require.NoError(t, father.Agent().Server().Accepts("branch-1", first))
		_, err = m.Join(mint(time.Hour), other, pins)
		require.NoError(t, err)
		require.ErrorIs(t, father.Agent().Server().Accepts("branch-1", first), wire.ErrReplaced)
		_, err = m.Join(token, own, pins)
		require.Error(t, err, "an earlier token is of no use any more")
	})
}

// A host with what is below it moves to another parent by one commit, and back again. Nothing of it changes but where it reports.
func TestHostMoves(t *testing.T) {
	h := newHub(2, 1)
	hubStory(t, h, func(t *testing.T, w *world) {
		guests := w.guests()
		father, other := w.Machine("father"), w.Machine("branch-2")

		h.parent["branch-1"], h.server = "branch-2", map[string]string{"branch-2": "https://" + other.At.String()}
		w.pushHub(h, "branch-1 moves")
		w.until(20*time.Minute, "it reports to its new parent", func() bool {
			return w.follows(h) == "" && len(other.Agent().StatusAndTree().Hosts) == 1 && other.Agent().StatusAndTree().Hosts[0].Ready
		})
		require.Equal(t, "https://"+other.At.String(), w.status("branch-1").Parent.URL)
		require.Len(t, father.Agent().StatusAndTree().Hosts, 1)
		w.until(10*time.Minute, "the hub sees it below that one", func() bool {
			n := w.line("app-branch-1")
			return n != nil && n.Ready && w.line("branch-1") != nil && w.line("branch-1").Parent == "branch-2"
		})

		// It does not need the former one any more, also after a restart.
		w.Machine("branch-1").Kill()
		w.kill(father, 24*time.Hour)
		w.live(time.Minute)
		require.NoError(t, w.Machine("branch-1").Start())
		w.live(10 * time.Minute)
		require.Empty(t, w.status("branch-1").Parent.Error)
		require.Empty(t, w.status("branch-1").Repository.Error)
		clear(w.down)

		delete(h.parent, "branch-1")
		files := h.files()
		files["site.hcl"] = strings.Replace(files["site.hcl"], "https://192.0.2.10:8006\"\n", "https://192.0.2.10:8006\"\n  server = \"https://"+father.At.String()+"\"\n", 1)
		w.pushFiles(newSite(), files, "and back")
		w.until(20*time.Minute, "it is back", func() bool {
			return w.follows(h) == "" && len(father.Agent().StatusAndTree().Hosts) == 2 && w.line("branch-1") != nil && w.line("branch-1").Parent == "father" && w.line("branch-1").Ready
		})
		require.Equal(t, guests, w.guests())
	})
}
