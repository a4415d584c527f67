package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// mostTries bounds how often the tag is written again after another user has changed the guest meanwhile.
const mostTries = 5

// Adopt writes the ownership tag and PVETag of a guest that exists, and nothing else. Right before, it reads the guest
// again: its identity, that it has no owner, lock or pending change, and that no attribute differs.
func Adopt(ctx context.Context, h *kind.Host, s plan.Step) error {
	want, have, at := guest.TargetOf(s.Want), guest.StateOf(s.Have), api.RefOf(s.Have)
	return tagged(ctx, h, at, func(cfg api.GuestConfig, is owner.Verdict) (string, []string, error) {
		switch {
		case is.IsOwnedAs(s.Address):
			return "", nil, errTagged
		case is.Owned || is.Unsure || is.Found && is.Tag.Readable() && !is.Ours:
			return "", nil, errors.New("it has an owner by now: " + is.Why())
		case owner.IdentityOf(cfg.Next, at) != owner.IdentityOf(have.Observed().Config.Next, at):
			return "", nil, errors.New("it is another guest by now")
		case cfg.Now["template"] == "1":
			return "", nil, errors.New("it is a template by now")
		case cfg.Now["lock"] != "":
			return "", nil, errors.New("it is locked by now: " + cfg.Now["lock"])
		case len(cfg.PendingKeys()) > 0:
			return "", nil, errors.New("it has pending changes by now: " + strings.Join(cfg.PendingKeys(), ", "))
		}
		m := guest.AdoptedTag(want, h.ID, at, cfg)
		fresh := guest.FromConfig(api.ListedGuest{VMID: at.VMID, Node: at.Node, LXC: at.LXC, Running: s.Have.Guest.Running}, cfg, is.Notes, m)
		for _, c := range plan.Differences(want.Spec(), guest.Aligned(want, guest.StateOf(fresh), cfg).Spec()) {
			if c.Path != "tags" && c.Path != "power" {
				return "", nil, fmt.Errorf("%s: %w", c.Path, errChanged)
			}
		}
		now := api.SplitTags(cfg.Now["tags"])
		if c := api.NormalTags(strings.Join(append(now, owner.PVETag), ";")); !slices.Equal(c, want.Common().Tags) {
			return "", nil, fmt.Errorf("tags: %w", errChanged)
		}
		if !slices.Contains(now, owner.PVETag) {
			now = append(now, owner.PVETag)
		}
		return h.ID.Describe(is.Notes, m, at, cfg), now, nil
	})
}

// Forget takes the ownership tag and PVETag of a guest away, and nothing else. A guest that does not exist, or that is
// no longer managed, is given up.
func Forget(ctx context.Context, h *kind.Host, s plan.Step) error {
	err := tagged(ctx, h, api.RefOf(s.Have), func(cfg api.GuestConfig, is owner.Verdict) (string, []string, error) {
		switch {
		case !is.Found:
			return "", nil, errTagged
		case !is.IsOwnedAs(s.Address):
			return "", nil, fmt.Errorf("it can no longer be verified as %s (%s)", s.Address, is.Why())
		}
		tags := slices.DeleteFunc(api.SplitTags(cfg.Now["tags"]), func(t string) bool { return t == owner.PVETag })
		notes, more := is.Notes, true
		for more { // an older tag above ours would count then
			notes, _, more = owner.ParseDescription(notes)
		}
		return notes, tags, nil
	})
	if api.ClassOf(err) == api.NotFound {
		return nil
	}
	return err
}

// errTagged says that a guest has the wanted description already.
var errTagged = errors.New("nothing to do")

// tagged writes description and tags of a guest, with the digest of the configuration from which text derives them. If
// the guest was changed meanwhile, it reads it and asks again; so too if the answer was lost.
func tagged(ctx context.Context, h *kind.Host, at api.GuestRef, text func(api.GuestConfig, owner.Verdict) (string, []string, error)) error {
	var last error
	for range mostTries {
		cfg, err := h.API.ReadConfig(ctx, at)
		if err != nil {
			return fmt.Errorf("reading %s: %w", at, errors.Join(err, last))
		}
		notes, tags, err := text(cfg, h.ID.Check(cfg, at))
		if errors.Is(err, errTagged) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s is not changed: %w", at, err)
		}
		w := patch{set: api.Params{}, del: map[string]bool{}}
		for key, val := range map[string]string{"description": notes, "tags": strings.Join(tags, ";")} {
			if val != cfg.Now[key] {
				w.setOrDelete(key, val)
			}
		}
		_, last = h.API.Put(ctx, at.Path("config"), w.body(cfg.Digest))
		if class := api.ClassOf(last); last == nil || class != api.Changed && class != api.OutcomeUnknown {
			break
		}
	}
	switch {
	case api.ClassOf(last) == api.Denied && strings.Contains(last.Error(), "modifying tag"):
		return fmt.Errorf("writing the ownership tag of %s: %w\nuser-tag-access or registered-tags of the data centre keep the token from the tag %s: allow it (Datacenter → Options), or grant the token Sys.Modify on /", at, last, owner.PVETag)
	case last != nil:
		return fmt.Errorf("writing the ownership tag of %s: %w", at, last)
	}
	return nil
}
