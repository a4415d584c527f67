package pvesim

import "github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"

// PastTable are the methods that the simulator has and the API table has not.
func PastTable() []*pveapi.Method {
	var all []*pveapi.Method
	for _, m := range pastList() {
		all = append(all, m.Method)
	}
	return all
}
