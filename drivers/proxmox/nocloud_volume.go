package proxmox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/nocloud"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/storage"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Seed is a seed image that no machine needs any more: no file declares one, a
// pass finds it and removes it.
type Seed struct {
	Volume string `plan:"volume"`

	node string // of PVE
}

var seedKind = kind.Of[Seed]{
	Model: model.Kind{
		Name: "seed", Doc: "A seed image that was left behind.",
		New:   func() any { return &Seed{} },
		Brief: func(want *model.Resource) string { return want.Spec.(*Seed).Volume },
	},
	Remove: func(ctx context.Context, h *kind.Host, s plan.Step) error {
		if s.Have == nil {
			return nil // taking back what was never made
		}
		left := s.Have.Spec.(*Seed)
		return worker{h}.removeSeed(ctx, left.node, left.Volume)
	},
}

// seedName is what the file name of a seed image says: whose it is, and of which
// machine. It is made of nothing that is in the image, since a sum of that would
// let secrets be tried out. Its first word keeps it apart from the images that the
// site declares.
type seedName struct{ site, node, owner, uuid string }

var seedFile = regexp.MustCompile(`^` + owner.PVETag + `-seed\.([^./]+)\.([^./]+)\.([0-9a-f]{12})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.iso$`)

func (n seedName) volume(storage string) string {
	return storage + ":iso/" + strings.Join([]string{owner.PVETag + "-seed", n.site, n.node, n.owner, n.uuid, "iso"}, ".")
}

func parseSeed(volid string) (seedName, bool) {
	m := seedFile.FindStringSubmatch(path.Base(volid))
	if m == nil {
		return seedName{}, false
	}
	return seedName{m[1], m[2], m[3], m[4]}, true
}

// ownerSum names an owner in a file name: owners hold characters that files may not.
func ownerSum(owner string) string { return shortSum("owner " + owner) }

// seedVolume is a seed image of ours on a storage.
type seedVolume struct {
	seedName
	volid string
	size  int
	wiped bool // emptied, because the token may not delete it
}

// seedsOn lists our seed images on a storage, by name.
func (d worker) seedsOn(ctx context.Context, node, on string) ([]seedVolume, error) {
	list, err := storage.List(ctx, d.API, view.NodeStorage{Node: node, Storage: on}, "iso")
	return d.seedsAmong(list), err
}

// seedsAmong finds our seed images in a list of volumes, by name.
func (d worker) seedsAmong(list []map[string]json.RawMessage) []seedVolume {
	empty := len(nocloud.Empty())
	var out []seedVolume
	for _, e := range list {
		name, ok := parseSeed(api.Text(e["volid"]))
		if !ok || name.site != d.ID.Site || name.owner != ownerSum(d.ID.Owner) {
			continue
		}
		size := api.Number(e["size"])
		out = append(out, seedVolume{name, api.Text(e["volid"]), size, size == empty})
	}
	slices.SortFunc(out, func(a, b seedVolume) int { return strings.Compare(a.volid, b.volid) })
	return out
}

// sendSeed uploads an image; a file of that name is overwritten.
func (d worker) sendSeed(ctx context.Context, node, volid string, image []byte) error {
	sum := sha256.Sum256(image)
	p := api.Params{"content": "iso", "filename": path.Base(volid), "checksum": hex.EncodeToString(sum[:]), "checksum-algorithm": "sha256"}
	return d.API.Upload(ctx, api.Path("nodes", node, "storage", property.StorageOf(volid), "upload"), p, bytes.NewReader(image), int64(len(image)))
}

// removeSeed deletes a seed image of ours; one that is gone is success. Deleting
// takes Datastore.Allocate; a token with no more than it took to upload overwrites
// the image with an empty one instead: what must go is what is in it.
func (d worker) removeSeed(ctx context.Context, node, volid string) error {
	name, ok := parseSeed(volid)
	if !ok || name.site != d.ID.Site || name.owner != ownerSum(d.ID.Owner) {
		return fmt.Errorf("volume %s does not carry a name of ours: not changed", volid)
	}
	err := storage.Free(ctx, d.API, node, volid)
	if api.ClassOf(err) == api.Denied {
		err = d.sendSeed(ctx, node, volid, nocloud.Empty())
	}
	if err != nil {
		return fmt.Errorf("removing seed image %s: %w", volid, err)
	}
	return nil
}

