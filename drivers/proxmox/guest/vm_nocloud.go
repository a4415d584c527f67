package guest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/seed"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A machine with user_data is seeded by an ISO image that we make, since PVE's
// cloud-init drive cannot carry it. The image may hold secrets, so it goes as soon
// as it was read. docs/decisions/0015-nocloud.md says why it is done this way.

// seedNetwork is all of the network that only a seed tells a machine.
func seedNetwork(v *VM) []string {
	out := append([]string{v.Domain}, v.DNS...)
	for _, n := range v.NICs {
		out = append(out, n.Name, n.IP, n.Gateway)
		if n.IP6 != "" { // the sums of machines without stay what they were
			out = append(out, n.IP6, n.Gateway6)
		}
		if n.MTU > BridgeMTU {
			out = append(out, fmt.Sprintf("mtu %d", n.MTU))
		}
	}
	return out
}

// CloudInitDrive is the drive that cloud-init reads: PVE's, or a seed image. Never both,
// since both volumes are called cidata.
func (v VMTarget) CloudInitDrive() string {
	if v.SeedVolume != "" {
		return v.SeedVolume + ",media=cdrom"
	}
	return v.DriveStorage + ":cloudinit"
}

// bootTail names the seed's drive behind the disks a machine boots from. PVE appends
// every CD drive by itself when its medium changes (qemu-server, API2/Qemu.pm), and
// that would be a change that waits for a restart; from a seed nothing boots.
func (v VMTarget) bootTail() string {
	if v.SeedVolume == "" {
		return ""
	}
	return ";" + drives.CloudInitSlot
}

// BootOrderWithSeed is a declared boot order with the seed's drive at its end; as it was where
// it names the drive itself, or no order.
func BootOrderWithSeed(declared string) string {
	order := property.Parse(declared).Values["order"]
	if order == "" || slices.Contains(strings.Split(order, ";"), drives.CloudInitSlot) {
		return declared
	}
	return strings.Replace(declared, order, order+";"+drives.CloudInitSlot, 1)
}

// bootUptime is how many seconds a machine must have been up for its first boot to count as over, agent or not.
const bootUptime = 600

// alignSeed leaves a seed in its drive until the first boot is over. What only a
// seed said of a machine PVE cannot show, so it is no difference either.
func alignSeed(v VMTarget, have VMState) {
	if have.uptime < bootUptime {
		have.Seed = ""
	}
	if !have.Tag.HasNocloudISO() {
		return
	}
	if w, declared := v.Options["boot"]; declared && options.VM().Same("boot", BootOrderWithSeed(w), have.Options["boot"]) {
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

// SeedRecord is the record of a machine that is to be made; nil if it has no user_data.
func SeedRecord(r *model.Resource) *owner.NocloudISO {
	v, ok := r.Spec.(*VM)
	if !ok || v.UserData == "" {
		return nil
	}
	out := &owner.NocloudISO{}
	if !isSensitive(r, "user_data") {
		out.Data = seed.Sum(v.UserData)
	}
	if !isSensitive(r, "nic") {
		out.Net = seed.Sum(fmt.Sprintf("%q", seedNetwork(v)))
	}
	return out
}

// isSensitive reports whether an attribute, or a block or anything in it, was made from a secret.
func isSensitive(r *model.Resource, path string) bool {
	return slices.ContainsFunc(r.Sensitive, func(s string) bool { return s == path || strings.HasPrefix(s, path+".") })
}

// FirstBootChanges lists what a machine has read at its first boot and the files declare otherwise
// now. cloud-init does not read it again, so it is reported and nothing is done.
func (v VMState) FirstBootChanges(addr model.Address, want *model.Resource) []model.Pending {
	w, ok := want.Spec.(*VM)
	if !ok || v.Tag.UUID == "" {
		return nil
	}
	is, now := v.Tag.Seed, SeedRecord(want)
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
		add("network_config", is.Net, cmp.Or(now.Net, model.Sensitive), is.Net != "" && is.Net != seed.Sum(fmt.Sprintf("%q", seedNetwork(w))))
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
