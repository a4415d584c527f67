package api

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// MaxVLAN is the highest VLAN tag.
const MaxVLAN = 4094

// VLANs is one entry of a trunk: a VLAN, or a range of them.
type VLANs struct{ First, Last int }

// String is its form in a trunk.
func (v VLANs) String() string {
	if v.First == v.Last {
		return strconv.Itoa(v.First)
	}
	return fmt.Sprintf("%d-%d", v.First, v.Last)
}

// ParseVLANs parses an entry of a trunk; ok reports whether PVE accepts it.
func ParseVLANs(s string) (v VLANs, ok bool) {
	first, last, isRange := strings.Cut(s, "-")
	if !isNumber(first) || isRange && !isNumber(last) {
		return v, false
	}
	v.First, _ = strconv.Atoi(first)
	v.Last = v.First
	if isRange {
		v.Last, _ = strconv.Atoi(last)
	}
	return v, v.First >= 1 && v.First <= v.Last && v.Last <= MaxVLAN
}

// SortVLANs normalises the entries of a trunk: sorted, each VLAN once. Ranges that touch become
// one, if there may be ranges.
func SortVLANs(list []VLANs, ranges bool) []string {
	sort.Slice(list, func(i, j int) bool { return list[i].First < list[j].First })
	var out []string
	for i := 0; i < len(list); {
		v := list[i]
		for i++; i < len(list) && (list[i].First <= v.Last || ranges && list[i].First == v.Last+1); i++ {
			v.Last = max(v.Last, list[i].Last)
		}
		out = append(out, v.String())
	}
	return out
}