// findSeeds looks at what machines were told, and for images that no machine needs:
// those of a machine that never came to be, and those that a crash left. It costs a
// request for each storage in question, and none where no machine has user_data. What
// lies there after the last such machine left the files is found where the last look is
// remembered.
func (d worker) findSeeds(ctx context.Context, obs *kind.Observation, out *model.Observed) error {
	shelves := map[view.NodeStorage]bool{}
	inDrive, coming := map[string]bool{}, map[string]bool{}
	for addr, r := range obs.Want.State {
		v, ok := r.Spec.(*VM)
		if !ok || v.UserData == "" {
			continue
		}
		shelves[view.NodeStorage{Node: cmp.Or(r.Guest.Node, d.Model.PVENode()), Storage: v.seedStorage}] = true
		coming[addr.Name] = out.State[addr] == nil // the one that makes it goes on with what lies there
	}
	for addr, r := range out.State {
		v, ok := r.Spec.(*VM)
		if !ok {
			continue
		}
		if w := obs.Want.State[addr]; w != nil {
			out.Pending = append(out.Pending, lateSeed(v, addr, w)...)
		}
		if s := v.mark.Seed; s != nil && s.Volume != "" {
			shelves[view.NodeStorage{Node: r.Guest.Node, Storage: property.StorageOf(s.Volume)}] = true
			inDrive[v.Seed] = true
		} else if v.mark.UUID == "" {
			coming[addr.Name] = true // a copy whose making goes on
		}
	}
	recall := slices.Collect(maps.Keys(shelves))
	for _, word := range obs.Want.SweepHints {
		if at, ok := parseSweepHint(word); ok {
			shelves[at] = true
		}
	}
	for _, f := range out.Unmanaged {
		if f.Unfinished {
			coming[f.Claims.Name], coming[f.Name] = true, true
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(shelves), func(a, b view.NodeStorage) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Storage, b.Storage))
	}) {
		if !obs.View.Nodes[at.Node] {
			recall = append(recall, at)
			continue // the view says so, and what is on it is nobody's to judge
		}
		list, err := obs.Volumes(ctx, at, "iso")
		if err != nil {
			if api.EndsPass(ctx, err) {
				return err
			}
			if api.ClassOf(err) == api.NotFound && !slices.Contains(recall, at) {
				continue // only remembered, and there is no such storage any more
			}
			recall = append(recall, at)
			out.Unknown = append(out.Unknown, model.Unknown{Scope: "seed images on storage " + at.Storage, Why: err.Error(), Kind: "seed", Only: []model.Address{}, Denied: api.IsDenied(err)}) // of other storages they are seen
			continue
		}
		for _, v := range d.seedsAmong(list) {
			addr := model.Address{Kind: "seed", Name: v.node}
			old := out.State[addr]
			if v.wiped {
				continue
			}
			recall = append(recall, at) // until it is gone, be that the turn of a later pass
			if inDrive[v.volid] || coming[v.node] || old != nil && old.Spec.(*Seed).Volume < v.volid {
				continue
			}
			out.State[addr] = &model.Resource{Addr: addr, Spec: &Seed{Volume: v.volid, node: at.Node}}
		}
	}
	for _, at := range recall {
		out.SweepHints = append(out.SweepHints, sweepHint(at))
	}
	slices.Sort(out.SweepHints)
	out.SweepHints = slices.Compact(out.SweepHints)
	slices.SortStableFunc(out.Pending, func(a, b model.Pending) int { return a.Address.Compare(b.Address) })
	return nil
}

// sweepHint is what a storage that may hold seed images is called in Observed.SweepHints.
func sweepHint(s view.NodeStorage) string { return "seeds " + s.Node + " " + s.Storage }

// parseSweepHint reads it.
func parseSweepHint(word string) (view.NodeStorage, bool) {
	p := strings.Split(word, " ")
	if len(p) != 3 || p[0] != "seeds" {
		return view.NodeStorage{}, false
	}
	return view.NodeStorage{Node: p[1], Storage: p[2]}, true
}

// lateSeed says what the files want a machine to be told, now that it has been told
// already. cloud-init does not listen twice, so it is said and nothing is done.
func lateSeed(v *VM, addr model.Address, want *model.Resource) []model.Pending {
	w, ok := want.Spec.(*VM)
	if !ok || v.mark.UUID == "" {
		return nil
	}
	is, now := v.mark.Seed, newSeed(want)
	if is == nil {
		is = &owner.NocloudISO{}
	}
	const why = "read at first boot only; takes effect when the machine is recreated"
	var out []model.Pending
	add := func(path, before, after string, differs bool) {
		if differs {
			out = append(out, model.Pending{Address: addr, Path: path, Before: inWords(before, "as at the first boot"), After: inWords(after, "as declared now"), Why: why})
		}
	}
	switch {
	case is.Volume == "" && now == nil:
	case is.Volume == "":
		add("user_data", "", cmp.Or(now.Data, model.Sensitive), true)
	case now == nil:
		add("user_data", cmp.Or(is.Data, model.Sensitive), "", true)
	default:
		add("user_data", is.Data, cmp.Or(now.Data, model.Sensitive), is.Data != "" && is.Data != now.Data)
		add("network_config", is.Net, cmp.Or(now.Net, model.Sensitive), is.Net != "" && is.Net != shortSum(fmt.Sprintf("%q", seedNetwork(w))))
	}
	return out
}

// inWords stands for a text of which only a sum is known, which tells a reader nothing.
func inWords(sum, words string) any {
	switch sum {
	case "":
		return nil
	case model.Sensitive:
		return sum
	default:
		return words
	}
}
