package guest

// Container templates, and guests to clone: declared and observed.

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Template is a container template, or a guest to clone. A download is managed and named like an
// image, by site, name and content. An existing volume or guest is only named: it is checked and
// never changed.
type Template struct {
	Volume   string `hcl:"volume,optional" plan:"-" doc:"Existing container template, such as local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst; never created or removed."`
	URL      string `hcl:"url,optional" plan:"-" doc:"Address from which the host downloads a container template."`
	Checksum string `hcl:"checksum,optional" plan:"-" doc:"sha256:… of the file, which the host checks."`
	VMID     int    `hcl:"vmid,optional" plan:"-" doc:"VMID of an existing template to clone, never created or removed; with image, of the new template."`
	Image    string `hcl:"image,optional" ref:"image" plan:"-" doc:"Disk image that a VM template is made from, again when the content changes."`
	Storage  string `hcl:"storage,optional" plan:"-" doc:"Storage of the download, or of the disk from image (default: images or disks in storage of the host). Used at creation only."`

	Made  string `plan:"made"`                 // from an image: the name of the image's file, which has its hash
	File  string `plan:"file"`                 // the download: local:vztmpl/homestak.SITE.NAME.HASH.tar.zst
	Named string `plan:"there" cost:"replace"` // only named: what it must be, or is

	Tag          owner.Tag       // from an image: wanted without identity; observed as found
	DiskVolume   string          // wanted: the image's volume; observed: its disk's
	Clones       []TemplateClone // observed: the guests whose disks are based on its disk
	Unobservable error           // observed: why the clones cannot be seen; nil if they can
}

// TemplateSchema is the kind template.
func TemplateSchema() model.Kind {
	return model.Kind{
		Name: "template", Block: "template", Doc: "What a container is made from, or a VM or container template to clone.", Everywhere: true,
		New: func() any { return &Template{} },
		Resolve: func(r *model.Resource, in model.Scope) []model.Problem {
			return r.Spec.(*Template).Resolve(in)
		},
		VMID: func(spec any) int {
			if t := spec.(*Template); t.Image != "" {
				return t.VMID
			}
			return 0
		},
		Note: func(_, have *model.Resource, _ []string) string {
			if have.Guest == nil || have.Spec.(*Template).IsUnconverted() {
				return ""
			}
			return "the template is removed and recreated; guests that were copied from it stay as they are"
		},
		Refuse: func(want, have *model.Resource) []model.Problem {
			if have.Guest != nil {
				return have.Spec.(*Template).refuse(want)
			}
			if want == nil || want.Spec.(*Template).Named == have.Spec.(*Template).Named {
				return nil
			}
			path := "volume"
			if want.Spec.(*Template).VMID != 0 {
				path = "vmid"
			}
			return []model.Problem{{
				Path:    path,
				Summary: fmt.Sprintf("it names %s, and there is %s", want.Spec.(*Template).Named, have.Spec.(*Template).Named),
				Not:     "not usable",
				Detail:  "a template given by volume or vmid is never created here: create it on the host, or name another",
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
				return t.Named
			}
		},
	}
}

// Resolve completes what the files declare, and checks it.
func (t *Template) Resolve(in model.Scope) []model.Problem {
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
		t.Named = fmt.Sprintf("template %d", t.VMID)
	case t.Volume != "":
		if s, name, ok := strings.Cut(t.Volume, ":"); !ok || s == "" || !strings.HasPrefix(name, "vztmpl/") {
			out = append(out, model.Problem{Path: "volume", Summary: fmt.Sprintf("%q is not a volume of a container template", t.Volume), Detail: "write STORAGE:vztmpl/NAME, as `pveam list STORAGE` shows it"})
		}
		t.Named = "volume " + t.Volume
	default:
		out = append(out, t.download(in)...)
	}
	return out
}

// download sets the file name of a download.
func (t *Template) download(in model.Scope) []model.Problem {
	var out []model.Problem
	if u, err := url.Parse(t.URL); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		out = append(out, model.Problem{Path: "url", Summary: fmt.Sprintf("%q is not a URL", t.URL), Detail: "write a URL such as http://download.proxmox.com/images/system/…"})
	}
	if archiveEnding(t.URL) == "" {
		out = append(out, model.Problem{Path: "url", Summary: "the URL is not that of a container template", Detail: "its path must end with " + strings.Join(objects.ArchiveEndings, ", ") + ", or PVE does not recognise it"})
	}
	if t.Checksum == "" {
		out = append(out, model.Problem{
			Severity: diag.Warning, Summary: fmt.Sprintf("template %q has no checksum", in.Name),
			Detail: "The download cannot be verified: add checksum = \"sha256:…\".",
		})
	}
	i := &objects.Image{URL: t.URL, Checksum: t.Checksum, Storage: t.Storage, Format: archiveEnding(t.URL)}
	t.File = fmt.Sprintf("%s:%s/%s", t.Storage, i.Content(), i.FileName(in.Site.Name, in.Name))
	return out
}

// AsImage is the download as an image.
func (t *Template) AsImage() *objects.Image {
	return &objects.Image{URL: t.URL, Checksum: t.Checksum, Storage: t.Storage, Format: archiveEnding(t.File), Volume: t.File}
}

// Published is the content of a download, and where it is published.
func (t *Template) Published() images.Image { return t.AsImage().Published() }

// Archive is the volume that a container is unpacked from; "" for a guest to clone.
func (t *Template) Archive() string { return cmp.Or(t.Volume, t.File) }

// archiveEnding is the ending by which a URL or file name is a container template; "" if it is
// not one.
func archiveEnding(name string) string {
	if u, err := url.Parse(name); err == nil && u.Scheme != "" {
		name = cmp.Or(u.Path, name)
	}
	for _, a := range objects.ArchiveEndings {
		if strings.HasSuffix(name, "."+a) {
			return a
		}
	}
	return ""
}
