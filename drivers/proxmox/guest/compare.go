package guest

import (
	"cmp"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// align prepares have for the comparison with want: what the files leave open becomes equal, and
// it is noted whether a restart is due.
func align(want Target, have State) {
	due := have.Observed().UselessRestart == "" && restartAsked(want, have)
	alignValues(want, have)
	have.setRestartDue(due)
}

// alignValues is align without the restart.
func alignValues(want Target, have State) {
	w, h := want.Common(), have.Common()
	want.align(have)
	w.Keys.Align(w.Options, h.Options, have.Observed().Tag.Options, have.sameOption)
}

// Aligned is the state that the guest would have with a configuration, aligned with want: it
// differs from want only where the files differ.
func Aligned(want Target, have State, cfg api.GuestConfig) State {
	spec := have.WithConfig(cfg)
	alignValues(want, spec)
	return spec
}

// ValuesByPath has the attributes of a spec by their paths.
func ValuesByPath(spec any) map[string]any {
	out := map[string]any{}
	for _, a := range model.Attrs(spec) {
		out[a.Path] = a.Value
	}
	return out
}

// AttributePath is the path in the files of a key of the configuration; the key itself if no
// attribute has it.
func AttributePath(have State, key string) string {
	seen, c := have.Observed(), have.Common()
	if name := seen.deviceAt(key); name != "" {
		return name
	}
	if api.IsNet(key) {
		return "nic." + key
	}
	if a := c.attributes.ByKey(key); a != nil {
		return a.Name
	}
	if !have.isOption(key, cmp.Or(seen.Config.Next[key], seen.Config.Now[key])) {
		return key
	}
	return "options." + key
}
