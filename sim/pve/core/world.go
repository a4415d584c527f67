package core

import (
	"container/heap"
	"crypto/x509"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// samplePeriod is the interval at which pvestatd broadcasts the state of a node and its
// guests (PVE/Service/pvestatd.pm).
const samplePeriod = 10 * time.Second

// World is the whole state of a host, guarded by Host.mu.
type World struct {
	Cfg         Config
	Rng         random
	unordered   atomic.Uint64 // lists that were given in no order
	Boot        time.Time     // When the nodes were started.
	Now         time.Time     // Time up to which the world is current.
	Quorum      bool
	Certificate *x509.Certificate // The one that Serve shows.
	Authority   *x509.Certificate // Its issuer.
	// fingerprint is that of the certificate, in hexadecimal.
	Fingerprint string

	Nodes   map[string]*Node
	Guests  map[int]*Guest
	Vmids   []int // The keys of guests, sorted.
	Stores  map[string]*Store
	Bridges []string
	Access  *Access
	Token   struct { // The last one that was sent, taken apart.
		Value string
		Parts []string
	}
	Tasks    taskList
	Messages messages // of the cluster log, beside those of tasks
	HA       manager
	Options  perl.Config // datacenter.cfg.
	// sections are what files below /etc/pve hold, by file and id: jobs, and all of which the
	// API table knows nothing. applied is what was put into force of those for which that is a
	// step of its own.
	Sections, Applied map[string]map[string]perl.Config

	Parts parts
	Hooks hooks

	due    events
	Seen   map[int]Sample   // Last broadcast sample of each guest.
	stale  map[int]struct{} // Guests that changed since.
	Next   time.Time        // The next broadcast.
	Count  counters
	lastID int // Of processes.
}

// Node is one machine of the cluster.
type Node struct {
	Name    string
	Index   int // From 1, as in corosync.conf.
	Offline bool
	// Maintenance is what ha-manager crm-command node-maintenance says of it.
	Maintenance bool
	Sampled     time.Time // The last broadcast.
	Parts       parts
	DNS         perl.Config
	Conf        perl.Config            // nodes/NAME/config.
	Planned     map[string]perl.Config // Interfaces that are written, but not there before a reload; nil deletes.
	Ifaces      map[string]perl.Config // Interfaces that were made by a reload.
	Free        []time.Time            // When each worker is done with what it was given, see admit.
}

// counters are the traffic figures of Snapshot.
type counters struct {
	Requests      map[string]int
	Unimplemented map[string]struct{}
	Writes        int
	Connections   int
	PeakRequests  int
	running       map[string]int // Tasks by type; "" is all of them.
	begun         map[string]int // How many of a type ever began.
	PeakTasks     map[string]int
}

// NewWorld makes a world with the current time.
func NewWorld(c Config, now time.Time) *World {
	w := &World{
		Cfg: c, Rng: random{rand.New(rand.NewPCG(uint64(c.Seed), 0x7076657369))}, //nolint:gosec // Reproducible on purpose.
		Now: now, Quorum: !c.NoQuorum,
		Nodes: map[string]*Node{}, Guests: map[int]*Guest{}, Stores: map[string]*Store{},
		Bridges: slices.Clone(c.Bridges),
		Tasks:   newTaskList(), Options: perl.Config{}, Seen: map[int]Sample{}, stale: map[int]struct{}{}, lastID: 1000,
		Count: counters{
			Requests: map[string]int{}, Unimplemented: map[string]struct{}{},
			running: map[string]int{}, begun: map[string]int{}, PeakTasks: map[string]int{},
		},
	}
	w.Sections = map[string]map[string]perl.Config{"jobs": {}}
	w.Applied = map[string]map[string]perl.Config{}
	w.Hooks.Ended = map[string]func(*Guest, *Call){}
	w.Boot = w.Now.Add(-time.Hour)
	if !slices.Contains(Versions(), c.Version) {
		panic(fmt.Sprintf("core: version %q is none of %s", c.Version, strings.Join(Versions(), ", ")))
	}
	for _, name := range append([]string{c.Node}, c.Nodes...) {
		if w.Nodes[name] != nil {
			continue
		}
		w.Nodes[name] = &Node{Name: name, Index: len(w.Nodes) + 1, Free: make([]time.Time, c.Workers), Sampled: w.Now, DNS: maps.Clone(c.Resolver)}
	}
	for _, name := range c.Offline {
		if n := w.Nodes[name]; n != nil {
			n.Offline = true
		}
	}
	for _, s := range c.Storages {
		if err := s.check(); err != nil {
			panic(fmt.Sprintf("core: storage %s: %v", s.Name, err))
		}
		w.Stores[s.Name] = NewStore(s)
	}
	if len(c.Storages) == 0 {
		w.AssumeLocal()
	}
	if w.Cfg.Token == "" {
		w.Cfg.Token = "root@pam!sim=" + w.Rng.UUID()
	}
	w.Access = newAccess(&w.Cfg)
	return w
}

// Begin has the status daemon sample all guests for the first time.
func (w *World) Begin() {
	for _, g := range w.Guests {
		w.Seen[g.Vmid] = w.Hooks.Sampled(g)
	}
	clear(w.stale)
	w.Next = w.Now.Add(samplePeriod)
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

// At plans something. A time that has passed means: before the next request.
func (w *World) At(t time.Time, do func()) {
	w.due.planned++
	heap.Push(&w.due, event{at: t, order: w.due.planned, do: do})
}

// Advance does all that was due until now, in the order of time.
func (w *World) Advance(now time.Time) {
	for w.due.Len() > 0 && !w.due.list[0].at.After(now) {
		e := heap.Pop(&w.due).(event)
		w.broadcast(e.at)
		if e.at.After(w.Now) {
			w.Now = e.at
		}
		e.do()
	}
	w.broadcast(now)
	if now.After(w.Now) {
		w.Now = now
	}
}

// broadcast has the status daemons of all nodes sample their guests, if their
// time came before t. Of several rounds since the last event only the last one
// can have seen anything new.
func (w *World) broadcast(t time.Time) {
	if t.Before(w.Next) {
		return
	}
	at := w.Next.Add(t.Sub(w.Next) / samplePeriod * samplePeriod)
	w.Next = at.Add(samplePeriod)
	for _, n := range w.Nodes {
		if !n.Offline {
			n.Sampled = at
		}
	}
	for vmid := range w.stale {
		g := w.Guests[vmid]
		switch {
		case g == nil:
			delete(w.Seen, vmid)
		case w.Nodes[g.Node].Offline:
			continue
		default:
			w.Seen[vmid] = w.Hooks.Sampled(g)
		}
		delete(w.stale, vmid)
	}
}

// Guest finds a guest of a kind on a node.
func (w *World) Guest(node, kind string, vmid int) *Guest {
	if g := w.Guests[vmid]; g != nil && g.Node == node && g.Kind == kind {
		return g
	}
	return nil
}

// Add puts a guest into the world.
func (w *World) Add(g *Guest) {
	w.Guests[g.Vmid] = g
	if i, found := slices.BinarySearch(w.Vmids, g.Vmid); !found {
		w.Vmids = slices.Insert(w.Vmids, i, g.Vmid)
	}
	w.Touch(g)
}

// Remove takes a guest out of the world, and out of its pool and the access
// list with it.
func (w *World) Remove(g *Guest) {
	delete(w.Guests, g.Vmid)
	if i, found := slices.BinarySearch(w.Vmids, g.Vmid); found {
		w.Vmids = slices.Delete(w.Vmids, i, i+1)
	}
	w.stale[g.Vmid] = struct{}{}
	w.Access.forgetGuest(g)
	if w.Cfg.Systems != nil {
		w.Cfg.Systems.Remove(g.Key())
	}
	for _, removed := range w.Hooks.Removed {
		removed(g)
	}
}

// Cloned lets areas copy what they keep of a guest for its clone.
func (w *World) Cloned(from, to *Guest) {
	to.Birth = from.Birth
	if w.Cfg.Systems != nil {
		w.Cfg.Systems.Copy(from.Key(), to.Key())
	}
	for _, cloned := range w.Hooks.Cloned {
		cloned(from, to)
	}
}

// Touch marks a guest as changed: its file is rendered again on the next read, and
// the next broadcast includes it.
func (w *World) Touch(g *Guest) {
	g.raw, g.digest = "", ""
	w.stale[g.Vmid] = struct{}{}
}

// Unordered lists keys as Perl lists those of a hash: each time in another order. The same requests to a world of the same
// seed give the same orders.
func Unordered(w *World, keys iter.Seq[string]) []string {
	seed, n := uint64(w.Cfg.Seed), w.unordered.Add(1) //nolint:gosec // any number is a seed
	out := slices.Sorted(keys)
	rand.New(rand.NewPCG(seed, n)).Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] }) //nolint:gosec // reproducible on purpose
	return out
}

