package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/nocloud"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/seed"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A machine with user_data is seeded by an ISO image that we make, since PVE's
// cloud-init drive cannot carry it. The image may hold secrets, so it goes as soon
// as it was read. docs/decisions/0015-nocloud.md says why it is done this way.
const (
	// bootPatience is how long the making of a machine waits for its agent, to take the seed away at once.
	bootPatience = 2 * time.Minute
	// bootPoll is the pause between two questions.
	bootPoll = 5 * time.Second
	// bootUptime is how many seconds a machine must have been up for its first boot to count as over, agent or not.
	bootUptime = 600
)

// newSeed is the record of a machine that is to be made; nil if it has no user_data.
func newSeed(r *model.Resource) *owner.NocloudISO {
	v, ok := r.Spec.(*VM)
	if !ok || v.UserData == "" {
		return nil
	}
	out := &owner.NocloudISO{}
	if !secretly(r, "user_data") {
		out.Data = seed.Sum(v.UserData)
	}
	if !secretly(r, "nic") {
		out.Net = seed.Sum(fmt.Sprintf("%q", seedNetwork(v)))
	}
	return out
}

// secretly reports whether an attribute, or a block or anything in it, was made from a secret.
func secretly(r *model.Resource, path string) bool {
	return slices.ContainsFunc(r.Sensitive, func(s string) bool { return s == path || strings.HasPrefix(s, path+".") })
}

// seedNetwork is all of the network that only a seed tells a machine.
func seedNetwork(v *VM) []string {
	out := append([]string{v.Domain}, v.DNS...)
	for _, n := range v.NICs {
		out = append(out, n.Name, n.IP, n.Gateway)
		if n.IP6 != "" { // the sums of machines without stay what they were
			out = append(out, n.IP6, n.Gateway6)
		}
		if n.MTU > bridgeMTU {
			out = append(out, fmt.Sprintf("mtu %d", n.MTU))
		}
	}
	return out
}

// seed checks user_data and says where its image goes.
func (r *vmResolver) seed() {
	r.seedStorage = "local"
	if h := r.in.Host; h != nil && h.Storage != nil {
		r.seedStorage = cmp.Or(h.Storage.ISO, r.seedStorage)
	}
	if r.UserData == "" {
		return
	}
	if err := nocloud.Check(r.UserData); err != nil {
		r.errorf("user_data", "user_data that cloud-init would not read", "%s", err)
	}
}

// seedRoom is a record of the greatest length, by which the length of an ownership tag is judged.
func (r *vmResolver) seedRoom() *owner.NocloudISO {
	if r.UserData == "" {
		return nil
	}
	name := seed.Name{Site: r.in.Site.Name, Node: r.in.Name, Owner: strings.Repeat("0", 12), UUID: strings.Repeat("0", 36)}
	return &owner.NocloudISO{Volume: name.Volume(r.seedStorage), Data: strings.Repeat("0", 12), Net: strings.Repeat("0", 12)}
}

// medium is the drive that cloud-init reads: PVE's, or a seed image. Never both,
// since both volumes are called cidata.
func (v vmTarget) medium() string {
	if v.seedVolume != "" {
		return v.seedVolume + ",media=cdrom"
	}
	return v.driveStorage + ":cloudinit"
}

// bootTail names the seed's drive behind the disks a machine boots from. PVE appends
// every CD drive by itself when its medium changes (qemu-server, API2/Qemu.pm), and
// that would be a change that waits for a restart; from a seed nothing boots.
func (v vmTarget) bootTail() string {
	if v.seedVolume == "" {
		return ""
	}
	return ";" + drives.CloudInitSlot
}

// bootWithTail is a declared boot order with the seed's drive at its end; as it was where
// it names the drive itself, or no order.
func bootWithTail(declared string) string {
	order := property.Parse(declared).Values["order"]
	if order == "" || slices.Contains(strings.Split(order, ";"), drives.CloudInitSlot) {
		return declared
	}
	return strings.Replace(declared, order, order+";"+drives.CloudInitSlot, 1)
}

// swapMedium gives a copy of a template its medium, and takes away a template's own
// cloud-init drive and what that would have said.
func (v vmTarget) swapMedium(cfg view.Config, w writing) {
	there := false
	for key, val := range cfg.Next {
		drive := drives.IsDrive(key) && drives.IsCloudInit(property.VolumeOf(val))
		there = there || drive
		switch {
		case v.seedVolume == "":
		case v.Options[key] != "": // the files say it
		case drive && key != drives.CloudInitSlot, key == "ciuser", key == "cipassword", key == "cicustom":
			w.gone[key] = true
		}
	}
	if v.seedVolume != "" || !there {
		w.set[drives.CloudInitSlot] = v.medium()
	}
}

// alignSeed leaves a seed in its drive until the first boot is over. What only a
// seed said of a machine PVE cannot show, so it is no difference either.
func alignSeed(v vmTarget, have vmState) {
	if have.uptime < bootUptime {
		have.Seed = ""
	}
	if !have.tag.HasNocloudISO() {
		return
	}
	if w, declared := v.Options["boot"]; declared && options.VM().Same("boot", bootWithTail(w), have.Options["boot"]) {
		have.Options["boot"] = w
	}
	have.User, have.Keys, have.DNS, have.Domain = v.User, slices.Clone(v.Keys), slices.Clone(v.DNS), v.Domain
	for i := range have.NICs {
		for _, w := range v.NICs {
			if w.Name == have.NICs[i].Name {
				have.NICs[i].IP, have.NICs[i].Gateway = w.IP, w.Gateway
				have.NICs[i].IP6, have.NICs[i].Gateway6 = w.IP6, w.Gateway6
			}
		}
	}
}

