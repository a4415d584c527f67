package pvesim

import (
	"container/heap"
	"crypto/x509"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// samplePeriod is how often pvestatd broadcasts the state of a node and its
// guests (PVE/Service/pvestatd.pm).
const samplePeriod = 10 * time.Second

// world is the whole state of a host. Whoever touches it holds Host.mu.
type world struct {
	cfg         Config
	rng         *rand.Rand
	boot        time.Time // When the nodes were started.
	now         time.Time // What the world is up to date with.
	quorum      bool
	certificate *x509.Certificate // The one that Serve shows.
	authority   *x509.Certificate // Who signed it.
	// fingerprint is that of the certificate, in hexadecimal.
	fingerprint string

	nodes   map[string]*node
	guests  map[int]*guest
	vmids   []int // The keys of guests, sorted.
	stores  map[string]*store
	bridges []string
	pools   map[string]*pool
	access  *access
	token   struct { // The last one that was sent, taken apart.
		value string
		parts []string
	}
	tasks   taskList
	ha      manager
	options config // datacenter.cfg.
	// sections are what files below /etc/pve hold, by file and id: jobs, and all of which the
	// API table knows nothing. applied is what was put into force of those for which that is a
	// step of its own.
	sections, applied map[string]map[string]config

	parts parts
	hooks hooks

	due    events
	seen   map[int]sample   // What the last broadcast said of each guest.
	stale  map[int]struct{} // Guests that changed since.
	next   time.Time        // The next broadcast.
	count  counters
	lastID int // Of processes.
}

// node is one machine of the cluster.
type node struct {
	name    string
	index   int // From 1, as in corosync.conf.
	offline bool
	sampled time.Time // The last broadcast.
	parts   parts
	dns     config
	conf    config            // nodes/NAME/config.
	planned map[string]config // Interfaces that are written, but not there before a reload; nil deletes.
	ifaces  map[string]config // Interfaces that were made by a reload.
	free    []time.Time       // When each worker is done with what it was given, see admit.
}

// counters are what Snapshot says about the traffic.
type counters struct {
	requests      map[string]int
	unimplemented map[string]struct{}
	writes        int
	connections   int
	peakRequests  int
	running       map[string]int // Tasks by type; "" is all of them.
	begun         map[string]int // How many of a type ever began.
	peakTasks     map[string]int
}

// newWorld makes the world as it is now.
func newWorld(c Config, now time.Time) *world {
	w := &world{
		cfg: c, rng: rand.New(rand.NewPCG(uint64(c.Seed), 0x7076657369)), //nolint:gosec // Reproducible on purpose.
		now: now, quorum: !c.NoQuorum,
		nodes: map[string]*node{}, guests: map[int]*guest{}, stores: map[string]*store{},
		bridges: slices.Clone(c.Bridges), pools: map[string]*pool{},
		tasks: newTaskList(), options: config{}, seen: map[int]sample{}, stale: map[int]struct{}{}, lastID: 1000,
		count: counters{
			requests: map[string]int{}, unimplemented: map[string]struct{}{},
			running: map[string]int{}, begun: map[string]int{}, peakTasks: map[string]int{},
		},
	}
	w.sections = map[string]map[string]config{"jobs": {}}
	w.applied = map[string]map[string]config{}
	w.hooks.ended = map[string]func(*guest, *call){}
	w.boot = w.now.Add(-time.Hour)
	if !slices.Contains(Versions(), c.Version) {
		panic(fmt.Sprintf("pvesim: version %q is none of %s", c.Version, strings.Join(Versions(), ", ")))
	}
	for _, name := range append([]string{c.Node}, c.Nodes...) {
		if w.nodes[name] != nil {
			continue
		}
		w.nodes[name] = &node{name: name, index: len(w.nodes) + 1, free: make([]time.Time, c.Workers), sampled: w.now, dns: maps.Clone(c.Resolver)}
	}
	for _, name := range c.Offline {
		if n := w.nodes[name]; n != nil {
			n.offline = true
		}
	}
	for _, s := range c.Storages {
		if err := s.check(); err != nil {
			panic(fmt.Sprintf("pvesim: storage %s: %v", s.Name, err))
		}
		w.stores[s.Name] = newStore(s)
	}
	if len(c.Storages) == 0 {
		w.assumeLocal()
	}
	if w.cfg.Token == "" {
		w.cfg.Token = "root@pam!sim=" + w.uuid()
	}
	w.access = newAccess(&w.cfg)
	return w
}

// begin lets the status daemon look at all guests for the first time.
func (w *world) begin() {
	for _, g := range w.guests {
		w.seen[g.vmid] = w.hooks.sampled(g)
	}
	clear(w.stale)
	w.next = w.now.Add(samplePeriod)
}

// event is something that is due.
type event struct {
	at    time.Time
	order int // Of events at one time: the one that was planned first.
	do    func()
}

// events is a heap, see container/heap.
type events struct {
	list    []event
	planned int
}

func (e *events) Len() int { return len(e.list) }
func (e *events) Less(i, j int) bool {
	if a, b := e.list[i], e.list[j]; !a.at.Equal(b.at) {
		return a.at.Before(b.at)
	}
	return e.list[i].order < e.list[j].order
}
func (e *events) Swap(i, j int) { e.list[i], e.list[j] = e.list[j], e.list[i] }
func (e *events) Push(x any)    { e.list = append(e.list, x.(event)) }
func (e *events) Pop() any {
	last := e.list[len(e.list)-1]
	e.list = e.list[:len(e.list)-1]
	return last
}

// at plans something. A time that has passed means: before the next request.
func (w *world) at(t time.Time, do func()) {
	w.due.planned++
	heap.Push(&w.due, event{at: t, order: w.due.planned, do: do})
}

// advance does all that was due until now, in the order of time.
func (w *world) advance(now time.Time) {
	for w.due.Len() > 0 && !w.due.list[0].at.After(now) {
		e := heap.Pop(&w.due).(event)
		w.broadcast(e.at)
		if e.at.After(w.now) {
			w.now = e.at
		}
		e.do()
	}
	w.broadcast(now)
	if now.After(w.now) {
		w.now = now
	}
}

// broadcast lets the status daemons of all nodes look at their guests, if their
// time came before t. Of several rounds since the last event only the last one
// can have seen anything new.
func (w *world) broadcast(t time.Time) {
	if t.Before(w.next) {
		return
	}
	at := w.next.Add(t.Sub(w.next) / samplePeriod * samplePeriod)
	w.next = at.Add(samplePeriod)
	for _, n := range w.nodes {
		if !n.offline {
			n.sampled = at
		}
	}
	for vmid := range w.stale {
		g := w.guests[vmid]
		switch {
		case g == nil:
			delete(w.seen, vmid)
		case w.nodes[g.node].offline:
			continue
		default:
			w.seen[vmid] = w.hooks.sampled(g)
		}
		delete(w.stale, vmid)
	}
}

// guest finds a guest of a kind on a node.
func (w *world) guest(node, kind string, vmid int) *guest {
	if g := w.guests[vmid]; g != nil && g.node == node && g.kind == kind {
		return g
	}
	return nil
}

// add puts a guest into the world.
func (w *world) add(g *guest) {
	w.guests[g.vmid] = g
	if i, found := slices.BinarySearch(w.vmids, g.vmid); !found {
		w.vmids = slices.Insert(w.vmids, i, g.vmid)
	}
	w.touch(g)
}

// remove takes a guest out of the world, and out of its pool and the access
// list with it.
func (w *world) remove(g *guest) {
	delete(w.guests, g.vmid)
	if i, found := slices.BinarySearch(w.vmids, g.vmid); found {
		w.vmids = slices.Delete(w.vmids, i, i+1)
	}
	w.stale[g.vmid] = struct{}{}
	w.forgetGuest(g)
	for _, removed := range w.hooks.removed {
		removed(g)
	}
}

// cloned lets areas copy what they keep of a guest for its clone.
func (w *world) cloned(from, to *guest) {
	for _, cloned := range w.hooks.cloned {
		cloned(from, to)
	}
}

// touch marks a guest as changed: its file is rendered anew when asked for, and
// the next broadcast looks at it.
func (w *world) touch(g *guest) {
	g.raw, g.digest = "", ""
	w.stale[g.vmid] = struct{}{}
}

// uuid invents a version 4 UUID.
func (w *world) uuid() string {
	a, b := w.rng.Uint64(), w.rng.Uint64()
	a = a&^0xf000 | 0x4000
	b = b&^(3<<62) | 2<<62
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&(1<<48-1))
}

