package provision

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// patch is the change of a guest's configuration by one request.
type patch struct {
	set    api.Params
	del    map[string]bool // keys to delete
	revert map[string]bool // keys whose pending change is reverted
}

// setOrDelete sets a key, or deletes it if the value is empty.
func (p patch) setOrDelete(key, val string) {
	if val == "" {
		p.del[key] = true
		return
	}
	p.set[key] = val
}

func (p patch) empty() bool { return len(p.set)+len(p.del)+len(p.revert) == 0 }

// body has the parameters of the request. digest is that of the configuration which the patch is
// for.
func (p patch) body(digest string) api.Params {
	body := api.Params{}
	maps.Copy(body, p.set)
	if len(p.del) > 0 {
		body["delete"] = strings.Join(slices.Sorted(maps.Keys(p.del)), ",")
	}
	if len(p.revert) > 0 {
		body["revert"] = strings.Join(slices.Sorted(maps.Keys(p.revert)), ",")
	}
	body["digest"] = digest
	return body
}

// deleteTemplateKeys deletes from a clone the keys that only its template sets, if the files always
// decide them. settings are the keys that the files decide.
func (p patch) deleteTemplateKeys(copied api.GuestConfig, settings api.Params) {
	for key := range copied.Next {
		_, decided := settings[key]
		if p.set[key] == nil && (decided || api.IsNet(key) || strings.HasPrefix(key, "ipconfig")) {
			p.del[key] = true
		}
	}
}

// conflicts reports whether a key of the patch has changed between two configurations. To compare
// attributes is not enough: a disk that was attached by hand is unmanaged, but may have taken a
// slot that was free.
func (p patch) conflicts(old, now api.GuestConfig) bool {
	for key := range p.set {
		if now.Next[key] != old.Next[key] {
			return true
		}
	}
	for _, keys := range []map[string]bool{p.del, p.revert} {
		for key := range keys {
			if now.Next[key] != old.Next[key] {
				return true
			}
		}
	}
	return false
}

// PVE handles the keys of a change of a VM in the order of a hash, and writes each one before it
// looks at the next (qemu-server, PVE/API2/Qemu.pm, $update_vm_api). If one of them fails, any of the
// others may be pending already, with volumes created for them; only if none fails do they take
// effect. A disk that was created and that the ownership tag does not name would be created again, so
// the tag with the slots is written before the disks.
//
// PVE writes the configuration of a container once, at the end, and not at all if any key fails
// (pve-container, PVE/API2/LXC/Config.pm, update_vm). A volume that was created for another key is
// then forgotten, and would be created again. So each volume is ordered by a request of its own, after
// all else.

// volumeOrder is a drive's value that makes PVE create a volume.
var volumeOrder = regexp.MustCompile(`^(file=)?[^/:\s,]+:(\d+(\.\d+)?|cloudinit)(,|$)`)

// createsDisk reports whether the value of a drive makes PVE create its volume.
func (p patch) createsDisk(key string) bool {
	return api.IsDrive(key) && volumeOrder.MatchString(fmt.Sprint(p.set[key]))
}

// createsMount reports whether the value of a mount point makes PVE create its volume.
func (p patch) createsMount(key string) bool {
	return api.IsMount(key) && volumeOrder.MatchString(fmt.Sprint(p.set[key]))
}

func bootOrder(key string) bool { return key == "boot" }

// partition splits off the keys that another request is to set.
func (p patch) partition(other func(key string) bool) (rest, taken patch) {
	rest, taken = patch{set: api.Params{}, del: p.del}, patch{set: api.Params{}}
	for key, val := range p.set {
		if other(key) {
			taken.set[key] = val
		} else {
			rest.set[key] = val
		}
	}
	return rest, taken
}

// sequence splits a patch of a VM into requests, in this order. Detached disks go together with the ownership tag
// that records them, and with nothing else that PVE might refuse. Volumes are created last, for slots that the tag
// names by then. A boot order goes last, too: PVE refuses one with a device that neither exists nor is in the same
// request ("invalid bootorder", $update_vm_api), and when it changes a CD drive it writes the old order over a new
// one in the same request. So do the features of hotplug: PVE plugs what a request changes by those in force before
// it (PVE/QemuServer.pm, vmconfig_hotplug_pending), as the plan says.
func (p patch) sequence() []patch {
	disc := p.setsCD()
	if p.set["description"] == nil {
		rest, boot := p.partition(func(key string) bool { return disc && key == "boot" })
		if boot.empty() || len(rest.set) == 0 {
			return []patch{p}
		}
		return []patch{rest, boot}
	}
	p, made := p.partition(p.createsDisk)
	first, rest := patch{set: api.Params{"description": p.set["description"]}, del: map[string]bool{}}, patch{set: maps.Clone(p.set), del: map[string]bool{}}
	delete(rest.set, "description")
	for key := range p.del {
		if api.IsDrive(key) && !strings.HasPrefix(key, "unused") {
			first.del[key] = true
		} else {
			rest.del[key] = true
		}
	}
	steps := []patch{p}
	if len(first.del) > 0 && !rest.empty() {
		steps = []patch{first, rest}
	}
	if last := steps[len(steps)-1]; last.set["boot"] != nil && (disc || !made.empty()) {
		made.set["boot"] = last.set["boot"]
		delete(last.set, "boot")
	}
	if made.empty() {
		return steps
	}
	last := &steps[len(steps)-1]
	switch val := last.set["hotplug"]; {
	case val != nil:
		made.set["hotplug"] = val
		delete(last.set, "hotplug")
	case last.del["hotplug"]:
		made.del = map[string]bool{"hotplug": true}
		last.del = maps.Clone(last.del)
		delete(last.del, "hotplug")
	}
	return append(steps, made)
}

// perVolume splits a patch of a container into one without new volumes, and one for each of these.
func (p patch) perVolume() []patch {
	rest, made := p.partition(p.createsMount)
	var steps []patch
	if !rest.empty() || made.empty() {
		steps = append(steps, rest)
	}
	for _, slot := range slices.Sorted(maps.Keys(made.set)) {
		steps = append(steps, patch{set: api.Params{slot: made.set[slot]}})
	}
	return steps
}

// addsEmptyDrive reports whether the value of a key is a CD drive without a medium.
func (p patch) addsEmptyDrive(key string) bool {
	val := fmt.Sprint(p.set[key])
	return api.IsDrive(key) && api.HoldsCD(val) && api.VolumeOf(val) == api.EmptyMedium
}

// setsCD reports whether the patch sets a CD drive.
func (p patch) setsCD() bool {
	for key, val := range p.set {
		if api.IsDrive(key) && api.HoldsCD(fmt.Sprint(val)) {
			return true
		}
	}
	return false
}
