package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/removal"
	"github.com/homestak/homestak-gitops/drivers/proxmox/rights"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Template is what a container is unpacked from, or a guest to clone. What is
// downloaded is ours and named like an image, by site, name and content; a volume
// that lies there and a guest that somebody made into a template are looked at and
// never changed.
type Template struct {
	Volume   string `hcl:"volume,optional" plan:"-" doc:"Volume of a container template that lies on the host already, such as local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst; never made or removed."`
	URL      string `hcl:"url,optional" plan:"-" doc:"Where the host downloads a container template from."`
	Checksum string `hcl:"checksum,optional" plan:"-" doc:"sha256:… of the download; checked by the host."`
	VMID     int    `hcl:"vmid,optional" plan:"-" doc:"VMID of the VM or container template to clone; never made or removed unless image is set: then the VMID that the template gets."`
	Image    string `hcl:"image,optional" ref:"image" plan:"-" doc:"Disk image that a VM template is made from; it is recreated when the image has other content."`
	Storage  string `hcl:"storage,optional" plan:"-" doc:"Where a download is kept, the host's images storage unless set; or the disk of a template made from an image, the host's disks storage unless set. It counts when the template is made."`

	Made  string `plan:"made"`                 // from an image: the name of its file, which holds the hash
	File  string `plan:"file"`                 // the download: local:vztmpl/homestak.SITE.NAME.HASH.tar.zst
	There string `plan:"there" cost:"replace"` // of what is only looked at: what it shall be, or is

	tag          owner.Tag // of one made from an image: wanted without identity; observed as found
	volume       string    // wanted: the image's volume
	clones       []clone   // observed: what stands on its disk
	unobservable error     // observed: why that cannot be seen
}

var templateKind = kind.Of[Template]{
	Model: model.Kind{
		Name: "template", Block: "template", Doc: "What a container is made from, or a VM or container template to clone.", Everywhere: true,
		New: func() any { return &Template{} },
		Resolve: func(r *model.Resource, in model.Scope) []model.Problem {
			return r.Spec.(*Template).resolve(in)
		},
		VMID: func(spec any) int {
			if t := spec.(*Template); t.Image != "" {
				return t.VMID
			}
			return 0
		},
		Note: func(_, have *model.Resource, _ []string) string {
			if have.Guest == nil || have.Spec.(*Template).unfinished() {
				return ""
			}
			return "the template is removed and recreated; guests that were copied from it stay as they are"
		},
		Refuse: func(want, have *model.Resource) []model.Problem {
			if have.Guest != nil {
				return have.Spec.(*Template).refuse(want)
			}
			if want == nil || want.Spec.(*Template).There == have.Spec.(*Template).There {
				return nil
			}
			return []model.Problem{{
				Path:    pick(want.Spec.(*Template).VMID != 0, "vmid", "volume"),
				Summary: fmt.Sprintf("it names %s, and there is %s", want.Spec.(*Template).There, have.Spec.(*Template).There),
				Not:     "not usable",
				Detail:  "what a template names by volume or vmid is never made here: make it on the host, or name another",
			}}
		},
		Brief: func(want *model.Resource) string {
			t := want.Spec.(*Template)
			switch {
			case t.Image != "":
				return "from " + t.Image + " on " + t.Storage
			case t.URL != "":
				return t.URL + " to " + t.Storage
			default:
				return t.There
			}
		},
	},
	List: listTemplates,
	Create: func(ctx context.Context, h *kind.Host, s plan.Step, want *Template) error {
		return createTemplate(ctx, worker{h}, s, want)
	},
	Update: func(ctx context.Context, h *kind.Host, s plan.Step, want, have *Template) error {
		if s.Have.Guest != nil || want.Image != "" {
			return remakeTemplate(ctx, worker{h}, s, want, have)
		}
		if want.File != "" {
			if err := objects.EnsureImage(ctx, h, s, want.AsImage()); err != nil {
				return err
			}
		}
		return removeTemplate(ctx, worker{h}, have)
	},
	Before: func(ctx context.Context, h *kind.Host, s plan.Step) (plan.Step, error) {
		return worker{h}.undisturbed(ctx, s)
	},
	Remove:     func(ctx context.Context, h *kind.Host, s plan.Step) error { return leaveTemplate(ctx, worker{h}, s) },
	Privileges: templateNeeds,
	Requests: func(want, have *model.Resource) bool {
		w, h := want.Spec.(*Template), have.Spec.(*Template)
		return w.File != h.File || w.Made != h.Made
	},
}

func createTemplate(ctx context.Context, d worker, s plan.Step, want *Template) error {
	if want.Image != "" {
		return makeTemplate(ctx, d, s, want)
	}
	return objects.CreateImage(ctx, d.Host, s, want.AsImage())
}

// leaveTemplate removes what we made: a machine that became a template, or a download.
func leaveTemplate(ctx context.Context, d worker, s plan.Step) error {
	r := s.Have
	if r == nil {
		r = s.Want
	}
	if r.Guest != nil {
		return removal.Guest(ctx, d.Host, s)
	}
	return removeTemplate(ctx, d, r.Spec.(*Template))
}

