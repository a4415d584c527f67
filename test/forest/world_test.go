package forest

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/test/released"
)

const secrets = "api_tokens:\n  father: \"a@pve!b=canary-of-father\"\n  inner: \"a@pve!b=canary-of-inner\"\n  outer: \"a@pve!b=canary-of-outer\"\n  leaf: \"a@pve!b=canary-of-leaf\"\n" + released.Auth

// site is what the files declare: VMs on father, inner and leaf, of which each is in the one before.
type site struct {
	vms    map[string]int    // a figure in their tags, by name
	on     map[string]string // the machine that each is on
	inner  bool
	leaf   bool   // only with what it is on
	leafOn string // father or inner
	serial int
}

func newSite() *site {
	return &site{vms: map[string]int{}, on: map[string]string{}, inner: true, leaf: true, leafOn: "inner"}
}

func (s *site) copy() *site {
	c := *s
	c.vms, c.on = maps.Clone(s.vms), maps.Clone(s.on)
	return &c
}

func (s *site) add(on string) string {
	s.serial++
	name := fmt.Sprintf("vm-%d", s.serial)
	s.vms[name], s.on[name] = 1, on
	return name
}

// has reports whether a machine is declared.
func (s *site) has(machine string) bool {
	return machine == "father" || s.inner && machine == "inner" || s.leaf && machine == "leaf" && s.has(s.leafOn)
}

// below names what is declared on a machine, sorted.
func (s *site) below(machine string) []string {
	out := []string{}
	for name, on := range s.on {
		if on == machine && s.has(machine) {
			out = append(out, name)
		}
	}
	if machine == "father" && s.inner {
		out = append(out, "inner")
	}
	if machine == s.leafOn && s.has("leaf") {
		out = append(out, "leaf")
	}
	slices.Sort(out)
	return out
}

// files are the site in its language.
func (s *site) files() map[string]string {
	var b strings.Builder
	node := func(name, kind, on, more string) {
		fmt.Fprintf(&b, "  node %q {\n    type = %q\n    memory = 512\n    image = image.debian-12\n%s", name, kind, more)
		if on != "father" {
			fmt.Fprintf(&b, "    parent = node.%s\n", on)
		}
		b.WriteString("  }\n")
	}
	b.WriteString("manifest \"tree\" {\n  pattern = \"tiered\"\n  host = host.father\n")
	if s.inner {
		node("inner", "pve", "father", "    cores = 2\n    spec = spec.plain\n")
	}
	if s.has("leaf") {
		node("leaf", "pve", s.leafOn, "    cores = 2\n    spec = spec.plain\n")
	}
	for _, name := range slices.Sorted(maps.Keys(s.vms)) {
		if s.has(s.on[name]) {
			node(name, "vm", s.on[name], fmt.Sprintf("    cores = 1\n    tags = [\"rev-%d\"]\n", s.vms[name]))
		}
	}
	b.WriteString("}\n")
	return map[string]string{
		"site.hcl": "site \"home\" {}\nhost \"father\" {\n  api = \"https://192.0.2.10:8006\"\n}\nimage \"debian-12\" {\n  url = \"https://images.example/debian-12.qcow2\"\n  checksum = \"sha256:" + strings.Repeat("aa", 32) + "\"\n}\nspec \"plain\" {}\n",
		"tree.hcl": b.String(),
	}
}

// world is a forest in simulated time, and what is known of it without the agents.
type world struct {
	*Forest
	t    *testing.T
	repo *sourcetest.Repo
	log  *enginetest.Log

	mu     sync.Mutex // agents tell of events
	now    *site
	head   string
	story  []string
	last   string // line of it
	broken []string
	begun  time.Time

	down    map[string]time.Time // agents that are not started before
	allowed map[string]bool      // machines that the operator lets go with what is in them
	whyText string
}

