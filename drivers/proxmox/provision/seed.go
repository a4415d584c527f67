package provision

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// setCloudInitDrive gives a clone its cloud-init drive, and for a seed deletes the template's own
// drive and the keys for it.
func (p patch) setCloudInitDrive(v guest.VMTarget, cfg api.GuestConfig) {
	there := false
	for key, val := range cfg.Next {
		drive := api.IsDrive(key) && api.IsCloudInit(api.VolumeOf(val))
		there = there || drive
		switch {
		case v.SeedVolume == "":
		case v.Options[key] != "": // the files decide it
		case drive && key != api.CloudInitSlot, key == "ciuser", key == "cipassword", key == "cicustom":
			p.del[key] = true
		}
	}
	if v.SeedVolume != "" || !there {
		p.set[api.CloudInitSlot] = v.CloudInitDrive()
	}
}

const (
	// agentPatience is the time that a creation waits for the first boot, to remove the seed at once.
	agentPatience = 2 * time.Minute
	// agentPoll is the pause between two checks of it.
	agentPoll = 5 * time.Second
)

// prepareSeed makes and uploads the seed of a VM that is about to be created. It returns the VM as
// it is then to be ordered, with the image in its drive, cards of known MAC addresses, and nothing
// for PVE's own cloud-init drive, and the ownership tag with the record of the seed. A VM that gets
// no seed is returned as it is, and nothing is sent.
//
// An image that an earlier attempt left is overwritten, and its identity is used again. So there is
// never a second image, and if that attempt's order was carried out after all, the VM and its seed
// still match.
func (d vmCreator) prepareSeed(ctx context.Context, at api.GuestRef, m owner.Tag) (guest.VMTarget, owner.Tag, error) {
	want := d.want
	if m.Seed == nil {
		return want, m, nil
	}
	userData, err := d.userData()
	if err != nil {
		return guest.VMTarget{}, m, fmt.Errorf("seeding %s: %w", at, err)
	}
	left, err := seedsOn(ctx, d.Host, at.Node, want.SeedStorage)
	if err != nil {
		return guest.VMTarget{}, m, fmt.Errorf("seeding %s: looking for leftovers of an earlier attempt: %w", at, err)
	}
	left = slices.DeleteFunc(left, func(v lifecycle.SeedFile) bool { return v.Node != m.Node || v.Emptied })
	if len(left) > 0 {
		m.UUID = left[0].UUID
	}
	name := lifecycle.SeedName{Site: d.ID.Site, Node: m.Node, Owner: lifecycle.OwnerSum(d.ID.Owner), UUID: m.UUID}
	spec, r := *want.VM, *want.Resolution
	v := guest.VMTarget{VM: &spec, Resolution: &r}
	v.NICs = slices.Clone(want.NICs)
	s := lifecycle.Seed{
		Instance: "homestak-" + lifecycle.ShortSum("instance "+m.UUID), Name: v.Name, Domain: v.Domain, UserData: userData,
		User: v.User, Keys: v.Keys, DNS: v.DNS,
	}
	for i := range v.NICs {
		n := &v.NICs[i]
		n.MAC = cmp.Or(n.MAC, macFor(m.UUID, n.Name))
		card := lifecycle.NIC{Name: n.Name, MAC: n.MAC, IP: n.IP, Gateway: n.Gateway, IP6: n.IP6, Gateway6: n.Gateway6}
		if n.MTU > guest.BridgeMTU {
			card.MTU = n.MTU
		}
		s.NICs = append(s.NICs, card)
		n.IP, n.Gateway, n.IP6, n.Gateway6 = "", "", "", ""
	}
	v.User, v.Keys, v.DNS, v.Domain, v.SeedVolume = "", nil, nil, "", name.Volume(v.SeedStorage)
	if boot, declared := v.Options["boot"]; declared {
		v.Options = maps.Clone(v.Options)
		v.Options["boot"] = guest.BootOrderWithSeed(boot)
	}
	record := *m.Seed
	record.Volume = v.SeedVolume
	m.Seed = &record
	image, err := s.Image()
	if err != nil {
		return guest.VMTarget{}, m, fmt.Errorf("seeding %s: %w", at, err)
	}
	err = lifecycle.UploadSeed(ctx, d.Host, at.Node, v.SeedVolume, image)
	if errors.Is(err, api.ErrOutcomeLost) && len(left) == 0 { // the image did not exist before, so this is the new one
		now, readErr := seedsOn(ctx, d.Host, at.Node, v.SeedStorage)
		if readErr == nil && slices.ContainsFunc(now, func(n lifecycle.SeedFile) bool { return n.VolID == v.SeedVolume && n.Size == len(image) }) {
			err = nil
		}
	}
	if err != nil {
		return guest.VMTarget{}, m, fmt.Errorf("seeding %s: uploading its image to storage %s: %w", at, v.SeedStorage, err)
	}
	return v, m, nil
}

