package chaos_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// The secrets of the site. None may be in anything that is written or printed.
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
	log    *enginetest.Log

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

// keys are the keys of ownership of an owner.
func (w *world) keys(owner string) [][]byte { return w.secrets.OwnershipKeys("home", owner) }

func newWorld(t *testing.T, seed uint64, dir string, rules *policy.Set) *world {
	t.Helper()
	w := &world{
		t: t, ctx: t.Context(), seed: seed, unsettled: true, r: rand.New(rand.NewPCG(seed, 0x63686173)), dir: dir, log: &enginetest.Log{}, repo: newRepo(),
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
		if _, proven := owned(g); (!proven || w.byHand[g.VMID]) && g.Lock != "create" && g.Lock != "clone" {
			w.foreign[g.VMID], w.disks[g.VMID] = g, disksOf(snap, g.VMID)
		}
	}
}

func (w *world) push(s *site, what string) {
	w.mu.Lock()
	w.sites = append(w.sites, s.copy())
	w.mu.Unlock()
	id := w.repo.push(s.text(), what)
	w.logf("push %s: %s", strings.TrimLeft(id, "0"), what)
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
		Children: func() map[string]model.ChildReport { return w.children() },
		Log:      slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(w.ctx)
	w.cancel, w.ended = cancel, make(chan error, 1)
	go func(a *agent.Agent, ended chan error) { ended <- a.Run(ctx, nil) }(w.agent, w.ended)
}

// children is what agents of pve nodes would report: nothing lives on any of them, as the newest commit has it.
func (w *world) children() map[string]model.ChildReport {
	c, err := w.repo.Head(w.ctx)
	out := map[string]model.ChildReport{}
	for i := 0; err == nil && i < 100; i++ {
		out[fmt.Sprintf("n%d", i)] = model.ChildReport{At: time.Unix(1, 0), Commit: c.ID, Empty: true}
	}
	return out
}

