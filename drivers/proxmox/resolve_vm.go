package proxmox

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// vmResolver completes a VM.
type vmResolver struct {
	guest.VMTarget
	*resolver
}

func (r *vmResolver) complete() {
	r.Name, r.Description = cmp.Or(r.Name, r.in.Name), strings.TrimRight(r.Description, " \t\r\n") // as PVE does
	r.sizeAndOrigin()
	r.disks()
	r.nics()
	r.cloudInit()
	r.userData()
	r.Tags = r.tags(r.Tags)
	r.checkCommon(r.Power, r.Restart, r.Description, r.Startup)
	r.options()
	r.checkAttributes(guest.VMAttributes(), r.VM, guest.VMKeys())
	if !r.bare {
		r.defaults()
	}
	r.terms()
}

func (r *vmResolver) sizeAndOrigin() {
	r.Cores, r.Memory, r.Disk = r.size(r.Preset, r.Cores, r.Memory, r.Disk)
	switch {
	case r.Image == "" && r.Template == "" && !r.Blank() && !r.bare:
		r.errorf("", r.kind+" without image or template", `name what its root disk is made from: image = image.NAME, or template = template.NAME for a clone; for one that is installed from a CD or the network, say so: disk "root" { size = 32, blank = true }, each on a line of its own`)
	case (r.Image != "" || r.Template != "") && r.Blank():
		r.errorf("disk.root.blank", "blank on a root disk that is made of something", "remove it, or remove image and template for an empty disk")
	case r.Image != "" && r.Template != "":
		r.errorf("template", "image and template on one node", "a root disk is made from one of them: remove the other")
	}
	if full := objects.ImageOf(r.in, r.Image); full != nil {
		r.Source, r.content = full.Volume, path.Base(full.Volume)
		if full.Format == "iso" {
			r.errorf("image", fmt.Sprintf("image %q is an ISO image", r.Image), "a root disk is made from a disk image (qcow2, raw or vmdk)")
		}
	}
	t := templateOf(r.in, r.Template)
	r.TemplateVMID = t.VMID
	r.content = cmp.Or(r.content, t.Made)
	if r.TemplateVMID == 0 && (t.URL != "" || t.Volume != "") {
		r.errorf("template", fmt.Sprintf("template %q is not a VM template", r.Template), "a %s is cloned from a template with a vmid; this one is for containers", r.kind)
	}
	r.TemplateMade = t.Image != ""
	switch {
	case r.Clone != "" && r.Template == "":
		r.errorf("clone", "clone without template", "it says how a template is cloned: name one, or remove it")
	case !slices.Contains([]string{"", guest.FullClone, guest.LinkedClone}, r.Clone):
		r.errorf("clone", fmt.Sprintf("clone = %q is not valid", r.Clone), "%s", diag.DidYouMean(r.Clone, []string{guest.FullClone, guest.LinkedClone}))
	case r.Clone == guest.LinkedClone:
		r.linkedRoot(t.Storage)
	}
}

// linkedRoot puts the root disk of a linked clone on the storage of its template, since it is based
// on that disk. The files must agree. The storage of a template that is only named is not known.
func (r *vmResolver) linkedRoot(storage string) {
	if r.Disks = guest.RootFirst(r.Disks, guest.Disk{Name: "root"}); !r.TemplateMade {
		return
	}
	if s := r.Disks[0].Storage; s != "" && s != storage {
		r.errorf("disk.root.storage", fmt.Sprintf("a linked clone lies where its template lies, on %s and not on %s", storage, s), "remove storage, or set clone = \"full\"")
	}
	r.Disks[0].Storage = storage
}

// slotOf gives a disk that is named after a slot the bus of that.
func (r *vmResolver) slotOf(d *guest.Disk) {
	bus := api.BusOf(d.Name)
	if !api.IsDrive(d.Name) {
		return
	}
	if d.Bus != "" && d.Bus != bus {
		r.errorf("disk."+d.Name+".bus", fmt.Sprintf("disk %q on bus %s", d.Name, d.Bus), "it is named after a slot of bus %s: remove bus, or choose another name", bus)
	}
	if guest.IsCD(d.Name, r.Options[d.Name]) {
		r.errorf("disk."+d.Name, fmt.Sprintf("slot %s has a disk and a CD drive", d.Name), "choose another slot for one of them")
	}
	d.Bus = bus
}

func (r *vmResolver) disks() {
	storage := r.storage()
	r.DriveStorage = storage
	if !r.bare || r.Disk != 0 {
		r.Disks = guest.RootFirst(r.Disks, guest.Disk{Name: "root"})
	}
	for i := range r.Disks {
		d := &r.Disks[i]
		if d.Name != "root" || r.Clone != guest.LinkedClone {
			d.Storage = cmp.Or(d.Storage, storage)
		}
		if d.Name == "root" {
			d.Size = cmp.Or(d.Size, r.Disk)
		}
		r.diskSize(d.Name, d.Size)
		r.slotOf(d)
	}
	count := map[string]int{}
	for slot, value := range r.Options {
		if guest.IsCD(slot, value) {
			count[api.BusOf(slot)]++
		}
	}
	for _, d := range r.Disks {
		bus := cmp.Or(d.Bus, "scsi")
		count[bus]++
		most, known := guest.BusSlots[bus]
		switch path := "disk." + d.Name; {
		case !known:
			r.errorf(path+".bus", fmt.Sprintf("bus = %q is not valid", d.Bus), "%s", diag.DidYouMean(d.Bus, slices.Sorted(maps.Keys(guest.BusSlots))))
		case count[bus] == most+1:
			r.errorf(path, "too many disks", "PVE has %d slots on the bus %s", most, bus)
		}
		switch {
		case d.Blank && d.Name != "root":
			r.errorf("disk."+d.Name+".blank", fmt.Sprintf("blank on disk %q", d.Name), "every disk but the root disk is made empty: remove it")
		case d.Blank && d.Size == 0:
			r.errorf("disk.root.size", "a blank root disk without a size", "set size in GiB, at least 1")
		}
		if d.Name == "root" && d.Remove {
			r.errorf("disk.root.remove", "the root disk cannot be removed from the files", "it is removed with its guest: delete remove")
		}
	}
}

