package pve

import (
	"cmp"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// PastTable are the methods that the simulator has and the API table has not, sorted by
// path and verb.
func PastTable() []*pveapi.Method {
	var all []*pveapi.Method
	for _, methods := range calls().Extra {
		for _, m := range methods {
			all = append(all, m.Method)
		}
	}
	slices.SortFunc(all, func(a, b *pveapi.Method) int { return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Verb, b.Verb)) })
	return all
}
