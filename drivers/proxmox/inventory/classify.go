package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// classifier separates the guests that were read into managed and unmanaged ones. An unmanaged
// guest never enters the state that is compared, so no step can concern it. If two guests carry the
// same identity, neither enters it.
type classifier struct {
	id       owner.Identity
	want     *model.Want
	wanted   wanted
	view     *api.View         // what the cluster's list says
	unread   []api.ListedGuest // may be managed, and could not be read
	verified map[model.Address][]*model.Resource
	adopting bool                      // one of them is to be adopted
	have     map[string][]api.GuestRef // all that were read, by their identities
	names    map[string]bool           // of guests with an ownership tag of this site: their present names, and those in the tags

	scratch   []*model.Resource // guests that verifications of backups left
	unmanaged []model.Unmanaged
	unknown   []model.Unknown
	findings  diag.List
	unsure    []string // guests whose ownership tag cannot be verified, as no key is known here
}

func newClassifier(obs *kind.Observation, wanted wanted, unread []api.ListedGuest) *classifier {
	return &classifier{
		id: obs.Host.ID, want: obs.Want, wanted: wanted, view: obs.View, unread: unread,
		verified: map[model.Address][]*model.Resource{}, names: map[string]bool{}, have: map[string][]api.GuestRef{},
	}
}

// addAll classifies guests by their configurations.
func (c *classifier) addAll(guests []api.ListedGuest, read map[api.GuestRef]kind.Reading) {
	for _, g := range guests {
		a := read[g.Ref()]
		if a.Err == nil {
			c.add(g, a)
			continue
		}
		c.unread = append(c.unread, g)
		c.unknown = append(c.unknown, model.Unknown{Scope: fmt.Sprintf("%s %d", g.Kind(), g.VMID), Why: a.Err.Error(), VMID: g.VMID, Guest: g.Kind(), Name: c.wanted.nameOf(g), Denied: api.IsDenied(a.Err)})
	}
}

// addUnread lists a guest that need not be read as unmanaged.
func (c *classifier) addUnread(g api.ListedGuest) {
	f := model.Unmanaged{VMID: g.VMID, Name: g.Name, Kind: g.Kind(), Why: "no ownership tag", Node: g.Node}
	if claims := c.wanted.vmids[g.VMID]; claims != (model.Address{}) {
		f.Claims = claims
		f.Fix = fmt.Sprintf("choose another vmid for %s, or remove this guest", claims)
	}
	c.unmanaged = append(c.unmanaged, f)
}

