package owner

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// Trust is the extent to which an ownership tag is verified.
type Trust int

const (
	// Unsigned says that the tag is not authenticated. Its signature is missing, or is not one for this guest.
	Unsigned Trust = iota
	// Begun says that it is signed by us for a creation that began within creationLasts, and nothing shows that this guest
	// came from it: another one may have the VMID by now.
	Begun
	// Former says that it is signed for this guest, by the key that the current one replaces.
	Former
	// Proven says that it is signed for this guest by the current key.
	Proven
)

// creationLasts is the time for which the tag of a creation proves anything about a guest that may not have come from it.
const creationLasts = 24 * time.Hour

// A VM came from a creation if PVE created it between these times before and after the creation began: the clock of the
// node may be another one, and the task may wait for a lock.
const (
	createdBefore = 2 * time.Minute
	createdAfter  = 5 * time.Minute
)

const (
	sigVersion = "1."
	sigBytes   = 16 // of the HMAC-SHA-256
	// SigLength is the number of characters of a signature.
	SigLength = len(sigVersion) + (sigBytes*8+5)/6
)

// HasKey reports whether the site has a key for its ownership tags.
func (id Identity) HasKey() bool { return id.KeyMissing || len(id.keys(id.Owner)) > 0 }

func (id Identity) keys(owner string) [][]byte {
	if id.Keys == nil {
		return nil
	}
	return id.Keys(owner)
}

// Describe joins notes and tag, signed for a guest. cfg is the guest's present configuration; for a guest that does
// not exist yet it is empty, and its tag has Begin applied. A site without a key signs nothing. A guest with very
// many disks has no room for the volume of each.
func (id Identity) Describe(notes string, m Tag, at api.GuestRef, cfg api.GuestConfig) string {
	text := id.Sign(m, at, cfg).Describe(notes)
	if len(m.Volumes) == 0 || utf8.RuneCountInString(text) <= MaxDescription {
		return text
	}
	m.Volumes = nil
	return id.Sign(m, at, cfg).Describe(notes)
}

// Sign signs a tag for a guest, see Describe.
func (id Identity) Sign(m Tag, at api.GuestRef, cfg api.GuestConfig) Tag {
	m.Sig, m.V = "", 1
	keys := id.keys(m.Owner)
	if len(keys) == 0 {
		m.Begun = 0
		return m
	}
	m.V = 2
	m.Sig = m.mac(keys[0], at, cfg)
	return m
}

// Begin marks the tag of a guest that is about to be created: PVE chooses its creation time, and maybe its identity.
func (Identity) Begin(m Tag) Tag {
	m.Begun = time.Now().Unix()
	return m
}

// mac is the signature of a tag on a guest. It covers all that the tag says, the VMID and kind of the guest, and the
// creation time that PVE keeps in a VM's configuration: no privilege can set it (qemu-server, API2/Qemu.pm, create_vm;
// PVE/QemuServer/MetaInfo.pm), and no other guest that gets this VMID has it, except clones of the same template, which
// take it over.
func (t Tag) mac(key []byte, at api.GuestRef, cfg api.GuestConfig) string {
	t.Sig = ""
	made := ""
	if t.Begun == 0 {
		made = api.PropertyValue(cfg.Now["meta"], "ctime")
	}
	doc, err := json.Marshal(t)
	if err != nil {
		panic(err) // see Line
	}
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "homestak-gitops ownership tag %s\n%d\n%s\n%s\n", sigVersion, at.VMID, at.Kind(), made)
	h.Write(doc)
	return sigVersion + base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:sigBytes])
}

// trust is the trust in a guest by the signature of its tag.
func (id Identity) trust(m Tag, at api.GuestRef, cfg api.GuestConfig) Trust {
	if m.V != 2 || m.Sig == "" {
		return Unsigned
	}
	keys := id.keys(m.Owner)
	i := slices.IndexFunc(keys, func(key []byte) bool { return hmac.Equal([]byte(m.mac(key, at, cfg)), []byte(m.Sig)) })
	if id.Believes && len(keys) == 0 {
		i = 0
	}
	switch {
	case i < 0:
		return Unsigned
	case m.Begun != 0 && !m.isFromCreation(at, cfg):
		if age := time.Since(time.Unix(m.Begun, 0)); age < -creationLasts || age > creationLasts {
			return Unsigned
		}
		return Begun
	case i > 0:
		return Former
	default:
		return Proven
	}
}

// Trust is the trust in the tag of an object that is not a guest, by its signature alone.
func (id Identity) Trust(m Tag) Trust { return id.trust(m, api.GuestRef{}, api.GuestConfig{}) }

// isFromCreation reports whether a guest was created when the creation that its tag was signed for began. A clone has the
// creation time of its template, and a container has none.
func (t Tag) isFromCreation(at api.GuestRef, cfg api.GuestConfig) bool {
	if at.LXC || t.Provisional() {
		return false
	}
	ctime, err := strconv.ParseInt(api.PropertyValue(cfg.Now["meta"], "ctime"), 10, 64)
	if err != nil {
		return false
	}
	after := time.Unix(ctime, 0).Sub(time.Unix(t.Begun, 0))
	return after >= -createdBefore && after <= createdAfter
}

// AllowsRemoval reports whether a tag proves enough to destroy its guest.
func (t Tag) AllowsRemoval() bool { return t.Trust >= Former }

// WithoutDisposal is the tag without what it says about volumes that are detached, or whose data go. If nothing verifies a
// tag, its writer could otherwise choose volumes that the next changes free or attach, and signing it would confirm that.
func (t Tag) WithoutDisposal() Tag {
	t.Removes, t.Detached, t.Volumes = nil, nil, nil
	return t
}
