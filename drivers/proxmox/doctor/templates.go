package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/model"
)

// templates checks the guests that others are cloned from.
type templates struct {
	*subject
	token *token
}

// pattern is a guest that others are cloned from, by its VMID, and who they are.
type pattern struct {
	vms, cts askers
}

// check checks the guests that nodes are cloned from.
func (t *templates) check(ctx context.Context) {
	by := map[int]*pattern{}
	of := func(vmid int) *pattern {
		if by[vmid] == nil {
			by[vmid] = &pattern{askers{}, askers{}}
		}
		return by[vmid]
	}
	for _, addr := range t.want.State.Addresses() {
		r := t.want.State[addr]
		switch vmid, lxc := clonedFrom(r); {
		case vmid == 0:
		case lxc:
			of(vmid).cts.add(r, "template")
		default:
			of(vmid).vms.add(r, "template")
		}
	}
	if len(by) == 0 {
		return
	}
	list, err := t.list(ctx, "/cluster/resources?type=vm")
	if err != nil {
		t.unread("templates", err)
		return
	}
	for _, id := range slices.Sorted(maps.Keys(by)) {
		p, all := by[id], askers{}
		maps.Copy(all, p.vms)
		maps.Copy(all, p.cts)
		name, why := fmt.Sprintf("template %d", id), "it is cloned for "+all.String()
		i := slices.IndexFunc(list, func(g map[string]json.RawMessage) bool { return api.Number(g["vmid"]) == id })
		if i < 0 {
			t.hidden(ctx, id, len(p.vms) == 0, name, why)
			continue
		}
		switch at := (api.GuestRef{Node: api.Text(list[i]["node"]), VMID: id, LXC: api.Text(list[i]["type"]) == "lxc"}); {
		case at.LXC && len(p.vms) > 0:
			t.fail(name, "it is a container", "it is cloned for "+p.vms.String(), "name a VM template: vmid = … in its template block")
		case !at.LXC && len(p.cts) > 0:
			t.fail(name, "it is a VM", "it is cloned for "+p.cts.String(), "name a container template: vmid = … in its template block")
		default:
			t.template(ctx, at, why)
		}
	}
}

// template checks a guest by its configuration: the cluster's list may be ten seconds old.
func (t *templates) template(ctx context.Context, at api.GuestRef, why string) {
	name := fmt.Sprintf("template %d", at.VMID)
	var cfg map[string]json.RawMessage
	if err := t.client().Get(ctx, at.Path("config"), &cfg); err != nil {
		t.unread(name, err)
		return
	}
	called, kind := api.Text(cfg["name"]), "VM"
	if at.LXC {
		called, kind = api.Text(cfg["hostname"]), "container"
	}
	if api.Text(cfg["template"]) != "1" {
		t.fail(name, fmt.Sprintf("%q is a %s, not a template", called, kind), why,
			fmt.Sprintf("on node %s, if it may never run again: %s template %d", at.Node, at.Tool(), at.VMID))
		return
	}
	good := true
	for _, key := range slices.Sorted(maps.Keys(cfg)) {
		if bridge := api.ParseProperty(api.Text(cfg[key])).Values["bridge"]; strings.HasPrefix(key, "net") && bridge != "" {
			good = t.mayPlug(ctx, name, bridge) && good
		}
	}
	if good {
		t.ok(name, "%s on node %s", called, at.Node)
	}
}

// mayPlug checks the right to a bridge of a template: cloning connects the clone to it first (Q, clone_vm,
// check_bridge_access).
func (t *templates) mayPlug(ctx context.Context, name, bridge string) bool {
	need := kind.Need{Grant: kind.Grant{Path: "/sdn/zones/localnetwork/" + bridge, Priv: "SDN.Use"}, Role: kind.RoleNetwork}
	if known, err := t.bridgesOf(ctx, t.host.PVENode()); err == nil && known[bridge].vnet {
		return true
	}
	if may, err := t.token.may(ctx, need.Grant); err != nil || may {
		return true
	}
	t.add(Check{
		Name: name, Result: Failed, Denied: true, Seen: "SDN.Use missing on " + need.Path,
		Why: "the template is connected to it, and so is a new copy", Fix: t.token.grantCommands([]kind.Need{need}, t.token.roles(ctx)),
	})
	return false
}

// hidden distinguishes a template that is missing from one that the token may not see.
func (t *templates) hidden(ctx context.Context, id int, lxc bool, name, why string) {
	there, err := t.client().IsTaken(ctx, id)
	switch {
	case err != nil:
		t.unread(name, err)
	case there:
		t.skip(name, "there is a guest %d, but the token may not see it (VM.Audit on /vms/%d)", id, id)
	default:
		t.fail(name, "no guest has this VMID", why, "make the template, or correct vmid in its template block; on the host: "+api.GuestRef{LXC: lxc}.Tool()+" list | grep "+fmt.Sprint(id))
	}
}

// clonedFrom is the VMID of the existing template that a guest is cloned from; 0 if it is none, or
// one that is made here. lxc reports whether that template is a container.
func clonedFrom(want *model.Resource) (vmid int, lxc bool) {
	g := guest.TargetOf(want)
	if g == nil || g.Resolved().TemplateMade {
		return 0, false
	}
	return g.Resolved().TemplateVMID, g.Common().LXC
}
