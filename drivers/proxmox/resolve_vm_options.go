package proxmox

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// stateOrder is the order that declares a state drive.
var stateOrder = regexp.MustCompile(`^(file=)?[^/:\s,]+:\d+(\.\d+)?(,|$)`)

// defaults sets the options that every VM has unless the files say otherwise. They are options like
// any other, so that a change on the host shows.
func (r *vmResolver) defaults() {
	cpu := "x86-64-v2-AES" // the default of PVE's web interface; runs on all hosts of the last ten years
	if r.kind == "pve" {
		cpu = "host" // its guests need the virtualisation instructions
	}
	opts := map[string]string{
		"cpu":       cpu,
		"ostype":    "l26",
		"scsihw":    "virtio-scsi-single", // one controller for each disk, which iothread needs
		"serial0":   "socket",             // the kernel of Debian's cloud images stops without a serial console
		"ciupgrade": "0",                  // the spec says which packages; else PVE upgrades all at first boot
	}
	maps.Copy(opts, r.Options)
	r.Options = opts
}

// options checks the options against the API table and brings values into PVE's form.
func (r *vmResolver) options() {
	if len(r.Options) == 0 {
		return
	}
	m := guest.VMKeys().Create
	for _, k := range slices.Sorted(maps.Keys(r.Options)) {
		p, known := m.Param(k)
		f := guest.VMKeys().Family(k)
		switch {
		case r.cdDrive(m, k):
			continue
		case guest.SetBy(f) != "":
			r.errorf("options."+k, fmt.Sprintf("option %q has an attribute of its own", k), "it is set by %s: see the reference page of %s", guest.SetBy(f), r.kind)
			continue
		case guest.RefusedKey(f) != "":
			r.errorf("options."+k, fmt.Sprintf("option %q cannot be set here", k), "%s", guest.RefusedKey(f))
			continue
		case !known:
			r.errorf("options."+k, fmt.Sprintf("PVE has no option %q for a VM", k), "%s", diag.DidYouMean(k, slices.Collect(maps.Keys(m.Params))))
			continue
		}
		v := strings.TrimSpace(r.Options[k])
		if v == "" {
			r.errorf("options."+k, fmt.Sprintf("option %q is empty", k), "remove it: PVE's default then applies")
			continue
		}
		if p.Type == "boolean" {
			v = pveapi.BooleanWord(v) // PVE accepts words such as yes only inside property strings
		}
		r.Options[k] = v
		r.checkOption(k, v)
	}
	r.checkBootOrder()
}

// checkOption refuses a value that PVE would refuse, or would not keep.
func (r *vmResolver) checkOption(k, v string) {
	refused := fmt.Sprintf("PVE refuses option %s = %q", k, v)
	if text := guest.VMKeys().Refusal(k, v); text != "" {
		r.errorf("options."+k, refused, "%s", strings.TrimSpace(text))
		return
	}
	if fix := guest.HostDevice(k, v); fix != "" {
		r.errorf("options."+k, refused, "devices of the node are for root@pam with a password: %s", fix)
	}
	if api.HoldsState(k) && !stateOrder.MatchString(v) {
		r.errorf("options."+k, fmt.Sprintf("option %s names a volume", k), "give an order such as local-lvm:1, from which each guest gets a volume of its own")
	}
}
