package objects

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Image is a disk image or ISO on a host's storage. Its file name has the prefix homestak and the
// hash of its content, so that new content is a new file, and both can exist while guests are
// created.
type Image struct {
	URL      string   `hcl:"url,optional" plan:"-" doc:"https address from which the host downloads it."`
	Parts    []string `hcl:"parts,optional" plan:"-" doc:"URLs whose contents are joined into the file during the upload. Needs a checksum."`
	File     string   `hcl:"file,optional" plan:"-" doc:"File of the site to upload instead."`
	Checksum string   `hcl:"checksum,optional" plan:"-" doc:"sha256:… of the file, which the host checks."`
	Storage  string   `hcl:"storage,optional" plan:"-" doc:"Storage (default: images or iso in storage of the host)."`
	Format   string   `hcl:"format,optional" plan:"-" doc:"qcow2, raw, vmdk or iso (default: by the extension; .img is qcow2)."`

	Volume string `plan:"volume"` // local:import/homestak.SITE.NAME.HASH.qcow2
}

// ImageKind is the kind image.
var ImageKind = kind.Of[Image]{
	Model: model.Kind{
		Name: "image", Block: "image", Doc: "A disk image or ISO image on the host's storage.", Everywhere: true,
		New: func() any { return &Image{} },
		Resolve: func(r *model.Resource, in model.Scope) []model.Problem {
			return r.Spec.(*Image).Resolve(in)
		},
		Brief: func(want *model.Resource) string {
			i := want.Spec.(*Image)
			return i.origin() + " to " + i.Storage
		},
	},
	List:       listImages,
	Privileges: imageNeeds,
	More:       func(want, have *model.Resource) bool { return want.Spec.(*Image).Volume != have.Spec.(*Image).Volume },
	Create:     func(ctx context.Context, h *kind.Host, s plan.Step, want *Image) error { return want.Create(ctx, h, s) },
	Update: func(ctx context.Context, h *kind.Host, s plan.Step, want, have *Image) error {
		if err := want.Ensure(ctx, h, h.Model.PVENode(), s.Address); err != nil {
			return err
		}
		return RemoveImage(ctx, h, have.Volume)
	},
	Remove: func(ctx context.Context, h *kind.Host, s plan.Step) error {
		if s.Have == nil {
			return RemoveImage(ctx, h, s.Want.Spec.(*Image).Volume)
		}
		return RemoveImage(ctx, h, s.Have.Spec.(*Image).Volume)
	},
}

// ChecksumText is the form of a checksum.
var ChecksumText = regexp.MustCompile(`^sha256:[0-9a-fA-F]{64}$`)

// Resolve completes what the files declare, and checks it.
func (i *Image) Resolve(in model.Scope) []model.Problem {
	var out []model.Problem
	errorf := func(path, summary, detail string) {
		out = append(out, model.Problem{Path: path, Summary: summary, Detail: detail})
	}
	var ways []string
	for _, w := range []struct {
		name string
		set  bool
	}{{"url", i.URL != ""}, {"parts", len(i.Parts) > 0}, {"file", i.File != ""}} {
		if w.set {
			ways = append(ways, w.name)
		}
	}
	switch {
	case len(ways) == 0:
		errorf("", "image without url, parts or file", "say where it comes from: url = \"https://…\", parts = [\"https://…\", …], or file = \"images/…\" within the site")
	case len(ways) > 1:
		errorf(ways[1], "image with both "+ways[0]+" and "+ways[1], "it comes from one of them: remove the other")
	case i.File != "":
		if !fs.ValidPath(i.File) {
			errorf("file", fmt.Sprintf("%q is not a path within the site", i.File), "write it relative to the site's folder, with / and without ..")
		}
	case i.URL != "":
		if !isURL(i.URL) {
			errorf("url", fmt.Sprintf("%q is not a URL", i.URL), "write a URL such as https://cloud.debian.org/images/…")
		}
	}
	for _, part := range i.Parts {
		if !isURL(part) {
			errorf("parts", fmt.Sprintf("%q is not a URL", part), "write a list of URLs, in the order in which they are joined")
		}
	}
	switch {
	case i.Checksum == "" && len(i.Parts) > 0:
		errorf("parts", "parts without checksum", "the checksum verifies what was joined: add checksum = \"sha256:…\" of the whole file")
	case i.Checksum == "":
		out = append(out, model.Problem{
			Severity: diag.Warning, Summary: "image without checksum",
			Detail: "whatever the server sends would be installed: add checksum = \"sha256:…\" from the publisher's list",
		})
	case !ChecksumText.MatchString(i.Checksum):
		errorf("checksum", "checksum is not a sha256", "write sha256: and 64 hex digits")
	}
	i.Format = cmp.Or(i.Format, formatOf(i.origin()))
	if !slices.Contains([]string{"qcow2", "raw", "vmdk", "iso"}, i.Format) {
		errorf("format", fmt.Sprintf("format %q is not valid", i.Format), diag.DidYouMean(i.Format, []string{"qcow2", "raw", "vmdk", "iso"}))
	}
	if i.Storage == "" {
		i.Storage = "local"
		if h := in.Host; h != nil && h.Storage != nil {
			i.Storage = cmp.Or(h.Storage.Images, i.Storage)
			if i.Format == "iso" {
				i.Storage = cmp.Or(h.Storage.ISO, "local")
			}
		}
	}
	i.Volume = fmt.Sprintf("%s:%s/%s", i.Storage, i.Content(), i.FileName(in.Site.Name, in.Name))
	return out
}

