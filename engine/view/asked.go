package view

import "github.com/homestak/homestak-gitops/specserve/wire"

// Asked says what became of the request to check a node.
func Asked(node string, status wire.Asked) string {
	switch status {
	case wire.AskedKept:
		return node + " does not wait at the moment: it checks itself when it asks its parent next, or when its timer says"
	case wire.AskedPushed:
		return node + " has mode push: the agent applies its spec, and checks now. Without NODE, reconcile waits for the result"
	default:
		return node + " is asked to check itself"
	}
}
