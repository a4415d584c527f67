package lifecycle

// Seed images on the storages of a host, for machines with user_data: names, upload and removal. See
// docs/decisions/0006-images-templates-and-cloud-init.md.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"sort"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// SeedImage is a seed image that no machine needs any more: no file declares one, a
// pass finds it and removes it.
type SeedImage struct {
	Volume string `plan:"volume"`

	Node string // of PVE
}

// SeedKind is the kind seed.
var SeedKind = kind.Of[SeedImage]{
	Model: model.Kind{
		Name: "seed", Doc: "A seed image that was left behind.",
		New:   func() any { return &SeedImage{} },
		Brief: func(want *model.Resource) string { return want.Spec.(*SeedImage).Volume },
	},
	Remove: func(ctx context.Context, h *kind.Host, s plan.Step) error {
		if s.Have == nil {
			return nil // taking back what was never made
		}
		left := s.Have.Spec.(*SeedImage)
		return RemoveSeed(ctx, h, left.Node, left.Volume)
	},
}

// SeedName is the content of the file name of a seed image: whose it is, and of which
// machine. It is made of nothing that is in the image, since a sum of that would
// let secrets be tried out. Its first word keeps it apart from the images that the
// site declares.
type SeedName struct{ Site, Node, Owner, UUID string }

var seedFile = regexp.MustCompile(`^` + owner.PVETag + `-seed\.([^./]+)\.([^./]+)\.([0-9a-f]{12})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.iso$`)

// Volume is the volume of that name.
func (n SeedName) Volume(storage string) string {
	return storage + ":iso/" + strings.Join([]string{owner.PVETag + "-seed", n.Site, n.Node, n.Owner, n.UUID, "iso"}, ".")
}

// parseName reads the name of a volume; ok is false where it is not a seed image.
func parseName(volid string) (SeedName, bool) {
	m := seedFile.FindStringSubmatch(path.Base(volid))
	if m == nil {
		return SeedName{}, false
	}
	return SeedName{m[1], m[2], m[3], m[4]}, true
}

// OwnerSum names an owner in a file name: owners have characters that files may not.
func OwnerSum(owner string) string { return ShortSum("owner " + owner) }

// SeedFile is a seed image of this program on a storage.
type SeedFile struct {
	SeedName
	VolID   string
	Size    int
	Emptied bool // emptied, because the token may not delete it
}

// SeedsAmong finds our seed images in a list of volumes, by name.
func SeedsAmong(h *kind.Host, list []map[string]json.RawMessage) []SeedFile {
	empty := len(EmptyImage())
	var out []SeedFile
	for _, e := range list {
		name, ok := parseName(api.Text(e["volid"]))
		if !ok || name.Site != h.ID.Site || name.Owner != OwnerSum(h.ID.Owner) {
			continue
		}
		size := api.Number(e["size"])
		out = append(out, SeedFile{name, api.Text(e["volid"]), size, size == empty})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].VolID < out[j].VolID })
	return out
}

// UploadSeed uploads an image; a file of that name is overwritten.
func UploadSeed(ctx context.Context, h *kind.Host, node, volid string, image []byte) error {
	sum := sha256.Sum256(image)
	p := api.Params{"content": "iso", "filename": path.Base(volid), "checksum": hex.EncodeToString(sum[:]), "checksum-algorithm": "sha256"}
	return h.API.Upload(ctx, api.Path("nodes", node, "storage", api.StorageOf(volid), "upload"), p, bytes.NewReader(image), int64(len(image)))
}

// RemoveSeed deletes a seed image of this program; one that is gone is success. Deleting
// takes Datastore.Allocate; a token with no more than it took to upload overwrites
// the image with an empty one instead: what must go is what is in it.
func RemoveSeed(ctx context.Context, h *kind.Host, node, volid string) error {
	name, ok := parseName(volid)
	if !ok || name.Site != h.ID.Site || name.Owner != OwnerSum(h.ID.Owner) {
		return fmt.Errorf("volume %s does not have a managed name: not changed", volid)
	}
	err := h.API.FreeVolume(ctx, node, volid)
	if api.ClassOf(err) == api.Denied {
		err = UploadSeed(ctx, h, node, volid, EmptyImage())
	}
	if err != nil {
		return fmt.Errorf("removing seed image %s: %w", volid, err)
	}
	return nil
}

// ShortSum is a short hash.
func ShortSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:6])
}

// AttachedSeed is the volume of the machine's own seed, if it is in the drive.
func AttachedSeed(m owner.Tag, c map[string]string) string {
	if file := api.PropertyFirst(c[api.CloudInitSlot], "file"); m.Seed != nil && m.Seed.Volume != "" && file == m.Seed.Volume {
		return file
	}
	return ""
}

// eject takes the seed of a machine that is about to be destroyed: PVE leaves
// images in drives alone, and afterwards nothing would show that there was one.
func eject(ctx context.Context, h *kind.Host, at api.GuestRef, m owner.Tag, cfg api.GuestConfig) error {
	if m.Seed == nil || m.Seed.Volume == "" {
		return nil
	}
	if AttachedSeed(m, cfg.Next) != "" {
		if _, err := h.API.Put(ctx, at.Path("config"), api.Params{api.CloudInitSlot: api.EmptyDrive, "digest": cfg.Digest}); err != nil {
			return fmt.Errorf("removing %s: taking its seed image out first: %w", at, err)
		}
	}
	return RemoveSeed(ctx, h, at.Node, m.Seed.Volume)
}
