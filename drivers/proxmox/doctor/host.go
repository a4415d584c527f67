package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/rights"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// cluster looks for the nodes that the site names, and whether the cluster can
// decide anything.
func (e *exam) cluster(ctx context.Context) {
	list, err := e.list(ctx, "/nodes")
	if err != nil {
		e.unread("nodes", err)
		return
	}
	for _, n := range list {
		e.nodes[api.Text(n["node"])] = view.IsOnline(api.Text(n["status"]))
	}
	known, good := slices.Sorted(maps.Keys(e.nodes)), true
	for _, name := range e.host.AllNodes() {
		online, there := e.nodes[name]
		switch {
		case !there:
			good = false
			e.fail("nodes", "there is no node "+name+", but "+strings.Join(known, ", "), "guests are made on it"+e.at(),
				fmt.Sprintf("node = %q    # in host %q, or nodes = [%s]", diag.Nearest(name, known), e.host.Name, quotedList(known)))
		case !online && name == e.host.PVENode():
			good = false
			e.fail("nodes", "node "+name+" is offline", "guests and images are made on it", "on a node of the cluster: pvecm status; then start "+name)
		case !online:
			good = false
			e.warn("nodes", "node "+name+" is offline", "its guests cannot be seen and are not changed", "on a node of the cluster: pvecm status; then start "+name)
		}
	}
	if good {
		e.ok("nodes", "%s online", strings.Join(e.host.AllNodes(), ", "))
	}
	e.quorum(ctx)
}

func quotedList(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(out, ", ")
}

func (e *exam) quorum(ctx context.Context) {
	if len(e.nodes) < 2 {
		return
	}
	list, err := e.list(ctx, "/cluster/status")
	if err != nil {
		e.unread("quorum", err)
		return
	}
	for _, c := range list {
		if api.Text(c["type"]) != "cluster" {
			continue
		}
		if api.Text(c["quorate"]) == "0" {
			e.fail("quorum", "the cluster "+api.Text(c["name"])+" has no quorum", "without it no node takes any change", "on a node that runs: pvecm status; start the others, or check the network between them")
			return
		}
		e.ok("quorum", "cluster %s is quorate", api.Text(c["name"]))
	}
}

// guests looks at the host as a plan would, and tells what would be in its way.
func (e *exam) guests(ctx context.Context) {
	have, err := e.d.Observe(ctx, e.Want)
	if err != nil {
		e.unread("guests", err)
		return
	}
	e.have, e.seen = have, true
	before, nodes := len(e.out), e.bad["nodes"]
	for _, u := range have.Unknown {
		e.seen = e.seen && !u.All
		switch {
		case u.All && !e.sees():
			e.skip("guests", "the token may see none of them: see the privileges")
		case u.All && nodes != "":
			e.skip("guests", "not all of the host can be seen: see the nodes")
		case u.Kind != "" && e.bad["privileges"] != "":
			e.skip("guests", "%s cannot be seen: see the privileges", u.Scope)
		case u.All:
			e.Add(Check{
				Name: "guests", Result: Failed, Seen: u.Scope + ": " + u.Why, Why: "as long as not all can be seen, nothing is done here",
				Fix: []string{"mend that, and run this again"},
			})
		case u.Node == "" || e.nodes[u.Node]: // nodes that are down are reported already
			e.warn("guests", u.Scope+": "+u.Why, "what cannot be seen is not changed")
		}
	}
	for _, f := range have.Unmanaged {
		switch {
		case f.Unfinished && f.Fix == "": // somebody is creating it
		case f.Unfinished:
			e.warn("guests", fmt.Sprintf("%s %d is half made: %s", f.Kind, f.VMID, f.Why), "it keeps its VMID and its disks, and no token can remove it", f.Fix)
		case f.Claims != (model.Address{}):
			e.warn("guests", fmt.Sprintf("%s %d %q blocks %s: %s", f.Kind, f.VMID, f.Name, f.Claims, f.Why), "until then "+f.Claims.String()+" is not created", f.Fix)
		}
	}
	e.locks(ctx)
	e.managed(ctx)
	ours := 0
	for _, r := range have.State {
		if r.Guest != nil {
			ours++
		}
	}
	if len(e.out) == before {
		e.ok("guests", "%d ours, %d of others", ours, len(have.Unmanaged))
	}
	e.ranges()
}

