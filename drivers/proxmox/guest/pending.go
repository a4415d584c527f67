package guest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// PVE applies some changes, of values and deletions, only at the next full restart of a guest;
// until then they are pending. Pending changes that the files ask for stay. All others are reverted
// by PVE's own parameter revert, which restores the value in force and does not touch the running
// guest. Deleting the key would not do for a container: PVE keeps its pending value (pve-container,
// PVE/LXC/Config.pm, update_pct_config).

// KeysToRevert are the keys with a pending change that no file asks for: without that change the
// guest would match the files just as well. The pending deletion of a key that no file declares is
// not among them, since it brings the guest closer to the files, unless the program itself needs
// the key.
func KeysToRevert(want Target, have State) []string {
	cfg := have.Observed().Config
	keys := cfg.PendingKeys()
	if len(keys) == 0 {
		return nil
	}
	next := Aligned(want, have, cfg)
	return slices.DeleteFunc(keys, func(key string) bool {
		return key == "description" || !have.Revertible(key) || cfg.DropsKey(key) && key != api.CloudInitSlot && key != "smbios1" || !model.Same(next.Spec(), Aligned(want, have, cfg.Reverted(map[string]bool{key: true})).Spec())
	})
}

// Reverts lists the pending changes that a step reverts because no file asks for them, see
// model.Kind.Reverts.
func Reverts(want Target, have State) []model.Pending {
	var out []model.Pending
	cfg := have.Observed().Config
	for _, key := range KeysToRevert(want, have) {
		out = append(out, model.Pending{Path: AttributePath(have, key), Before: plainValue(cfg.Now, key), After: plainValue(cfg.Next, key)})
	}
	return out
}

// IsRevert reports whether the change at path only reverts a pending one: the value in force is the
// wanted one.
func IsRevert(want Target, have State, path string) bool {
	cfg := have.Observed().Config
	if len(cfg.PendingKeys()) == 0 || path == "power" || path == "pending" {
		return false
	}
	return reflect.DeepEqual(ValuesByPath(Aligned(want, have, cfg.InForce()).Spec())[path], ValuesByPath(want.Spec())[path])
}

// restartHelps reports whether a change is pending that the files ask for, so that a restart brings
// the guest closer to them.
func restartHelps(want Target, have State) bool {
	cfg := have.Observed().Config
	keys := cfg.PendingKeys()
	if len(keys) == 0 {
		return false
	}
	next := Aligned(want, have, cfg)
	wanted := ValuesByPath(want.Spec())
	return slices.ContainsFunc(keys, func(key string) bool {
		kept := Aligned(want, have, cfg.Reverted(map[string]bool{key: true}))
		if model.Same(next.Spec(), kept.Spec()) {
			return cfg.DropsKey(key) && key != api.CloudInitSlot && key != "smbios1"
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

// noteReverts says which changes of a step only revert pending ones; "" for none.
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

// revertHint says how an administrator reverts a key that an API token cannot revert; "" where the
// token can, or where the pending change does no harm.
func revertHint(have State, tool, key string) string {
	if have.Revertible(key) || key == "boot" || key == "machine" || key == "bootdisk" {
		return ""
	}
	return fmt.Sprintf("PVE does not let an API token revert it: `%s set VMID --revert %s` on the node does", tool, key)
}

// RestartAsked reports whether the files ask for a restart of an observed guest, so that it matters how the last
// restarts ended.
func RestartAsked(want, have *model.Resource) bool {
	return restartAsked(TargetOf(want), StateOf(have))
}

// restartPending reports whether PVE, or cloud-init, waits for a restart of the running guest.
func (o *Observation) restartPending() bool {
	return o.runs && (len(o.Config.PendingKeys()) > 0 || o.cloudInitPending())
}

// restartAsked reports whether a restart for the pending changes helps, and the files allow it.
func restartAsked(want Target, have State) bool {
	w := want.Common()
	return have.Observed().restartPending() && w.Restart == "allowed" && w.Power == "running" && want.RestartHelps(have)
}

// pendingKeys lists the pending changes of a configuration. path gives the path of a key in the
// files, and hint, if it is not "", says why its change is not reverted. The values of secret keys
// are not shown.
func pendingKeys(c api.GuestConfig, addr model.Address, path, hint func(key string) string, secret ...string) []model.Pending {
	if !c.Pending {
		return nil
	}
	out := []model.Pending{}
	for _, k := range c.PendingKeys() {
		p := model.Pending{Address: addr, Path: path(k), Why: model.PendingRestart, Before: plainValue(c.Now, k), After: plainValue(c.Next, k)}
		if why := hint(k); why != "" {
			p.Why += "; " + why
		}
		if slices.Contains(secret, k) {
			p.Before, p.After = model.Sensitive, model.Sensitive
		}
		out = append(out, p)
	}
	return out
}

// plainValue is the value of a key for a plan: a number where it is one, nil where the key is not
// set.
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
