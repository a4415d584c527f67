package guest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// PVE holds values and deletions back until the next full restart of a guest, whoever
// ordered them. Those that the files ask for stay. All others are reverted: by PVE's own
// parameter, which restores what is in force and touches nothing that runs. A deletion in
// a container would not do: it leaves the value that waits where it is (pve-container,
// PVE/LXC/Config.pm, update_pct_config).

// KeysToRevert are the keys whose value waits for a restart without a file asking for it:
// with what is in force the guest would be just as much, or as little, what the files say.
// A deletion of what no file declares stays, since it brings the guest to what they say; but
// not one of what this program needs itself.
func KeysToRevert(want Target, have State) []string {
	cfg := have.Observed().Config
	keys := cfg.WaitingKeys()
	if len(keys) == 0 {
		return nil
	}
	next := Aligned(want, have, cfg)
	return slices.DeleteFunc(keys, func(key string) bool {
		return key == "description" || !have.Revertible(key) || cfg.Removes(key) && key != drives.CloudInitSlot && key != "smbios1" || !model.Same(next.Spec(), Aligned(want, have, cfg.Reverted(map[string]bool{key: true})).Spec())
	})
}

// Reverts lists for the plan what is reverted because no file asks for it.
func Reverts(want Target, have State) []model.Pending {
	var out []model.Pending
	cfg := have.Observed().Config
	for _, key := range KeysToRevert(want, have) {
		out = append(out, model.Pending{Path: AttributePath(have, key), Before: plainValue(cfg.Now, key), After: plainValue(cfg.Next, key)})
	}
	return out
}

// IsRevert reports whether a change restores what is in force: what differs from the
// files only waits.
func IsRevert(want Target, have State, path string) bool {
	cfg := have.Observed().Config
	if len(cfg.WaitingKeys()) == 0 || path == "power" || path == "pending" {
		return false
	}
	return reflect.DeepEqual(ValuesByPath(Aligned(want, have, cfg.InForce()).Spec())[path], ValuesByPath(want.Spec())[path])
}

// restartHelps reports whether something waits that the files agree with, so that a restart
// would bring the guest nearer to them.
func restartHelps(want Target, have State) bool {
	cfg := have.Observed().Config
	keys := cfg.WaitingKeys()
	if len(keys) == 0 {
		return false
	}
	next := Aligned(want, have, cfg)
	wanted := ValuesByPath(want.Spec())
	return slices.ContainsFunc(keys, func(key string) bool {
		kept := Aligned(want, have, cfg.Reverted(map[string]bool{key: true}))
		if model.Same(next.Spec(), kept.Spec()) {
			return cfg.Removes(key) && key != drives.CloudInitSlot && key != "smbios1"
		}
		then, now := ValuesByPath(next.Spec()), ValuesByPath(kept.Spec())
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
func noteReverts(want Target, have State, paths []string) string {
	var list []string
	for _, r := range Reverts(want, have) {
		if slices.Contains(paths, r.Path) {
			list = append(list, r.Path)
		}
	}
	for _, path := range paths {
		if !slices.Contains(list, path) && IsRevert(want, have, path) {
			list = append(list, path)
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "reverted, since it is pending only and never took effect: " + strings.Join(list, ", ")
}

// revertHint says what an administrator can do about a key that no API token may revert.
func revertHint(have State, tool, key string) string {
	if have.Revertible(key) || key == "boot" || key == "machine" || key == "bootdisk" {
		return ""
	}
	return fmt.Sprintf("PVE does not let an API token revert it: `%s set VMID --revert %s` on the node does", tool, key)
}

// IsVolumeRevert reports whether a change of a disk that is there only takes back what
// waits. Else it would move data, or grow what is large enough.
func IsVolumeRevert(want Target, have State, path, slot string) bool {
	cfg := have.Observed().Config
	_, there := cfg.Now[slot]
	return there && cfg.WaitsFor(slot) && IsRevert(want, have, path)
}

// RestartDue reports whether the guest is to be restarted for its pending changes: the restart
// helps, and the files allow it.
func RestartDue(want Target, have State) bool {
	w := want.Common()
	return have.Common().PendingRestart && w.Restart == "allowed" && w.Power == "running" && want.RestartHelps(have)
}

// pendingKeys lists what PVE holds back until the next full restart; path translates a
// key into the name it has in the files.
// stuck says why a key is not reverted although no file asks for what waits; "" for all
// others.
func pendingKeys(c view.Config, addr model.Address, path, stuck func(key string) string, secret ...string) []model.Pending {
	if !c.Waits {
		return nil
	}
	out := []model.Pending{}
	for _, k := range c.WaitingKeys() {
		p := model.Pending{Address: addr, Path: path(k), Why: model.PendingRestart, Before: plainValue(c.Now, k), After: plainValue(c.Next, k)}
		if why := stuck(k); why != "" {
			p.Why += "; " + why
		}
		if slices.Contains(secret, k) {
			p.Before, p.After = model.Sensitive, model.Sensitive
		}
		out = append(out, p)
	}
	return out
}

func plainValue(m map[string]string, key string) any {
	v, ok := m[key]
	if !ok {
		return nil
	}
	if n, err := strconv.Atoi(v); err == nil {
		return n
	}
	return v
}