// removeTemplate deletes a download; what was never ours stays.
func removeTemplate(ctx context.Context, d worker, t *Template) error {
	if t.File == "" {
		return nil
	}
	return objects.RemoveVolume(ctx, d.Host, d.Model.PVENode(), t.File)
}

// templateOf gives the complete form of a declared template; an empty one if there
// is none of that name, which the loader has told already.
func templateOf(in model.Scope, name string) *Template {
	r := in.Site.Objects[model.Address{Kind: "template", Name: name}]
	if r == nil {
		return &Template{}
	}
	t := model.Clone(r.Spec).(*Template)
	t.resolve(model.Scope{Site: in.Site, Host: in.Host, Name: name})
	return t
}

func (t *Template) resolve(in model.Scope) []model.Problem {
	var out []model.Problem
	ways := 0
	for _, set := range []bool{t.Volume != "", t.URL != "", t.Image != "", t.VMID != 0 && t.Image == ""} {
		if set {
			ways++
		}
	}
	if ways != 1 {
		return append(out, model.Problem{
			Summary: fmt.Sprintf("template %q does not say what it is", in.Name),
			Detail:  "Exactly one of these must be set: volume or url for a container template, image (with vmid) for a VM template to make, vmid alone for a VM or container template to clone.",
		})
	}
	if t.Checksum != "" && !objects.ChecksumText.MatchString(t.Checksum) {
		out = append(out, model.Problem{Path: "checksum", Summary: "checksum is not a sha256", Detail: "write sha256: and 64 hex digits"})
	}
	if t.Image != "" {
		return append(out, t.fromImage(in)...)
	}
	storage := "local"
	if h := in.Host; h != nil && h.Storage != nil {
		storage = cmp.Or(h.Storage.Images, storage)
	}
	t.Storage = cmp.Or(t.Storage, storage)
	switch {
	case t.VMID != 0:
		t.There = fmt.Sprintf("template %d", t.VMID)
	case t.Volume != "":
		if s, name, ok := strings.Cut(t.Volume, ":"); !ok || s == "" || !strings.HasPrefix(name, "vztmpl/") {
			out = append(out, model.Problem{Path: "volume", Summary: fmt.Sprintf("%q is not a volume of a container template", t.Volume), Detail: "write STORAGE:vztmpl/NAME, as `pveam list STORAGE` shows it"})
		}
		t.There = "volume " + t.Volume
	default:
		out = append(out, t.download(in)...)
	}
	return out
}

// download names the file that a download becomes.
func (t *Template) download(in model.Scope) []model.Problem {
	var out []model.Problem
	if u, err := url.Parse(t.URL); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		out = append(out, model.Problem{Path: "url", Summary: fmt.Sprintf("%q is no URL", t.URL), Detail: "write a URL such as http://download.proxmox.com/images/system/…"})
	}
	if objects.ArchiveEnding(t.URL) == "" {
		out = append(out, model.Problem{Path: "url", Summary: "the URL names no container template", Detail: "its path must end with " + strings.Join(objects.ArchiveEndings, ", ") + ", which is how PVE knows one"})
	}
	if t.Checksum == "" {
		out = append(out, model.Problem{
			Severity: diag.Warning, Summary: fmt.Sprintf("template %q has no checksum", in.Name),
			Detail: "What is downloaded cannot be verified: add checksum = \"sha256:…\".",
		})
	}
	i := &objects.Image{URL: t.URL, Checksum: t.Checksum, Storage: t.Storage, Format: objects.ArchiveEnding(t.URL)}
	t.File = fmt.Sprintf("%s:%s/%s", t.Storage, i.Content(), i.FileName(in.Site.Name, in.Name))
	return out
}

// AsImage is the download as the code for images takes it.
func (t *Template) AsImage() *objects.Image {
	return &objects.Image{URL: t.URL, Checksum: t.Checksum, Storage: t.Storage, Format: objects.ArchiveEnding(t.File), Volume: t.File}
}

// unpacked is the volume that a container is made from; "" for a guest to clone.
func (t *Template) unpacked() string { return cmp.Or(t.Volume, t.File) }