func (r *vmResolver) nics() {
	if len(r.NICs) == 0 && !r.bare {
		r.NICs = []guest.NIC{{Name: "lan"}}
	}
	if len(r.NICs) > 32 {
		r.errorf("nic", "too many nics", "PVE has 32 slots for network cards, the node declares %d", len(r.NICs))
	}
	bridge := r.bridge()
	for i := range r.NICs {
		n := &r.NICs[i]
		path := "nic." + n.Name
		n.Bridge = cmp.Or(n.Bridge, bridge)
		n.MAC = r.mac(path, n.VLAN, n.MAC)
		if i == 0 {
			n.IP, n.Gateway = r.firstAddress(n.IP, n.Gateway, "dhcp")
		}
		n.IP, n.Gateway = r.address(path, "", n.IP, n.Gateway, "dhcp")
		n.IP6, n.Gateway6 = r.address(path, "6", n.IP6, n.Gateway6, "auto", "dhcp")
		n.Trunks = r.trunks(path, n.Rate, n.Trunks, true)
		r.hardware(path, n)
	}
}

// minMTU is the smallest MTU that a VM starts with, except guest.BridgeMTU (qemu-server,
// PVE/QemuServer.pm, print_netdevice_full).
const minMTU, maxMTU = 576, 65520

// hardware checks the model of a card and what depends on it.
func (r *vmResolver) hardware(path string, n *guest.NIC) {
	n.Model = cmp.Or(n.Model, defaultModel)
	if !slices.Contains(api.CardModels, n.Model) {
		r.errorf(path+".model", fmt.Sprintf("model = %q is not valid", n.Model), "%s", diag.DidYouMean(n.Model, api.CardModels))
		return
	}
	if n.MTU != 0 && n.MTU != guest.BridgeMTU && (n.MTU < minMTU || n.MTU > maxMTU) {
		r.errorf(path+".mtu", "mtu out of range", "%d is not between %d and %d, nor %d for that of the bridge", n.MTU, minMTU, maxMTU, guest.BridgeMTU)
	}
	if n.Queues < 0 || n.Queues > 64 {
		r.errorf(path+".queues", "queues out of range", "%d is not between 1 and 64", n.Queues)
	}
	if n.Model == defaultModel {
		return
	}
	for _, only := range []struct {
		attr string
		set  bool
	}{{"mtu", n.MTU != 0}, {"queues", n.Queues != 0}} {
		if only.set {
			r.errorf(path+"."+only.attr, fmt.Sprintf("%s of a card of model %s", only.attr, n.Model), "PVE ignores it for all models but %s: remove it, or take that model", defaultModel)
		}
	}
}

// cloudInit sets the user, its SSH keys, name servers and domain.
func (r *vmResolver) cloudInit() {
	if r.bare {
		return
	}
	r.User = cmp.Or(r.in.Site.VMUser, "homestak")
	r.DNS, r.Domain = r.nameServers()
	r.Keys = r.sshKeys(r.User)
}

// terms sets the part of the ownership tag that the files decide.
func (r *vmResolver) terms() {
	from := ""
	switch {
	case r.Image != "":
		from = "image." + r.Image
	case r.Template != "":
		from = "template." + r.Template
	case r.Blank():
		from = fromBlank
	}
	r.Terms = r.tagTerms(r.VMTarget, from, owner.Tag{UUID: strings.Repeat("0", 36), Seed: r.longestSeed()})
}

// userData checks user_data and sets what the seed image depends on beside it.
func (r *vmResolver) userData() {
	r.SeedStorage = "local"
	if h := r.in.Host; h != nil && h.Storage != nil {
		r.SeedStorage = cmp.Or(h.Storage.ISO, r.SeedStorage)
	}
	if r.Pulls = r.pulls(); r.Password != "" && r.Seeded() {
		r.errorf("password", "password on a machine with an image of its own for cloud-init", "PVE sets it only by its own drive: with user_data or in mode pull, set it in user_data")
	}
	if r.UserData == "" {
		return
	}
	if err := lifecycle.CheckUserData(r.UserData); err != nil {
		r.errorf("user_data", "user_data that cloud-init would not read", "%s", err)
	}
}

// longestSeed is a seed record of the greatest length, to check that the ownership tag fits; nil
// without a seed.
func (r *vmResolver) longestSeed() *owner.NocloudISO {
	if !r.Seeded() {
		return nil
	}
	name := lifecycle.SeedName{Site: r.in.Site.Name, Node: r.in.Name, Owner: strings.Repeat("0", 12), UUID: strings.Repeat("0", 36)}
	return &owner.NocloudISO{Volume: name.Volume(r.SeedStorage), Data: strings.Repeat("0", 12), Net: strings.Repeat("0", 12), Pull: r.Pulls != ""}
}

// defaultModel is the model of a VM's card if the files name none.
const defaultModel = "virtio"

// fromBlank is the origin in the ownership tag of a VM whose root disk was created empty.
const fromBlank = "blank"
