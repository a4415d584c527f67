package inventory

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Templates finds the downloads of this site, wanted or not, and checks whether the volumes and
// guests exist that templates only name.
func Templates(ctx context.Context, obs *kind.Observation) (model.Observed, error) {
	d := finder{obs.Host}
	out := model.Observed{State: model.State{}}
	online, known := obs.View.Nodes[d.Model.PVENode()]
	switch {
	case !known:
		return out, nil // the view reports that it could not list the nodes
	case !online:
		out.Unknown = append(out.Unknown, model.Unknown{Scope: "templates", Why: "node " + d.Model.PVENode() + " is offline", Kind: "template"})
		return out, nil
	}
	def := &guest.Template{VMID: 1}
	def.Resolve(model.Scope{Site: &model.Site{}, Host: obs.Want.Host})
	storages := map[string]bool{def.Storage: false}
	wanted := map[model.Address]*guest.Template{}
	for addr, r := range obs.Want.State {
		if t, ok := r.Spec.(*guest.Template); ok {
			wanted[addr] = t
			if s := api.StorageOf(t.Archive()); s != "" {
				storages[s] = true
			}
		}
	}
	there := map[string]bool{}
	for _, storage := range slices.Sorted(maps.Keys(storages)) {
		volumes, err := d.archivesOn(ctx, obs, storage)
		switch {
		case err == nil:
		case api.EndsPass(ctx, err):
			return out, err
		case !storages[storage] && len(wanted) == 0 && api.ClassOf(err) != api.OutcomeUnknown:
			continue // a site without templates does not need the default storage
		default:
			only := []model.Address{}
			for _, addr := range slices.SortedFunc(maps.Keys(wanted), model.Address.Compare) {
				if api.StorageOf(wanted[addr].Archive()) == storage {
					only = append(only, addr)
				}
			}
			out.Unknown = append(out.Unknown, model.Unknown{Scope: "templates on storage " + storage, Why: err.Error(), Kind: "template", Only: only, Denied: api.IsDenied(err)})
			continue
		}
		for _, volid := range volumes {
			there[volid] = true
			keepDownload(out.State, d.ID.Site, volid, wanted)
		}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(wanted), model.Address.Compare) {
		t := wanted[addr]
		if t.Named == "" { // downloaded, or made from an image
			continue
		}
		seen, err := d.checkNamed(ctx, obs, addr, t, there)
		if err != nil {
			return out, err
		}
		old := ""
		if r := out.State[addr]; r != nil {
			old = r.Spec.(*guest.Template).File
		}
		out.State[addr] = &model.Resource{Addr: addr, Spec: &guest.Template{File: old, Named: seen}}
	}
	return out, nil
}

// keepDownload adds a volume to state if it is a download of this site.
func keepDownload(state model.State, site, volid string, wanted map[model.Address]*guest.Template) {
	of, name, _, ok := objects.ParseFileName(volid)
	if !ok || of != site {
		return
	}
	addr := model.Address{Kind: "template", Name: name}
	file := ""
	if t := wanted[addr]; t != nil {
		file = t.File
	}
	if old := state[addr]; old != nil && !objects.ReportsFirst(volid, old.Spec.(*guest.Template).File, file) {
		return
	}
	state[addr] = &model.Resource{Addr: addr, Spec: &guest.Template{File: volid}}
}

// archivesOn lists the container templates on a storage.
func (d finder) archivesOn(ctx context.Context, obs *kind.Observation, storage string) ([]string, error) {
	list, err := obs.Volumes(ctx, api.NodeStorage{Node: d.Model.PVENode(), Storage: storage}, "vztmpl")
	var out []string
	for _, e := range list {
		out = append(out, api.Text(e["volid"]))
	}
	return out, err
}

// checkNamed says what exists of a template that is only named, in the words of Template.Named:
// that text itself if it is as wanted.
func (d finder) checkNamed(ctx context.Context, obs *kind.Observation, addr model.Address, t *guest.Template, there map[string]bool) (string, error) {
	if t.VMID == 0 {
		if there[t.Volume] {
			return t.Named, nil
		}
		return "no such volume on " + d.Model.PVENode(), nil
	}
	g, ok := obs.View.Guests[t.VMID]
	switch {
	case !ok && obs.View.LimitedVisibility:
		return fmt.Sprintf("no guest %d that the token may see", t.VMID), nil
	case !ok:
		return fmt.Sprintf("no guest %d", t.VMID), nil
	case !obs.View.Nodes[g.Node]:
		return t.Named, nil // it cannot be cloned now, but may exist
	}
	for _, r := range obs.Want.State {
		if r.Guest != nil && slices.Contains(r.Needs, addr) && (r.Addr.Kind == "ct") != g.LXC {
			return fmt.Sprintf("%s, of which %s cannot be a clone", g.Ref(), r.Addr), nil
		}
	}
	cfg, err := d.API.ReadConfig(ctx, g.Ref())
	switch {
	case api.EndsPass(ctx, err):
		return "", err
	case err != nil:
		return t.Named, nil //nolint:nilerr // it exists; a clone shows whether it can be read
	case cfg.Now["template"] != "1":
		return fmt.Sprintf("%s, which is not a template", g.Ref()), nil
	default:
		return t.Named, nil
	}
}
