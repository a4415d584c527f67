package plan

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// How much of a PVE node its guests may have in total, unless the host block says otherwise. Cores are shared by time.
// Memory is not, so a node with too much of it committed kills guests.
const (
	memoryOvercommit = 1.0
	coresOvercommit  = 4.0
)

// Place is a PVE node in the document: what it has, and what is left of it after this plan.
type Place struct {
	Name     string        `json:"name"`
	Closed   string        `json:"closed"` // why no guest is created there; "" if one may be
	Memory   Amount        `json:"memory"` // in MiB
	Cores    Amount        `json:"cores"`
	Storages []storageRoom `json:"storages"` // as far as the token may see their figures
}

// Amount is what a PVE node has of something, what its guests have after this plan, and what further guests may have.
// All are 0 if it is not known what the node has.
type Amount struct {
	Total     int `json:"total"`
	Committed int `json:"committed"`
	Free      int `json:"free"`
}

// storageRoom is what is left of a storage after this plan, in GiB.
type storageRoom struct {
	Name   string `json:"name"`
	Shared bool   `json:"shared"`
	Free   int    `json:"free"`
}

// seat is a PVE node while guests are placed.
type seat struct {
	model.Place
	memory, cores Amount
	spread        map[string][]model.Address // guests by their word
}

// seats are the PVE nodes of a host, by name, while guests are placed.
type seats struct {
	list   []*seat
	shared map[string]int // GiB that are left of shared storages
}

// arrival is a guest that is to be created, or several that belong together: they go to one PVE node.
type arrival struct {
	guests []model.Address   // in order
	size   model.Size        // of all of them
	cores  int               // of the one that has most
	nodes  []string          // where each of them may live
	spread []string          // their words
	bars   map[string]string // PVE nodes where they cannot be created, and why
	with   model.Address     // a guest that exists and belongs to them; zero for none
}

// newSeats takes in the observed PVE nodes.
func newSeats(places []model.Place, unknown []model.Unknown, c *model.Capacity) *seats {
	memory, cores := memoryOvercommit, coresOvercommit
	if c != nil {
		memory, cores = cmp.Or(c.MemoryOvercommit, memory), cmp.Or(c.CoresOvercommit, cores)
	}
	s := &seats{shared: map[string]int{}}
	for _, p := range places {
		for _, u := range unknown {
			if u.Node == p.Name {
				p.Closed = cmp.Or(p.Closed, u.Why)
			}
		}
		p.Rooms = maps.Clone(p.Rooms)
		for name, r := range p.Rooms {
			if r.Shared {
				s.shared[name] = r.Free
			}
		}
		at := &seat{Place: p, spread: map[string][]model.Address{}, memory: Amount{Total: p.Memory, Free: times(p.Memory, memory)}, cores: Amount{Total: p.Cores, Free: times(p.Cores, cores)}}
		s.list = append(s.list, at)
		s.take(at, p.Others)
	}
	slices.SortFunc(s.list, func(a, b *seat) int { return model.CompareNames(a.Name, b.Name) })
	return s
}

func times(n int, factor float64) int { return int(float64(n) * factor) }

// at finds a PVE node; nil if it was not observed.
func (s *seats) at(name string) *seat {
	if i := slices.IndexFunc(s.list, func(at *seat) bool { return at.Name == name }); i >= 0 {
		return s.list[i]
	}
	return nil
}

// take takes from a PVE node what a guest has there.
func (s *seats) take(at *seat, size model.Size) {
	if at == nil {
		return
	}
	for _, a := range []struct {
		of   *Amount
		size int
	}{{&at.memory, size.Memory}, {&at.cores, size.Cores}} {
		if a.of.Total > 0 {
			a.of.Committed, a.of.Free = a.of.Committed+a.size, a.of.Free-a.size
		}
	}
	for storage, gib := range size.Disks {
		r, known := at.Rooms[storage]
		switch {
		case !known:
		case r.Shared:
			s.shared[storage] -= gib
		default:
			r.Free -= gib
			at.Rooms[storage] = r
		}
	}
}

// free returns the free GiB of a storage, and whether they are known.
func (s *seats) free(at *seat, storage string) (gib int, known bool) {
	r, known := at.Rooms[storage]
	if r.Shared {
		return s.shared[storage], true
	}
	return r.Free, known
}