// listTemplates finds our downloads, be they wanted or left over, and looks whether
// what the wanted ones only name is there.
func listTemplates(ctx context.Context, obs *kind.Observation) (model.Observed, error) {
	d := worker{obs.Host}
	out := model.Observed{State: model.State{}}
	online, known := obs.View.Nodes[d.Model.PVENode()]
	switch {
	case !known:
		return out, nil // the view says so already, and knows nothing at all
	case !online:
		out.Unknown = append(out.Unknown, model.Unknown{Scope: "templates", Why: "node " + d.Model.PVENode() + " is offline", Kind: "template"})
		return out, nil
	}
	def := &Template{VMID: 1}
	def.resolve(model.Scope{Site: &model.Site{}, Host: obs.Want.Host})
	storages := map[string]bool{def.Storage: false}
	wanted := map[model.Address]*Template{}
	for addr, r := range obs.Want.State {
		if t, ok := r.Spec.(*Template); ok {
			wanted[addr] = t
			if s := property.StorageOf(t.unpacked()); s != "" {
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
			continue // the default storage of a site without templates need not be there
		default:
			only := []model.Address{}
			for _, addr := range slices.SortedFunc(maps.Keys(wanted), model.Address.Compare) {
				if property.StorageOf(wanted[addr].unpacked()) == storage {
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
		if t.There == "" { // downloaded, or made from an image
			continue
		}
		seen, err := d.readDeclared(ctx, obs, addr, t, there)
		if err != nil {
			return out, err
		}
		old := ""
		if r := out.State[addr]; r != nil {
			old = r.Spec.(*Template).File
		}
		out.State[addr] = &model.Resource{Addr: addr, Spec: &Template{File: old, There: seen}}
	}
	return out, nil
}

// keepDownload notes a volume that is a download of ours.
func keepDownload(state model.State, site, volid string, wanted map[model.Address]*Template) {
	of, name, _, ok := objects.ParseFileName(volid)
	if !ok || of != site {
		return
	}
	addr := model.Address{Kind: "template", Name: name}
	file := ""
	if t := wanted[addr]; t != nil {
		file = t.File
	}
	if old := state[addr]; old != nil && !objects.ReportsFirst(volid, old.Spec.(*Template).File, file) {
		return
	}
	state[addr] = &model.Resource{Addr: addr, Spec: &Template{File: volid}}
}

// archivesOn lists the container templates on a storage.
func (d worker) archivesOn(ctx context.Context, obs *kind.Observation, storage string) ([]string, error) {
	list, err := obs.Volumes(ctx, view.NodeStorage{Node: d.Model.PVENode(), Storage: storage}, "vztmpl")
	var out []string
	for _, e := range list {
		out = append(out, api.Text(e["volid"]))
	}
	return out, err
}

// readDeclared says what there is of a template that is only named, in the words of
// Template.There: those of the wanted one if it is as it must be.
func (d worker) readDeclared(ctx context.Context, obs *kind.Observation, addr model.Address, t *Template, there map[string]bool) (string, error) {
	if t.VMID == 0 {
		if there[t.Volume] {
			return t.There, nil
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
		return t.There, nil // nobody can clone it now, and nobody can say that it is gone
	}
	for _, r := range obs.Want.State {
		if r.Guest != nil && slices.Contains(r.Needs, addr) && (r.Addr.Kind == "ct") != g.LXC {
			return fmt.Sprintf("%s, of which %s cannot be a clone", g.Ref(), r.Addr), nil
		}
	}
	cfg, err := view.ReadConfig(ctx, d.API, g.Ref())
	switch {
	case api.EndsPass(ctx, err):
		return "", err
	case err != nil:
		return t.There, nil //nolint:nilerr // it is there; that it cannot be read now will show when it is cloned
	case cfg.Now["template"] != "1":
		return fmt.Sprintf("%s, which is not a template", g.Ref()), nil
	default:
		return t.There, nil
	}
}

// ClonedFrom is the VMID of the template that a guest is cloned from, where it is there
// already and is not made here; 0 for none. lxc says that it is one of containers.
func ClonedFrom(want *model.Resource) (vmid int, lxc bool) {
	g := targetOf(want)
	if g == nil || g.common().templateOurs {
		return 0, false
	}
	return g.common().templateVMID, g.common().lxc
}

// templateNeeds: what is only named must be seen, what is downloaded is a file like
// an image.
func templateNeeds(t *Template, n *rights.Needs) {
	switch {
	case t.Image != "":
		n.Guest("VM.Allocate", "image", "making and removing the template")
		for _, priv := range []string{"VM.Config.CPU", "VM.Config.Memory", "VM.Config.Options", "VM.Config.HWType", "VM.Config.Disk"} {
			n.Guest(priv, "image", "the machine that becomes the template")
		}
		n.Disk(t.Storage, "images", 0, "storage", "the disk of the template")
	case t.VMID != 0:
		n.Add(rights.Need{Grant: rights.Grant{Path: fmt.Sprintf("/vms/%d", t.VMID), Priv: "VM.Audit"}, Role: rights.RoleTemplates, For: "seeing the template"}, "vmid")
	case t.Volume != "":
		storage := property.StorageOf(t.Volume)
		path := "/storage/" + storage
		n.Uses = append(n.Uses, rights.Use{Storage: storage, Content: "vztmpl", GiB: 0, By: n.From, Attr: "volume"})
		n.Add(rights.Need{
			Grant: rights.Grant{Path: path, Priv: "Datastore.Audit"}, Role: rights.RoleImages, For: "seeing the volume, and unpacking it",
			Or: [][]rights.Grant{{{Path: path, Priv: "Datastore.AllocateSpace"}}},
		}, "volume")
	default:
		objects.UploadNeeds(n, t.AsImage())
	}
}
