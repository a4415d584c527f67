package proxmox

import (
	"context"
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/provision"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// parentless lists the guests that pull and would not get their parent when they are created: they would boot and
// never be configured, or take no commands.
func parentless(ctx context.Context, h *kind.Host, want *model.Want) []model.PreflightProblem {
	var out []model.PreflightProblem
	pulls := func(r *model.Resource) bool {
		t := guest.TargetOf(r)
		return t != nil && t.Resolved() != nil && t.Resolved().Pulls != ""
	}
	commands := func(r *model.Resource) bool {
		n := want.Nodes[r.Addr]
		return n != nil && n.Spec != "" && n.Type == "ct" && n.TakesCommands()
	}
	for _, addr := range want.State.Find(func(r *model.Resource) bool { return pulls(r) || commands(r) }) {
		t := guest.TargetOf(want.State[addr])
		o := model.PreflightProblem{Address: addr, Path: "execution.mode", Severity: diag.Warning, Withhold: true}
		if !pulls(want.State[addr]) {
			o.Path = "execution.run"
			if h.Parent == nil { // the agent leads it to its parent later
				continue
			}
		}
		switch {
		case t.Common().LXC && h.Parent != nil && h.Delivers != nil && h.Delivers(ctx):
			continue
		case t.Common().LXC && h.Parent != nil:
			o.Summary = "containers cannot be created in mode pull from another machine"
			o.Detail = `a container has no cloud-init, so it gets the program, the address of its parent and a token by pct, which needs root on the node of the container: let the agent run on the node of the container, as root, or set mode = "push" in execution`
		case h.Parent == nil:
			o.Summary = provision.NoParent
			o.Detail = fmt.Sprintf(`the agent of host %s creates it, if its agent.hcl has listen; or take mode = "push" (for one run --mode push), so that its spec is applied from outside`, h.Model.Name)
		default:
			continue
		}
		out = append(out, o)
	}
	return out
}
