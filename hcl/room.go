package hcl

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// checkRoom finds VMID ranges that are too small for the nodes that choose from them; one digit in
// a count is enough for that.
func (rs *rules) checkRoom() {
	if !rs.Complete || len(rs.site.VMIDRanges) == 0 {
		return
	}
	hosts := map[string][]*model.Node{}
	for _, m := range rs.manifests {
		for _, n := range m.Nodes {
			if n.Resource.Guest != nil && !m.Suspend {
				on := onHost(m, n)
				hosts[on] = append(hosts[on], n)
			}
		}
	}
	for _, on := range slices.Sorted(maps.Keys(hosts)) {
		nodes := hosts[on]
		slices.SortFunc(nodes, func(a, b *model.Node) int { return a.Resource.Addr.Compare(b.Resource.Addr) })
		rs.checkRoomOn(on, nodes)
	}
}

// onHost names the PVE host of a node: the host of its manifest, or its parent. A
// recipe is a host of its own.
func onHost(m *manifest, n *model.Node) string {
	switch {
	case n.Parent != "":
		return "node " + n.Parent + " of manifest " + m.Name
	case m.Host == "":
		return "manifest " + m.Name
	default:
		return "host " + m.Host
	}
}

// checkRoomOn reports the first range that is too small for the nodes of one host.
func (rs *rules) checkRoomOn(on string, nodes []*model.Node) {
	reported := map[string]bool{}
	for _, n := range nodes {
		names := rangeList(n.Resource.Guest.Choose)
		if n.VMID != 0 || reported[names] {
			continue
		}
		reported[names] = true
		within := n.Resource.Guest.Choose
		room, drawing := room(within), []*model.Node{}
		for _, o := range nodes {
			switch {
			case o.VMID == 0 && among(o.Resource.Guest.Choose, within):
				drawing = append(drawing, o)
			case o.VMID != 0 && slices.ContainsFunc(within, func(v model.VMIDRange) bool { return v.From <= o.VMID && o.VMID <= v.To }):
				room--
			}
		}
		if len(drawing) <= room {
			continue
		}
		first := drawing[max(room, 0)]
		rs.ErrorAt(first.Resource.RangeOf("vmid_range"), fmt.Sprintf("%d nodes on %s need a VMID from %s, which has %d free", len(drawing), on, names, max(room, 0)),
			"None is left for %s%s: widen the range in the site block, name another with vmid_range, or declare fewer nodes.", first.Name, andMore(len(drawing)-max(room, 0)-1))
		return
	}
}

func andMore(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

// among reports whether all of some ranges are among others.
func among(ranges, of []model.VMIDRange) bool {
	return len(ranges) > 0 && !slices.ContainsFunc(ranges, func(r model.VMIDRange) bool { return !slices.Contains(of, r) })
}

// room is the number of VMIDs in ranges, which may overlap.
func room(ranges []model.VMIDRange) int {
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b model.VMIDRange) int { return cmp.Compare(a.From, b.From) })
	total, next := 0, lang.MinVMID
	for _, r := range sorted {
		from, to := max(r.From, next), min(r.To, lang.MaxVMID)
		if to >= from {
			total += to - from + 1
			next = to + 1
		}
	}
	return total
}

func rangeList(ranges []model.VMIDRange) string {
	texts := make([]string, len(ranges))
	for i, r := range ranges {
		texts[i] = fmt.Sprintf("%s (%d to %d)", lang.Quote(r.Name), r.From, r.To)
	}
	return "vmid_range " + strings.Join(texts, ", ")
}