// origin is where the image comes from: the first of its parts, as the whole.
func (i *Image) origin() string {
	if len(i.Parts) > 0 {
		return i.Parts[0]
	}
	return cmp.Or(i.URL, i.File)
}

// isURL reports whether a text is the URL of a download.
func isURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != ""
}

// formatOf is the format that a name has an ending of, perhaps before that of a part, as in debian.raw.001.
func formatOf(name string) string {
	if u, err := url.Parse(name); err == nil {
		name = u.Path
	}
	for range 2 {
		ext := path.Ext(name)
		switch ext {
		case ".raw", ".vmdk", ".iso":
			return ext[1:]
		}
		name = strings.TrimSuffix(name, ext)
	}
	return "qcow2" // also .img, as Ubuntu names its qcow2 images
}

// Content is PVE's content type.
func (i *Image) Content() string {
	switch {
	case i.Format == "iso":
		return "iso"
	case slices.Contains(ArchiveEndings, i.Format):
		return "vztmpl"
	default:
		return "import"
	}
}

// FileName is homestak.SITE.NAME.HASH.EXT. Names are DNS labels and so have no dot.
func (i *Image) FileName(site, name string) string {
	hash := i.sum()
	if hash == "" {
		sum := sha256.Sum256([]byte(i.URL + "\n" + i.File)) // parts have a checksum
		hash = hex.EncodeToString(sum[:])
	}
	return strings.Join([]string{owner.PVETag, site, name, hash[:min(12, len(hash))], i.Format}, ".")
}

var fileName = regexp.MustCompile(`^` + owner.PVETag + `\.([^.]+)\.([^.]+)\.[0-9a-f]{12}\.(qcow2|raw|vmdk|iso|tar\.(?:zst|xz|gz|bz2))$`)

// ParseFileName splits the name of a managed file: site, image or template, extension.
func ParseFileName(volid string) (site, name, ending string, ok bool) {
	m := fileName.FindStringSubmatch(path.Base(volid))
	if m == nil {
		return "", "", "", false
	}
	return m[1], m[2], m[3], true
}

// listImages reads the storages that may have images of the site: the wanted ones, and the host's,
// which may have old ones.
func listImages(ctx context.Context, obs *kind.Observation) (model.Observed, error) {
	h := obs.Host
	out := model.Observed{State: model.State{}}
	asked := map[string]bool{}
	for addr, r := range obs.Want.State {
		if i, ok := r.Spec.(*Image); ok && addr.Kind == "image" {
			asked[i.Storage+" "+i.Content()] = true
		}
	}
	def := &Image{}
	def.Resolve(model.Scope{Site: &model.Site{}, Host: obs.Want.Host})
	asked[def.Storage+" import"] = true
	node := h.Model.PVENode()
	if online, known := obs.View.Nodes[node]; !known {
		return out, nil // the view says so already, and knows nothing at all
	} else if !online {
		out.Unknown = append(out.Unknown, model.Unknown{Scope: "images", Why: "node " + node + " is offline", Kind: "image"})
		return out, nil
	}
	for _, p := range slices.Sorted(maps.Keys(asked)) {
		storage, content, _ := strings.Cut(p, " ")
		list, err := obs.Volumes(ctx, api.NodeStorage{Node: node, Storage: storage}, content)
		if err != nil {
			if api.EndsPass(ctx, err) {
				return out, err
			}
			out.Unknown = append(out.Unknown, model.Unknown{Scope: "images on storage " + storage, Why: err.Error(), Kind: "image", Only: imagesOn(obs.Want, storage, content), Denied: api.IsDenied(err)})
			continue
		}
		for _, e := range list {
			volid := api.Text(e["volid"])
			site, name, ending, ok := ParseFileName(volid)
			if !ok || site != h.ID.Site {
				continue
			}
			addr := model.Address{Kind: "image", Name: name}
			wanted := ""
			if r := obs.Want.State[addr]; r != nil {
				wanted = r.Spec.(*Image).Volume
			}
			if old := out.State[addr]; old != nil && !ReportsFirst(volid, old.Spec.(*Image).Volume, wanted) {
				continue
			}
			out.State[addr] = &model.Resource{Addr: addr, Spec: &Image{Storage: storage, Format: ending, Volume: volid}}
		}
	}
	return out, nil
}

