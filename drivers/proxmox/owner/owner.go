// Package owner decides which guests are managed. A managed guest has an ownership tag, the last line of its
// description (Tag, ParseDescription, Describe), and an identity that a copy does not have. A key of the site signs
// the tag (Identity.Sign). Identity.Check verifies signature and identity: only guests that pass may be changed.
package owner

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// PVETag is on every managed guest, for people and as a first hint. It does not identify a guest.
const PVETag = model.GuestTag

// MaxDescription is PVE's limit for the characters of a description (qemu-server, QemuServer.pm).
const MaxDescription = 8192

// Prefix starts the last line of a description that we wrote.
const Prefix = "homestak-gitops: "

// Tag is the ownership tag, which is stored on the resource itself. It has what a removal needs,
// because then the files no longer declare the resource. It has no secrets: every user who may see
// the guest can read it.
type Tag struct {
	V            int               `json:"v"`
	Site         string            `json:"site"`
	Type         string            `json:"type"` // vm, pve, ct, template, pool, ipset
	Node         string            `json:"node"` // the name within the site
	Manifest     string            `json:"manifest,omitempty"`
	Owner        string            `json:"owner"`
	UUID         string            `json:"uuid,omitempty"`     // of smbios1: the identity that a copy does not have
	MAC          string            `json:"mac,omitempty"`      // of a container's first card: a clone gets another one
	Keys         string            `json:"keys,omitempty"`     // hash of the ssh keys that a container was made with
	VMID         int               `json:"vmid,omitempty"`     // only while a clone has no identity of its own yet
	CreationVMID int               `json:"born,omitempty"`     // the VMID that it was made under: a backup restored elsewhere keeps it
	From         string            `json:"from,omitempty"`     // image.debian-12, template.golden
	Content      string            `json:"content,omitempty"`  // file name of the image, or archive, that it was made from; "" if that is unknown
	Recreate     string            `json:"recreate,omitempty"` // of the files when it was created
	Adopted      bool              `json:"adopted,omitempty"`  // it was made elsewhere: it is destroyed only if the site orders that
	Linked       bool              `json:"linked,omitempty"`   // its root disk is based on its template's
	Needs        []model.Address   `json:"needs,omitempty"`
	Destroy      *destroy          `json:"destroy,omitempty"`
	Slots        map[string]string `json:"slots,omitempty"` // disk.data → scsi1, nic.lan → net0
	Options      []string          `json:"options,omitempty"`
	Removes      []string          `json:"removes,omitempty"`  // disks whose data go when they leave the files
	Detached     map[string]string `json:"detached,omitempty"` // disks that left them → the volume that each had
	Volumes      map[string]string `json:"volumes,omitempty"`  // its disks → their volumes, as last written: identifies one that was detached by hand
	Seeded       int64             `json:"seeded,omitempty"`   // Unix time of the last write for cloud-init to a guest that ran
	Seed         *NocloudISO       `json:"seed,omitempty"`
	Begun        int64             `json:"begun,omitempty"` // Unix time at which its creation began; only until the guest is complete
	Sig          string            `json:"sig,omitempty"`   // see Identity.Sign

	Was    string `json:"-"` // the node that it names, if a moved block gives its guest to Node
	Trust  Trust  `json:"-"` // what its signature proves, see Identity.Check
	Resign bool   `json:"-"` // it is to be signed, or signed again, by the current key
}

// destroy says how to destroy a guest.
type destroy struct {
	Policy string       `json:"policy,omitempty"`
	Orphan model.Orphan `json:"orphan,omitempty"`
	Down   int          `json:"down,omitempty"` // seconds to shut down cleanly

	Before []string `json:"before,omitempty"` // scripts to run in it before it is stopped
	Verify string   `json:"verify,omitempty"` // restore: its final backup has to boot

	Services []string `json:"services,omitempty"` // that have to be on another node first
}

// Readable reports whether this program understands the tag. A newer version may
// mean something else by the same words; and only guests carry tags of guests.
func (t Tag) Readable() bool {
	return (t.V == 1 || t.V == 2) && t.Site != "" && t.Node != "" && slices.Contains([]string{"vm", "pve", "ct", TemplateType}, t.Type)
}

// Addr is the address of the tagged resource.
func (t Tag) Addr() model.Address { return model.Address{Kind: t.Type, Name: t.Node} }

