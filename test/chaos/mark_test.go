package chaos_test

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// mark is an ownership tag, read by rules of this package's own.
type mark struct {
	Site     string            `json:"site"`
	Type     string            `json:"type"`
	Node     string            `json:"node"`
	Owner    string            `json:"owner"`
	UUID     string            `json:"uuid"`
	MAC      string            `json:"mac"`
	Removes  []string          `json:"removes"`
	Detached map[string]string `json:"detached"`
	Seed     struct {
		Volume string `json:"volume"`
	} `json:"seed"`
	VMID    int    `json:"vmid"`
	Born    int    `json:"born"`
	From    string `json:"from"`
	Destroy struct {
		Policy string `json:"policy"`
	} `json:"destroy"`
	Needs []string          `json:"-"`
	Slots map[string]string `json:"slots"`
}

func (m mark) addr() string { return m.Type + "." + m.Node }

// markOf reads the mark of a guest; found is true for the copy of one, too.
func markOf(g pve.Guest) (m mark, found bool) {
	for line := range strings.Lines(g.Config["description"]) {
		if doc, ok := strings.CutPrefix(line, "homestak-gitops: "); ok {
			m = mark{}
			found = json.Unmarshal([]byte(doc), &m) == nil && m.Site == "home" && m.Owner == "father"
		}
	}
	return m, found
}

// proves reports whether a guest is ours by mark and identity.
func proves(g pve.Guest) (string, bool) {
	m, found := markOf(g)
	if !found || (m.Type == "ct") != (g.Kind == "lxc") {
		return "", false
	}
	if m.UUID == "" && m.MAC == "" {
		return m.addr(), m.VMID == g.VMID
	}
	if m.Type == "ct" {
		return m.addr(), slices.Contains(cardsOf(g), strings.ToUpper(m.MAC))
	}
	return m.addr(), strings.Contains(strings.ToLower(g.Config["smbios1"]), "uuid="+strings.ToLower(m.UUID))
}

var hwaddr = regexp.MustCompile(`hwaddr=([0-9A-Fa-f:]{17})`)

// cardsOf are the addresses of a container's cards, with what waits for a restart.
func cardsOf(g pve.Guest) []string {
	var out []string
	for key, val := range next(g) {
		if m := hwaddr.FindStringSubmatch(val); m != nil && strings.HasPrefix(key, "net") {
			out = append(out, strings.ToUpper(m[1]))
		}
	}
	return out
}

// next is the configuration of a guest with what waits for a restart counted in.
func next(g pve.Guest) map[string]string {
	c := maps.Clone(g.Config)
	maps.Copy(c, g.Pending)
	for key := range strings.SplitSeq(g.Pending["delete"], ",") {
		delete(c, strings.TrimPrefix(key, "!"))
	}
	delete(c, "delete")
	return c
}

// sized is the value of a disk with the size that it has. A change that waits for a
// restart goes on telling the one of when it was made.
func sized(g pve.Guest, slot string) string {
	is, will := g.Config[slot], next(g)[slot]
	now, _, _ := strings.Cut(is, ",")
	if then, _, _ := strings.Cut(will, ","); then == now {
		return is
	}
	return will
}

// kin reports whether two sights of a VMID are of the same guest.
func kin(a, b pve.Guest) bool {
	if a.Kind == "lxc" && b.Kind == "lxc" {
		ma, _ := markOf(a)
		mb, _ := markOf(b)
		return ma.MAC != "" && ma.MAC == mb.MAC || slices.ContainsFunc(cardsOf(a), func(mac string) bool { return slices.Contains(cardsOf(b), mac) })
	}
	return a.Kind == b.Kind && a.Config["smbios1"] == b.Config["smbios1"]
}

// ours are the guests that prove to be ours, by address.
func ours(s pve.Snapshot) map[string][]pve.Guest {
	out := map[string][]pve.Guest{}
	for _, g := range s.Guests {
		if addr, ok := proves(g); ok {
			out[addr] = append(out[addr], g)
		}
	}
	return out
}