// add classifies a guest by its configuration.
func (c *classifier) add(g api.ListedGuest, read kind.Reading) {
	cfg, j := read.Config, c.judge(g.Ref(), read)
	name := cmp.Or(cfg.Next["name"], cfg.Next["hostname"], g.Name)
	if j.ours {
		c.scratch = append(c.scratch, &model.Resource{
			Addr: model.Address{Kind: model.RestoreKind, Name: j.verification},
			Spec: &model.RestoreTest{Left: g.Ref().String(), At: model.Guest{Node: g.Node, VMID: g.VMID}},
		})
		return
	}
	is := j.is
	m, found, claims := is.Tag, is.Found, is.Claims
	if found && m.Site == c.id.Site {
		c.names[m.Node], c.names[name] = true, true
	}
	lock := cfg.Now["lock"]
	if j.identity != "" {
		c.have[j.identity] = append(c.have[j.identity], g.Ref())
	}
	if n := c.wanted.adopts[g.VMID]; n != nil && !is.Owned && !is.Unsure && lock != "create" && lock != "clone" {
		c.adopt(g, cfg, is, n)
		return
	}
	ok, addr := is.Matches, m.Addr()
	switch declared := c.want.State[addr] != nil; {
	case is.Unsure:
		c.unsure = append(c.unsure, g.Ref().String())
		return
	case !c.id.HasKey() || m.Site != c.id.Site || claims == (model.Address{}) || m.Trust >= owner.Former:
	case !ok && m.Trust == owner.Unsigned && is.Ours,
		ok && !declared,
		ok && m.Trust == owner.Unsigned && cfg.Now["template"] == "1" && m.Type != owner.TemplateType:
		c.reject(g, name, is)
		return
	}
	if ok && cfg.Now["template"] == "1" && m.Type != owner.TemplateType {
		c.unmanaged = append(c.unmanaged, convertedByHand(g, name, m.Addr()))
		return
	}
	if ok && lock != "create" && lock != "clone" {
		unproven := c.unproven(g.Ref(), m)
		if unproven.Why != "" && !unproven.MayChange {
			m = m.WithoutDisposal()
		}
		r := j.resource(g, cfg, m)
		r.Guest.Unproven = unproven
		r.Guest.RemovalNote, r.Guest.SlowRemoval = removalNote(c.want.Host, m, cfg), m.RemovalPolicy() == owner.RemoveBackedUp && m.VerifiesBackup()
		r.Guest.Renumbered = renumbered(g.Ref(), m)
		r.Guest.Orphan, r.Guest.Services = m.OrphanPolicy(), m.Services()
		c.verified[m.Addr()] = append(c.verified[m.Addr()], r)
		return
	}
	f := model.Unmanaged{VMID: g.VMID, Name: name, Kind: g.Kind(), Why: is.Against, Node: g.Node, Claims: claims}
	lock = cmp.Or(lock, g.Lock)
	switch {
	case lock == "create" || lock == "clone":
		f.Unfinished = true
		f.Why = "unfinished: its configuration is locked by a " + lock + " that runs or died"
		f.Claims = cmp.Or(claims, c.wanted.vmids[g.VMID])
		f.Fix = "if no task works on it any more: " + g.Ref().Rescue()
	case claims != (model.Address{}):
		f.Fix = "remove the ownership tag from the description of the copy, or the copy itself"
	case found && !m.Readable() && (m.Site == "" || m.Site == c.id.Site): // managed before a person, or a newer version, edited the tag
		f.Claims = cmp.Or(c.wanted.names[m.Node], c.wanted.names[name], c.wanted.vmids[g.VMID])
		f.Fix = lostTagFix(g.Ref(), cfg, f.Claims, "remove the line that starts with "+strconv.Quote(owner.Prefix)+" from its description")
		if m.V > 2 {
			f.Fix = "if a newer version of this program wrote it, use that one; else " + f.Fix
		}
	case c.wanted.vmids[g.VMID] != (model.Address{}):
		f.Claims = c.wanted.vmids[g.VMID]
		f.Fix = fmt.Sprintf("choose another vmid for %s, or remove this guest", f.Claims)
		if !found {
			f.Fix = lostTagFix(g.Ref(), cfg, f.Claims, f.Fix)
		}
	case c.wanted.names[name] != (model.Address{}) && !found:
		f.Claims = c.wanted.names[name]
		f.Why = "no ownership tag, but the name of " + f.Claims.String()
		f.Fix = lostTagFix(g.Ref(), cfg, f.Claims, "rename one of the two")
	}
	c.unmanaged = append(c.unmanaged, f)
}

// judgement is what the configuration and the place of a guest say about its owner, see kind.Known.
type judgement struct {
	is           owner.Verdict
	identity     string // see owner.IdentityOf
	verification string // of which backup it is a restore
	ours         bool   // it is one

	made atomic.Pointer[made]
}

// made is what guest.FromConfig made of a guest last.
type made struct {
	spec any
	seen *guest.Observation
}

// judge returns the judgement of a guest. A tag that only proves that a creation began does so for some time, so what it says is
// not kept.
func (c *classifier) judge(at api.GuestRef, read kind.Reading) *judgement {
	if read.Known != nil {
		if j, ok := read.Known.Derived.Load().(*judgement); ok {
			return j
		}
	}
	j := &judgement{is: c.id.Check(read.Config, at), identity: owner.IdentityOf(read.Config.Next, at)}
	j.verification, j.ours = c.id.Scratch(j.is)
	if read.Known != nil && j.is.Tag.Begun == 0 {
		read.Known.Derived.Store(j)
	}
	return j
}

// resource makes the resource of a guest, and reads its attributes only if that was not done before for the same power. m is
// the tag as far as it counts, which is always the same for one judgement.
func (j *judgement) resource(g api.ListedGuest, cfg api.GuestConfig, m owner.Tag) *model.Resource {
	if before := j.made.Load(); before != nil {
		if r := before.seen.Relisted(before.spec, g); r != nil {
			return r
		}
	}
	r := guest.FromConfig(g, cfg, j.is.Notes, m)
	if seen, ok := r.Private.(*guest.Observation); ok {
		j.made.Store(&made{r.Spec, seen})
	}
	return r
}

