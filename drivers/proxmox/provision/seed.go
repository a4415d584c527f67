package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/nocloud"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/seed"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// setCloudInitDrive gives a copy of a template its medium, and takes away a template's own
// cloud-init drive and what that would have said.
func (p patch) setCloudInitDrive(v guest.VMTarget, cfg view.Config) {
	there := false
	for key, val := range cfg.Next {
		drive := drives.IsDrive(key) && drives.IsCloudInit(property.VolumeOf(val))
		there = there || drive
		switch {
		case v.SeedVolume == "":
		case v.Options[key] != "": // the files say it
		case drive && key != drives.CloudInitSlot, key == "ciuser", key == "cipassword", key == "cicustom":
			p.del[key] = true
		}
	}
	if v.SeedVolume != "" || !there {
		p.set[drives.CloudInitSlot] = v.CloudInitDrive()
	}
}

const (
	// agentPatience is how long the making of a machine waits for its agent, to take the seed away at once.
	agentPatience = 2 * time.Minute
	// agentPoll is the pause between two questions.
	agentPoll = 5 * time.Second
)

// prepareSeed makes and uploads the image of a machine that is about to be made, and
// answers the machine as it is then to be ordered: with the image in the drive,
// cards of known addresses, and nothing for PVE's own cloud-init. Without user_data
// it answers what it was given, and sends nothing.
//
// An image that an earlier attempt left is overwritten, and with it its identity
// goes on: so there is never a second one, and where that attempt's order got
// through after all, the machine and its seed still agree.
func (d vmCreator) prepareSeed(ctx context.Context, at view.GuestRef, m owner.Tag) (guest.VMTarget, owner.Tag, error) {
	want := d.want
	if m.Seed == nil {
		return want, m, nil
	}
	left, err := seed.On(ctx, d.Host, at.Node, want.SeedStorage)
	if err != nil {
		return guest.VMTarget{}, m, fmt.Errorf("seeding %s: looking for what an earlier attempt left: %w", at, err)
	}
	left = slices.DeleteFunc(left, func(v seed.File) bool { return v.Node != m.Node || v.Emptied })
	if len(left) > 0 {
		m.UUID = left[0].UUID
	}
	name := seed.Name{Site: d.ID.Site, Node: m.Node, Owner: seed.OwnerSum(d.ID.Owner), UUID: m.UUID}
	spec, r := *want.VM, *want.Resolution
	v := guest.VMTarget{VM: &spec, Resolution: &r}
	v.NICs = slices.Clone(want.NICs)
	s := nocloud.Seed{
		Instance: "homestak-" + seed.Sum("instance "+m.UUID), Name: v.Name, Domain: v.Domain, UserData: v.UserData,
		User: v.User, Keys: v.Keys, DNS: v.DNS,
	}
	for i := range v.NICs {
		n := &v.NICs[i]
		n.MAC = cmp.Or(n.MAC, nocloud.MAC(m.UUID, n.Name))
		card := nocloud.NIC{Name: n.Name, MAC: n.MAC, IP: n.IP, Gateway: n.Gateway, IP6: n.IP6, Gateway6: n.Gateway6}
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
	err = seed.Upload(ctx, d.Host, at.Node, v.SeedVolume, image)
	if errors.Is(err, api.ErrOutcomeLost) && len(left) == 0 { // nothing was there before, so what is there now is this
		now, readErr := seed.On(ctx, d.Host, at.Node, v.SeedStorage)
		if readErr == nil && slices.ContainsFunc(now, func(n seed.File) bool { return n.VolID == v.SeedVolume && n.Size == len(image) }) {
			err = nil
		}
	}
	if err != nil {
		return guest.VMTarget{}, m, fmt.Errorf("seeding %s: uploading its image to storage %s: %w", at, v.SeedStorage, err)
	}
	return v, m, nil
}

// isCreated reports whether an earlier order of a machine got through whole. Where that
// cannot be seen the order is given again, and PVE's answer tells.
func (d vmCreator) isCreated(ctx context.Context, at view.GuestRef, addr model.Address) bool {
	cfg, err := view.ReadConfig(ctx, d.API, at)
	if err != nil {
		return false
	}
	is := d.ID.Check(cfg, at)
	return is.IsOwnedAs(addr) && is.Tag.UUID != "" && cfg.Now["lock"] == ""
}

// removeSeed takes the seed away when a new machine's agent answers: it is started long
// after cloud-init has read and kept the seed. A machine that has no agent, or takes
// longer, is complete all the same; its seed is taken away by a later pass.
func (d vmCreator) removeSeed(ctx context.Context, at view.GuestRef, m owner.Tag) {
	if m.Seed == nil || m.Seed.Volume == "" || !d.want.Agent || !d.awaitAgent(ctx, at) {
		return
	}
	cfg, err := view.ReadConfig(ctx, d.API, at)
	if err != nil || !d.ID.Check(cfg, at).IsOwnedAs(m.Addr()) || seed.Attached(m, cfg.Next) == "" {
		return
	}
	if _, err := d.API.Put(ctx, at.Path("config"), api.Params{drives.CloudInitSlot: drives.EmptyDrive, "digest": cfg.Digest}); err != nil {
		return // the next pass finds it in the drive
	}
	_ = seed.Remove(ctx, d.Host, at.Node, m.Seed.Volume) // the next pass finds it on the storage
}

// awaitAgent waits for the agent of a machine that was just started.
func (d vmCreator) awaitAgent(ctx context.Context, at view.GuestRef) bool {
	for range agentPatience / agentPoll {
		_, err := d.API.Post(ctx, at.Path("agent", "ping"), nil)
		if err == nil {
			return true
		}
		if c := api.ClassOf(err); c == api.Denied || c == api.NoLogin || c == api.NotFound {
			return false
		}
		if api.Sleep(ctx, agentPoll) != nil {
			return false
		}
	}
	return false
}
