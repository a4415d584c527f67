package guest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
)

// ChangesCloudInit reports whether the change at path changes the documents on the cloud-init
// drive. PVE derives the instance ID from their text (QemuServer/Cloudinit.pm: SHA-1 of user-data
// and network-data), so the guest takes its next boot for the first one of a new machine: it
// generates new SSH host keys and sets up its user again.
//
// Cards without an address are not in the documents. A VM with a seed image of its own has no such
// drive.
func (v VMTarget) ChangesCloudInit(have VMState, path string) bool {
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
		return addressed(v.VM, name) || addressed(have.VM, name)
	default:
		return false
	}
}

// addressed reports whether cloud-init gives a card an address.
func addressed(v *VM, name string) bool {
	n, ok := Find(v.NICs, name)
	return ok && (n.IP != "" || n.IP6 != "")
}

// cloudInitAgain says what a change of the documents means.
const cloudInitAgain = "cloud-init runs again at the next boot, as on a new machine: new SSH host keys, and its user is set up again"

// cloudInitPending reports whether the documents changed since PVE started the guest. PVE reports
// that, too (GET cloudinit), but by one more request for each guest in each pass. So the ownership
// tag records when they were written, and the list of guests says how long each runs. A restart
// from inside the guest does not count: PVE writes the drive when it starts a guest. A time to come is that of a clock
// that was ahead: no restart would make it a past one, so nothing follows from it.
func (o *Observation) cloudInitPending() bool {
	now := time.Now()
	return o.Tag.Seeded > now.Unix()-int64(o.uptime) && o.Tag.Seeded <= now.Add(skew).Unix()
}

// skew is the largest difference between the clocks of two agents of a site.
const skew = time.Hour

// note implements State. It says when cloud-init runs again, and what happens to disks.
func (v VMState) note(want Target, _ *model.Resource, paths []string) []string {
	w, h := want.(VMTarget), v
	var out []string
	waits := slices.Contains(paths, "pending") && h.cloudInitPending()
	if waits || slices.ContainsFunc(paths, func(p string) bool { return w.ChangesCloudInit(h, p) && !IsRevert(w, h, p) }) {
		out = append(out, cloudInitAgain)
	}
	for _, wd := range w.Disks {
		if hd, there := Find(h.Disks, wd.Name); there && wd.Bus != "" && wd.Bus != hd.Bus {
			out = append(out, fmt.Sprintf("the machine sees disk %s under another name", wd.Name))
		}
	}
	return append(out, h.Volumes().note(w.Volumes())...)
}
