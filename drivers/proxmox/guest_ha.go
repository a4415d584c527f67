package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

const (
	// haPatience is how long the HA manager gets beyond the guest's own time: it looks
	// at its guests every ten seconds, and its nodes report every five (pve-ha-manager).
	haPatience = 3 * time.Minute
	haPoll     = 2 * time.Second
)

// reached waits until a guest really is as the HA manager was asked to make it. The
// task of the request ends within a second and says nothing of that; the manager may
// also start the guest on another node.
func (d worker) reached(ctx context.Context, at view.GuestRef, running bool, patience time.Duration) error {
	what := pick(running, "started", "stopped")
	deadline := time.Now().Add(patience)
	for {
		now, err := d.readPowerOf(ctx, at)
		switch {
		case err == nil && now.running == running:
			return nil
		case err == nil && now.ha == "error":
			return fmt.Errorf("%s is not %s: %s", at, what, haStuck(at))
		case api.ClassOf(err) == api.NotFound, api.ClassOf(err) == api.Denied:
			if v, lookErr := view.Read(ctx, d.API, d.Model); lookErr == nil && v.Guests[at.VMID].Node != "" {
				at.Node = v.Guests[at.VMID].Node
			}
		}
		if time.Now().After(deadline) {
			if err != nil {
				return fmt.Errorf("whether the HA manager has %s %s cannot be seen: %w", what, at, err)
			}
			return fmt.Errorf("the HA manager has not %s %s within %s (its state there: %s): `ha-manager status` tells why", what, at, patience, cmp.Or(now.ha, "none"))
		}
		if err := api.Sleep(ctx, haPoll); err != nil {
			return fmt.Errorf("waiting until the HA manager has %s %s: %w", what, at, err)
		}
	}
}

// haStuck says that the HA manager gave up on a guest, and what brings it back.
func haStuck(at view.GuestRef) string {
	return fmt.Sprintf("the HA manager has given up on it (state error): mend what keeps it from running, then `ha-manager set %s --state disabled`, and `--state started` after that", at.HAName())
}

// release takes a guest that shall go out of the HA manager, which could not stop it.
func (d worker) release(ctx context.Context, at view.GuestRef) error {
	_, err := d.API.Delete(ctx, api.Path("cluster", "ha", "resources", at.HAName()), url.Values{})
	switch {
	case err == nil, strings.Contains(fmt.Sprint(err), "no such resource"), strings.Contains(fmt.Sprint(err), "not HA managed"):
		return nil
	case api.ClassOf(err) == api.Denied:
		return fmt.Errorf("taking %s out of the HA manager: %w; that needs Sys.Console on /: grant it, or `ha-manager remove %s` on a node", at, err, at.HAName())
	default:
		return fmt.Errorf("taking %s out of the HA manager: %w", at, err)
	}
}

// haAims says to which power the HA manager is bringing a guest that has another one
// now: true for running. Its states are those of its own status, and may be ten
// seconds old (PVE/HA/Manager.pm).
func haAims(g *model.Guest) (running, moving bool) {
	switch {
	case g.HA == "" || g.HA == "ignored" || g.HA == "stopped" || g.HA == "disabled":
		return false, false
	case g.Running:
		return false, g.HA == "request_stop"
	default:
		return true, g.HA != "request_stop"
	}
}

// leaveToHA counts a guest that the HA manager is just bringing to where the files
// want it as there already, and says so: a start beside the manager's own would be a
// fight. Where the files want something else, what runs now is what counts, and the
// step goes through the manager.
func (j *judge) leaveToHA(r *model.Resource) {
	running, moving := haAims(r.Guest)
	aim := pick(running, "running", "stopped")
	have, ok := r.Spec.(guest)
	w := j.want.State[r.Addr]
	if !ok || !moving || w == nil {
		return
	}
	if wanted, ok := w.Spec.(guest); !ok || wanted.common().power != aim {
		return
	}
	*have.common().powered = aim
	at := placeOf(r)
	switch {
	case r.Guest.HA == "error": // a start would be refused, so no step claims to do it
		j.warn(r.Addr, fmt.Sprintf("%s does not run", r.Addr), haStuck(at))
	case running:
		j.warn(r.Addr, fmt.Sprintf("%s does not run: that is left to the HA manager, which has it (state %s)", r.Addr, r.Guest.HA),
			"if it stays so, `ha-manager status` on a node tells why")
	default:
		j.warn(r.Addr, fmt.Sprintf("%s still runs: that is left to the HA manager, which is stopping it", r.Addr),
			"if it stays so, `ha-manager status` on a node tells why")
	}
}

// inItsPlace warns of a guest that stands on a node of the cluster which the host
// does not name. It stays ours and stays there: nothing is moved by itself.
func (j *judge) inItsPlace(r *model.Resource) {
	h := j.want.Host
	if h == nil {
		return
	}
	if nodes := h.AllNodes(); !slices.Contains(nodes, r.Guest.Node) {
		j.warn(r.Addr, fmt.Sprintf("%s is on node %s, which is none of host %s (%s): it is kept up there", r.Addr, r.Guest.Node, h.Name, strings.Join(nodes, ", ")),
			"add the node to nodes of the host, or migrate the guest back")
	}
}

func (j *judge) warn(addr model.Address, summary, detail string) {
	j.out.Findings = append(j.out.Findings, guarded(diag.Warning, addr, summary, detail))
}

// guarded is a finding about a guest of ours, which no line of the files is to blame for.
func guarded(severity diag.Severity, addr model.Address, summary, detail string) diag.Finding {
	return diag.Finding{Severity: severity, Source: diag.FromGuard, Address: addr.String(), Summary: summary, Detail: detail}
}

// seen is a warning about a guest of ours that is as the files say.
func seen(addr model.Address, summary, detail string) diag.Finding {
	f := guarded(diag.Warning, addr, summary, detail)
	f.Source = diag.FromHost
	return f
}

// converted is a guest of ours that somebody made a template: it cannot be made a
// machine again, and copies may live on its disks.
func converted(g view.Listed, name string, addr model.Address) model.Unmanaged {
	return model.Unmanaged{
		VMID: g.VMID, Name: name, Kind: g.Kind(), Node: g.Node, Claims: addr,
		Why: "was " + addr.String() + " until somebody converted it to a template",
		Fix: fmt.Sprintf("clone it back by hand, or remove template %d (its linked clones first) so that %s is recreated", g.VMID, addr),
	}
}