// lacks says why guests cannot be created on a PVE node; "" if they can. Unknown values of a node are no reason.
func (s *seats) lacks(at *seat, a *arrival) string {
	switch {
	case at.Closed != "":
		return at.Closed
	case a.bars[at.Name] != "":
		return a.bars[at.Name]
	case at.cores.Total > 0 && a.cores > at.cores.Total:
		return fmt.Sprintf("it has %s, %d needed", diag.Count(at.cores.Total, "core"), a.cores) // PVE does not start such a guest
	case at.memory.Total > 0 && a.size.Memory > at.memory.Free:
		return fmt.Sprintf("%s, %s needed", at.room(), gibs(a.size.Memory))
	case at.cores.Total > 0 && a.size.Cores > at.cores.Free:
		return fmt.Sprintf("%d of %d cores free, %d needed", max(at.cores.Free, 0), at.cores.Free+at.cores.Committed, a.size.Cores)
	}
	for _, storage := range slices.Sorted(maps.Keys(a.size.Disks)) {
		if free, known := s.free(at, storage); known && a.size.Disks[storage] > free {
			return fmt.Sprintf("%d GiB free on %s, %d needed", max(free, 0), storage, a.size.Disks[storage])
		}
	}
	return ""
}

// room says how much memory of a PVE node is free.
func (at *seat) room() string {
	if at.memory.Total == 0 {
		return "free memory not known"
	}
	return fmt.Sprintf("%s of %s GiB free", gibs(at.memory.Free), gibs(at.memory.Free+at.memory.Committed))
}

// gibs writes MiB as GiB, in tenths below 10.
func gibs(mib int) string {
	if mib = max(mib, 0); mib%1024 == 0 || mib >= 10<<10 {
		return strconv.Itoa(mib >> 10)
	}
	return strconv.FormatFloat(math.Floor(float64(mib)/102.4)/10, 'f', -1, 64)
}

// choose returns the PVE node for guests, and why it is that one: one with room, with fewest guests of their words, with most
// free memory, the first by name. Nil: they cannot be created, and why says what is missing on each node.
func (s *seats) choose(a *arrival) (at *seat, why string) {
	var others []string
	said := map[string]string{}
	barred := 0
	for _, name := range slices.SortedFunc(slices.Values(a.nodes), model.CompareNames) {
		is := s.at(name)
		if is == nil {
			said[name] = "it is not in the cluster"
			continue
		}
		if said[name] = s.lacks(is, a); said[name] != "" {
			if is.Closed == "" && a.bars[name] != "" {
				barred++
			}
			continue
		}
		if at == nil || is.before(at, a) {
			at = is
		}
	}
	if at == nil && barred > 0 && barred == len(a.nodes) {
		return s.at(a.nodes[0]), "" // what is in the way there is reported at its line
	}
	for _, name := range slices.SortedFunc(slices.Values(a.nodes), model.CompareNames) {
		switch {
		case said[name] != "":
			others = append(others, name+": "+said[name])
		case name != at.Name:
			others = append(others, name+": "+s.at(name).passedOver(at, a))
		}
	}
	if at == nil {
		return nil, strings.Join(others, "; ")
	}
	const most = 4
	if n := len(others); n > most {
		others = append(others[:most-1], fmt.Sprintf("and %d more", n-most+1))
	}
	if a.with != (model.Address{}) {
		return at, fmt.Sprintf("on %s, with %s", at.Name, a.with)
	}
	return at, strings.Join(append([]string{fmt.Sprintf("on %s: %s", at.Name, at.room())}, others...), "; ")
}

// passedOver says why guests are not created on a PVE node that has room for them.
func (at *seat) passedOver(chosen *seat, a *arrival) string {
	if at.crowd(a) > chosen.crowd(a) {
		return fmt.Sprintf("has %d of spread %s", at.crowd(a), strings.Join(a.spread, ", "))
	}
	if at.memory.Total == 0 {
		return at.room()
	}
	return gibs(at.memory.Free)
}