// imagesOn are the wanted images of a storage with a content type.
func imagesOn(w *model.Want, storage, content string) []model.Address {
	out := []model.Address{}
	for _, addr := range w.State.Addresses() {
		if i, ok := w.State[addr].Spec.(*Image); ok && i.Storage == storage && i.Content() == content {
			out = append(out, addr)
		}
	}
	return out
}

// ReportsFirst reports whether the first of two contents of one image is reported: an older one
// that was not removed comes before the wanted one, because otherwise it would never be removed.
// Each pass removes one.
func ReportsFirst(volid, than, wanted string) bool {
	return than == wanted || volid != wanted && volid < than
}

// An image is observed on the host's own node only, so that a pass costs the same in a cluster of any size. The copies on
// other nodes follow it: each is made there before the first guest is created from it, and removed before the one on the
// own node. On a shared storage all are one file.

// Ensure fetches a file to a node unless it is there.
func (i *Image) Ensure(ctx context.Context, h *kind.Host, node string, addr model.Address) error {
	done, err := h.Fetches.Take(ctx, node+" "+i.Volume, "the same download to node "+node)
	if err != nil {
		return err
	}
	defer done()
	there, err := hasVolume(ctx, h, node, i)
	switch {
	case err != nil:
		return attempt("looking for "+i.Volume+" on node "+node, err)
	case there:
		return nil
	default:
		return fetch(ctx, h, node, addr, i)
	}
}

// Create fetches a file to the host's own node.
func (i *Image) Create(ctx context.Context, h *kind.Host, s plan.Step) error {
	return fetch(ctx, h, h.Model.PVENode(), s.Address, i)
}

// fetch has a node download the file, or uploads it; the node checks it against the checksum and removes it when it does
// not agree.
func fetch(ctx context.Context, h *kind.Host, node string, addr model.Address, want *Image) error {
	p := api.Params{"content": want.Content(), "filename": path.Base(want.Volume)}
	if want.Checksum != "" {
		p["checksum"], p["checksum-algorithm"] = want.sum(), "sha256"
	}
	to := api.Path("nodes", node, "storage", want.Storage)
	var err error
	switch {
	case want.File != "":
		err = upload(ctx, h, to, want, p)
	default:
		err = download(ctx, h, to, want, p)
	}
	if err == nil {
		return nil
	}
	if there, listErr := hasVolume(ctx, h, node, want); listErr == nil && there && (errors.Is(err, api.ErrOutcomeLost) || strings.Contains(err.Error(), "refusing to override")) {
		return nil
	}
	on := "storage " + want.Storage
	if node != h.Model.PVENode() {
		on += " of node " + node
	}
	return fmt.Errorf("getting %s %s onto %s: %w", addr.Kind, addr.Name, on, err)
}

// sum is the SHA-256 of the content in hex.
func (i *Image) sum() string { return strings.ToLower(strings.TrimPrefix(i.Checksum, "sha256:")) }

// Published is the content, and where it is published.
func (i *Image) Published() images.Image {
	if i.URL != "" {
		return images.Image{Sum: i.sum(), URLs: []string{i.URL}}
	}
	return images.Image{Sum: i.sum(), URLs: i.Parts}
}

// download uploads an image that is near. Else the host downloads it itself, but for one in parts: it downloads one URL only.
func download(ctx context.Context, h *kind.Host, to string, want *Image, fields api.Params) error {
	if f := h.Near.Open(ctx, want.Published()); f != nil {
		err := h.API.Upload(ctx, to+"/upload", fields, f, f.Size)
		_ = f.Close() // only read
		if err == nil || ctx.Err() != nil || f.Err() == nil && errors.Is(err, api.ErrOutcomeLost) {
			return err
		}
	}
	if len(want.Parts) == 0 {
		fields["url"] = want.URL
		return h.API.Do(ctx, to+"/download-url", fields)
	}
	all, err := h.Near.Download(ctx, want.Published())
	if err != nil {
		return err
	}
	defer func() { _ = all.Close() }() // only read
	return h.API.Upload(ctx, to+"/upload", fields, all, all.Size)
}

