package hcl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// flagSecretChecks records which checks of a spec use secrets.
func flagSecretChecks(s *model.Spec) {
	for i := range s.Checks {
		prefix := "check." + s.Checks[i].Name + "."
		s.Checks[i].Sensitive = slices.ContainsFunc(s.Sensitive, func(path string) bool { return strings.HasPrefix(path, prefix) })
	}
}

// checkChecks finds checks that a node can never pass: those by a guest agent that it
// does not have.
func (rs *rules) checkChecks(n *model.Node) {
	if rs.invalid[n.Resource.Addr.String()] {
		return
	}
	without := ""
	switch {
	case n.Type == "ct":
		without = "Containers have no guest agent, and the PVE API runs no commands in them: check a port with tcp or http instead."
	case !agentExpected(n.Resource.Spec):
		without = "It has agent = false: remove that if the guest has an agent, or check a port with tcp or http instead."
	default:
		return
	}
	for _, c := range rs.site.Checks(n) {
		if c.Inside() {
			rs.ErrorAt(c.At, fmt.Sprintf("check %s cannot run on node %s", lang.Quote(c.Name), lang.Quote(n.Name)), "It needs the guest agent. %s", without)
		}
	}
}

// agentExpected reports whether a guest agent may run in a guest: its spec does not rule it out by agent = false.
func agentExpected(spec any) bool {
	return model.ValueOf(spec, "agent") != false
}