// crowd counts the guests on a PVE node that have the words of others.
func (at *seat) crowd(a *arrival) int {
	n := 0
	for _, word := range a.spread {
		n += len(at.spread[word])
	}
	return n
}

// before reports whether guests go rather to this PVE node than to another, which has room, too.
func (at *seat) before(o *seat, a *arrival) bool {
	known := func(s *seat) int { return min(s.memory.Total, 1) }
	return cmp.Or(cmp.Compare(at.crowd(a), o.crowd(a)), -cmp.Compare(known(at), known(o)), -cmp.Compare(at.memory.Free, o.memory.Free), model.CompareNames(at.Name, o.Name)) < 0
}

// settle places guests one after the other, the largest first, then by name. The function is called with each result; see
// choose.
func (s *seats) settle(all []*arrival, placed func(a *arrival, at *seat, why string)) {
	slices.SortFunc(all, func(a, b *arrival) int {
		return cmp.Or(-cmp.Compare(a.size.Memory, b.size.Memory), -cmp.Compare(a.size.Cores, b.size.Cores), a.guests[0].Compare(b.guests[0]))
	})
	for _, a := range all {
		at, why := s.choose(a)
		if at != nil {
			s.take(at, a.size)
			for _, word := range a.spread {
				at.spread[word] = append(at.spread[word], a.guests[0])
			}
		}
		placed(a, at, why)
	}
}

// place chooses the PVE nodes of guests that do not exist yet. A guest that exists stays where it is, also if it is
// recreated there. As the VMIDs, the choice ignores the limits of the plan; what this plan frees is not free within it.
func (d *draft) place() {
	host := d.in.Want.Host
	s := newSeats(d.in.Have.Places, d.in.Have.Unknown, host.Capacity)
	if len(s.list) == 0 || d.in.Destroy {
		return
	}
	bars := map[model.Address]map[string]string{}
	for _, o := range d.in.Have.Preflight {
		if o.Node != "" && (o.Withhold || o.Severity == diag.Error) {
			if bars[o.Address] == nil {
				bars[o.Address] = map[string]string{}
			}
			bars[o.Address][o.Node] = cmp.Or(bars[o.Address][o.Node], o.Summary)
		}
	}
	groups := d.seated(s)
	var all []*arrival
	joint := map[string]*arrival{}
	for _, addr := range d.addrs {
		r, n := d.want[addr], d.in.Want.Nodes[addr]
		k := d.kinds[addr.Kind]
		if r == nil || r.Guest == nil || k == nil || k.Size == nil || d.have[addr] != nil || mayExist(r, d.in.Have.Unknown) {
			continue
		}
		if len(r.Guest.Nodes) == 0 && host.Capacity == nil {
			s.take(s.at(r.Guest.Node), k.Size(r))
			continue
		}
		word := ""
		if n != nil {
			word = n.Together
		}
		a := joint[word]
		if word == "" || a == nil {
			a = &arrival{nodes: slices.Clone(r.Guest.Nodes), bars: map[string]string{}}
			if len(a.nodes) == 0 {
				a.nodes = []string{r.Guest.Node}
			}
			all = append(all, a)
			if word != "" {
				joint[word] = a
				if g := groups[word]; g != nil {
					a.nodes, a.with = slices.DeleteFunc(a.nodes, func(name string) bool { return name != g.node }), g.first
				}
			}
		}
		size := k.Size(r)
		a.guests, a.cores = append(a.guests, addr), max(a.cores, size.Cores)
		a.size.Add(size)
		if len(r.Guest.Nodes) > 0 {
			a.nodes = slices.DeleteFunc(a.nodes, func(name string) bool { return !slices.Contains(r.Guest.Nodes, name) })
		}
		if n != nil && n.Spread != "" {
			a.spread = append(a.spread, n.Spread)
		}
		for name, why := range bars[addr] {
			a.bars[name] = cmp.Or(a.bars[name], why)
		}
	}
	s.settle(all, func(a *arrival, at *seat, why string) {
		for _, addr := range a.guests {
			switch {
			case at != nil:
				d.want[addr] = located(d.want[addr], at.Name)
				if len(d.want[addr].Guest.Nodes) > 1 {
					d.placed[addr] = why
				}
				if n := d.in.Want.Nodes[addr]; n != nil && n.Spread != "" && at.spread[n.Spread][0] != a.guests[0] {
					d.crowded[addr] = fmt.Sprintf("spread %q cannot be kept: %s goes to %s, which has %s", n.Spread, addr, at.Name, at.spread[n.Spread][0])
				}
			case len(a.nodes) > 0 && d.allHidden(a.nodes):
				d.want[addr] = located(d.want[addr], a.nodes[0])
			default:
				d.homeless[addr] = cmp.Or(why, "none is in nodes of all guests with the same word in together")
			}
		}
	})
	d.plan.Places = s.document()
}

