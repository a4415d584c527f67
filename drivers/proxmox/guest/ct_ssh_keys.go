package guest

import (
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// HashKeys is the hash that the ownership tag records of the SSH keys that a container was created
// with, since PVE does not keep them; "" for none. The keys are public, so their hash is not a
// secret.
func HashKeys(keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	return lifecycle.ShortSum(strings.Join(keys, "\n"))
}

// ineffectiveChanges implements Target: PVE writes the SSH keys of root only when it creates a
// container.
func (c CTTarget) ineffectiveChanges(want *model.Resource, other State) diag.List {
	addr, have := want.Addr, other.(CTState)
	now := HashKeys(c.RootKeys)
	if now == "" || have.Tag.Keys == "" || now == have.Tag.Keys || have.Tag.Provisional() {
		return nil
	}
	return diag.List{Finding(diag.Warning, addr, fmt.Sprintf("the ssh keys for %s changed since it was made", addr),
		"PVE puts keys into a container only when it makes it, and takes none out: bring its /root/.ssh/authorized_keys up to date yourself, or remove it so that it is recreated")}
}
