package guest

import (
	"fmt"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// ineffectiveChanges implements Target: a full clone cannot become a linked one, nor the other way
// round.
func (v VMTarget) ineffectiveChanges(want *model.Resource, other State) diag.List {
	have := other.(VMState)
	if v.Template == "" || have.Tag.From != v.OwnerTag.From || have.Tag.Linked == (v.Clone == LinkedClone) {
		return nil
	}
	was := pick(have.Tag.Linked, LinkedClone, FullClone)
	f := Finding(diag.Warning, want.Addr, fmt.Sprintf("%s is a %s clone and stays one", want.Addr, was),
		"clone counts when a guest is made: remove the guest so that it is recreated, or leave the files as they were")
	f.At = want.RangeOf("clone")
	return diag.List{f}
}

// CloneSlots are the slots that a clone has from its template: root is that of its root disk, and
// the network cards follow in their order, whether the template has that many or not.
func CloneSlots(want Target, root string) map[string]string {
	out := map[string]string{"disk.root": root}
	for i, p := range want.Ports() {
		out["nic."+p.Name] = fmt.Sprintf("net%d", i)
	}
	return out
}
