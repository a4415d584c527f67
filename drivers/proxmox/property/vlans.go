package property

import (
	"fmt"
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

// ParseVLANs reads an entry of a trunk; ok tells whether PVE would take it.
func ParseVLANs(s string) (v VLANs, ok bool) {
	first, last, isRange := strings.Cut(s, "-")
	if !IsNumber(first) || isRange && !IsNumber(last) {
		return v, false
	}
	v.First, _ = strconv.Atoi(first)
	v.Last = v.First
	if isRange {
		v.Last, _ = strconv.Atoi(last)
	}
	return v, v.First >= 1 && v.First <= v.Last && v.Last <= MaxVLAN
}