// seed makes and uploads the image of a machine that is about to be made, and
// answers the machine as it is then to be ordered: with the image in the drive,
// cards of known addresses, and nothing for PVE's own cloud-init. Without user_data
// it answers what it was given, and sends nothing.
//
// An image that an earlier attempt left is overwritten, and with it its identity
// goes on: so there is never a second one, and where that attempt's order got
// through after all, the machine and its seed still agree.
func (d worker) seed(ctx context.Context, want vmTarget, at view.GuestRef, m owner.Tag) (vmTarget, owner.Tag, error) {
	if m.Seed == nil {
		return want, m, nil
	}
	left, err := seed.On(ctx, d.Host, at.Node, want.seedStorage)
	if err != nil {
		return vmTarget{}, m, fmt.Errorf("seeding %s: looking for what an earlier attempt left: %w", at, err)
	}
	left = slices.DeleteFunc(left, func(v seed.File) bool { return v.Node != m.Node || v.Emptied })
	if len(left) > 0 {
		m.UUID = left[0].UUID
	}
	name := seed.Name{Site: d.ID.Site, Node: m.Node, Owner: seed.OwnerSum(d.ID.Owner), UUID: m.UUID}
	spec, r := *want.VM, *want.resolution
	v := vmTarget{&spec, &r}
	v.NICs = slices.Clone(want.NICs)
	s := nocloud.Seed{
		Instance: "homestak-" + seed.Sum("instance "+m.UUID), Name: v.Name, Domain: v.Domain, UserData: v.UserData,
		User: v.User, Keys: v.Keys, DNS: v.DNS,
	}
	for i := range v.NICs {
		n := &v.NICs[i]
		n.MAC = cmp.Or(n.MAC, nocloud.MAC(m.UUID, n.Name))
		card := nocloud.NIC{Name: n.Name, MAC: n.MAC, IP: n.IP, Gateway: n.Gateway, IP6: n.IP6, Gateway6: n.Gateway6}
		if n.MTU > bridgeMTU {
			card.MTU = n.MTU
		}
		s.NICs = append(s.NICs, card)
		n.IP, n.Gateway, n.IP6, n.Gateway6 = "", "", "", ""
	}
	v.User, v.Keys, v.DNS, v.Domain, v.seedVolume = "", nil, nil, "", name.Volume(v.seedStorage)
	if boot, declared := v.Options["boot"]; declared {
		v.Options = maps.Clone(v.Options)
		v.Options["boot"] = bootWithTail(boot)
	}
	record := *m.Seed
	record.Volume = v.seedVolume
	m.Seed = &record
	image, err := s.Image()
	if err != nil {
		return vmTarget{}, m, fmt.Errorf("seeding %s: %w", at, err)
	}
	err = seed.Upload(ctx, d.Host, at.Node, v.seedVolume, image)
	if errors.Is(err, api.ErrOutcomeLost) && len(left) == 0 { // nothing was there before, so what is there now is this
		now, readErr := seed.On(ctx, d.Host, at.Node, v.seedStorage)
		if readErr == nil && slices.ContainsFunc(now, func(n seed.File) bool { return n.VolID == v.seedVolume && n.Size == len(image) }) {
			err = nil
		}
	}
	if err != nil {
		return vmTarget{}, m, fmt.Errorf("seeding %s: uploading its image to storage %s: %w", at, v.seedStorage, err)
	}
	return v, m, nil
}

// made reports whether an earlier order of a machine got through whole. Where that
// cannot be seen the order is given again, and PVE's answer tells.
func (d worker) made(ctx context.Context, at view.GuestRef, addr model.Address) bool {
	cfg, err := view.ReadConfig(ctx, d.API, at)
	if err != nil {
		return false
	}
	is := d.ID.Check(cfg, at)
	return is.IsOwnedAs(addr) && is.Tag.UUID != "" && cfg.Now["lock"] == ""
}

// unseed takes the seed away when a new machine's agent answers: it is started long
// after cloud-init has read and kept the seed. A machine that has no agent, or takes
// longer, is complete all the same; its seed is taken away by a later pass.
func (d worker) unseed(ctx context.Context, want vmTarget, at view.GuestRef, m owner.Tag) {
	if m.Seed == nil || m.Seed.Volume == "" || !want.Agent || !d.answers(ctx, at) {
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

// answers waits for the agent of a machine that was just started.
func (d worker) answers(ctx context.Context, at view.GuestRef) bool {
	for range bootPatience / bootPoll {
		_, err := d.API.Post(ctx, at.Path("agent", "ping"), nil)
		if err == nil {
			return true
		}
		if c := api.ClassOf(err); c == api.Denied || c == api.NoLogin || c == api.NotFound {
			return false
		}
		if api.Sleep(ctx, bootPoll) != nil {
			return false
		}
	}
	return false
}