// random is the source of everything that a host invents: the same for the same seed.
type random struct{ *rand.Rand }

// UUID invents a version 4 UUID.
func (r random) UUID() string {
	a, b := r.Uint64(), r.Uint64()
	a = a&^0xf000 | 0x4000
	b = b&^(3<<62) | 2<<62
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&(1<<48-1))
}

// MAC invents a hardware address with the prefix of datacenter.cfg, which is
// Proxmox' own unless it was changed.
func (w *World) MAC() string {
	n := w.Rng.Uint32()
	return fmt.Sprintf("%s:%02X:%02X:%02X", w.MACPrefix(), n>>16&0xff, n>>8&0xff, n&0xff)
}

// MACPrefix returns the beginning of the addresses that the host invents.
func (w *World) MACPrefix() string {
	if prefix := w.Options["mac_prefix"]; prefix != "" {
		return strings.ToUpper(prefix)
	}
	return "BC:24:11"
}

// Hex invents n hexadecimal digits.
func (r random) Hex(n int) string {
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%016x", r.Uint64())
	}
	return b.String()[:n]
}

// Pid is the id of a new process.
func (w *World) Pid() int {
	w.lastID++
	return w.lastID
}

// Version returns the version that the host reports.
func (w *World) Version() (release, version, repoid string) {
	switch w.Cfg.Version {
	case "8.4":
		return "8.4", "8.4.21", "2606ac850d46da29"
	case "9.1":
		return "9.1", "9.1.4", "5ac30304265fbd8e"
	default:
		return "9.2", "9.2.11", "14a22df3lab00000" // As recorded.
	}
}

// V92 reports whether the host is of version 9.2 or later.
func (w *World) V92() bool { return w.Cfg.Version != "8.4" && w.Cfg.Version != "9.1" }

// V9 says whether the host is of the ninth major version.
func (w *World) V9() bool { return w.Cfg.Version != "8.4" }

// NodeNames lists the nodes, sorted.
func (w *World) NodeNames() []string { return slices.Sorted(maps.Keys(w.Nodes)) }