// renumbered reports a guest whose VMID is not the one that it was created with, such as a backup
// that was restored under another VMID after the original was removed. Its new VMID must not look
// like an edit of the files.
func renumbered(at api.GuestRef, m owner.Tag) model.Renumbered {
	keep := fmt.Sprintf("set vmid = %d, or remove vmid, to keep it as it is", at.VMID)
	if m.Type == owner.TemplateType { // a template requires a vmid
		keep = fmt.Sprintf("set vmid = %d to keep it as it is", at.VMID)
	}
	switch m.CreationVMID {
	case at.VMID:
		return model.Renumbered{}
	case 0:
		return model.Renumbered{
			Why: fmt.Sprintf("%s has its identity, and the ownership tag does not say under which VMID it was created", at),
			Fix: fmt.Sprintf("%s; to recreate it, remove it first: `%s destroy %d` on node %s", keep, at.Tool(), at.VMID, at.Node),
		}
	default:
		return model.Renumbered{
			Why: fmt.Sprintf("%s has its identity, but was created as VMID %d: a backup restored under another VMID", at, m.CreationVMID),
			Fix: fmt.Sprintf("%s; to have it under another VMID, restore it under that one and remove this one: `%s destroy %d` on node %s", keep, at.Tool(), at.VMID, at.Node),
		}
	}
}

// unreadDuplicate names a guest that could not be read and has the name of a managed one, as a
// restored backup of it has; "" for none.
func (c *classifier) unreadDuplicate(r *model.Resource) string {
	for _, g := range c.unread {
		if (g.Name == r.Addr.Name || g.Name == nameOf(r)) && g.Kind() == api.GuestKind(r.Addr) {
			return g.Ref().String()
		}
	}
	return ""
}

// result is the observation as far as the configurations show it: the managed guests, and all others. Guests that share
// an identity are unmanaged, with a finding.
func (c *classifier) result() model.Observed {
	out := model.Observed{State: model.State{}}
	for _, r := range c.scratch { // one of two has to wait for the next pass
		out.State[r.Addr] = r
	}
	for _, addr := range slices.SortedFunc(maps.Keys(c.verified), model.Address.Compare) {
		rs := c.onlyProven(c.verified[addr])
		if duplicate := c.unreadDuplicate(rs[0]); duplicate != "" && len(rs) == 1 { // else the original might be started beside a restored backup
			g := rs[0].Guest
			out.Unknown = append(out.Unknown, model.Unknown{
				Scope: addr.String(), VMID: g.VMID, Only: []model.Address{addr},
				Why: fmt.Sprintf("%s has its identity, and so may %s of the same name, which cannot be read", api.GuestRef{Node: g.Node, VMID: g.VMID, LXC: api.GuestKind(addr) == "ct"}, duplicate),
			})
			continue
		}
		if len(rs) == 1 && rs[0].Guest.Adoptable && c.isCopied(rs[0]) {
			continue
		}
		if len(rs) == 1 {
			out.State[addr] = rs[0]
			continue
		}
		slices.SortFunc(rs, func(a, b *model.Resource) int { return a.Guest.VMID - b.Guest.VMID })
		var who []string
		for _, r := range rs {
			out.Unmanaged = append(out.Unmanaged, model.Unmanaged{
				VMID: r.Guest.VMID, Name: nameOf(r), Kind: api.GuestKind(addr), Node: r.Guest.Node, Claims: addr,
				Why: fmt.Sprintf("one of %d guests with the identity of %s", len(rs), addr),
				Fix: "remove the one that is not wanted, for instance a restored backup", Duplicate: true,
			})
			who = append(who, api.RefOf(r).String())
		}
		out.Findings = append(out.Findings, guest.Finding(diag.Error, addr, fmt.Sprintf("%d guests carry the identity of %s: neither is changed (%s)", len(rs), addr, strings.Join(who, ", ")),
			"usually one of them is a restored backup: remove it, or give it another uuid"))
	}
	out.Findings = append(out.Findings, c.otherPools(out.State)...)
	out.Unmanaged, out.Unknown = append(out.Unmanaged, c.unmanaged...), append(out.Unknown, c.unknown...)
	out.Findings = append(out.Findings, c.findings...)
	if len(c.unsure) > 0 {
		all := slices.SortedFunc(maps.Keys(c.want.State), model.Address.Compare)
		out.Unknown = append(out.Unknown, model.Unknown{
			Scope: "the guests of this site", Only: all,
			Why: fmt.Sprintf("the key that verifies their ownership tags (secret.auth.%s) is not known here, so none is changed: %s", model.OwnershipKey, strings.Join(c.unsure, ", ")),
		})
	}
	return out
}

