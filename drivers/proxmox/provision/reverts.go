package provision

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// preferReverts replaces by a revert what the patch sets or deletes only to restore the value in
// force. For a container it also reverts what it deletes, since PVE would keep the pending value.
// same reports whether two values of a key mean the same.
func (p patch) preferReverts(old api.GuestConfig, lxc bool, same func(key, a, b string) bool) {
	for key, val := range p.set {
		if now, there := old.Now[key]; there && old.IsPending(key) && same(key, fmt.Sprint(val), now) {
			delete(p.set, key)
			p.revert[key] = true
		}
	}
	for key := range p.del {
		_, there := old.Now[key]
		_, waits := old.Next[key]
		switch {
		case !old.IsPending(key):
		case !there:
			delete(p.del, key)
			p.revert[key] = true
		case lxc && waits:
			p.revert[key] = true
		}
	}
	for key := range p.revert { // a write replaces the pending change
		if p.set[key] != nil || p.del[key] && (!lxc || old.Next[key] == "") {
			delete(p.revert, key)
		}
	}
}

// withReverts adds the reverts to the first of several requests. PVE does not accept a deletion of
// a key in the request that reverts it, so such a deletion gets a request of its own. A boot order
// goes last if CD drives change, as in sequence.
func (p patch) withReverts(steps []patch) []patch {
	discs := slices.ContainsFunc(slices.Collect(maps.Keys(p.revert)), api.MayHoldCD)
	last := patch{set: api.Params{}, revert: map[string]bool{}}
	first := &steps[0]
	first.revert, first.del = maps.Clone(p.revert), maps.Clone(first.del)
	if p.revert["boot"] && (discs || p.setsCD()) {
		delete(first.revert, "boot")
		last.revert["boot"] = true
	}
	if first.set["boot"] != nil && discs {
		last.set["boot"] = first.set["boot"]
		first.set = maps.Clone(first.set)
		delete(first.set, "boot")
	}
	again := patch{del: map[string]bool{}}
	for key := range p.revert {
		if first.del[key] {
			delete(first.del, key)
			again.del[key] = true
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

// takeReverts adds the reverts of a step to the patch, and returns the changes that are left:
// without those that no file asks for, and without disks that differ by a pending change only.
func (c *change) takeReverts(want guest.Target, have guest.State, s plan.Step) []plan.Change {
	unasked := map[string]string{} // path → key
	for _, key := range guest.KeysToRevert(want, have) {
		unasked[guest.AttributePath(have, key)] = key
	}
	return slices.DeleteFunc(slices.Clone(s.Changes), func(ch plan.Change) bool {
		if key := unasked[ch.Path]; key != "" {
			c.revert[key] = true
			return true
		}
		head, rest, _ := strings.Cut(ch.Path, ".")
		name, _, _ := strings.Cut(rest, ".")
		slot := c.from.Tag.Slots["disk."+name]
		if head != "disk" || c.from.Config.Next[slot] == "" || !isVolumeRevert(want, have, ch.Path, slot) {
			return false
		}
		c.revert[slot] = true
		return true
	})
}

// revertBeforeStop sends the reverts before a guest is stopped for a change, since PVE applies
// pending changes when it stops a guest.
func (d updater) revertBeforeStop(ctx context.Context, s *plan.Step, ch *change) error {
	if len(ch.revert) == 0 {
		return nil
	}
	err := d.write(ctx, ch.lastSeen.at, patch{revert: ch.revert}, patch{}, s.Have, ch.from.Config)
	if err != nil {
		return err
	}
	ch.lastSeen.fresh = false
	if err := d.reread(ctx, &ch.lastSeen, ""); err != nil {
		return err
	}
	have, at := *s.Have, *s.Have.Guest
	at.Digest = ch.lastSeen.cfg.Digest
	next := guest.StateOf(&have).WithConfig(ch.lastSeen.cfg)
	have.Spec, have.Private, have.Guest = next.Spec(), next.Observed(), &at
	s.Have, ch.from.Config, ch.revert = &have, ch.lastSeen.cfg, map[string]bool{}
	return nil
}

// isVolumeRevert reports whether the change at path, of the disk at slot, only reverts a pending
// one. If not, the disk is to be moved or grown.
func isVolumeRevert(want guest.Target, have guest.State, path, slot string) bool {
	cfg := have.Observed().Config
	_, there := cfg.Now[slot]
	return there && cfg.IsPending(slot) && guest.IsRevert(want, have, path)
}
