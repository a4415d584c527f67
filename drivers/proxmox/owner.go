package proxmox

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Tag is on every guest that we own, for people and for a first look. It proves nothing.
const Tag = "homestak"

// maxDescription is how many characters of a description PVE takes (qemu-server, QemuServer.pm).
const maxDescription = 8192

// markPrefix starts the last line of a description that we wrote.
const markPrefix = "homestak-gitops: "

// mark is the owner mark: what is written on a resource so that no file needs to
// remember it. It holds what destruction needs, because then the files are gone.
// No secrets: everybody who may see the guest can read it.
type mark struct {
	V        int               `json:"v"`
	Site     string            `json:"site"`
	Type     string            `json:"type"` // vm, pve, ct, template, pool
	Node     string            `json:"node"` // the name within the site
	Manifest string            `json:"manifest,omitempty"`
	Owner    string            `json:"owner"`
	UUID     string            `json:"uuid,omitempty"`    // of smbios1: the identity that a copy does not have
	MAC      string            `json:"mac,omitempty"`     // of a container's first card: a clone gets another one
	Keys     string            `json:"keys,omitempty"`    // hash of the ssh keys that a container was made with
	VMID     int               `json:"vmid,omitempty"`    // only while a clone has no identity of its own yet
	Born     int               `json:"born,omitempty"`    // the VMID that it was made under: a backup restored elsewhere keeps it
	From     string            `json:"from,omitempty"`    // image.debian-12, template.golden
	Content  string            `json:"content,omitempty"` // file name of the image that a template was made from
	Linked   bool              `json:"linked,omitempty"`  // its root disk stands on that of its template
	Needs    []model.Address   `json:"needs,omitempty"`
	Destroy  *markDestroy      `json:"destroy,omitempty"`
	Slots    map[string]string `json:"slots,omitempty"` // disk.data → scsi1, nic.lan → net0
	Options  []string          `json:"options,omitempty"`
	Removes  []string          `json:"removes,omitempty"`  // disks whose data go when they leave the files
	Detached map[string]string `json:"detached,omitempty"` // disks that left them → the volume that each had
	Volumes  map[string]string `json:"volumes,omitempty"`  // disks that it has → their volumes, as last written: which one somebody detached by hand
	Seeded   int64             `json:"seeded,omitempty"`   // Unix time of the last write for cloud-init to a guest that ran
	Seed     *markSeed         `json:"seed,omitempty"`
}

// markDestroy is how a guest wants to go.
type markDestroy struct {
	Policy string `json:"policy,omitempty"`
	Orphan string `json:"orphan,omitempty"`
	Down   int    `json:"down,omitempty"` // seconds to shut down cleanly
}

// readable reports whether this program understands the mark. A newer version may
// mean something else by the same words; and only guests carry marks of guests.
func (m mark) readable() bool {
	return m.V == 1 && m.Site != "" && m.Node != "" && slices.Contains([]string{"vm", "pve", "ct", templateType}, m.Type)
}

func (m mark) addr() model.Address { return model.Address{Kind: m.Type, Name: m.Node} }

// line is the mark as the last line of a description.
func (m mark) line() string {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings, numbers and maps of strings always marshal
	}
	return markPrefix + string(b)
}

// terms is what the files decide of a mark, as one readable text for the plan; the
// rest (identity, slots) follows from the guest.
func (m mark) terms() string {
	needs := make([]string, 0, len(m.Needs))
	for _, a := range m.Needs {
		needs = append(needs, a.String())
	}
	slices.Sort(needs)
	var parts []string
	if m.Manifest != "" {
		parts = append(parts, "manifest "+m.Manifest)
	}
	if len(needs) > 0 {
		parts = append(parts, "needs "+strings.Join(needs, " "))
	}
	if d := m.Destroy; d != nil {
		if d.Policy != "" {
			parts = append(parts, "policy "+d.Policy)
		}
		if d.Orphan != "" {
			parts = append(parts, "orphan "+d.Orphan)
		}
		if d.Down != 0 {
			parts = append(parts, fmt.Sprintf("down %d s", d.Down))
		}
	}
	return strings.Join(parts, ", ")
}

// splitDescription takes a description apart: what people wrote, and the mark, which
// is written as the last line but found on any (the last one counts), since people
// add their notes at the end. found is true also for a mark that cannot be read.
func splitDescription(s string) (notes string, m mark, found bool) {
	lines := strings.Split(strings.TrimRight(s, " \t\r\n"), "\n")
	at := len(lines) - 1
	for at >= 0 && !strings.HasPrefix(lines[at], markPrefix) {
		at--
	}
	if at < 0 {
		return strings.Join(lines, "\n"), mark{}, false
	}
	doc := strings.TrimPrefix(lines[at], markPrefix)
	notes = strings.TrimRight(strings.Join(slices.Delete(lines, at, at+1), "\n"), " \t\r\n")
	if json.Unmarshal([]byte(doc), &m) != nil {
		return notes, mark{}, true
	}
	return notes, m, true
}

// describe joins notes and mark; PVE cuts trailing white space, so there is none. Of a
// guest with very many disks there is no room to say which volume each has.
func describe(notes string, m mark) string {
	if text := withMark(notes, m); len(m.Volumes) == 0 || utf8.RuneCountInString(text) <= maxDescription {
		return text
	}
	m.Volumes = nil
	return withMark(notes, m)
}

