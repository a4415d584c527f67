package proxmox

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/drivers/proxmox/rights"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A CD drive is an option of its slot, "local:iso/x.iso,media=cdrom", and as any option
// it is ours once a file names it. docs/decisions/0018-installed-by-hand.md says why.

// isCD reports whether a key with a value is a CD drive that the files may declare: any but
// the one that cloud-init reads.
func isCD(key, value string) bool {
	return drives.MayHoldCD(key) && key != drives.CloudInitSlot && drives.HoldsCD(value) && !drives.IsCloudInit(property.VolumeOf(value))
}

// sameCD compares two CD drives by what they mean. The size is PVE's, which reads it off
// the image.
func sameCD(key, a, b string) bool {
	return options.VM().Same(key, withoutSize(a), withoutSize(b))
}

func withoutSize(drive string) string {
	parts := slices.DeleteFunc(strings.Split(drive, ","), func(p string) bool { return strings.HasPrefix(p, "size=") })
	return strings.Join(parts, ",")
}

// cds are the slots of the CD drives that are declared.
func (v vmTarget) cds() []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(v.Options)) {
		if isCD(key, v.Options[key]) {
			out = append(out, key)
		}
	}
	return out
}

// beside is a configuration with the slots taken that the files give to CD drives, so
// that no disk gets one of them.
func (v vmTarget) beside(cfg view.Config) view.Config {
	next := maps.Clone(cfg.Next)
	if next == nil {
		next = map[string]string{}
	}
	for _, slot := range v.cds() {
		next[slot] = v.Options[slot]
	}
	cfg.Next = next
	return cfg
}

var (
	isoVolume = regexp.MustCompile(`^[^/:\s,]+:iso/[^/\s,]+$`)
	isoEnding = regexp.MustCompile(`(?i)\.(iso|img)$`)
)

// cd checks the option of a CD drive. It answers false for a key that is none.
func (r *vmResolver) cd(m *pveapi.Method, key string) bool {
	value := strings.TrimSpace(r.Options[key])
	file := property.VolumeOf(value)
	meant := drives.HoldsCD(value) || file == "none" || file == "cdrom" || isoVolume.MatchString(file)
	if _, known := m.Param(key); !known || !drives.MayHoldCD(key) || !meant && drives.Bus(key) != "ide" {
		return false
	}
	path := "options." + key
	refuse := func(summary, detail string, args ...any) { r.errorf(path, summary, detail, args...) }
	machine, _, _ := strings.Cut(property.Parse(r.Options["machine"]).First("type"), "+")
	image := objects.ImageOf(r.in, file)
	switch {
	case key == drives.CloudInitSlot:
		refuse("ide2 is the cloud-init drive", "take another slot for the CD drive: ide0, or one of sata0 to sata5 or scsi0 to scsi30")
	case !meant:
		refuse(fmt.Sprintf("option %q is no CD drive", key), `for a CD drive add media=cdrom: %s = "local:iso/NAME.iso,media=cdrom"; a disk has a disk block, on scsi, virtio or sata`, key)
	case (key == "ide1" || key == "ide3") && (machine == "q35" || strings.HasPrefix(machine, "pc-q35")):
		refuse(fmt.Sprintf("a machine of type q35 does not start with a drive at %s", key), "its IDE has one drive for each of two channels, ide0 and ide2, and ide2 is the cloud-init drive: take ide0, or one of sata0 to sata5")
	case file == "cdrom":
		refuse(fmt.Sprintf("option %q is the CD drive of the node itself", key), "what lies in it no file can say: name an ISO image, STORAGE:iso/NAME.iso, or none")
	case !drives.HoldsCD(value):
		refuse(fmt.Sprintf("option %q lacks media=cdrom", key), `PVE takes an ISO image as a CD only: %s = "%s,media=cdrom"`, key, value)
	case image != nil && !slices.Contains(r.in.Needs, model.Address{Kind: "image", Name: file}):
		refuse(fmt.Sprintf("image %q is named without a reference", file), `write %s = "${image.%s},media=cdrom" in the node itself, so that the image is made before it`, key, file)
	case image != nil && image.Format != "iso":
		refuse(fmt.Sprintf("image %q is no ISO image", file), "a CD drive takes an image of format iso; disks are made of the others")
	case image != nil:
		r.Options[key] = strings.Replace(value, file, image.Volume, 1)
		return true
	case file == "none" || isoVolume.MatchString(file) && isoEnding.MatchString(file):
		r.Options[key] = value
		r.checkOption(key, value)
		return true
	default:
		refuse(fmt.Sprintf("option %q: %q is no ISO image", key, file), `name a volume such as local:iso/NAME.iso (or .img), an image block as "${image.NAME},media=cdrom", or none for an empty drive`)
	}
	return true
}

// discless tells of a boot order that names an IDE slot where nothing is: PVE would refuse
// it. What a template has there the files do not know.
func (r *vmResolver) discless() {
	for dev := range strings.SplitSeq(property.Parse(r.Options["boot"]).Values["order"], ";") {
		if drives.Bus(dev) == "ide" && dev != drives.CloudInitSlot && r.Options[dev] == "" && r.Template == "" {
			r.errorf("options.boot", fmt.Sprintf("options.boot names %s, where no drive is", dev), `take it out, or declare the CD drive: %s = "none,media=cdrom"`, dev)
		}
	}
}

