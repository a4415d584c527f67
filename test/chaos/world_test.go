package chaos_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// The secrets of the site. None may stand in anything that is written or said.
const (
	tokenSecret = "5ec2e7aa-0000-4000-8000-70cec0ffee00"
	password    = "correct-horse-battery"
	keyBody     = "AAAAC3NzaC1lZDI1NTE5AAAAIEm2vTt0Yt2bV8m0nq0Zk2l5s7cD4pXy1hJr9uQwAbCd"
)

// world is a site, an agent and a host, and what is known of them without the agent.
type world struct {
	t    *testing.T
	ctx  context.Context
	seed uint64
	r    *rand.Rand
	sim  *pve.Host
	wire *wire
	repo *repo

	kinds   model.Kinds
	secrets *model.Secrets
	rules   *policy.Set // nil: none are asked
	reader  *hcl.Loader // the schedule's own; the agent has another
	meddle  func(*world)

	agent  *agent.Agent
	cancel context.CancelFunc
	ended  chan error
	dir    string
	log    *lines

	foreign   map[int]pve.Guest // as they were left
	disks     map[int]string    // their disks
	byHand    map[int]bool      // copies that people made
	strangers []int             // guests that people made, and will clear away
	crashed   map[int]bool      // VMIDs whose making was cut off: their volumes may be left
	mends     []func()

	mu         sync.Mutex // the agent's goroutines tell of themselves
	sites      []*site    // as pushed, the newest last
	story      []string
	violations []string
	lost       bool
	dark       string
	young      map[int]bool    // VMIDs that the agent ordered in this round
	darkened   map[string]bool // names of our guests on the node that is dark
	data       bool            // the data folder went with the last agent
	unsettled  bool            // the agent knows no commit that the host converged to
}

// lines is a log that several write.
type lines struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(b)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.String()
}

// keys are the keys of ownership of an owner.
func (w *world) keys(owner string) [][]byte { return w.secrets.OwnershipKeys("home", owner) }

func newWorld(t *testing.T, seed uint64, dir string, rules *policy.Set) *world {
	t.Helper()
	w := &world{
		t: t, ctx: t.Context(), seed: seed, unsettled: true, r: rand.New(rand.NewPCG(seed, 0x63686173)), dir: dir, log: &lines{}, repo: newRepo(),
		kinds: proxmox.Kinds(), reader: &hcl.Loader{}, foreign: map[int]pve.Guest{}, disks: map[int]string{}, byHand: map[int]bool{}, crashed: map[int]bool{}, young: map[int]bool{},
		secrets: &model.Secrets{Values: map[string]map[string]string{
			"api_tokens": {"father": "root@pam!sim=" + tokenSecret},
			"auth":       {model.OwnershipKey: strings.Repeat("0e", 32)},
			"passwords":  {"root": password},
			"ssh_keys":   {"ops": "ssh-ed25519 " + keyBody + " ops@home"},
		}},
	}
	if seed%4 == 0 {
		w.rules = rules
	}
	s := w.firstSite()
	c := pve.Config{
		Node: "father", Seed: int64(seed), Guests: 1 + w.r.IntN(4), TaskTime: time.Duration(w.r.IntN(5)) * time.Second, Token: w.secrets.Values["api_tokens"]["father"], //nolint:gosec // any seed will do
		Storages: pve.DefaultStorages(), Version: pick(w.r, "9.2", "9.2", "8.4"),
	}
	if len(s.cluster) > 1 {
		c.Nodes = s.cluster[1:]
		c.Storages = append(c.Storages, pve.Storage{Name: "ceph", Type: "rbd", Content: []string{"images", "rootdir"}})
	} else {
		c.Storages = append(c.Storages, pve.Storage{Name: "fast", Type: "zfspool", Content: []string{"images", "rootdir"}})
	}
	c.Storages = append(c.Storages, pve.Storage{Name: "vault", Type: "nfs", Content: []string{"backup"}})
	w.sim = pve.New(c)
	w.wire = &wire{w: w, seen: map[string]int{}}
	w.neighbours(s)
	w.push(s, "the first site")
	w.start()
	return w
}

func (w *world) firstSite() *site {
	s := &site{cluster: []string{"father"}, storage: "local-lvm", other: "fast", from: 10000, to: 10099, onError: pick(w.r, "stop", "rollback", "continue"), sums: map[string]int{}, templates: []int{9000, 9002}}
	if n := w.r.IntN(3); n > 0 {
		s.cluster, s.storage, s.other = []string{"father", "second", "third"}[:n+1], "ceph", ""
	}
	s.pooled, s.comment = w.r.IntN(3) == 0, "what pays"
	s.spare, s.vault, s.checked = w.r.IntN(2) == 0, pick(w.r, "", "vault"), w.r.IntN(3) == 0
	for range 2 + w.r.IntN(6) {
		s.add(w.r)
	}
	return s
}