// mac invents a hardware address with the prefix of datacenter.cfg, which is
// Proxmox' own unless it was changed.
func (w *world) mac() string {
	n := w.rng.Uint32()
	return fmt.Sprintf("%s:%02X:%02X:%02X", w.macPrefix(), n>>16&0xff, n>>8&0xff, n&0xff)
}

func (w *world) macPrefix() string {
	if prefix := w.options["mac_prefix"]; prefix != "" {
		return strings.ToUpper(prefix)
	}
	return "BC:24:11"
}

// hex invents n hexadecimal digits.
func (w *world) hex(n int) string {
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%016x", w.rng.Uint64())
	}
	return b.String()[:n]
}

// pid is the id of a new process.
func (w *world) pid() int {
	w.lastID++
	return w.lastID
}

// version is what the host calls itself.
func (w *world) version() (release, version, repoid string) {
	switch w.cfg.Version {
	case "8.4":
		return "8.4", "8.4.21", "2606ac850d46da29"
	case "9.1":
		return "9.1", "9.1.4", "5ac30304265fbd8e"
	default:
		return "9.2", "9.2.11", "14a22df3lab00000" // As recorded.
	}
}

// v92 reports whether the host is of version 9.2 or later.
func (w *world) v92() bool { return w.cfg.Version != "8.4" && w.cfg.Version != "9.1" }

// v9 says whether the host is of the ninth major version.
func (w *world) v9() bool { return w.cfg.Version != "8.4" }

// nodeNames lists the nodes, sorted.
func (w *world) nodeNames() []string {
	names := make([]string, 0, len(w.nodes))
	for name := range w.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// sample is what the status daemon knows of a guest.
type sample struct {
	name     string
	status   string
	qmp      string // Of a VM whose processors do not run: what QEMU calls it.
	template bool
	cpus     float64 // Of a container with a limit perhaps half a one.
	maxmem   int64
	maxdisk  int64
	disk     int64     // What is used of it; known of containers only.
	since    time.Time // Start of the process; zero while stopped.
	vmid     int
}
