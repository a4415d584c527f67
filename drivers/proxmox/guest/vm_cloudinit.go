package guest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
)

// ChangesCloudInit reports whether a change goes into the documents of the cloud-init drive.
// PVE derives the instance's id from their text (QemuServer/Cloudinit.pm: SHA-1 of
// user-data and network-data), so the guest takes its next boot for the first of a
// new machine: it makes new SSH host keys and sets its user up again. Cards without
// an address are in none of the documents. A machine that was seeded by an image of
// its own has no such drive.
func ChangesCloudInit(want VMTarget, have VMState, path string) bool {
	if have.Tag.HasNocloudISO() {
		return false
	}
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
	case "ip", "gateway", "ip6", "gateway6", "mac":
		return addressed(want.VM, name) || addressed(have.VM, name)
	default:
		return false
	}
}

// addressed reports whether a card has an address from cloud-init.
func addressed(v *VM, name string) bool {
	n, ok := Find(v.NICs, name)
	return ok && (n.IP != "" || n.IP6 != "")
}

const cloudInitAgain = "cloud-init runs again at the next boot, as on a new machine: new SSH host keys, and its user is set up again"

// cloudInitPending reports whether something was written for cloud-init since PVE started the
// guest. PVE tells it too (GET cloudinit), but by one more request for every guest of
// every check; so the ownership tag holds when we wrote, and the list of guests how long each
// runs. A restart from inside the guest does not count: PVE writes the drive as it
// starts a guest.
func (o *Observation) cloudInitPending() bool {
	return o.Tag.Seeded > time.Now().Unix()-int64(o.uptime)
}

// note says what cloud-init makes of the changes, and what becomes of disks.
func (v VMState) note(want Target, _ *model.Resource, paths []string) []string {
	w, h := want.(VMTarget), v
	var out []string
	waits := slices.Contains(paths, "pending") && h.cloudInitPending()
	if waits || slices.ContainsFunc(paths, func(p string) bool { return ChangesCloudInit(w, h, p) && !IsRevert(w, h, p) }) {
		out = append(out, cloudInitAgain)
	}
	for _, wd := range w.Disks {
		if hd, there := Find(h.Disks, wd.Name); there && wd.Bus != "" && wd.Bus != hd.Bus {
			out = append(out, fmt.Sprintf("the machine sees disk %s under another name", wd.Name))
		}
	}
	return append(out, h.Volumes().note(w.Volumes())...)
}