// newWorld makes one inside of a synctest bubble. Change completes the options.
func newWorld(t *testing.T, change func(*Options)) *world {
	t.Helper()
	w := &world{t: t, repo: sourcetest.New(t), log: &enginetest.Log{}, begun: time.Now(), down: map[string]time.Time{}, allowed: map[string]bool{}}
	o := Options{
		Dir: sourcetest.TempDir(t), Repository: w.repo.URL(), Secrets: secrets, TaskTime: time.Second, Event: w.event,
		Log: func(machine string) *slog.Logger {
			return slog.New(slog.NewTextHandler(w.log, nil)).With("machine", machine)
		},
	}
	if change != nil {
		change(&o)
	}
	var err error
	w.Forest, err = New(t.Context(), "father", o)
	require.NoError(t, err)
	return w
}

func (w *world) push(s *site, what string) string {
	w.t.Helper()
	return w.pushFiles(s, s.files(), what)
}

func (w *world) pushFiles(s *site, files map[string]string, what string) string {
	w.head = w.repo.Commit(files, what)
	w.mu.Lock()
	w.now = s.copy()
	w.mu.Unlock()
	subject, _, _ := strings.Cut(what, "\n")
	w.record("push %.7s: %s", w.head, subject)
	return w.head
}

func (w *world) record(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if text := fmt.Sprintf(format, args...); text != w.last { // it is tried every second
		w.last = text
		w.story = append(w.story, fmt.Sprintf("%9s  %s", time.Since(w.begun).Round(time.Second), text))
	}
}

func (w *world) violation(format string, args ...any) {
	w.record("!! "+format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

// event holds what happens against the laws of order.
func (w *world) event(e event) {
	switch e.What {
	case "creates":
		m := w.Machine(e.Machine)
		if m == nil {
			w.violation("a guest is created on %s, which does not exist", e.Machine)
		}
		return
	case "booted":
		w.mu.Lock()
		delete(w.allowed, e.Guest)
		w.mu.Unlock()
	case "destroys", "gone":
		w.mu.Lock()
		allowed := w.allowed[e.Guest]
		w.mu.Unlock()
		if len(e.Inside) > 0 && !allowed {
			w.violation("%s: %s with %v in it", e.What, e.Guest, e.Inside)
		}
	}
	w.record("%s: %s on %s (inside: %v)", e.What, e.Guest, e.Machine, e.Inside)
}

// live lets time pass. Machines come and go, and each gets an agent half a minute after it booted.
func (w *world) live(d time.Duration) {
	w.t.Helper()
	w.pass(d, time.Second)
}

// rest is live where nothing comes or goes, so that a look now and then suffices.
func (w *world) rest(d time.Duration) {
	w.t.Helper()
	w.pass(d, time.Minute)
}

func (w *world) pass(d, every time.Duration) {
	w.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(every)
		require.NoError(w.t, w.Step())
		for _, m := range w.Machines() {
			if m.Agent() == nil && time.Now().After(w.down[m.Name]) && time.Since(m.Booted) >= 30*time.Second {
				if err := m.Start(); err != nil {
					w.record("the agent of %s does not start: %v", m.Name, err) // its parent cannot give it a token yet
					continue
				}
				w.record("the agent of %s starts", m.Name)
			}
		}
	}
}

// until lets time pass until something holds.
func (w *world) until(most time.Duration, what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(most); time.Now().Before(end); {
		if holds() {
			return
		}
		w.live(time.Second)
	}
	require.True(w.t, holds(), "%s, after %s\n%s", what, most, w.why())
}

// converged reports whether every machine has what the newest commit says, and nothing else, and the agents know it.
func (w *world) converged() bool { return w.differs() == "" }

func (w *world) differs() string {
	for _, m := range w.Machines() {
		if m != w.Machine(m.Name) {
			return m.Name + " is still on " + m.Parent.Name
		}
	}
	for _, name := range []string{"father", "inner", "leaf"} {
		m := w.Machine(name)
		switch wanted := w.now.has(name); {
		case !wanted && m == nil:
			continue
		case !wanted:
			return name + " is there, and is not declared"
		case m == nil:
			return name + " is not there"
		}
		if have, want := m.Managed(), w.now.below(name); !slices.Equal(have, want) {
			return fmt.Sprintf("%s has %v, and %v is declared", name, have, want)
		}
		for guest, g := range m.Guests() {
			if rev := w.now.vms[guest]; rev > 0 && !strings.Contains(g.Config["tags"], fmt.Sprintf("rev-%d", rev)) {
				return fmt.Sprintf("%s has the tags %s, and rev-%d is declared", guest, g.Config["tags"], rev)
			}
			if !g.Running {
				return guest + " does not run"
			}
		}
		s := w.status(name)
		if s == nil || s.Converged == nil || s.Converged.ID != w.head || !s.Healthy {
			return fmt.Sprintf("the agent of %s is not at %.7s", name, w.head)
		}
	}
	return ""
}

func (w *world) status(machine string) *agent.Status {
	m := w.Machine(machine)
	if m == nil || m.Agent() == nil {
		return nil
	}
	s := m.Agent().Status()
	return &s
}

// why is all that helps to understand what went wrong.
func (w *world) why() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", w.differs())
	for _, m := range w.Machines() {
		if s := w.status(m.Name); s != nil {
			fmt.Fprintf(&b, "%s: %s; %v; ", m.Name, s.Summary, m.Managed())
			if s.Parent != nil {
				fmt.Fprintf(&b, "parent: %s", s.Parent.Error)
			}
			fmt.Fprintln(&b)
			for _, n := range s.Nodes {
				fmt.Fprintf(&b, "    %+v\n", n)
			}
			for name, g := range m.Guests() {
				fmt.Fprintf(&b, "    guest %d %s, lock %q: %v\n", g.VMID, name, g.Lock, g.Config)
			}
		}
	}
	w.mu.Lock()
	story := strings.Join(w.story, "\n")
	w.mu.Unlock()
	log := slices.DeleteFunc(strings.Split(strings.TrimSpace(w.log.String()), "\n"), func(line string) bool { return strings.Contains(line, "msg=request ") })
	return b.String() + "the story:\n" + story + "\nthe log ends with:\n" + strings.Join(log[max(0, len(log)-40):], "\n")
}

