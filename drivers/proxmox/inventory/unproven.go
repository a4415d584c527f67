package inventory

import (
	"fmt"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Guests whose ownership tag is not authenticated. Every user who may edit a description can write such a tag, and
// earlier versions of this program wrote them.

// unproven says what the ownership tag of a guest does not prove; zero if it proves all.
func (c *classifier) unproven(at api.GuestRef, m owner.Tag) model.Unproven {
	switch {
	case m.Trust >= owner.Former:
		return model.Unproven{}
	case !c.id.HasKey():
		return model.Unproven{
			MayChange: true,
			Why:       fmt.Sprintf("nothing proves that %s is this guest: the site has no ownership key", at),
			Fix: fmt.Sprintf("give the site a key: `openssl rand -hex 32`, into its secrets as auth.%s. The next apply signs the tag of each guest that is exactly as its declared node, and later ones remove and rename it\nor %s",
				model.OwnershipKey, byHand(at)),
		}
	case m.Trust == owner.Begun:
		return model.Unproven{
			MayChange: true,
			Why:       fmt.Sprintf("the creation of %s did not end, and its ownership tag proves only that it began", at),
			Fix:       "let a pass complete it first; or " + byHand(at),
		}
	default:
		return model.Unproven{
			Why: fmt.Sprintf("nothing proves that %s is this guest: its ownership tag has no valid signature", at),
			Fix: fmt.Sprintf("if it is: let the files say exactly what it is now, and the next pass signs its tag; or %s\nif it is not: remove the line that starts with %q from its description", byHand(at), owner.Prefix),
		}
	}
}

// byHand returns the command by which an administrator removes a guest.
func byHand(at api.GuestRef) string {
	return fmt.Sprintf("remove it by hand: `%s destroy %d` on node %s", at.Tool(), at.VMID, at.Node)
}

// reject lists a guest as unmanaged whose ownership tag is not verified. It keeps nothing from being done.
func (c *classifier) reject(g api.ListedGuest, name string, is owner.Verdict) {
	why := is.Against
	if is.Owned { // its creation began, and it left the files since
		why = c.unproven(g.Ref(), is.Tag).Why
	}
	f := model.Unmanaged{VMID: g.VMID, Name: name, Kind: g.Kind(), Node: g.Node, Why: why}
	if claims := c.wanted.vmids[g.VMID]; claims != (model.Address{}) {
		f.Claims, f.Fix = claims, fmt.Sprintf("choose another vmid for %s, or remove this guest", claims)
	}
	c.unmanaged = append(c.unmanaged, f)
	c.claim(g.Ref(), why)
}

// claim reports a claim that nothing proves.
func (c *classifier) claim(at api.GuestRef, why string) {
	if c.want.Host == nil {
		return
	}
	c.findings = append(c.findings, diag.Finding{
		Severity: diag.Warning, Source: diag.FromGuard, Address: "host." + c.want.Host.Name, At: c.want.Host.At,
		Summary: fmt.Sprintf("%s on node %s is not managed: it %s", at, at.Node, why),
		Detail: fmt.Sprintf("if it is a guest of this site: declare its node exactly as it is now, and the next pass signs its tag; or %s\nif it is not: remove the line that starts with %q from its description",
			byHand(at), owner.Prefix),
	})
}

// onlyProven are the guests of one address whose ownership tags are proved, if there are any; the others are unmanaged
// then, since nothing verifies their claim.
func (c *classifier) onlyProven(rs []*model.Resource) []*model.Resource {
	claims := func(r *model.Resource) bool { return r.Guest.Unproven.Why != "" && !r.Guest.Unproven.MayChange }
	if !slices.ContainsFunc(rs, claims) || !slices.ContainsFunc(rs, func(r *model.Resource) bool { return !claims(r) }) {
		return rs
	}
	var out []*model.Resource
	for _, r := range rs {
		if !claims(r) {
			out = append(out, r)
			continue
		}
		at := api.RefOf(r)
		why := fmt.Sprintf("has the ownership tag of %s without a valid signature for this guest", r.Addr)
		c.unmanaged = append(c.unmanaged, model.Unmanaged{VMID: at.VMID, Name: nameOf(r), Kind: at.Kind(), Node: at.Node, Why: why})
		c.claim(at, why)
	}
	return out
}
