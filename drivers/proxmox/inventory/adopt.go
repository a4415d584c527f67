package inventory

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// adopt classifies the guest at the VMID of a node with adopt that is unmanaged: it enters the state that is compared, so
// that the plan can adopt it, or is unmanaged with the reason.
func (c *classifier) adopt(g api.ListedGuest, cfg api.GuestConfig, is owner.Verdict, n *model.Node) {
	at, addr := g.Ref(), n.Resource.Addr
	what, identity := "UUID", owner.IdentityOf(cfg.Next, at)
	if at.LXC {
		what = "MAC address of its first nic"
	}
	want := guest.TargetOf(c.want.State[addr])
	switch {
	case api.GuestKind(addr) != g.Kind():
		c.refuse(g, addr, fmt.Sprintf("VMID %d is a %s", g.VMID, strings.ToUpper(g.Kind())), fmt.Sprintf("set type = %q, or correct vmid", g.Kind()))
	case cfg.Now["template"] == "1":
		c.refuse(g, addr, at.String()+" is a template", "a template has a block of its own: template \"NAME\" with its vmid")
	case is.Found && is.Tag.Readable() && !is.Ours:
		c.refuse(g, addr, fmt.Sprintf("%s %s", at, is.Against), "its owner gives it up: removed \""+diag.Line(is.Tag.Addr().String())+"\" { destroy = false } in the site that owns it")
	case identity == "" && at.LXC:
		c.refuse(g, addr, at.String()+" has no nic, and so no identity", "add one in the web interface, and name its MAC address in adopt")
	case identity == "":
		c.refuse(g, addr, at.String()+" has no UUID", fmt.Sprintf("give it one while it is stopped: `qm set %d --smbios1 uuid=%s` on node %s", g.VMID, n.Adopt, g.Node))
	case !strings.EqualFold(identity, n.Adopt):
		c.refuse(g, addr, fmt.Sprintf("the %s of %s is %s, and adopt says %s", what, at, identity, n.Adopt), "if it is the guest that is meant, correct adopt; else correct vmid")
	default:
		m := guest.AdoptedTag(want, c.id, at, cfg)
		if n := utf8.RuneCountInString(c.id.Describe(is.Notes, m, at, cfg)); n > owner.MaxDescription {
			c.refuse(g, addr, fmt.Sprintf("with the ownership tag its description has %d characters, and PVE keeps %d", n, owner.MaxDescription), "shorten its notes in the web interface, and in description")
			return
		}
		r := guest.FromConfig(g, cfg, is.Notes, m)
		r.Guest.Adoptable, c.adopting = true, true
		c.verified[addr] = append(c.verified[addr], r)
	}
}

// refuse lists a guest that is not adopted.
func (c *classifier) refuse(g api.ListedGuest, addr model.Address, why, fix string) {
	c.unmanaged = append(c.unmanaged, model.Unmanaged{VMID: g.VMID, Name: g.Name, Kind: g.Kind(), Node: g.Node, Claims: addr, Why: why, Fix: fix, Refused: true})
}

// isCopied refuses to adopt a guest whose identity another one has, such as a restored backup of it.
func (c *classifier) isCopied(r *model.Resource) bool {
	at := api.RefOf(r)
	identity := owner.IdentityOf(guest.StateOf(r).Observed().Config.Next, at)
	all := c.have[identity]
	if len(all) == 1 {
		return false
	}
	names := make([]string, len(all))
	for i, other := range all {
		names[i] = other.String()
	}
	slices.Sort(names)
	g := api.ListedGuest{VMID: at.VMID, Name: nameOf(r), Node: at.Node, LXC: at.LXC}
	c.refuse(g, r.Addr, fmt.Sprintf("%s have the identity %s", strings.Join(names, " and "), identity),
		"give the copy another one while it is stopped (`qm set VMID --smbios1 uuid=UUID`, for a container a new MAC address), or remove it")
	return true
}