func withMark(notes string, m mark) string {
	if notes = strings.TrimRight(notes, " \t\r\n"); notes != "" {
		return notes + "\n" + m.line()
	}
	return m.line()
}

var uuidText = regexp.MustCompile(`(?i)^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// uuidOf reads the identity from a smbios1 property string, lower-cased.
func uuidOf(smbios1 string) string {
	u := strings.ToLower(property.Value(smbios1, "uuid"))
	if !uuidText.MatchString(u) {
		return ""
	}
	return u
}

// bare reports whether a mark is that of a clone whose identity is not written yet.
func (m mark) bare() bool { return m.UUID == "" && m.MAC == "" }

// agrees reports whether a guest has the identity that the mark was written for: a
// VM its uuid, which a copy does not have; a container the MAC address of a card,
// since PVE keeps nothing else of it that a clone does not take over. What is in force
// proves it as well as what waits for a restart: a clone takes over neither.
func (m mark) agrees(cfg config) (ok bool, what string) {
	if m.Type != "ct" {
		now, next := uuidOf(cfg.now["smbios1"]), uuidOf(cfg.next["smbios1"])
		return m.UUID != "" && (strings.EqualFold(m.UUID, next) || strings.EqualFold(m.UUID, now)), "uuid"
	}
	for _, side := range []map[string]string{cfg.next, cfg.now} {
		for key, val := range side {
			if property.IsNet(key) && m.MAC != "" && strings.EqualFold(m.MAC, property.Parse(val).Values["hwaddr"]) {
				return true, "MAC address"
			}
		}
	}
	return false, "MAC address"
}

// templateType is what the mark of a template calls itself.
const templateType = "template"

// markSeed is what a machine's mark remembers of its seed: where it is or was, and
// sums of what can be told in public, so that an edit that comes too late shows.
// Of what is made from secrets there is none: it could be tried out.
type markSeed struct {
	Volume string `json:"volume,omitempty"`
	Data   string `json:"data,omitempty"` // of user_data
	Net    string `json:"net,omitempty"`  // of addresses and name servers
}

// seeded reports whether a machine got its first words from an image of its own, so
// that it has no cloud-init drive of PVE's.
func (m mark) seeded() bool { return m.Seed != nil && m.Seed.Volume != "" }

// down is how many seconds a guest gets to shut down.
func (m mark) down() int {
	if m.Destroy != nil && m.Destroy.Down > 0 {
		return m.Destroy.Down
	}
	return 60
}

// policy is the decommission policy of a mark. What the command line left behind for
// somebody to look at (owner cli:…) has none.
func (m mark) policy() string {
	if m.Destroy == nil || m.Destroy.Policy == "" || strings.HasPrefix(m.Owner, "cli:") {
		return leaveAtOnce
	}
	return m.Destroy.Policy
}

// The decommission policies.
const (
	leaveAtOnce     = "allow_immediate_destroy"
	leaveBackedUp   = "requires_final_backup"
	leaveWhenUnused = "requires_migration_first"
)

// identity is who we are in marks. Templates belong to the host and not to who made
// them, as images do: what a test made serves the agent as well.
type identity struct{ site, owner, host string }

// prove judges whether a guest is ours: the mark names our site and us, and the
// guest's own identity is the one the mark was written for. why says what speaks
// against it; claims is set when only the proof is missing.
func (id identity) prove(m mark, found bool, at place, cfg config) (ok bool, why string, claims model.Address) {
	same, what := m.agrees(cfg)
	switch {
	case !found:
		return false, "no ownership tag", model.Address{}
	case !m.readable():
		return false, "its owner mark cannot be read", model.Address{}
	case m.Site != id.site:
		return false, "belongs to site " + m.Site, model.Address{}
	case m.Type == templateType && m.Owner != id.host, m.Type != templateType && m.Owner != id.owner:
		return false, "belongs to " + m.Owner, m.addr()
	case (m.Type == "ct") != at.lxc:
		return false, fmt.Sprintf("carries the mark of %s, but is a %s: a copied description", m.addr(), strings.ToUpper(at.kind())), m.addr()
	case m.bare() && m.VMID == at.vmid:
		return true, "", m.addr() // a clone that we started and whose identity we had not written yet
	case !same:
		return false, fmt.Sprintf("carries the mark of %s, but is another machine (its %s is not the one in the mark): a copy", m.addr(), what), m.addr()
	default:
		return true, "", m.addr()
	}
}

// proof is the judgement of one guest, as read right before something is done to it.
type proof struct {
	notes   string
	mark    mark
	ours    bool
	against string
}

// check reads the mark of a guest, and judges whether it proves to be ours.
func (id identity) check(cfg config, at place) proof {
	notes, m, found := splitDescription(cfg.description())
	ours, against, _ := id.prove(m, found, at, cfg)
	return proof{notes, m, ours, against}
}

// of reports whether the guest is provably the one of an address.
func (p proof) of(addr model.Address) bool { return p.ours && p.mark.addr() == addr }

// why says what speaks against it: no proof at all, or of another one of ours.
func (p proof) why() string { return cmp.Or(p.against, "it is "+p.mark.addr().String()) }
