package pve

import (
	"cmp"
	"slices"
	"strings"

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

// Simulated are the methods that the simulator answers, sorted by path and verb.
func Simulated() []string {
	var all []string
	for name := range calls().Routes {
		all = append(all, name)
	}
	for _, m := range PastTable() {
		all = append(all, m.Verb+" "+m.Path)
	}
	slices.SortFunc(all, func(a, b string) int {
		verbA, pathA, _ := strings.Cut(a, " ")
		verbB, pathB, _ := strings.Cut(b, " ")
		return cmp.Or(cmp.Compare(pathA, pathB), cmp.Compare(verbA, verbB))
	})
	return all
}