// sees reports whether the token may see any guest at all, as far as was asked.
func (e *exam) sees() bool {
	return e.can(rights.Grant{Path: "/vms", Priv: "VM.Audit"}) || e.host.Pool != "" && e.can(rights.Grant{Path: "/pool/" + e.host.Pool, Priv: "VM.Audit"})
}

// locks finds guests of ours that a task left locked: with a lock PVE refuses
// nearly everything.
func (e *exam) locks(ctx context.Context) {
	for _, addr := range e.have.State.Addresses() {
		g := e.have.State[addr].Guest
		if g == nil || g.Lock == "" {
			continue
		}
		active, err := e.d.Client().Tasks.Active(ctx, g.Node)
		busy := slices.ContainsFunc(slices.Collect(maps.Keys(active)), func(upid string) bool {
			return api.ParseUPID(upid).Object == fmt.Sprint(g.VMID)
		})
		if err != nil || busy {
			continue
		}
		e.warn("guests", fmt.Sprintf("%s (%d) is locked (%s), and no task that can be seen works on it", addr, g.VMID, g.Lock),
			"PVE refuses to change a locked guest", fmt.Sprintf("on node %s, when nothing works on it: %s unlock %d", g.Node, view.GuestRef{LXC: addr.Kind == "ct"}.Tool(), g.VMID))
	}
}

// managed warns of guests of ours that the HA manager has, if the token could not take
// one out of a manager which fails to stop it.
func (e *exam) managed(ctx context.Context) {
	var guests []string
	for _, addr := range e.have.State.Addresses() {
		if g := e.have.State[addr].Guest; g != nil && g.HA != "" {
			guests = append(guests, fmt.Sprintf("%s (%d)", addr, g.VMID))
		}
	}
	need := rights.Need{Grant: rights.Grant{Path: "/", Priv: "Sys.Console"}, Role: rights.RoleHA}
	if len(guests) == 0 || e.readRight(ctx, need.Path) != nil || e.can(need.Grant) {
		return
	}
	e.warn("guests", "the HA manager has "+strings.Join(guests, ", ")+", and the token lacks "+need.String(),
		"only to remove one that the manager cannot stop", e.grant([]rights.Need{need}, e.roles(ctx))...)
}

// ranges tells which VMIDs of the site are used by somebody else.
func (e *exam) ranges() {
	for _, r := range e.Of.VMIDRanges {
		var taken []string
		for _, f := range e.have.Unmanaged {
			if f.VMID >= r.From && f.VMID <= r.To {
				taken = append(taken, fmt.Sprintf("%d (%s)", f.VMID, cmp.Or(f.Name, f.Kind)))
			}
		}
		if len(taken) > 0 {
			e.ok("vmids", "range %s: %s unmanaged; they are ignored and their VMIDs are not used", r.Name, strings.Join(taken, ", "))
		}
	}
}

// images looks whether the files of the site are what the site says, and lets the
// host itself try the addresses that it is to download from. Container templates that
// are files are looked at alike.
func (e *exam) images(ctx context.Context) {
	for _, addr := range e.Want.State.Addresses() {
		r := e.Want.State[addr]
		switch s := r.Spec.(type) {
		case *objects.Image:
			name := "image " + addr.Name
			switch old := e.have.State[addr]; {
			case old != nil && old.Spec.(*objects.Image).Volume == s.Volume:
				e.ok(name, "on the host already: %s", s.Volume)
			case s.File != "":
				e.file(ctx, name, r, s)
			default:
				e.download(ctx, name, r, s)
			}
		case *proxmox.Template:
			name := "template " + addr.Name
			switch old := e.have.State[addr]; {
			case s.File != "" && old != nil && old.Spec.(*proxmox.Template).File == s.File:
				e.ok(name, "on the host already: %s", s.File)
			case s.File != "":
				e.download(ctx, name, r, s.AsImage())
			case s.Volume != "":
				e.volume(name, r, s)
			}
		}
	}
}

