package doctor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	imagefiles "github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/model"
)

// images checks the files that the site puts onto the host: disk images, ISO images and
// container templates.
type images struct {
	*subject
	guests *guests
	files  fs.FS            // the site's; nil if they are not available
	near   *imagefiles.Near // of downloads by this machine
}

// check compares the files of the site with their checksums, and lets the host check the URLs of
// its downloads. Container templates that are files are checked in the same way.
func (i *images) check(ctx context.Context) {
	for _, addr := range i.want.State.Addresses() {
		r := i.want.State[addr]
		switch s := r.Spec.(type) {
		case *objects.Image:
			name := "image " + addr.Name
			switch old := i.guests.have.State[addr]; {
			case old != nil && old.Spec.(*objects.Image).Volume == s.Volume:
				i.ok(name, "on the host already: %s", s.Volume)
			case s.File != "":
				i.file(ctx, name, r, s)
			case len(s.Parts) > 0:
				i.parts(ctx, name, r, s)
			default:
				i.download(ctx, name, r, s)
			}
		case *guest.Template:
			name := "template " + addr.Name
			switch old := i.guests.have.State[addr]; {
			case s.File != "" && old != nil && old.Spec.(*guest.Template).File == s.File:
				i.ok(name, "on the host already: %s", s.File)
			case s.File != "":
				i.download(ctx, name, r, s.AsImage())
			case s.Volume != "":
				i.volume(name, r, s)
			}
		}
	}
}

// volume checks whether a container template that is only named is on its storage.
func (i *images) volume(name string, r *model.Resource, t *guest.Template) {
	storage, _, _ := strings.Cut(t.Volume, ":")
	switch old := i.guests.have.State[r.Addr]; {
	case old == nil:
		i.skip(name, "the content of storage %s cannot be read", storage)
	case old.Spec.(*guest.Template).Named != t.Named:
		i.fail(name, old.Spec.(*guest.Template).Named, "containers are unpacked from it; "+askedBy(r, "volume"),
			"on node "+i.host.PVENode()+": pveam list "+storage+"; then correct volume, or: pveam download "+storage+" NAME")
	default:
		i.ok(name, "on the host: %s", t.Volume)
	}
}

func (i *images) download(ctx context.Context, name string, r *model.Resource, image *objects.Image) {
	var meta struct {
		Size json.RawMessage `json:"size"`
	}
	err := i.client().Get(ctx, api.Path("nodes", i.host.PVENode(), "query-url-metadata")+"?url="+url.QueryEscape(image.URL), &meta)
	switch {
	case err == nil && api.Number(meta.Size) > 0:
		i.ok(name, "the host reaches %s (%d MiB)", image.URL, api.Number(meta.Size)>>20)
	case err == nil:
		i.ok(name, "the host reaches %s", image.URL)
	case api.ClassOf(err) == api.Denied:
		i.skip(name, "only the host can check %s, and the token does not allow it", image.URL)
	case api.ClassOf(err) == api.OutcomeUnknown || ctx.Err() != nil:
		i.warn(name, "no answer from the host about "+image.URL, "the download tries again; "+askedBy(r, "url"), "on the host: curl -sSIL "+image.URL)
	default:
		i.fail(name, "the host cannot fetch "+image.URL+": "+messageOf(err), "the host downloads it when the first guest needs it; "+askedBy(r, "url"),
			"on the host: curl -sSIL "+image.URL, "is there a proxy? Datacenter → Options → HTTP proxy")
	}
}

// parts asks from this machine, which downloads them.
func (i *images) parts(ctx context.Context, name string, r *model.Resource, image *objects.Image) {
	switch all, err := i.near.Download(ctx, image.Published()); {
	case err == nil:
		i.ok(name, "this machine reaches its %d parts (%d MiB)", len(image.Parts), all.Size>>20)
	case ctx.Err() != nil:
		i.skip(name, "its servers do not answer; the download tries again")
	default:
		i.fail(name, "this machine cannot fetch the parts: "+err.Error(), "it joins and uploads them when the first guest needs the image; "+askedBy(r, "parts"), "curl -sSIL URL, for each of them")
	}
}

// file compares a file of the site with its checksum.
func (i *images) file(ctx context.Context, name string, r *model.Resource, image *objects.Image) {
	if i.files == nil {
		i.skip(name, "the site's files are not available")
		return
	}
	why := "it is uploaded to the host; " + askedBy(r, "file")
	sum, size, err := checksum(ctx, i.files, image.File)
	want := strings.ToLower(strings.TrimPrefix(image.Checksum, "sha256:"))
	switch {
	case ctx.Err() != nil:
		i.skip(name, "reading %s takes too long; its checksum is compared at the upload", image.File)
	case err != nil:
		i.fail(name, err.Error(), why, "put the file into the site, or correct file")
	case want == "":
		i.ok(name, "%s is in the site, %d MiB", image.File, size>>20)
	case want != sum:
		i.fail(name, image.File+" has a different checksum than the site declares", why, fmt.Sprintf("checksum = %q    # if this is the file that is meant", "sha256:"+sum))
	default:
		i.ok(name, "%s has its checksum, %d MiB", image.File, size>>20)
	}
}

// checksum hashes a file, until its context ends.
func checksum(ctx context.Context, files fs.FS, name string) (sum string, size int64, err error) {
	f, err := files.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	for {
		n, err := io.CopyN(h, f, 16<<20)
		size += n
		switch {
		case errors.Is(err, io.EOF):
			return hex.EncodeToString(h.Sum(nil)), size, nil
		case err != nil:
			return "", size, err
		case ctx.Err() != nil:
			return "", size, ctx.Err()
		}
	}
}