// otherPools reports guests in another pool than the one that the host names: a guest joins its
// pool when it is created. Moving it needs privileges on both pools and the right to grant
// privileges on the guest (pve-access-control, API2/Pool.pm), so that is left to people.
func (c *classifier) otherPools(have model.State) diag.List {
	h := c.want.Host
	if h == nil || h.Pool == "" {
		return nil
	}
	var who, ids []string
	for _, addr := range slices.SortedFunc(maps.Keys(have), model.Address.Compare) {
		g := have[addr].Guest
		if w := c.want.State[addr]; g == nil || w == nil || slices.Contains([]string{"", h.Pool}, c.view.Guests[g.VMID].Pool) {
			continue
		}
		who = append(who, fmt.Sprintf("%s (%s)", addr, c.view.Guests[g.VMID].Pool))
		ids = append(ids, strconv.Itoa(g.VMID))
	}
	if len(who) == 0 {
		return nil
	}
	return diag.List{{
		Severity: diag.Warning, Source: diag.FromGuard, Address: "host." + h.Name, At: h.At,
		Summary: fmt.Sprintf("guests are not in pool %s, which host %s names, but in another: %s", h.Pool, h.Name, strings.Join(who, ", ")),
		Detail: fmt.Sprintf("a guest joins the pool when it is made. To move them, on a node, before the old pool goes: pvesh set /pools/%s --allow-move 1 --vms %s",
			h.Pool, strings.Join(ids, ",")),
	}}
}

// convertedByHand lists a managed guest that was converted to a template by hand: it cannot become a guest again,
// and clones may use its disks.
func convertedByHand(g api.ListedGuest, name string, addr model.Address) model.Unmanaged {
	return model.Unmanaged{
		VMID: g.VMID, Name: name, Kind: g.Kind(), Node: g.Node, Claims: addr,
		Why: "was " + addr.String() + " until it was converted to a template by hand",
		Fix: fmt.Sprintf("clone it back by hand, or remove template %d (its linked clones first) so that %s is recreated", g.VMID, addr),
	}
}

// removalNote says in the plan what goes before a guest does, and what goes with it that
// the files never named: PVE destroys every volume in its configuration that carries
// its VMID, attached by hand or detached (QemuServer.pm, destroy_vm).
func removalNote(h *model.Host, m owner.Tag, cfg api.GuestConfig) string {
	var out []string
	if m.RemovalPolicy() == owner.RemoveBackedUp {
		text := "after a final backup to " + h.BackupStorage()
		if m.VerifiesBackup() {
			text += ", verified by a restore"
		}
		out = append(out, text)
	}
	named := map[string]bool{}
	for _, slot := range m.Slots {
		named[slot] = true
	}
	var extra []string
	for key, val := range cfg.Next {
		if (api.IsDrive(key) || strings.HasPrefix(key, "mp")) && !api.HoldsState(key) && !named[key] && api.HoldsData(val) {
			extra = append(extra, key)
		}
	}
	if slices.Sort(extra); len(extra) > 0 {
		out = append(out, "together with "+strings.Join(extra, ", ")+", which no file names")
	}
	return strings.Join(out, ", ")
}

// nameOf is the name by which PVE shows the guest of a resource: a VM, a container, or a template
// that is made here.
func nameOf(r *model.Resource) string {
	switch s := r.Spec.(type) {
	case *guest.VM:
		return s.Name
	case *guest.CT:
		return s.Hostname
	case *guest.Template:
		return s.Tag.Node
	default:
		return ""
	}
}
