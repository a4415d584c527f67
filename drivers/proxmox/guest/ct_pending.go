package guest

import (
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// WithConfig implements State.
func (c CTState) WithConfig(cfg api.GuestConfig) State {
	return StateOf(ctFromConfig(api.ListedGuest{Running: c.Power == "running", LXC: true}, cfg, c.Description, c.Tag))
}

// firstBootChanges implements State. A container has no cloud-init.
func (CTState) firstBootChanges(model.Address, *model.Resource) []model.Pending { return nil }

// pending implements State.
func (c CTState) pending(addr model.Address, _ bool) []model.Pending {
	return pendingKeys(c.Config, addr, func(key string) string { return AttributePath(c, key) }, func(key string) string { return revertHint(c, "pct", key) })
}

// RestartHelps implements Target.
func (c CTTarget) RestartHelps(have State) bool { return restartHelps(c, have) }

// Revertible implements State. PVE requires for a revert the privileges that a deletion requires
// (PVE/LXC.pm, check_ct_modify_config_perm).
func (c CTState) Revertible(key string) bool {
	switch {
	case strings.TrimRight(key, "0123456789") == "dev" || key == "hookscript":
		return false
	case key == "features":
		others := slices.ContainsFunc(propertyFlags(c.Config.Now[key]), func(f string) bool { return f != "nesting" })
		return c.Unprivileged && !others
	default:
		return true
	}
}
