package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
)

// exec reports containers whose spec is applied by pct exec where this program is not root, which pct needs.
func (s *subject) exec(context.Context) {
	by := askers{}
	for addr, n := range s.want.Nodes {
		of := s.site.Specs[n.Spec]
		if addr.Kind == "ct" && (n.Mode == model.ModePush || !n.TakesCommands()) && of != nil && of.Access != nil && of.Access.Via == model.ViaExec {
			by.add(s.want.State[addr], "")
		}
	}
	switch uid := os.Geteuid(); {
	case len(by) == 0:
	case uid != 0:
		s.warn("pct exec", fmt.Sprintf("it needs root on the node, and this runs as user %d", uid), "specs with via = \"exec\" are applied by it: "+by.String(),
			`set via = "ssh" in access of the spec, or run apply as root on the node; the agent of the installed unit is not root`)
	default:
		s.ok("pct exec", "this runs as root; the agent of the installed unit does not, and cannot apply the specs of %s", by)
	}
}

// reviews reports nodes whose date of review has passed.
func (s *subject) reviews(context.Context) {
	now := time.Now()
	for _, addr := range slices.SortedFunc(maps.Keys(s.want.Nodes), model.Address.Compare) {
		if n := s.want.Nodes[addr]; n.ReviewOverdue(now) {
			s.warn("review", fmt.Sprintf("%s was to be reviewed by %s", addr, n.ReviewBy), "its owner: "+cmp.Or(n.Owner, "none is declared"),
				"check what the files say of it, and set another date in review_by")
		}
	}
}
