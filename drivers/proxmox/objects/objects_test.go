package objects_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// declaredObjects are what files declare beside guests: pools, images and templates by name.
type declaredObjects struct {
	pools     map[string]string // their comments
	images    map[string]objects.Image
	templates map[string]guest.Template
}

// uploaded is what the site's own image files hold, so that no checksum is wrong.
var uploaded = fstest.MapFS{"images/one.qcow2": {Data: []byte("QFI\xfb\x00\x00\x00\x03 one")}, "images/two.raw": {Data: []byte("two")}}

// drawObjects draws what the files may say of them. What only lies on the host, a
// volume and a template of an administrator, is named by some of the templates.
func drawObjects(rt *rapid.T, when string) declaredObjects {
	o := declaredObjects{map[string]string{}, map[string]objects.Image{}, map[string]guest.Template{}}
	flip := func(label string) bool { return rapid.Bool().Draw(rt, when+label) }
	pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(rt, when+label) }
	sum := func(label string) string {
		return pick(label, "", "sha256:"+strings.Repeat("ab", 32), "sha256:"+strings.Repeat("CD", 32))
	}
	for _, name := range []string{"prod", "lab"} {
		if flip("pool " + name) {
			o.pools[name] = pick("comment", "", "what pays", "ends in space \n", "a\n\nb ü 100%")
		}
	}
	for _, name := range []string{"debian-12", "alpine", "own"} {
		if !flip("image " + name) {
			continue
		}
		i := objects.Image{Storage: pick("storage", "", "local", "nas"), Checksum: sum("checksum")}
		if i.File = pick("file", "", "images/one.qcow2", "images/two.raw"); i.File != "" {
			i.Checksum = ""
		} else {
			i.URL = "https://images.test/" + name + pick("ending", ".qcow2", ".raw", ".img", ".iso", "-2.qcow2")
			i.Format = pick("format", "", "vmdk")
		}
		o.images[name] = i
	}
	for _, name := range []string{"golden", "rootfs", "other"} {
		switch pick("template "+name, "none", "volume", "vmid", "download") {
		case "volume":
			o.templates[name] = guest.Template{Volume: "local:vztmpl/by-hand.tar.zst"}
		case "vmid":
			o.templates[name] = guest.Template{VMID: 8000}
		case "download":
			o.templates[name] = guest.Template{
				URL: "https://images.test/" + name + pick("archive", ".tar.zst", ".tar.gz"), Checksum: sum("archive checksum"), Storage: pick("shelf", "", "nas"),
			}
		}
	}
	if from := pick("made from", append(slices.Sorted(maps.Keys(o.images)), "")...); from != "" {
		if i := o.images[from]; !strings.HasSuffix(i.URL, ".iso") || i.Format != "" {
			o.templates["made"] = guest.Template{Image: from, VMID: 9100}
		}
	}
	return o
}

// declare puts them into a site, where a guest needs them all: what nothing needs
// would stay away from the host.
func (o declaredObjects) declare(w *proxmoxtest.World) {
	n := w.Site.Manifests["web"].Nodes[0]
	n.Resource.Needs = nil
	w.Site.Objects = model.State{}
	add := func(kind, name string, spec any, needs ...model.Address) {
		a := model.Address{Kind: kind, Name: name}
		w.Site.Objects[a] = &model.Resource{Addr: a, Spec: spec, Needs: needs}
		if kind != "pool" {
			n.Resource.Needs = append(n.Resource.Needs, a)
		}
	}
	for name, comment := range o.pools {
		add("pool", name, &objects.Pool{Host: "father", Comment: comment})
	}
	for name, i := range o.images {
		add("image", name, &i)
	}
	for name, t := range o.templates {
		if t.Image != "" {
			add("template", name, &t, model.Address{Kind: "image", Name: t.Image})
		} else {
			add("template", name, &t)
		}
	}
	// These make the driver list every storage; where an image lay on a storage that
	// no image of the files names any more is not looked at.
	for _, storage := range []string{"local", "nas"} {
		add("image", "anchor-"+storage, &objects.Image{URL: "https://images.test/anchor.qcow2", Storage: storage})
		add("image", "anchor-iso-"+storage, &objects.Image{URL: "https://images.test/anchor.iso", Storage: storage})
		add("template", "anchor-"+storage, &guest.Template{URL: "https://images.test/anchor.tar.zst", Storage: storage})
	}
}

// files are the volumes that images and downloads are, by kind and name: STORAGE:CONTENT/NAME
// without the hash, and what the hash is of.
func (o declaredObjects) files() map[string][2]string {
	out := map[string][2]string{}
	for name, i := range o.images {
		format, content := i.Format, "import"
		if format == "" {
			format = strings.ReplaceAll(strings.TrimPrefix(path.Ext(i.URL+i.File), "."), "img", "qcow2")
		}
		if format == "iso" {
			content = "iso"
		}
		out["image "+name] = [2]string{storageOr(i.Storage) + ":" + content + "/homestak.home." + name + ".*." + format, contentOf(i.Checksum, i.URL+i.File)}
	}
	for name, t := range o.templates {
		if t.URL != "" {
			_, archive, _ := strings.Cut(t.URL, ".tar.")
			out["template "+name] = [2]string{storageOr(t.Storage) + ":vztmpl/homestak.home." + name + ".*.tar." + archive, contentOf(t.Checksum, t.URL)}
		}
	}
	return out
}

func storageOr(s string) string { return cmp.Or(s, "local") }

func contentOf(checksum, from string) string { return strings.ToLower(cmp.Or(checksum, from)) }