// plugCD is what PVE does with a CD drive of a running guest: another medium goes in at
// once, on any bus; a drive comes and goes as a disk does (PVE/QemuServer.pm,
// vmconfig_update_disk and vmconfig_hotplug_pending).
func (v vmState) plugCD(key, value string) model.Class {
	fresh := value != "" && !drives.HoldsCD(v.observe.Now[key])
	if file := property.VolumeOf(value); fresh && (file == drives.EmptyMedium || file == "cdrom") {
		return model.ClassRestart // PVE activates the volume before it plugs the drive in, and that is none
	}
	if value != "" && !fresh || drives.Bus(key) == "scsi" && v.hotplugs("disk") {
		return model.ClassHot
	}
	return model.ClassRestart
}

// refuseCDs: a CD drive takes no slot in which something else is. PVE makes no CD drive of
// a disk, and that of cloud-init would be gone.
func refuseCDs(w vmTarget, h vmState) []model.Problem {
	var out []model.Problem
	for _, slot := range w.cds() {
		there, name := h.observe.Next[slot], h.device(slot)
		if there == "" && name == "" || isCD(slot, there) {
			continue
		}
		what := "a drive that was attached by hand"
		if name != "" {
			what = strings.Replace(name, ".", " ", 1)
		} else if drives.HoldsCD(there) {
			what = "a cloud-init drive"
		}
		out = append(out, model.Problem{
			Path: "options." + slot, Summary: fmt.Sprintf("slot %s has no room for a CD drive: it is that of %s", slot, what),
			Detail: "take another slot for it: one that is free, on ide, sata or scsi",
		})
	}
	return out
}

// discs reports whether a change puts something into a CD drive.
func (w writing) discs() bool {
	for key, val := range w.set {
		if drives.IsDrive(key) && drives.HoldsCD(fmt.Sprint(val)) {
			return true
		}
	}
	return false
}

// booting is the order of a machine that is new, where no file declares one: its root disk,
// then its CD drives. A blank one also tries its first card, as PVE's own default does.
func (v vmTarget) booting(m owner.Tag) string {
	order := append([]string{m.Slots["disk.root"]}, v.cds()...)
	if v.blank() && len(v.NICs) > 0 {
		order = append(order, m.Slots["nic."+v.NICs[0].Name])
	}
	return "order=" + strings.Join(order, ";") + v.bootTail()
}

// behind reports whether a boot order is another with nothing behind it but devices of one
// sort.
func behind(order, longer string, sort func(dev string) bool) bool {
	rest, ok := strings.CutPrefix(property.Parse(longer).Values["order"], property.Parse(order).Values["order"])
	if !ok || rest == "" || rest[0] != ';' {
		return false
	}
	for dev := range strings.SplitSeq(rest[1:], ";") {
		if !sort(dev) {
			return false
		}
	}
	return true
}

// idle reports whether a slot is empty, or a CD drive is there.
func idle(c view.Config, slot string) bool { return c.Next[slot] == "" || drives.HoldsCD(c.Next[slot]) }

// effectiveBoot takes for nothing that waits what PVE itself does to the boot order of a
// running machine: a CD drive is put at its end when its medium changes, and a drive is
// taken out when it goes (PVE/API2/Qemu.pm, $update_vm_api). No restart is worth that, and
// no revert.
func effectiveBoot(c view.Config) view.Config {
	there := func(dev string) bool { return c.Next[dev] != "" }
	c.BootFollows = c.WaitsFor("boot") && bootOrderFollows(c.Now["boot"], c.Next["boot"], there, func(dev string) bool { return drives.HoldsCD(c.Next[dev]) })
	return c
}

// bootOrderFollows reports whether PVE makes one boot order of another: without the devices that are
// not there any more, and with CD drives at the end.
func bootOrderFollows(order, then string, there, disc func(dev string) bool) bool {
	was, now := property.Parse(order).Values["order"], property.Parse(then).Values["order"]
	left := slices.DeleteFunc(strings.Split(was, ";"), func(dev string) bool { return !there(dev) })
	devices := strings.Split(now, ";")
	if was == "" || now == "" || len(devices) < len(left) || !slices.Equal(left, devices[:len(left)]) {
		return false
	}
	return !slices.ContainsFunc(devices[len(left):], func(dev string) bool { return !disc(dev) })
}

// discNeeds asks for what a CD drive takes (pve-storage, PVE/Storage.pm, check_volume_access).
func discNeeds(n *rights.Needs, key, value string) {
	storage := property.StorageOf(value)
	if property.VolumeOf(value) == drives.EmptyMedium {
		return
	}
	attr := "options." + key
	n.Uses = append(n.Uses, rights.Use{Storage: storage, Content: "iso", GiB: 0, By: n.From, Attr: attr})
	path := "/storage/" + storage
	n.Add(rights.Need{
		Grant: rights.Grant{Path: path, Priv: "Datastore.Audit"}, Role: rights.RoleISOs, For: "putting an ISO image into CD drive " + key,
		Or: [][]rights.Grant{{{Path: path, Priv: "Datastore.AllocateSpace"}}},
	}, attr)
}
