package proxmox

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// PVE holds values and deletions back until the next full restart of a guest, whoever
// ordered them. Those that the files ask for stay. All others are reverted: by PVE's own
// parameter, which restores what is in force and touches nothing that runs. A deletion in
// a container would not do: it leaves the value that waits where it is (pve-container,
// PVE/LXC/Config.pm, update_pct_config).

// aligned is what would be observed of a configuration, compared with what is wanted.
func aligned(want target, have state, cfg view.Config) state {
	spec := have.as(cfg)
	alignValues(want, spec)
	return spec
}

// undeclared are the keys whose value waits for a restart without a file asking for it:
// with what is in force the guest would be just as much, or as little, what the files say.
// A deletion of what no file declares stays, since it brings the guest to what they say; but
// not one of what this program needs itself.
func undeclared(want target, have state) []string {
	cfg := have.common().observe
	keys := cfg.WaitingKeys()
	if len(keys) == 0 {
		return nil
	}
	next := aligned(want, have, cfg)
	return slices.DeleteFunc(keys, func(key string) bool {
		return key == "description" || !have.settable(key) || cfg.Removes(key) && key != drives.CloudInitSlot && key != "smbios1" || !model.Same(next.spec(), aligned(want, have, cfg.Reverted(map[string]bool{key: true})).spec())
	})
}

// reverts lists for the plan what is reverted because no file asks for it.
func reverts(want target, have state) []model.Pending {
	var out []model.Pending
	cfg := have.common().observe
	for _, key := range undeclared(want, have) {
		out = append(out, model.Pending{Path: attributePath(have, key), Before: plainValue(cfg.Now, key), After: plainValue(cfg.Next, key)})
	}
	return out
}

// takesBack reports whether a change restores what is in force: what differs from the
// files only waits.
func takesBack(want target, have state, path string) bool {
	cfg := have.common().observe
	if len(cfg.WaitingKeys()) == 0 || path == "power" || path == "pending" {
		return false
	}
	return reflect.DeepEqual(attributes(aligned(want, have, cfg.InForce()).spec())[path], attributes(want.spec())[path])
}

// awaits reports whether something waits that the files agree with, so that a restart
// would bring the guest nearer to them.
func awaits(want target, have state) bool {
	cfg := have.common().observe
	keys := cfg.WaitingKeys()
	if len(keys) == 0 {
		return false
	}
	next := aligned(want, have, cfg)
	wanted := attributes(want.spec())
	return slices.ContainsFunc(keys, func(key string) bool {
		kept := aligned(want, have, cfg.Reverted(map[string]bool{key: true}))
		if model.Same(next.spec(), kept.spec()) {
			return cfg.Removes(key) && key != drives.CloudInitSlot && key != "smbios1"
		}
		then, now := attributes(next.spec()), attributes(kept.spec())
		paths := maps.Clone(now)
		maps.Copy(paths, then)
		for path := range paths {
			if !reflect.DeepEqual(then[path], now[path]) && reflect.DeepEqual(then[path], wanted[path]) {
				return true
			}
		}
		return false
	})
}

// noteReverts says in a plan what a step takes back.
func noteReverts(want target, have state, paths []string) string {
	var list []string
	for _, r := range reverts(want, have) {
		if slices.Contains(paths, r.Path) {
			list = append(list, r.Path)
		}
	}
	for _, path := range paths {
		if !slices.Contains(list, path) && takesBack(want, have, path) {
			list = append(list, path)
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "reverted, since it is pending only and never took effect: " + strings.Join(list, ", ")
}

// settle turns into reverts what a change writes or deletes only to have what is in force.
// A container is asked to revert also what it is to delete: the value that waits would
// outlive the deletion.
func (w writing) revertUnapplied(old view.Config, lxc bool, same func(key, a, b string) bool) {
	for key, val := range w.set {
		if now, there := old.Now[key]; there && old.WaitsFor(key) && same(key, fmt.Sprint(val), now) {
			delete(w.set, key)
			w.revert[key] = true
		}
	}
	for key := range w.gone {
		_, there := old.Now[key]
		_, waits := old.Next[key]
		switch {
		case !old.WaitsFor(key):
		case !there:
			delete(w.gone, key)
			w.revert[key] = true
		case lxc && waits:
			w.revert[key] = true
		}
	}
	for key := range w.revert { // what is written replaces what waits by itself
		if w.set[key] != nil || w.gone[key] && (!lxc || old.Next[key] == "") {
			delete(w.revert, key)
		}
	}
}

// withReverts puts the reverts into the first of several requests. PVE takes no deletion of
// a key in the request that reverts it, so such a deletion follows in one of its own. And a
// boot order comes last where CD drives are dealt with, as in inTurn.
func (w writing) withReverts(steps []writing) []writing {
	discs := slices.ContainsFunc(slices.Collect(maps.Keys(w.revert)), drives.MayHoldCD)
	last := writing{set: api.Params{}, revert: map[string]bool{}}
	first := &steps[0]
	first.revert, first.gone = maps.Clone(w.revert), maps.Clone(first.gone)
	if w.revert["boot"] && (discs || w.discs()) {
		delete(first.revert, "boot")
		last.revert["boot"] = true
	}
	if first.set["boot"] != nil && discs {
		last.set["boot"] = first.set["boot"]
		first.set = maps.Clone(first.set)
		delete(first.set, "boot")
	}
	again := writing{gone: map[string]bool{}}
	for key := range w.revert {
		if first.gone[key] {
			delete(first.gone, key)
			again.gone[key] = true
		}
	}
	if !again.empty() {
		steps = slices.Insert(steps, 1, again)
	}
	if !last.empty() {
		steps = append(steps, last)
	}
	return steps
}

// rootReverts says what an administrator can do about a key that no API token may revert.
func rootReverts(have state, tool, key string) string {
	if have.settable(key) || key == "boot" || key == "machine" || key == "bootdisk" {
		return ""
	}
	return fmt.Sprintf("PVE does not let an API token revert it: `%s set VMID --revert %s` on the node does", tool, key)
}
