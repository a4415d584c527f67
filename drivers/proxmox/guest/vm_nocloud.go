package guest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// PVE's cloud-init drive cannot carry user-data, so a VM with user_data, or one in mode pull, gets a
// seed: an ISO image that this program makes. The image may contain secrets, so it is removed as soon
// as the VM has read it. docs/decisions/0006-images-templates-and-cloud-init.md has the reasons.

// Seeded reports whether the VM is created with a seed in place of PVE's own cloud-init drive.
func (v VMTarget) Seeded() bool { return v.UserData != "" || v.Resolution != nil && v.Pulls != "" }

// seedNetwork is the network configuration that only the seed contains, for its hash in the
// ownership tag.
func seedNetwork(v *VM) []string {
	out := append([]string{v.Domain}, v.DNS...)
	for _, n := range v.NICs {
		out = append(out, n.Name, n.IP, n.Gateway)
		if n.IP6 != "" { // keeps the hashes of VMs without IPv6 as they are
			out = append(out, n.IP6, n.Gateway6)
		}
		if n.MTU > BridgeMTU {
			out = append(out, fmt.Sprintf("mtu %d", n.MTU))
		}
	}
	return out
}

// CloudInitDrive is the value of the drive that cloud-init reads: PVE's own or the seed image.
// There is never both, since both have the volume label cidata.
func (v VMTarget) CloudInitDrive() string {
	if v.SeedVolume != "" {
		return v.SeedVolume + ",media=cdrom"
	}
	return v.DriveStorage + ":cloudinit"
}

// bootTail is the drive of the seed at the end of a boot order. PVE appends each CD drive when its
// medium changes (qemu-server, PVE/API2/Qemu.pm), and that change would be pending. Nothing boots
// from a seed.
func (v VMTarget) bootTail() string {
	if v.SeedVolume == "" {
		return ""
	}
	return ";" + api.CloudInitSlot
}

// BootOrderWithSeed is a declared boot order with the drive of the seed at its end, unless it names
// that drive, or no device at all.
func BootOrderWithSeed(declared string) string {
	order := api.ParseProperty(declared).Values["order"]
	if order == "" || slices.Contains(strings.Split(order, ";"), api.CloudInitSlot) {
		return declared
	}
	return strings.Replace(declared, order, order+";"+api.CloudInitSlot, 1)
}

// bootUptime is after how many seconds the first boot of a VM counts as over, with or without
// agent.
const bootUptime = 600

// alignSeed keeps a seed in its drive until the first boot is over. PVE does not show what is in
// the seed, so that is not a difference either.
func alignSeed(v VMTarget, have VMState) {
	if have.uptime < bootUptime && !have.Reported {
		have.Seed = ""
	}
	if !have.Tag.HasNocloudISO() {
		return
	}
	if w, declared := v.Options["boot"]; declared && VMKeys().Same("boot", BootOrderWithSeed(w), have.Options["boot"]) {
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

// SeedRecord returns the record of its seed in the ownership tag of a new VM; nil if it gets none. It
// has nothing of the token of a VM in mode pull.
func SeedRecord(r *model.Resource) *owner.NocloudISO {
	v, ok := TargetOf(r).(VMTarget)
	if !ok || !v.Seeded() {
		return nil
	}
	out := &owner.NocloudISO{Pull: v.Pulls != ""}
	if v.UserData != "" && !isSensitive(r, "user_data") {
		out.Data = lifecycle.ShortSum(v.UserData)
	}
	if !isSensitive(r, "nic") {
		out.Net = lifecycle.ShortSum(fmt.Sprintf("%q", seedNetwork(v.VM)))
	}
	return out
}

// isSensitive reports whether an attribute, or anything in a block, was made from a secret.
func isSensitive(r *model.Resource, path string) bool {
	return slices.ContainsFunc(r.Sensitive, func(s string) bool { return s == path || strings.HasPrefix(s, path+".") })
}

// firstBootChanges implements State. cloud-init does not read it again, so it is reported and nothing else is done.
func (v VMState) firstBootChanges(addr model.Address, want *model.Resource) []model.Pending {
	w, ok := TargetOf(want).(VMTarget)
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
	data := "" // as declared now
	if w.UserData != "" {
		data = cmp.Or(now.Data, model.Sensitive)
	}
	switch {
	case is.Volume == "":
		add("user_data", "", data, data != "")
	case w.UserData == "":
		// Without a sum it was secret, or there was none beside what mode pull needs.
		add("user_data", cmp.Or(is.Data, model.Sensitive), "", is.Data != "" || !is.Pull)
	case is.Data == "" && is.Pull: // the same; nothing is known
	default:
		add("user_data", is.Data, data, is.Data != "" && is.Data != now.Data)
	}
	if is.Volume != "" && now != nil {
		add("network_config", is.Net, cmp.Or(now.Net, model.Sensitive), is.Net != "" && is.Net != lifecycle.ShortSum(fmt.Sprintf("%q", seedNetwork(w.VM))))
	}
	return out
}

// inWords returns the words for a text of which only the hash is known: words, or that it is
// sensitive; nil for no text.
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
