package proxmox

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
)

// maxVLAN is the highest VLAN tag.
const maxVLAN = 4094

// vlans is one entry of a trunk: a VLAN, or a range of them.
type vlans struct{ first, last int }

func (v vlans) String() string {
	if v.first == v.last {
		return strconv.Itoa(v.first)
	}
	return fmt.Sprintf("%d-%d", v.first, v.last)
}

// parseVLANs reads an entry of a trunk; ok tells whether PVE would take it.
func parseVLANs(s string) (v vlans, ok bool) {
	first, last, isRange := strings.Cut(s, "-")
	if !property.IsNumber(first) || isRange && !property.IsNumber(last) {
		return v, false
	}
	v.first, _ = strconv.Atoi(first)
	v.last = v.first
	if isRange {
		v.last, _ = strconv.Atoi(last)
	}
	return v, v.first >= 1 && v.first <= v.last && v.last <= maxVLAN
}