// neighbours makes what was on the host before: a template with a clone of its own,
// guests where ours would be, and one of the name of one of ours.
func (w *world) neighbours(s *site) {
	node := "/nodes/father/qemu"
	// With a system on it: a guest without one obeys no power button.
	ok := w.root(http.MethodPost, "/nodes/father/storage/local/download-url", "content", "import", "filename", "golden.qcow2", "url", "https://images.example/golden.qcow2") &&
		w.root(http.MethodPost, node, "vmid", "9000", "name", "golden", "scsi0", s.storage+":0,import-from=local:import/golden.qcow2", "boot", "order=scsi0", "net0", "virtio,bridge=vmbr0", "net1", "virtio,bridge=vmbr0") &&
		w.root(http.MethodPost, node+"/9000/template") &&
		w.root(http.MethodPost, node+"/9000/clone", "newid", "9001", "name", "child-of-golden") &&
		w.root(http.MethodPost, "/nodes/father/storage/local/download-url", "content", "vztmpl", "filename", "lying.tar.gz", "url", "http://images.example/lying.tar.gz") &&
		w.root(http.MethodPost, "/nodes/father/lxc", "vmid", "9002", "hostname", "golden-ct", "ostemplate", lying, "unprivileged", "1", "rootfs", s.storage+":4", "net0", "name=eth0,bridge=vmbr0,ip=dhcp") &&
		w.root(http.MethodPost, "/nodes/father/lxc/9002/template")
	require.True(w.t, ok, "the templates")
	for { // PVE does not say by which task it converts a container
		if g, _ := w.sim.Snapshot().Guest(9002); g.Config["template"] == "1" {
			break
		}
		time.Sleep(time.Second)
	}
	w.sim.Edit(func(e *pve.Edit) {
		for i := range w.r.IntN(3) {
			e.Add(pve.Guest{VMID: s.from + 3*i, Running: i == 0, Config: map[string]string{"name": fmt.Sprintf("settler-%d", i), "cores": "1", "memory": "512"}})
		}
		if w.r.IntN(4) == 0 {
			e.Add(pve.Guest{VMID: 30000, Config: map[string]string{"name": s.nodes[0].name, "cores": "1", "memory": "512"}})
			w.strangers = append(w.strangers, 30000)
		}
	})
	w.rebase()
}

// rebase takes everything that is not ours as it is now for what it shall stay.
func (w *world) rebase() {
	snap := w.sim.Snapshot()
	clear(w.foreign)
	clear(w.disks)
	for _, g := range snap.Guests {
		if _, proven := proves(g); (!proven || w.byHand[g.VMID]) && g.Lock != "create" && g.Lock != "clone" {
			w.foreign[g.VMID], w.disks[g.VMID] = g, disksOf(snap, g.VMID)
		}
	}
}

func (w *world) push(s *site, what string) {
	w.mu.Lock()
	w.sites = append(w.sites, s.copy())
	w.mu.Unlock()
	id := w.repo.push(s.text(), what)
	w.tell("push %s: %s", strings.TrimLeft(id, "0"), what)
	if d := w.load(w.reader, model.Commit{ID: id}); d.Findings.HasErrors() {
		w.violation('x', "the schedule's own site does not load: %v\n%s", d.Findings, s.text())
	}
}

// site is the newest that was pushed.
func (w *world) site() *site {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sites[len(w.sites)-1]
}

// lately are the newest and the one before, which the agent may still be at.
func (w *world) lately() []*site {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sites[max(len(w.sites)-2, 0):]
}

// load reads a commit as the agent's program does.
func (w *world) load(reader *hcl.Loader, c model.Commit) engine.Desired {
	s, found := reader.Load(w.repo.tree(c.ID), hcl.Options{Kinds: w.kinds, Secrets: w.secrets})
	d := engine.Desired{Site: s, Commit: c.ID, Findings: found}
	if w.rules == nil {
		return d
	}
	by := model.Commit{ID: c.ID}
	if s != nil && !found.HasErrors() {
		said, _ := w.rules.Site(w.ctx, s, policy.Request{Commit: by, Now: time.Now(), Unattended: true})
		d.Findings = append(d.Findings, said...)
	}
	d.PolicyCheck = func(ctx context.Context, q engine.Question) diag.List {
		r := policy.Request{Commit: by, Now: time.Now(), Want: q.Want, Unattended: q.Unattended, AllowDeletes: q.AllowDeletes}
		for _, have := range q.Have.State {
			if have.Guest != nil {
				r.OwnedCount++
			}
		}
		said, _ := w.rules.Plan(ctx, q.Site, q.Plan, r)
		return said
	}
	return d
}