// mayExist reports whether a guest may be one that could not be read, as on a PVE node that is offline. It is not created, and
// where it is it takes no room of others.
func mayExist(want *model.Resource, unknown []model.Unknown) bool {
	return slices.ContainsFunc(unknown, func(u model.Unknown) bool { return ofGuests(u) && mayBe(u, want) })
}

// group is what exists of guests that belong together.
type group struct {
	node  string        // where most of them are
	first model.Address // of these
}

// seated takes from the PVE nodes what the guests have that exist, and returns those that belong together, by their word.
func (d *draft) seated(s *seats) map[string]*group {
	members := map[string]map[string][]model.Address{} // by word and PVE node
	for _, addr := range d.addrs {
		have, want := d.have[addr], d.want[addr]
		k := d.kinds[addr.Kind]
		if have == nil || have.Guest == nil || k == nil || k.Size == nil {
			continue
		}
		sized, at := have, s.at(have.Guest.Node)
		if want != nil && want.Guest != nil {
			sized = want
			if want.Guest.Node != have.Guest.Node && slices.Contains(want.Guest.Nodes, have.Guest.Node) {
				d.want[addr] = located(want, have.Guest.Node)
			}
		}
		size := k.Size(sized)
		size.Disks = nil // they are there
		s.take(at, size)
		n := d.in.Want.Nodes[addr]
		if n == nil || at == nil || want == nil {
			continue
		}
		if n.Spread != "" {
			at.spread[n.Spread] = append(at.spread[n.Spread], addr)
		}
		if n.Together != "" {
			if members[n.Together] == nil {
				members[n.Together] = map[string][]model.Address{}
			}
			members[n.Together][at.Name] = append(members[n.Together][at.Name], addr)
		}
	}
	out := map[string]*group{}
	for _, word := range slices.Sorted(maps.Keys(members)) {
		on := slices.SortedFunc(maps.Keys(members[word]), func(a, b string) int {
			return cmp.Or(-cmp.Compare(len(members[word][a]), len(members[word][b])), model.CompareNames(a, b))
		})
		first := members[word][on[0]][0]
		out[word] = &group{on[0], first}
		if len(on) > 1 {
			other := members[word][on[1]][0]
			f := diag.Warnf(d.want[other].RangeOf("together"), fmt.Sprintf("%s is on %s, and %s, with the same word in together, on %s", other, on[1], first, on[0]),
				"the plan moves no guest: migrate one of them, or take the word away")
			f.Source = diag.FromHost
			d.find(other, f)
		}
	}
	return out
}

// allHidden reports whether all of some PVE nodes cannot be seen: that is reported as such.
func (d *draft) allHidden(nodes []string) bool {
	return !slices.ContainsFunc(nodes, func(name string) bool {
		return !slices.ContainsFunc(d.in.Have.Unknown, func(u model.Unknown) bool { return u.Node == name })
	})
}

// located copies a wanted guest with its PVE node; the spec is shared.
func located(r *model.Resource, node string) *model.Resource {
	c, g := *r, *r.Guest
	g.Node = node
	c.Guest = &g
	return &c
}

// document lists what is left.
func (s *seats) document() []Place {
	out := make([]Place, len(s.list))
	for i, at := range s.list {
		out[i] = Place{Name: at.Name, Closed: at.Closed, Memory: at.memory, Cores: at.cores, Storages: []storageRoom{}}
		for _, name := range slices.Sorted(maps.Keys(at.Rooms)) {
			free, _ := s.free(at, name)
			out[i].Storages = append(out[i].Storages, storageRoom{name, at.Rooms[name].Shared, free})
		}
	}
	return out
}