// hasVolume reports whether there is a whole file of that name: PVE downloads
// under another name and renames it when it is complete and its checksum right
// (pve-common, Tools.pm, download_file_from_url).
func hasVolume(ctx context.Context, h *kind.Host, node string, want *Image) (bool, error) {
	list, err := h.API.ListVolumes(ctx, api.NodeStorage{Node: node, Storage: want.Storage}, want.Content())
	return slices.ContainsFunc(list, func(e map[string]json.RawMessage) bool { return api.Text(e["volid"]) == want.Volume }), err
}

// RemoveImage deletes a managed file on all nodes of the host that are online; a missing one is success. On the own node it
// is deleted last: as long as it is there, the next pass removes the others. A copy on a node that is offline then stays.
func RemoveImage(ctx context.Context, h *kind.Host, volid string) error {
	if _, _, _, ok := ParseFileName(volid); !ok {
		return fmt.Errorf("volume %s does not have a managed name: not changed", volid)
	}
	own := h.Model.PVENode()
	if nodes := h.Model.AllNodes(); len(nodes) > 1 {
		v, err := h.API.ReadView(ctx, h.Model)
		if err != nil {
			return attempt("finding the nodes that have volume "+volid, err)
		}
		for _, node := range nodes {
			_, has := v.Storages[api.NodeStorage{Node: node, Storage: api.StorageOf(volid)}]
			if node == own || !has || !v.Nodes[node] {
				continue
			}
			if err := h.API.FreeVolume(ctx, node, volid); err != nil {
				return attempt("removing volume "+volid+" on node "+node, err)
			}
		}
	}
	return attempt("removing volume "+volid, h.API.FreeVolume(ctx, own, volid))
}

// upload sends a file of the site. PVE wants the text fields first, in the order in
// which it expects them, and the file last, under the name filename, and a length: it
// takes no chunked bodies (pve-http-server, AnyEvent.pm, file_upload_multipart). It is
// streamed and can be cancelled, which the client library's upload cannot.
func upload(ctx context.Context, h *kind.Host, to string, want *Image, fields api.Params) error {
	if h.Files == nil {
		return errors.New("the site's files are not available")
	}
	f, err := h.Files.Open(want.File)
	if err != nil {
		return fmt.Errorf("reading the image: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("reading the image: %w", err)
	}
	return h.API.Upload(ctx, to+"/upload", fields, f, info.Size())
}

func imageNeeds(i *Image, n *kind.Needs) {
	i.UploadNeeds(n)
	if i.File != "" {
		n.Uploads = append(n.Uploads, i.File)
	}
}

// UploadNeeds adds the privileges for an uploaded file on a storage.
func (i *Image) UploadNeeds(n *kind.Needs) {
	n.Uses = append(n.Uses, kind.StorageUse{Storage: i.Storage, Content: i.Content(), GiB: 0, By: n.From, Attr: "storage"})
	path := "/storage/" + i.Storage
	n.Add(kind.Need{Grant: kind.Grant{Path: path, Priv: "Datastore.AllocateTemplate"}, Role: kind.RoleImages, For: "download or upload"}, "")
	n.Add(kind.Need{Grant: kind.Grant{Path: path, Priv: "Datastore.Audit"}, Role: kind.RoleImages, For: "reading it, and creating disks from it"}, "")
	n.Add(kind.Need{Grant: kind.Grant{Path: path, Priv: "Datastore.Allocate"}, Role: kind.RoleImages, For: "removing what is no longer declared"}, "")
	if i.URL != "" {
		for _, node := range n.Host.AllNodes() {
			n.Add(kind.Need{
				Grant: kind.Grant{Path: "/nodes/" + node, Priv: "Sys.AccessNetwork"}, Role: kind.RoleNode, For: "download",
				Or: [][]kind.Grant{{{Path: "/", Priv: "Sys.Audit"}, {Path: "/", Priv: "Sys.Modify"}}},
			}, "url")
		}
	}
}

// ArchiveEndings are the endings of container templates (pve-storage, PVE/Storage.pm).
var ArchiveEndings = []string{"tar.zst", "tar.xz", "tar.gz", "tar.bz2"}

// ImageOf returns the resolved form of a declared image; nil if there is none of that name, which
// the loader has reported.
func ImageOf(in model.Scope, name string) *Image {
	r := in.Site.Objects[model.Address{Kind: "image", Name: name}]
	if r == nil {
		return nil
	}
	i := model.Clone(r.Spec).(*Image)
	i.Resolve(model.Scope{Site: in.Site, Host: in.Host, Name: name})
	return i
}