// Of returns the part of an object's tag that the files decide: its source, its dependencies, and
// how it is destroyed. down is how many seconds it gets to shut down; 0 for PVE's default. Identity
// and slots come with the object.
func Of(in model.Scope, kind, from string, down int) Tag {
	t := Tag{V: 1, Site: in.Site.Name, Type: kind, Node: in.Name, From: from, Needs: slices.Clone(in.Needs)}
	if in.Host != nil {
		t.Owner = in.Host.Name
	}
	if in.Manifest != nil {
		t.Manifest = in.Manifest.Name
	}
	d := destroy{Down: down}
	if n := in.Node; n != nil {
		if n.Decomm != nil {
			d.Policy, d.Before, d.Verify = n.Decomm.Policy, n.Decomm.Before, n.Decomm.Verify
			if d.Policy == RemoveUnused {
				d.Services = slices.Clone(n.Services)
			}
		}
		d.Orphan = n.Orphan
	}
	if d.Policy != "" || d.Orphan != "" || d.Down != 0 || len(d.Before) > 0 || d.Verify != "" {
		t.Destroy = &d
	}
	slices.SortFunc(t.Needs, model.Address.Compare)
	t.Needs = slices.Compact(t.Needs)
	return t
}

// Line is the tag as the last line of a description.
func (t Tag) Line() string {
	b, err := json.Marshal(t)
	if err != nil {
		panic(err) // strings, numbers and maps of strings always marshal
	}
	return Prefix + string(b)
}

// Terms is the part of a tag that the files decide, as text for the plan; the rest (identity,
// slots) comes from the guest.
func (t Tag) Terms() string {
	needs := make([]string, 0, len(t.Needs))
	for _, a := range t.Needs {
		needs = append(needs, a.String())
	}
	slices.Sort(needs)
	var parts []string
	if t.Manifest != "" {
		parts = append(parts, "manifest "+t.Manifest)
	}
	if len(needs) > 0 {
		parts = append(parts, "needs "+strings.Join(needs, " "))
	}
	if d := t.Destroy; d != nil {
		if d.Policy != "" {
			parts = append(parts, "policy "+d.Policy)
		}
		if d.Orphan != "" {
			parts = append(parts, "orphan "+string(d.Orphan))
		}
		if len(d.Services) > 0 {
			parts = append(parts, "services "+strings.Join(d.Services, " "))
		}
		if d.Verify != "" {
			parts = append(parts, "final backup verified by "+d.Verify)
		}
		for _, script := range d.Before {
			parts = append(parts, "before "+script)
		}
		if d.Down != 0 {
			parts = append(parts, fmt.Sprintf("down %d s", d.Down))
		}
	}
	if t.Was != "" {
		parts = append(parts, "was "+t.Was)
	}
	if t.Resign {
		parts = append(parts, "not signed by the site's key")
	}
	return strings.Join(parts, ", ")
}

// ParseDescription splits a description into the notes of people, and the tag, which is written as
// the last line but found on any (the last one counts), since people add their notes at the end.
// found is true also for a tag that cannot be read.
func ParseDescription(s string) (notes string, m Tag, found bool) {
	lines := strings.Split(strings.TrimRight(s, " \t\r\n"), "\n")
	at := len(lines) - 1
	for at >= 0 && !strings.HasPrefix(lines[at], Prefix) {
		at--
	}
	if at < 0 {
		return strings.Join(lines, "\n"), Tag{}, false
	}
	doc := strings.TrimPrefix(lines[at], Prefix)
	notes = strings.TrimRight(strings.Join(slices.Delete(lines, at, at+1), "\n"), " \t\r\n")
	if json.Unmarshal([]byte(doc), &m) != nil {
		return notes, Tag{}, true
	}
	return notes, m, true
}

// Describe joins notes and tag as they are; see Identity.Describe for the tag of a guest. PVE cuts trailing white space,
// so there is none.
func (t Tag) Describe(notes string) string {
	if notes = strings.TrimRight(notes, " \t\r\n"); notes != "" {
		return notes + "\n" + t.Line()
	}
	return t.Line()
}

