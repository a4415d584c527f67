package proxmox

import (
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// seeds reports whether a change goes into the documents of the cloud-init drive.
// PVE derives the instance's id from their text (QemuServer/Cloudinit.pm: SHA-1 of
// user-data and network-data), so the guest takes its next boot for the first of a
// new machine: it makes new SSH host keys and sets its user up again. Cards without
// an address are in none of the documents.
func seeds(want, have *model.Resource, path string) bool {
	switch path {
	case "name", "ci_user", "ssh_keys", "dns", "domain", "options.cicustom", "options.citype", "options.ciupgrade":
		return true
	}
	rest, ok := strings.CutPrefix(path, "nic.")
	if !ok {
		return false
	}
	name, attr, _ := strings.Cut(rest, ".")
	switch attr {
	case "ip", "gateway", "mac":
		return want.Spec.(*VM).addressed(name) || have.Spec.(*VM).addressed(name)
	default:
		return false
	}
}

// addressed reports whether a card has an address from cloud-init.
func (v *VM) addressed(name string) bool {
	return slices.ContainsFunc(v.NICs, func(n NIC) bool { return n.Name == name && n.IP != "" })
}

// noteVM says what changes mean for the guest beyond their class.
func noteVM(want, have *model.Resource, paths []string) string {
	w, h := want.Spec.(*VM), have.Spec.(*VM)
	var out []string
	if slices.ContainsFunc(paths, func(p string) bool { return seeds(want, have, p) }) {
		out = append(out, "cloud-init takes the next boot for the first of a new machine: new SSH host keys, and its user is set up again")
	}
	for _, d := range h.Disks {
		if d.Remove && !w.hasDisk("disk."+d.Name) {
			out = append(out, "the data of disk "+d.Name+" are removed")
		}
	}
	for _, name := range h.left() {
		if !w.hasDisk("disk." + name) {
			out = append(out, "the data of disk "+name+" are removed")
		}
	}
	return strings.Join(out, "; ")
}