// volume looks whether a container template that is only named lies there.
func (e *exam) volume(name string, r *model.Resource, t *proxmox.Template) {
	storage, _, _ := strings.Cut(t.Volume, ":")
	switch old := e.have.State[r.Addr]; {
	case old == nil:
		e.skip(name, "what is on storage %s cannot be seen", storage)
	case old.Spec.(*proxmox.Template).There != t.There:
		e.fail(name, old.Spec.(*proxmox.Template).There, "containers are unpacked from it; "+askedBy(r, "volume"),
			"on node "+e.host.PVENode()+": pveam list "+storage+"; then correct volume, or: pveam download "+storage+" NAME")
	default:
		e.ok(name, "on the host: %s", t.Volume)
	}
}

func (e *exam) download(ctx context.Context, name string, r *model.Resource, i *objects.Image) {
	var meta struct {
		Size json.RawMessage `json:"size"`
	}
	err := e.d.Client().Get(ctx, api.Path("nodes", e.host.PVENode(), "query-url-metadata")+"?url="+url.QueryEscape(i.URL), &meta)
	switch {
	case err == nil && api.Number(meta.Size) > 0:
		e.ok(name, "the host reaches %s (%d MiB)", i.URL, api.Number(meta.Size)>>20)
	case err == nil:
		e.ok(name, "the host reaches %s", i.URL)
	case api.ClassOf(err) == api.Denied:
		e.skip(name, "only the host can try %s, and the token may not let it", i.URL)
	case api.ClassOf(err) == api.OutcomeUnknown || ctx.Err() != nil:
		e.warn(name, "no answer from the host about "+i.URL, "it is tried again at the download; "+askedBy(r, "url"), "on the host: curl -sSIL "+i.URL)
	default:
		e.fail(name, "the host does not get "+i.URL+": "+messageOf(err), "the host downloads it when the first guest needs it; "+askedBy(r, "url"),
			"on the host: curl -sSIL "+i.URL, "is there a proxy? Datacenter → Options → HTTP proxy")
	}
}

// nested looks for the virtualisation instructions that pve nodes hand on to their
// own guests.
func (e *exam) nested(ctx context.Context) {
	by := askers{}
	for _, addr := range e.Want.State.Addresses() {
		if addr.Kind == "pve" {
			by.add(e.Want.State[addr], "type")
		}
	}
	if len(by) == 0 {
		return
	}
	why := "guests run inside of " + by.String()
	for _, node := range e.host.AllNodes() {
		var status struct {
			CPU struct {
				Flags string `json:"flags"`
			} `json:"cpuinfo"`
		}
		if err := e.d.Client().Get(ctx, api.Path("nodes", node, "status"), &status); err != nil {
			e.unread("nested virtualisation", err)
			continue
		}
		flags := strings.Fields(status.CPU.Flags)
		module := ""
		for flag, m := range map[string]string{"vmx": "kvm_intel", "svm": "kvm_amd"} {
			if slices.Contains(flags, flag) {
				module = m
			}
		}
		if module == "" {
			e.fail("nested virtualisation", "the CPU of node "+node+" shows neither vmx nor svm", why,
				"switch virtualisation on in its firmware; if the node is itself a VM: qm set VMID --cpu host, on its host")
			continue
		}
		e.ok("nested virtualisation", "node %s has it; whether %s hands it on the API does not show: on the node, cat /sys/module/%s/parameters/nested must say Y or 1", node, module, module)
	}
}