var uuidText = regexp.MustCompile(`(?i)^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// IsUUID reports whether a text is a UUID.
func IsUUID(s string) bool { return uuidText.MatchString(s) }

// UUID reads the identity from a smbios1 property string, lower-cased.
func UUID(smbios1 string) string {
	u := strings.ToLower(api.PropertyValue(smbios1, "uuid"))
	if !uuidText.MatchString(u) {
		return ""
	}
	return u
}

// IdentityOf is the identity of a guest: of a VM its uuid, of a container the MAC address of its first card; "" if it has
// none.
func IdentityOf(cfg map[string]string, at api.GuestRef) string {
	if !at.LXC {
		return UUID(cfg["smbios1"])
	}
	for i := range 32 {
		if val, ok := cfg[fmt.Sprintf("net%d", i)]; ok {
			return strings.ToUpper(api.ParseProperty(val).Values["hwaddr"])
		}
	}
	return ""
}

// Provisional reports whether a tag is that of a clone whose identity is not written yet.
func (t Tag) Provisional() bool { return t.UUID == "" && t.MAC == "" }

// matches reports whether a guest has the identity that the tag was written for: a VM its uuid, which a copy does
// not have; a container the MAC address of a card, the only such value that a clone does not copy. Current and
// pending values count: a clone takes over neither.
func (t Tag) matches(cfg api.GuestConfig) (ok bool, what string) {
	if t.Type != "ct" {
		is := func(smbios1 string) bool { return strings.EqualFold(t.UUID, UUID(smbios1)) }
		return t.UUID != "" && (is(cfg.Next["smbios1"]) || is(cfg.Now["smbios1"])), "uuid"
	}
	for _, side := range []map[string]string{cfg.Next, cfg.Now} {
		for key, val := range side {
			if api.IsNet(key) && t.MAC != "" && strings.EqualFold(t.MAC, api.ParseProperty(val).Values["hwaddr"]) {
				return true, "MAC address"
			}
		}
	}
	return false, "MAC address"
}

// TemplateType is the type in the tag of a template, and ScratchType that of a guest that was restored to verify a backup.
const (
	TemplateType = "template"
	ScratchType  = "restore"
)

// Scratch reports whether a guest with this verdict was restored by us to verify a backup, and the name of that verification. A
// site without a key has none: such a guest is destroyed on the word of its tag alone.
func (id Identity) Scratch(v Verdict) (name string, ours bool) {
	m := v.Tag
	return cmp.Or(m.Was, m.Node), v.Found && m.Type == ScratchType && m.Site == id.Site && m.Owner == id.Host && m.Trust >= Begun
}

// NocloudISO is the record of a machine's NoCloud ISO in its tag: where it is or was, and
// sums of what can be published, so that an edit that comes too late shows.
// Of what is made from secrets there is none: it could be tried out.
type NocloudISO struct {
	Volume string `json:"volume,omitempty"`
	Data   string `json:"data,omitempty"` // of user_data
	Net    string `json:"net,omitempty"`  // of addresses and name servers
	Pull   bool   `json:"pull,omitempty"` // it has the address of the parent
}

// HasNocloudISO reports whether a machine was created with a NoCloud ISO, so that it has no
// cloud-init drive of PVE.
func (t Tag) HasNocloudISO() bool { return t.Seed != nil && t.Seed.Volume != "" }

// ShutdownSeconds is the shutdown timeout of a guest, in seconds.
func (t Tag) ShutdownSeconds() int {
	if t.Destroy != nil && t.Destroy.Down > 0 {
		return t.Destroy.Down
	}
	return 60
}

// RemovalPolicy is the decommission policy of a tag. Guests of a kept test (owner cli:…) have none.
func (t Tag) RemovalPolicy() string {
	if t.Destroy == nil || t.Destroy.Policy == "" || strings.HasPrefix(t.Owner, "cli:") {
		return RemoveAtOnce
	}
	return t.Destroy.Policy
}

// OrphanPolicy says what happens to nodes of the site that live on the guest when it goes; "" for a guest that holds
// none: one that is not of type pve, or that the command line left behind and no agent has entered.
func (t Tag) OrphanPolicy() model.Orphan {
	switch {
	case t.Type != model.PVEType || strings.HasPrefix(t.Owner, "cli:"):
		return ""
	case t.Destroy == nil || t.Destroy.Orphan == "":
		return model.OrphanRefuse
	}
	return t.Destroy.Orphan
}

// BeforeDestroy are the scripts that run in a guest before it is stopped for its removal.
func (t Tag) BeforeDestroy() []string {
	if t.Destroy == nil {
		return nil
	}
	return t.Destroy.Before
}

// Services are those that have to be on another node before the guest goes.
func (t Tag) Services() []string {
	if t.RemovalPolicy() != RemoveUnused {
		return nil
	}
	return t.Destroy.Services
}

// VerifiesBackup reports whether the final backup of a guest has to boot before the guest is destroyed.
func (t Tag) VerifiesBackup() bool { return t.Destroy != nil && t.Destroy.Verify == "restore" }

// The decommission policies.
const (
	RemoveAtOnce   = "allow_immediate_destroy"
	RemoveBackedUp = "requires_final_backup"
	RemoveUnused   = "requires_migration_first"
)

// Identity is our identity in tags. Templates belong to the host and not to their creator, like
// images: the agent also uses those of a test.
type Identity struct {
	Site, Owner, Host string

	// Keys returns the keys that sign the tags of an owner, the current one first, at most two; none if the site has no
	// key. KeyMissing: it has one whose value is not known here, so that signatures can be neither made nor checked.
	Keys       func(owner string) [][]byte
	KeyMissing bool
	// Believes takes a signature for valid if no key is known here. It is for plans that are not carried out.
	Believes bool

	// Moved are former addresses of guests, and those that they have now: a tag that names one counts for the other.
	Moved map[model.Address]model.Address
}

// Verdict is the result of a check of one guest, mostly right before a change.
type Verdict struct {
	Notes   string
	Tag     Tag
	Found   bool          // it has an ownership tag
	Matches bool          // the tag is one of this site, and the guest has the identity in it
	Owned   bool          // and the tag is signed for this guest, where the site has a key
	Against string        // why not
	Claims  model.Address // which of our guests it says to be
	Ours    bool          // its tag names our site and us
	Unsure  bool          // it has a tag of this site, and no key to verify it with is known here
}

// Check reads the tag of a guest, and verifies it: the tag has our site and owner, the guest has the identity in the
// tag, and the signature of the tag is for this guest.
func (id Identity) Check(cfg api.GuestConfig, at api.GuestRef) Verdict {
	v := Verdict{}
	v.Notes, v.Tag, v.Found = ParseDescription(cfg.Description())
	m := &v.Tag
	m.Trust = id.trust(*m, at, cfg)
	m.Resign = len(id.keys(m.Owner)) > 0 && m.Trust != Proven
	if to, moved := id.Moved[m.Addr()]; moved && m.Site == id.Site {
		m.Was, m.Node = m.Node, to.Name
	}
	same, what := m.matches(cfg)
	mine := id.Owner
	if m.Type == TemplateType {
		mine = id.Host
	}
	claims := m.Addr()
	v.Ours = v.Found && m.Readable() && m.Site == id.Site && m.Owner == mine
	switch {
	case !v.Found:
		v.Against, claims = "no ownership tag", model.Address{}
	case !m.Readable():
		v.Against, claims = "its ownership tag cannot be read", model.Address{}
	case m.Site != id.Site:
		v.Against, claims = "belongs to site "+diag.Line(m.Site), model.Address{}
	case m.Owner != mine:
		v.Against = "belongs to " + diag.Line(m.Owner)
	case (m.Type == "ct") != at.LXC:
		v.Against = fmt.Sprintf("has the ownership tag of %s, but is a %s: a copied description", diag.Line(m.Addr().String()), strings.ToUpper(at.Kind()))
	case id.KeyMissing && !id.Believes:
		v.Unsure, v.Against = true, "the key that verifies its ownership tag is not known here"
	case m.Provisional() && m.VMID == at.VMID && (m.Trust == Begun || !id.HasKey()):
		v.Matches, v.Owned = true, true // a clone that we started and whose identity we had not written yet
	case m.Provisional() && id.HasKey():
		v.Against = fmt.Sprintf("has the ownership tag of %s as if it was being created, which nothing proves", diag.Line(m.Addr().String()))
	case !same:
		v.Against = fmt.Sprintf("has the ownership tag of %s, but is another machine (its %s is not the one in the tag): a copy", diag.Line(m.Addr().String()), what)
	case id.HasKey() && m.Trust == Unsigned:
		v.Matches, v.Against = true, fmt.Sprintf("has the ownership tag of %s without a valid signature for this guest", diag.Line(m.Addr().String()))
	default:
		v.Matches, v.Owned = true, true
	}
	v.Claims = claims
	return v
}

// IsOwnedAs reports whether the guest is verified as the one of an address.
func (v Verdict) IsOwnedAs(addr model.Address) bool { return v.Owned && v.Tag.Addr() == addr }

// Why explains why not: its identity is not verified, or it is another managed guest.
func (v Verdict) Why() string { return cmp.Or(v.Against, "it is "+v.Tag.Addr().String()) }
