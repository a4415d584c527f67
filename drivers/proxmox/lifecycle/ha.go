package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

const (
	// haPatience is the time beyond the guest's own that the HA manager may take: it checks
	// its guests every ten seconds, and its nodes report every five (pve-ha-manager).
	haPatience = 3 * time.Minute
	haPoll     = 2 * time.Second
)

// await waits until a guest really is as the HA manager was asked to make it. The
// task of the request ends within a second and says nothing of that; the manager may
// also start the guest on another node.
func (g Guest) await(ctx context.Context, running bool, patience time.Duration) error {
	what := "stopped"
	if running {
		what = "started"
	}
	deadline := time.Now().Add(patience)
	for {
		now, err := g.State(ctx)
		switch {
		case err == nil && now.Running == running:
			return nil
		case err == nil && now.HA == "error":
			return fmt.Errorf("%s is not %s: %s", g.Ref, what, HAError(g.Ref))
		case api.ClassOf(err) == api.NotFound, api.ClassOf(err) == api.Denied:
			if v, readErr := g.Host.API.ReadView(ctx, g.Host.Model); readErr == nil && v.Guests[g.Ref.VMID].Node != "" {
				g.Ref.Node = v.Guests[g.Ref.VMID].Node
			}
		}
		if time.Now().After(deadline) {
			if err != nil {
				return fmt.Errorf("cannot check whether the HA manager has %s %s: %w", what, g.Ref, err)
			}
			return fmt.Errorf("the HA manager has not %s %s within %s (its state there: %s): `ha-manager status` shows why", what, g.Ref, patience, cmp.Or(now.HA, "none"))
		}
		if err := api.Sleep(ctx, haPoll); err != nil {
			return fmt.Errorf("waiting until the HA manager has %s %s: %w", what, g.Ref, err)
		}
	}
}

// HAError is the text for a guest that the HA manager gave up on, with the fix.
func HAError(at api.GuestRef) string {
	return fmt.Sprintf("the HA manager has given up on it (state error): fix what keeps it from running, then `ha-manager set %s --state disabled`, and `--state started` after that", at.HAName())
}

// ReleaseFromHA removes a guest from the HA manager, which could not stop it, before the guest is
// destroyed.
func (g Guest) ReleaseFromHA(ctx context.Context) error {
	_, err := g.Host.API.Delete(ctx, api.Path("cluster", "ha", "resources", g.Ref.HAName()), url.Values{})
	switch {
	case err == nil, strings.Contains(fmt.Sprint(err), "no such resource"), strings.Contains(fmt.Sprint(err), "not HA managed"):
		return nil
	case api.ClassOf(err) == api.Denied:
		return fmt.Errorf("taking %s out of the HA manager: %w; that needs Sys.Console on /: grant it, or `ha-manager remove %s` on a node", g.Ref, err, g.Ref.HAName())
	default:
		return fmt.Errorf("taking %s out of the HA manager: %w", g.Ref, err)
	}
}