func (w *world) end() {
	w.End()
	for _, secret := range []string{"canary-of-inner", "canary-of-leaf", "canary-of-father"} {
		require.NotContains(w.t, w.log.String(), secret)
	}
}

// Three levels come up from nothing, and follow pushes.
func TestThreeLevels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		defer w.end()
		s := newSite()
		for _, on := range []string{"father", "inner", "leaf"} {
			s.add(on)
		}
		w.push(s, "begin")
		w.until(time.Hour, "the tree is there", w.converged)
		s.vms["vm-3"] = 4
		s.add("leaf")
		w.push(s, "more")
		w.until(10*time.Minute, "the tree follows", w.converged)

		// A machine that leaves the site goes after all that is in it, level by level.
		s.inner = false
		w.push(s, "inner leaves\n\nAllow-Deletes: 10")
		w.until(time.Hour, "inner is gone", w.converged)
		s.inner = true
		w.push(s, "inner is back")
		w.until(time.Hour, "the tree is there again", w.converged)
		require.Empty(t, w.broken)
		if testing.Verbose() {
			t.Log(w.why())
		}
	})
}

// A violation of the order is noticed: a machine that is destroyed with something in it.
func TestTheLawNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := grown(t, nil)
		defer w.end()
		w.deletes("inner", "leaf")
		w.live(2 * time.Second)
		require.Equal(t, []string{"gone: leaf with [vm-3] in it"}, w.broken)
		w.deletes("father", "inner")
		w.live(2 * time.Second)
		require.Len(t, w.broken, 2)
	})
}
