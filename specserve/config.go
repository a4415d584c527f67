package specserve

import (
	"net/http"

	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// serveConfig sends a child what it needs for its subtree. Only its own token opens it, whatever its
// posture allows others: there are secrets in it.
func serveConfig(x *request) error {
	node, err := x.own()
	if err != nil {
		return err
	}
	if !node.Child {
		return &wire.Error{Code: wire.CodeNotFound, Message: "the node is not of type pve, and so there is no configuration for it"}
	}
	if x.shown.Kind == policy.Provisioning {
		if err := x.authorize(node.Name); err != nil {
			return err
		}
	}
	renewed := x.renewed(node)
	document, tag, err := x.view.Catalog.Config(node, Own{Pins: x.view.Pins, Token: renewed, Agent: x.agentSums()})
	if err != nil {
		return err
	}
	if unchanged(x, "Authorization", tag, renewed) {
		return nil
	}
	return x.send(http.StatusOK, asJSON, document)
}