// userData returns the user data for cloud-init: that of the site, and for a VM in mode pull what leads it to its
// parent. Each attempt gets a token of its own.
func (d vmCreator) userData() (string, error) {
	switch {
	case d.want.Pulls == "":
		return d.want.UserData, nil
	case d.Parent == nil:
		return "", errors.New(NoParent)
	default:
		return d.Parent.FirstBoot(d.want.OwnerTag.Node, d.want.Pulls, d.want.UserData)
	}
}

// NoParent is the error for creating a VM in mode pull without a server for its spec.
const NoParent = "it is in mode pull, and no server for its spec runs here"

// isCreated reports whether an earlier order of the VM was carried out completely. If that cannot
// be seen, the VM is ordered again, and PVE's answer decides.
func (d vmCreator) isCreated(ctx context.Context, at api.GuestRef, addr model.Address) bool {
	cfg, err := d.API.ReadConfig(ctx, at)
	if err != nil {
		return false
	}
	is := d.ID.Check(cfg, at)
	return is.IsOwnedAs(addr) && is.Tag.UUID != "" && cfg.Now["lock"] == ""
}

// removeSeed removes the seed once the guest agent answers, which starts long after cloud-init has
// read the seed, or once a VM in mode pull has reported. A VM that does neither, or that takes longer,
// is complete as well; a later pass removes its seed.
func (d vmCreator) removeSeed(ctx context.Context, at api.GuestRef, m owner.Tag) {
	if m.Seed == nil || m.Seed.Volume == "" || !d.want.Agent && d.want.Pulls == "" || !d.awaitBoot(ctx, at) {
		return
	}
	cfg, err := d.API.ReadConfig(ctx, at)
	if err != nil || !d.ID.Check(cfg, at).IsOwnedAs(m.Addr()) || lifecycle.AttachedSeed(m, cfg.Next) == "" {
		return
	}
	if _, err := d.API.Put(ctx, at.Path("config"), api.Params{api.CloudInitSlot: api.EmptyDrive, "digest": cfg.Digest}); err != nil {
		return // the next pass removes it
	}
	_ = lifecycle.RemoveSeed(ctx, d.Host, at.Node, m.Seed.Volume) // on an error the next pass removes it
}

// awaitBoot waits until a VM that was just started has read its seed, and reports whether that could
// be seen.
func (d vmCreator) awaitBoot(ctx context.Context, at api.GuestRef) bool {
	pulls := d.want.Pulls != "" && d.Parent != nil
	agent := d.want.Agent
	for range agentPatience / agentPoll {
		if pulls && d.Parent.HasReported(d.want.OwnerTag.Node) {
			return true
		}
		if agent {
			_, err := d.API.Post(ctx, at.Path("agent", "ping"), nil)
			if err == nil {
				return true
			}
			c := api.ClassOf(err)
			agent = c != api.Denied && c != api.NoLogin && c != api.NotFound
		}
		if !agent && !pulls {
			return false
		}
		if api.Sleep(ctx, agentPoll) != nil {
			return false
		}
	}
	return false
}

// macFor is the address of a machine's card: in Proxmox's own range, and the same
// whenever it is asked for.
func macFor(identity, nic string) string {
	sum := sha256.Sum256([]byte(identity + "\n" + nic))
	return fmt.Sprintf("BC:24:11:%02X:%02X:%02X", sum[0], sum[1], sum[2])
}

// seedsOn lists our seed images on a storage, by name.
func seedsOn(ctx context.Context, h *kind.Host, node, on string) ([]lifecycle.SeedFile, error) {
	list, err := h.API.ListVolumes(ctx, api.NodeStorage{Node: node, Storage: on}, "iso")
	return lifecycle.SeedsAmong(h, list), err
}
