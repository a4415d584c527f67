package guest

import (
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/seed"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// HashKeys says in the ownership tag which keys a container was made with, since PVE keeps
// nothing of them. They are public, and their hash is no secret.
func HashKeys(keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	return seed.Sum(strings.Join(keys, "\n"))
}

// IneffectiveChanges says what of the files cannot reach a container that exists.
func (c CTTarget) IneffectiveChanges(want *model.Resource, other State) diag.List {
	addr, have := want.Addr, other.(CTState)
	now := HashKeys(c.RootKeys)
	if now == "" || have.Tag.Keys == "" || now == have.Tag.Keys || have.Tag.Provisional() {
		return nil
	}
	return diag.List{Finding(diag.Warning, addr, fmt.Sprintf("the ssh keys for %s changed since it was made", addr),
		"PVE puts keys into a container only when it makes it, and takes none out: bring its /root/.ssh/authorized_keys up to date yourself, or remove it so that it is recreated")}
}
