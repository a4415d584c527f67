// Package objects has the plain objects of a host, all except guests and their templates: images,
// pools and IP sets. A kind is one file.
package objects

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// attempt wraps an error with what failed; nil for nil.
func attempt(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// watched reports whether the files only watch an object, so that it counts as theirs even if they did not create it.
func watched(obs *kind.Observation, addr model.Address) bool {
	want := obs.Want.State[addr]
	return want != nil && want.Report
}

// UnmanagedPools are the pools of a host that have no ownership tag, as blocks that only watch them.
func UnmanagedPools(ctx context.Context, h *kind.Host) ([]*model.Resource, error) {
	list, err := readPools(ctx, h)
	var out []*model.Resource
	for _, e := range list {
		comment := api.Text(e["comment"])
		if _, _, tagged := owner.ParseDescription(comment); !tagged {
			addr := model.Address{Kind: "pool", Name: api.Text(e["poolid"])}
			out = append(out, &model.Resource{Addr: addr, Spec: &Pool{Host: h.Model.Name, Comment: trimmed(comment), Drift: "report"}})
		}
	}
	return out, err
}

// UnmanagedIPSets are the sets of the firewall of a host that have no ownership tag, as blocks that only watch them.
func UnmanagedIPSets(ctx context.Context, h *kind.Host) ([]*model.Resource, error) {
	sets, err := readIPSets(ctx, h)
	var out []*model.Resource
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		if sets[name].found {
			continue
		}
		entries, err := readEntries(ctx, h, name)
		if err != nil {
			return nil, err
		}
		addr := model.Address{Kind: "ipset", Name: name}
		out = append(out, &model.Resource{Addr: addr, Spec: &ipSet{Host: h.Model.Name, Entries: slices.Sorted(maps.Keys(entries)), Drift: "report"}})
	}
	return out, err
}
