package cluster

import (
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// partedOptions are property strings that the API shows in their parts
// (parse_datacenter_config in PVE/DataCenterConfig.pm); bwlimit stays text.
var partedOptions = []string{"crs", "ha", "migration", "next-id", "notify", "tag-style", "u2f", "user-tag-access", "webauthn"}

// apiOptions is GET /cluster/options. Without the right to audit the cluster it only returns two of them, and the
// tags that the caller may use.
func apiOptions(w *core.World, c *core.Call) (any, error) {
	tags := guests.AllowedTags(c)
	entry := map[string]any{}
	auditor := c.Can("/", "Sys.Audit")
	if auditor {
		entry = map[string]any{"mac_prefix": w.MACPrefix(), "description": ""}
	}
	for key, value := range w.Options {
		switch {
		case !auditor && key != "console" && key != "tag-style":
		case slices.Contains(partedOptions, key):
			entry[key] = perl.Parted("PUT /cluster/options", key, value)
		case key == "registered-tags":
			entry[key] = perl.SplitList(value)
		case key == "description":
			entry[key] = strings.TrimRight(value, "\n") + "\n"
		default:
			entry[key] = value
		}
	}
	if access, ok := entry["user-tag-access"].(map[string]any); ok && access["user-allow-list"] != nil {
		access["user-allow-list"] = perl.SplitList(perl.Text(access["user-allow-list"]))
	}
	if entry["allowed-tags"] = slices.Sorted(maps.Keys(tags)); len(tags) == 0 {
		entry["allowed-tags"] = []string{}
	}
	return entry, nil
}

// apiSetOptions is PUT /cluster/options.
func apiSetOptions(w *core.World, c *core.Call) (any, error) {
	if err := w.NeedQuorum(); err != nil {
		return nil, err
	}
	changed := maps.Clone(w.Options)
	c.Update(changed)
	if lower, upper := idRange(changed["next-id"]); lower > upper { // write_datacenter_config in PVE/DataCenterConfig.pm
		return nil, perl.Fail("lower (%d) <= upper (%d) boundary rule broken", lower, upper)
	}
	w.Options = changed
	return nil, nil
}

// idRange returns the range in which free ids of guests are searched (the option next-id).
func idRange(option string) (lower, upper int) {
	lower, upper = 100, 1000000
	for part := range strings.SplitSeq(option, ",") {
		switch key, value, _ := strings.Cut(part, "="); key {
		case "lower":
			lower = perl.Atoi(value)
		case "upper":
			upper = perl.Atoi(value)
		}
	}
	return lower, upper
}
