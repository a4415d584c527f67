package proxmox

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/engine/model"
)

var (
	isoVolume = regexp.MustCompile(`^[^/:\s,]+:iso/[^/\s,]+$`)
	isoEnding = regexp.MustCompile(`(?i)\.(iso|img)$`)
)

// cdDrive checks the option of a CD drive. It returns false if the key is not one.
func (r *vmResolver) cdDrive(m *pveapi.Method, key string) bool {
	value := strings.TrimSpace(r.Options[key])
	file := api.VolumeOf(value)
	meant := api.HoldsCD(value) || file == "none" || file == "cdrom" || isoVolume.MatchString(file)
	if _, known := m.Param(key); !known || !api.MayHoldCD(key) || !meant && api.BusOf(key) != "ide" {
		return false
	}
	path := "options." + key
	refuse := func(summary, detail string, args ...any) { r.errorf(path, summary, detail, args...) }
	machine, _, _ := strings.Cut(api.ParseProperty(r.Options["machine"]).First("type"), "+")
	image := objects.ImageOf(r.in, file)
	switch {
	case key == api.CloudInitSlot:
		refuse("ide2 is the cloud-init drive", "take another slot for the CD drive: ide0, or one of sata0 to sata5 or scsi0 to scsi30")
	case !meant:
		refuse(fmt.Sprintf("option %q is not a CD drive", key), `for a CD drive add media=cdrom: %s = "local:iso/NAME.iso,media=cdrom"; a disk has a disk block, on scsi, virtio or sata`, key)
	case (key == "ide1" || key == "ide3") && (machine == "q35" || strings.HasPrefix(machine, "pc-q35")):
		refuse(fmt.Sprintf("a machine of type q35 does not start with a drive at %s", key), "its IDE has one drive for each of two channels, ide0 and ide2, and ide2 is the cloud-init drive: take ide0, or one of sata0 to sata5")
	case file == "cdrom":
		refuse(fmt.Sprintf("option %q is the CD drive of the node itself", key), "a file cannot describe the node's own disc: name an ISO image, STORAGE:iso/NAME.iso, or none")
	case !api.HoldsCD(value):
		refuse(fmt.Sprintf("option %q lacks media=cdrom", key), `PVE takes an ISO image as a CD only: %s = "%s,media=cdrom"`, key, value)
	case image != nil && !slices.Contains(r.in.Needs, model.Address{Kind: "image", Name: file}):
		refuse(fmt.Sprintf("image %q is named without a reference", file), `write %s = "${image.%s},media=cdrom" in the node itself, so that the image is made before it`, key, file)
	case image != nil && image.Format != "iso":
		refuse(fmt.Sprintf("image %q is not an ISO image", file), "a CD drive takes an image of format iso; disks are made of the others")
	case image != nil:
		r.Options[key] = strings.Replace(value, file, image.Volume, 1)
		return true
	case file == "none" || isoVolume.MatchString(file) && isoEnding.MatchString(file):
		r.Options[key] = value
		r.checkOption(key, value)
		return true
	default:
		refuse(fmt.Sprintf("option %q: %q is not an ISO image", key, file), `name a volume such as local:iso/NAME.iso (or .img), an image block as "${image.NAME},media=cdrom", or none for an empty drive`)
	}
	return true
}

// checkBootOrder reports a boot order that names an IDE slot without a drive, which PVE would
// refuse. The drives of a template are not known here.
func (r *vmResolver) checkBootOrder() {
	for dev := range strings.SplitSeq(api.ParseProperty(r.Options["boot"]).Values["order"], ";") {
		if api.BusOf(dev) == "ide" && dev != api.CloudInitSlot && r.Options[dev] == "" && r.Template == "" {
			r.errorf("options.boot", fmt.Sprintf("options.boot names %s, where no drive is", dev), `take it out, or declare the CD drive: %s = "none,media=cdrom"`, dev)
		}
	}
}
