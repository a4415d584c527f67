package plan

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Names returns the words by which files know a guest: its name, its addresses and its VMID, without those that another wanted guest
// takes over.
func Names(have *model.Resource, w *model.Want) []string {
	words := map[string]bool{have.Addr.Name: true, strconv.Itoa(have.Guest.VMID): true}
	for _, ip := range model.StaticAddresses(have.Spec) {
		words[ip.String()] = true
	}
	for addr, r := range w.State {
		if addr == have.Addr || r.Guest == nil {
			continue
		}
		delete(words, addr.Name)
		delete(words, strconv.Itoa(r.Guest.VMID))
		for _, ip := range model.StaticAddresses(r.Spec) {
			delete(words, ip.String())
		}
	}
	out := make([]string, 0, len(words))
	for word := range words {
		out = append(out, word)
	}
	return out
}

// guardReferenced keeps guests that something still refers to.
func guardReferenced(g *guard, s *Step) {
	if why := g.in.Referenced[s.Address]; s.Action == Delete && why != "" {
		g.refuse(s, diag.FromGuard, why, "remove the reference, or make the path or the repository readable, and apply again; references of the site names what is searched")
	}
}

// guardServices keeps a guest whose services were to be migrated first, while one of them is on no other ready node.
func guardServices(g *guard, s *Step) {
	if s.Action != Delete && s.Action != Replace || s.Have.Guest == nil {
		return
	}
	for _, service := range s.Have.Guest.Services {
		ready := func(addr model.Address) bool {
			n, is := g.in.Want.Nodes[addr], g.have[addr]
			goes := g.steps[addr] != nil && (g.steps[addr].Action == Delete || g.steps[addr].Action == Replace)
			return addr != s.Address && n != nil && slices.Contains(n.Services, service) && is != nil && is.Guest != nil && is.Guest.Running &&
				!is.Guest.Starting && !goes && !slices.Contains(g.in.Failing, addr)
		}
		if !slices.ContainsFunc(g.addrs, ready) {
			g.refuse(s, diag.FromGuard, fmt.Sprintf("its service %s is on no other node of this host that runs and whose checks hold", service),
				"its decommission policy is requires_migration_first: declare the service on another node, apply that, and remove this one then")
			return
		}
	}
}
