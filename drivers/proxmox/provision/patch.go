package provision

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
)

// patch is what one request changes of a guest's configuration: keys to set, keys
// to delete, keys of which what waits for a restart is reverted.
type patch struct {
	set    api.Params
	del    map[string]bool
	revert map[string]bool
}

// setOrDelete sets a key, or deletes it where the value is none.
func (p patch) setOrDelete(key, val string) {
	if val == "" {
		p.del[key] = true
		return
	}
	p.set[key] = val
}

func (p patch) empty() bool { return len(p.set)+len(p.del)+len(p.revert) == 0 }

// body is the request; digest is that of the configuration which it was worked out for.
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

// deleteFromTemplate deletes of a copy what only its template says of what the files always decide.
func (p patch) deleteFromTemplate(copied view.Config, settings api.Params) {
	for key := range copied.Next {
		_, decided := settings[key]
		if p.set[key] == nil && (decided || property.IsNet(key) || strings.HasPrefix(key, "ipconfig")) {
			p.del[key] = true
		}
	}
}

// conflicts reports whether a key that is about to be written or deleted is not what
// it was when the change was worked out. Attributes do not tell: a disk attached by
// hand is none of ours, but may stand in the slot that was free then.
func (p patch) conflicts(old, now view.Config) bool {
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

// volumeOrder is a drive that orders a volume to be made.
var volumeOrder = regexp.MustCompile(`^(file=)?[^/:\s,]+:(\d+(\.\d+)?|cloudinit)(,|$)`)

// createsDisk reports whether a key has a volume made.
func (p patch) createsDisk(key string) bool {
	return drives.IsDrive(key) && volumeOrder.MatchString(fmt.Sprint(p.set[key]))
}

// createsMount reports whether a key has the volume of a mount point made.
func (p patch) createsMount(key string) bool {
	return drives.IsMount(key) && volumeOrder.MatchString(fmt.Sprint(p.set[key]))
}

func bootOrder(key string) bool { return key == "boot" }

// partition takes keys out of a change: those that are to be sent by another request.
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

// sequence splits a change of a VM for whose disks the ownership tag has to speak: what is detached
// goes together with the ownership tag that says so and with nothing else that might be refused,
// and volumes are made last, for slots that the ownership tag names by then. PVE takes no boot
// order with a device that is not there and not in the same request ("invalid bootorder",
// $update_vm_api), so it goes last, too; and after CD drives, for whose sake PVE would write
// the old order over the new one.
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
		if drives.IsDrive(key) && !strings.HasPrefix(key, "unused") {
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
	return append(steps, made)
}

// perVolume splits a change of a container into one without new volumes, and one for each
// of these.
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

// addsEmptyDrive reports whether a change makes a CD drive without a medium.
func (p patch) addsEmptyDrive(key string) bool {
	val := fmt.Sprint(p.set[key])
	return drives.IsDrive(key) && drives.HoldsCD(val) && property.VolumeOf(val) == drives.EmptyMedium
}

// setsCD reports whether a change puts something into a CD drive.
func (p patch) setsCD() bool {
	for key, val := range p.set {
		if drives.IsDrive(key) && drives.HoldsCD(fmt.Sprint(val)) {
			return true
		}
	}
	return false
}