// becoming are the writes that make these objects of others, with * for a hash.
func (o declaredObjects) becoming(was declaredObjects) []string {
	var out []string
	writes := func(how string, args ...any) { out = append(out, fmt.Sprintf(how, args...)) }
	for name, comment := range o.pools {
		before, there := was.pools[name]
		switch {
		case !there:
			writes("POST /pools %s", name)
		case strings.TrimSpace(before) != strings.TrimSpace(comment):
			writes("PUT /pools/%s", name)
		}
	}
	for name := range was.pools {
		if _, stays := o.pools[name]; !stays {
			writes("DELETE /pools/%s", name)
		}
	}
	is, were := o.files(), was.files()
	for name, file := range is {
		if were[name] != file {
			storage, rest, _ := strings.Cut(file[0], ":")
			how := "download-url"
			if kind, image, _ := strings.Cut(name, " "); kind == "image" && o.images[image].File != "" {
				how = "upload"
			}
			if how == "upload" {
				rest = "" // what is uploaded is not recorded
			}
			writes("POST /nodes/father/storage/%s/%s %s", storage, how, path.Base("/"+rest))
		}
	}
	for name, file := range were {
		if is[name] != file {
			storage, _, _ := strings.Cut(file[0], ":")
			writes("DELETE /nodes/father/storage/%s/content/%s", storage, file[0])
		}
	}
	made, wasMade := o.made(), was.made()
	if wasMade != "" && made != wasMade {
		writes("POST /nodes/father/qemu/9100/status/shutdown") // nothing goes unasked
		writes("DELETE /nodes/father/qemu/9100")
	}
	if made != "" && made != wasMade {
		writes("POST /nodes/father/qemu 9100")
		writes("POST /nodes/father/qemu/9100/template")
	}
	if !slices.Equal(o.needed(), was.needed()) {
		writes("PUT /nodes/father/qemu/10000/config") // its ownership tag names what it needs
	}
	slices.Sort(out)
	return out
}

// needed are the names of what a guest may need.
func (o declaredObjects) needed() []string {
	var out []string
	for name := range o.images {
		out = append(out, "image."+name)
	}
	for name := range o.templates {
		out = append(out, "template."+name)
	}
	slices.Sort(out)
	return out
}

// made is what the template is made of, which does not hang on where the image lies.
func (o declaredObjects) made() string {
	t, ok := o.templates["made"]
	if !ok {
		return ""
	}
	file := o.files()["image "+t.Image]
	return path.Base(file[0]) + file[1]
}

// orders records the requests that are no reads, with * for the hash in a file's name.
type orders struct {
	mu   sync.Mutex
	list []string
}

func (l *orders) record(r *http.Request, body []byte, _ int) {
	if r.Method == http.MethodGet {
		return
	}
	var form map[string]any
	_ = json.Unmarshal(body, &form) // an upload has none
	at, _ := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), "/api2/json"))
	what := r.Method + " " + at
	switch path.Base(at) {
	case "download-url":
		what += " " + fmt.Sprint(form["filename"])
	case "upload":
		what += " /"
	case "pools":
		what += " " + fmt.Sprint(form["poolid"])
	case "qemu":
		what += " " + fmt.Sprint(form["vmid"])
	}
	if i := strings.Index(what, "homestak.home."); i >= 0 {
		parts := strings.SplitN(what[i:], ".", 5)
		parts[3] = "*"
		what = what[:i] + strings.Join(parts, ".")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, what)
}

func (l *orders) taken() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.list
	l.list = nil
	slices.Sort(out)
	return out
}

// TestAnyObjects: one apply creates the pools, images and templates of the files, whatever they are. After any edit it writes
// exactly the difference, and the next plan is empty.
func TestAnyObjects(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		first, then := drawObjects(rt, "first "), drawObjects(rt, "then ")
		synctest.Test(t, func(t *testing.T) {
			seen := &orders{}
			nas := pve.Storage{Name: "nas", Type: "dir", Content: []string{"import", "iso", "vztmpl"}}
			w := proxmoxtest.New(t, pve.Config{TaskTime: time.Second, Record: seen.record, Storages: append(pve.DefaultStorages(), nas)})
			w.Template(8000, "golden")
			w.Root(http.MethodPost, "/nodes/father/storage/local/download-url", url.Values{"content": {"vztmpl"}, "filename": {"by-hand.tar.zst"}, "url": {"https://images.test/x.tar.zst"}})
			time.Sleep(time.Minute)
			w.Node("web-1", func(v *guest.VM) { v.Image, v.Power = "anchor-local", "stopped" })
			declaredObjects{}.declare(w)
			makeThem(w)
			theirs := w.Guest(8000)
			for _, step := range [][2]declaredObjects{{{}, first}, {first, then}, {then, {}}} {
				seen.taken()
				step[1].declare(w)
				makeThem(w)
				require.Equal(t, step[1].becoming(step[0]), seen.taken(), "%+v became %+v", step[0], step[1])
			}
			require.Equal(t, theirs, w.Guest(8000))
			require.Contains(t, volumes(w), "local:vztmpl/by-hand.tar.zst")
			require.Len(t, w.Host.Snapshot().Guests, 2)
		})
	})
}

// makeThem applies once, and lets an agent that was just started find nothing to do.
func makeThem(w *proxmoxtest.World) {
	w.T.Helper()
	for range 2 {
		d, err := proxmox.Open(proxmox.Config{Keys: proxmoxtest.Keys, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(), Transport: w.Host, Files: uploaded})
		require.NoError(w.T, err)
		w.Driver = d
		w.Apply()
	}
	w.Converged()
}