// die ends the agent in the middle of a request.
func (w *world) die(n int, c crash) {
	w.logf("  %4d the agent dies (after the effect: %v, data folder lost: %v)", n, c.after, c.data)
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
			w.logf("  the agent is gone: %v", err)
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

// logf adds a line to the story.
func (w *world) logf(format string, args ...any) {
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

// secret searches readable text for secrets.
func (w *world) secret(where, text string) {
	for _, s := range []string{tokenSecret, password} {
		if i := strings.Index(text, s); i >= 0 {
			w.violation('e', "%s holds a secret: …%s…", where, text[max(0, i-60):i])
		}
	}
}

// written looks for secrets in all that was written.
func (w *world) written(snap pve.Snapshot) {
	w.secret("the log", w.log.String())
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

var guestPath = regexp.MustCompile(`^/nodes/([^/]+)/(qemu|lxc)/(\d+)(/.*)?$`)

// mayWrite holds a write of the agent against what holds at any moment: it is to
// something of ours, with the digest, where the host can be seen, and goes around
// no protection.
func (w *world) mayWrite(method, path string, in map[string]string) {
	what := method + " " + path
	if in["skiplock"] != "" {
		w.violation('i', "%s goes around a lock", what)
	}
	w.mu.Lock()
	lost, dark, at := w.lost, w.dark, w.darkened
	w.mu.Unlock()
	asks := strings.HasSuffix(path, "/agent/ping") // a POST that writes nothing
	if lost && !asks && !w.wire.sightless() {
		w.violation('h', "%s without quorum", what)
	}
	if dark != "" && !asks && strings.HasPrefix(path, "/nodes/"+dark+"/") {
		w.violation('h', "%s on a node that is offline", what)
	}
	m := guestPath.FindStringSubmatch(path)
	if m == nil {
		if method == http.MethodPost && (strings.HasSuffix(path, "/qemu") || strings.HasSuffix(path, "/lxc")) {
			if _, n, ok := strings.Cut(in["description"], `"node":"`); ok && at[strings.SplitN(n, `"`, 2)[0]] {
				w.violation('h', "%s makes again what is on the node that is offline", what)
			}
			w.ordered(in["vmid"])
		}
		if strings.HasSuffix(path, "/vzdump") {
			w.mayBackUp(what, in)
			return
		}
		if t := taskPath.FindStringSubmatch(path); t != nil && method == http.MethodDelete {
			id, _ := strconv.Atoi(t[1])
			g, there := w.sim.Snapshot().Guest(id)
			if _, proven := owned(g); there && !proven || t[2] != "root@pam%21sim" {
				w.violation('d', "%s ends a task that is not ours, or not on ours", what)
			}
			return
		}
		if h := haPath.FindStringSubmatch(path); h != nil && method == http.MethodDelete {
			id, _ := strconv.Atoi(h[1])
			g, there := w.sim.Snapshot().Guest(id)
			if _, proven := owned(g); there && !proven {
				w.violation('d', "%s is to a guest that is not provably ours", what)
			}
			return
		}
		if !plainWrite.MatchString(path) {
			w.violation('d', "%s is to nothing of ours", what)
		}
		return
	}
	snap := w.sim.Snapshot()
	id, _ := strconv.Atoi(m[3])
	g, there := snap.Guest(id)
	if !there || g.Node != m[1] { // it went; nothing can happen to it
		return
	}
	if m[4] == "/clone" {
		if !slices.Contains(w.site().templates, id) {
			w.violation('d', "%s copies what is no template of the site", what)
		}
		w.ordered(in["newid"])
		return
	}
	addr, proven := owned(g)
	if !proven {
		w.violation('d', "%s (%s) is to a guest that is not provably ours", what, g.Name())
	} else if mark, _ := markOf(g); len(managed(snap)[addr]) > 1 && mark.Born != g.VMID { // its tag is signed for another VMID
		w.violation('d', "%s is to a copy with the identity of %s", what, addr)
	}
	if method != http.MethodGet && digested[m[4]] && in["digest"] == "" {
		w.violation('g', "%s carries no digest", what)
	}
	w.mayLeave(what, method, m[4], addr, g, snap)
	w.mayUnprotect(what, method, m[4], addr, g, in)
}

// digested are the writes to a guest for which PVE takes a digest.
var digested = map[string]bool{"/config": true, "/resize": true, "/move_disk": true, "/move_volume": true}

var seedPath = regexp.MustCompile(`:iso/homestak-seed\.home\.([^.]+)\.`)

var haPath = regexp.MustCompile(`^/cluster/ha/resources/(?:vm|ct)(?::|%3A)(\d+)$`)

// taskPath is one task of a guest, with its user.
var taskPath = regexp.MustCompile(`^/nodes/[^/]+/tasks/UPID:(?:[^:]*:){5}(\d+):([^:]+):$`)

// mayBackUp: only what is ours is read out.
func (w *world) mayBackUp(what string, in map[string]string) {
	id, _ := strconv.Atoi(in["vmid"])
	g, there := w.sim.Snapshot().Guest(id)
	if _, proven := owned(g); there && !proven {
		w.violation('d', "%s of guest %d, which is not provably ours", what, id)
	}
}

// ordered notes the VMID of a guest that is about to be made.
func (w *world) ordered(vmid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id, _ := strconv.Atoi(vmid)
	w.young[id] = true
}

// mayLeave: a guest goes as its mark demands. What was made in this round may be taken
// back by a rollback, for which no policy is meant.
func (w *world) mayLeave(what, method, rest, addr string, g pve.Guest, snap pve.Snapshot) {
	mk, _ := markOf(g)
	w.mu.Lock()
	young := w.young[g.VMID]
	w.mu.Unlock()
	going := method == http.MethodDelete && rest == ""
	if young {
		return
	}
	switch mk.Destroy.Policy {
	case "requires_final_backup":
		if going && !backedUp(g, mk, snap) {
			w.violation('i', "%s, whose decommission policy is %s, and there is no backup of it", what, mk.Destroy.Policy)
		}
	case "requires_migration_first":
		stops := method == http.MethodPost && (rest == "/status/shutdown" || rest == "/status/stop")
		wanted := slices.ContainsFunc(w.lately(), func(s *site) bool { return s.find(addr) != nil })
		if g.Running && (going || stops && !wanted) {
			w.violation('i', "%s, which runs, and whose decommission policy is %s", what, mk.Destroy.Policy)
		}
	}
}

// backedUp reports whether there is a whole backup of the guest that stands there now.
func backedUp(g pve.Guest, m mark, snap pve.Snapshot) bool {
	for _, list := range snap.Volumes {
		for _, v := range list {
			if v.Content == "backup" && v.VMID == g.VMID && v.Size > 0 && v.Protected && strings.Contains(v.Notes, m.addr()) && strings.Contains(v.Notes, m.UUID) {
				return !g.Running
			}
		}
	}
	return false
}

// plainWrite is a write that is to no guest that exists.
var plainWrite = regexp.MustCompile(`^(/nodes/[^/]+/(qemu|lxc)|/pools(/prod|/beside)?|/nodes/[^/]+/storage/[^/]+/(download-url|upload|content/[^/]*(homestak\.home|homestak-seed\.home)\.[^/]+))$`)

// mayUnprotect: a protected guest stays, and its protection goes only by the files.
func (w *world) mayUnprotect(what, method, rest, addr string, g pve.Guest, in map[string]string) {
	if g.Config["protection"] != "1" {
		return
	}
	if method == http.MethodDelete && rest == "" {
		w.violation('i', "%s of a guest that is protected", what)
	}
	_, set := in["protection"]
	off := set && in["protection"] != "1" && in["protection"] != "true" || slices.Contains(strings.Split(in["delete"], ","), "protection")
	if !off {
		return
	}
	for _, s := range w.lately() {
		if n := s.find(addr); n != nil && !n.guarded {
			return
		}
	}
	w.violation('i', "%s takes protection off a guest that the files protect, or do not have", what)
}

// wire is between the agent and the host. Every request passes by its laws; then it may
// fail, be answered wrongly, or be the last that the agent sends.
type wire struct {
	w  *world
	mu sync.Mutex // requests come from many goroutines

	life     int            // of the agent; requests of an older one are dropped
	faults   faultPlan      // of the round
	seen     map[string]int // requests of the round by method and path
	requests int            // of the round
	stats    stats
	blind    bool        // in this round the agent was not told of the quorum that is lost
	twice    atomic.Bool // a defect on purpose: every guest that is ordered is ordered again
}

// faultPlan is how a round goes wrong.
type faultPlan struct {
	key     uint64  // what the faults are drawn from
	chance  float64 // of a request to fail
	short   string  // end of the path whose lists may be short
	crashes []crash // when the agent dies
	dark    string  // node that is offline
	lost    bool    // quorum
}

type crash struct {
	at    int  // request of the round
	after bool // it has its effect
	data  bool // the data folder is lost with it
}

// stats count what happened.
type stats struct{ rounds, requests, faults, crashes, secrets int }

var errGone = errors.New("the process that asked is gone")

// agentWire is the way of one life of the agent.
type agentWire struct {
	*wire
	life int
}

// RoundTrip is one request of the agent.
func (a agentWire) RoundTrip(r *http.Request) (*http.Response, error) {
	t := a.wire
	body := readBody(r)
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/api2/json")
	if !queue(r, path, body) {
		return nil, errGone
	}
	t.mu.Lock()
	if a.life != t.life {
		t.mu.Unlock()
		return nil, errGone
	}
	t.requests++
	t.stats.requests++
	n := t.requests
	key := named(r.Method, path)
	t.seen[key]++
	draw := t.draw(fmt.Sprintf("%s %d", key, t.seen[key]))
	fault := t.kind(draw, r.Method, path)
	var end *crash
	for i, c := range t.faults.crashes {
		if c.at == n {
			end = &t.faults.crashes[i]
		}
	}
	if fault != "" {
		t.stats.faults++
	}
	if strings.HasSuffix(path, "/upload") && bytes.Contains(body, []byte(password)) {
		t.stats.secrets++
	}
	t.mu.Unlock()

	upload := strings.HasSuffix(path, "/upload")
	if t.w.secret("the URL of a request", r.URL.String()); !upload {
		t.w.secret("the body of "+r.Method+" "+path, string(body))
	}
	switch {
	case upload:
		t.w.logf("  %4d %s %s (%d bytes)%s", n, r.Method, path, len(body), fault)
	case r.Method != http.MethodGet:
		t.w.logf("  %4d %s %s %s%s", n, r.Method, path, brief(body), fault)
	case fault != "":
		t.w.logf("  %4d %s %s%s", n, r.Method, path, fault)
	}
	if err := proxmoxtest.ValidateRequest(r); err != nil {
		t.w.violation('f', "%v", err)
	}
	if r.Method != http.MethodGet {
		t.w.mayWrite(r.Method, path, fields(r, body))
	}
	if end != nil && !end.after {
		t.w.die(n, *end)
		return nil, errGone
	}
	res, err := t.answer(r, body, fault, draw)
	if t.twice.Load() && r.Method == http.MethodPost && strings.HasSuffix(path, "/qemu") {
		t.repeatCreate(r, body)
	}
	if end != nil {
		t.w.die(n, *end)
		return nil, errGone
	}
	return res, err
}

// atOnce is more than a pass asks at once: requests that wait for each other would come
// in any order.
const atOnce = 500

// queue puts requests that come at one moment in an order that does not depend on which
// goroutine came first: each waits for less than a millisecond of its own. It is false
// where the one that asks has ended meanwhile.
func queue(r *http.Request, path string, body []byte) bool {
	if strings.HasSuffix(path, "/upload") { // its parts have borders that are drawn
		body = seedName.Find(body)
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %s %s", time.Now().UnixNano(), named(r.Method, path), r.URL.RawQuery, drawn.ReplaceAll(body, nil))
	wait := time.NewTimer(time.Duration(mixed(h.Sum64()) % uint64(time.Millisecond))) //nolint:gosec // below a millisecond
	defer wait.Stop()
	select {
	case <-wait.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

var (
	// drawn is what the program draws for each run of its own, and the digests that come of it.
	drawn    = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|BC(:[0-9A-F]{2}){5}|"digest":"[0-9a-f]+"`)
	seedName = regexp.MustCompile(`homestak-seed\.home\.[^.]+`)
)

// named is a request without what is drawn.
func named(method, path string) string { return method + " " + drawn.ReplaceAllString(path, "") }

// repeatCreate orders a guest once more, under another VMID.
func (t *wire) repeatCreate(r *http.Request, body []byte) {
	other := regexp.MustCompile(`"vmid":\d+`).ReplaceAll(body, []byte(`"vmid":45000`))
	c := r.Clone(t.w.ctx)
	c.Body, c.ContentLength = io.NopCloser(bytes.NewReader(other)), int64(len(other))
	if res, err := t.w.sim.RoundTrip(c); err == nil {
		_ = res.Body.Close()
	}
}

// sightless reports whether the agent was not told that the quorum is lost.
func (t *wire) sightless() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.blind
}

// draw makes a number of what is asked, so that it does not depend on the order in
// which requests that are under way together arrive.
func (t *wire) draw(key string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", t.faults.key, key)
	return mixed(h.Sum64())
}

// mixed makes other numbers of similar ones: FNV alone gives those of similar texts.
func mixed(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// kind chooses a fault; "" for none.
func (t *wire) kind(draw uint64, method, path string) string {
	if float64(draw%10000)/10000 >= t.faults.chance {
		return ""
	}
	kinds := []string{"595", "596", "500", "403", "dropped"}
	if method == http.MethodGet {
		kinds = append(kinds, "null", "page", "cut")
		if t.faults.short != "" && strings.HasSuffix(path, t.faults.short) {
			kinds = append(kinds, "short", "short", "short", "empty")
		}
	} else {
		kinds = append(kinds, "400")
	}
	kind := kinds[draw/10000%uint64(len(kinds))]
	if kind == "403" && t.faults.lost && strings.HasSuffix(path, "/cluster/status") {
		t.blind = true // who may not ask about the quorum leaves it to PVE to refuse writes
	}
	if method != http.MethodGet && draw>>40&1 == 1 {
		kind += " with effect"
	}
	return " ← " + kind
}

// answer forwards a request, and spoils its answer.
func (t *wire) answer(r *http.Request, body []byte, fault string, draw uint64) (*http.Response, error) {
	r.Body = io.NopCloser(bytes.NewReader(body))
	kind, effect := strings.CutSuffix(strings.TrimPrefix(fault, " ← "), " with effect")
	if kind == "" {
		return t.w.sim.RoundTrip(r)
	}
	var res *http.Response
	if effect || r.Method == http.MethodGet {
		var err error
		if res, err = t.w.sim.RoundTrip(r); err != nil {
			return nil, err
		}
	}
	switch kind {
	case "595", "596":
		return spoiled(r, kind+" Connection refused", ""), nil
	case "500":
		return spoiled(r, "500 got timeout", `{"data":null,"message":"got timeout\n"}`), nil
	case "400": // as PVE does, it repeats what it does not like
		said, _ := json.Marshal(map[string]any{"data": nil, "message": "Parameter verification failed.\n", "errors": fields(r, body)})
		return spoiled(r, "400 Parameter verification failed.", string(said)), nil
	case "403":
		return spoiled(r, "403 Permission check failed", `{"data":null,"message":"Permission check failed\n"}`), nil
	case "dropped":
		return nil, io.ErrUnexpectedEOF
	case "null":
		return spoiled(r, "200 OK", `{"data":null}`), nil
	case "page":
		return spoiled(r, "200 OK", "<html><body>Please log in to the network</body></html>"), nil
	}
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return spoiled(r, res.Status, string(text)), err
	}
	switch kind {
	case "cut":
		text = text[:len(text)/2]
	case "empty":
		text = []byte(`{"data":[]}`)
	default:
		text = shorter(text, draw)
	}
	return spoiled(r, "200 OK", string(text)), nil
}

// shorter leaves out some of a list.
func shorter(text []byte, draw uint64) []byte {
	var doc struct {
		Data []json.RawMessage `json:"data"`
	}
	if json.Unmarshal(text, &doc) != nil {
		return text
	}
	kept := []json.RawMessage{}
	for i, e := range doc.Data {
		if draw>>(i%48)&1 == 0 {
			kept = append(kept, e)
		}
	}
	out, err := json.Marshal(map[string]any{"data": kept})
	if err != nil {
		return text
	}
	return out
}

func spoiled(r *http.Request, status, body string) *http.Response {
	var code int
	_, _ = fmt.Sscan(status, &code)
	return &http.Response{
		StatusCode: code, Status: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
}

func readBody(r *http.Request) []byte {
	if r.Body == nil {
		return nil
	}
	body, _ := io.ReadAll(r.Body) // of a request in memory
	_ = r.Body.Close()
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

// fields are the parameters of a request.
func fields(r *http.Request, body []byte) map[string]string {
	out := map[string]string{}
	for k, v := range r.URL.Query() {
		out[k] = v[0]
	}
	var doc map[string]any
	if json.Unmarshal(body, &doc) == nil {
		for k, v := range doc {
			out[k] = fmt.Sprint(v)
		}
		return out
	}
	if form, err := url.ParseQuery(string(body)); err == nil {
		for k, v := range form {
			out[k] = v[0]
		}
	}
	return out
}

var hidden = regexp.MustCompile(`("?(?:sshkeys|cipassword|description)"?[:=])("(?:[^"\\]|\\.)*"|[^&]*)`)

// brief is a body as the story tells it.
func brief(body []byte) string {
	text := hidden.ReplaceAllString(string(body), "$1…")
	if len(text) > 600 {
		text = text[:600] + "…"
	}
	return text
}