// start lets an agent live, with a fresh driver; the data folder may be lost.
func (w *world) start() {
	w.mu.Lock()
	if w.data {
		w.data, w.unsettled = false, true
		w.dir += "x"
	}
	w.mu.Unlock()
	l, err := ledger.Open(w.dir)
	require.NoError(w.t, err)
	w.wire.mu.Lock()
	way := agentWire{w.wire, w.wire.life}
	w.wire.mu.Unlock()
	reader := &hcl.Loader{}
	w.agent, err = agent.New(agent.Options{
		Identity: "father", Program: "1.0", URL: "https://git.example/site.git", Branch: "main",
		Source: w.repo, Load: func(_ context.Context, c model.Commit) engine.Desired { return w.load(reader, c) }, Ledger: l,
		Open: func(d engine.Desired, h *model.Host) (engine.Driver, error) {
			return proxmox.Open(proxmox.Config{Host: h, Site: d.Site.Name, Owner: h.Name, Keys: w.keys, Transport: way, Concurrency: atOnce})
		},
		Children: func() map[string]model.Child { return w.children() },
		Log:      slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(w.ctx)
	w.cancel, w.ended = cancel, make(chan error, 1)
	go func(a *agent.Agent, ended chan error) { ended <- a.Run(ctx, nil) }(w.agent, w.ended)
}

// children is what agents of pve nodes would report: nothing lives on any of them, as the newest commit has it.
func (w *world) children() map[string]model.Child {
	c, err := w.repo.Head(w.ctx)
	out := map[string]model.Child{}
	for i := 0; err == nil && i < 100; i++ {
		out[fmt.Sprintf("n%d", i)] = model.Child{At: time.Unix(1, 0), Commit: c.ID, Empty: true}
	}
	return out
}

// die ends the agent in the middle of a request.
func (w *world) die(n int, c crash) {
	w.tell("  %4d the agent dies (after the effect: %v, data folder lost: %v)", n, c.after, c.data)
	w.wire.mu.Lock()
	w.wire.life++
	w.wire.stats.crashes++
	w.wire.mu.Unlock()
	w.mu.Lock()
	w.data = w.data || c.data
	cancel := w.cancel
	w.mu.Unlock()
	cancel()
}

// live lets time pass, and starts the agent again whenever it has died.
func (w *world) live(d time.Duration) {
	over := time.After(d)
	for {
		select {
		case err := <-w.ended:
			w.tell("  the agent is gone: %v", err)
			w.start()
		case <-over:
			synctest.Wait() // what begins at this moment comes first
			return
		}
	}
}

// idle waits until the agent has nothing to do.
func (w *world) idle() {
	for range 3600 {
		synctest.Wait()
		if w.agent.Status().State == agent.Idle {
			return
		}
		w.live(2 * time.Second)
	}
	w.violation('a', "the agent is not idle for two hours: %s", w.agent.Status().Summary)
}

// tell adds a line to the story.
func (w *world) tell(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.story = append(w.story, fmt.Sprintf(format, args...))
}

func (w *world) violation(law rune, format string, args ...any) {
	line := fmt.Sprintf("law %c: ", law) + fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, line)
	w.story = append(w.story, "!! "+line)
}

func (w *world) broken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.violations) > 0
}

// secret looks for secrets in what somebody can read.
func (w *world) secret(where, text string) {
	for _, s := range []string{tokenSecret, password} {
		if i := strings.Index(text, s); i >= 0 {
			w.violation('e', "%s holds a secret: …%s…", where, text[max(0, i-60):i])
		}
	}
}

// written looks for secrets in all that was written.
func (w *world) written(snap pve.Snapshot) {
	w.secret("the log", w.log.text())
	for _, g := range snap.Guests {
		w.secret("the description of guest "+strconv.Itoa(g.VMID), g.Config["description"])
	}
	for _, p := range snap.Pools {
		w.secret("the comment of pool "+p.Name, p.Comment)
	}
	for dir := w.dir; ; dir = strings.TrimSuffix(dir, "x") {
		files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
		more, _ := filepath.Glob(filepath.Join(dir, "receipts", "*.json"))
		for _, name := range append(files, more...) {
			text, err := os.ReadFile(name)
			if err == nil {
				w.secret("file "+filepath.Base(name), string(text))
			}
		}
		if !strings.HasSuffix(dir, "x") {
			return
		}
	}
}
