package host

import (
	"cmp"
	"crypto/sha512"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/content"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

var (
	oddName    = regexp.MustCompile(`[^-a-zA-Z0-9_.]`)
	importName = regexp.MustCompile(`^[a-zA-Z0-9_.-]+\.(?:qcow2|raw|vmdk|ova)$`)
)

// normalName makes a name of a file of what was asked for (normalize_content_filename in
// PVE/Storage.pm).
func normalName(name string) string {
	return oddName.ReplaceAllString(path.Base("/"+strings.ReplaceAll(name, "\\", "/")), "_")
}

// fileName normalises the name of a new file and checks it against its content.
func fileName(content, name string, v9 bool) (string, error) {
	name = normalName(name)
	switch {
	case content == "import" && !importName.MatchString(name):
		return "", perl.BadParam("filename", "invalid filename or wrong extension")
	case !core.ExtensionFits(content, name), content == "vztmpl" && !v9 && strings.EqualFold(path.Ext(name), ".tar"):
		return "", perl.BadParam("filename", "wrong file extension")
	}
	return name, nil
}

// checkContent fails when a storage does not take a kind of file.
func checkContent(s *core.Store, content string) error {
	if !s.Files() || !s.Holds(content) {
		return perl.Fail("storage '%s' is not configured for content-type '%s'", s.Name, content)
	}
	return nil
}

// apiUpload is POST …/storage/{storage}/upload. PVE does not hand it on to the node that
// it is for: the one that was asked copies the file there, and has the task.
func apiUpload(w *core.World, c *core.Call, s *core.Store) (any, error) {
	content, up := c.In["content"], c.Req.Upload
	switch {
	case !s.Files():
		return nil, perl.Fail("can't upload to storage type '%s'", s.Type)
	case up == nil:
		return nil, perl.Fail("missing temporary file name")
	}
	name, err := fileName(content, c.In["filename"], w.V9())
	if err != nil {
		return nil, err
	}
	if !s.Holds(content) {
		return nil, perl.Fail("storage '%s' does not support '%s' content", s.Name, content)
	}
	node, algorithm, sum := c.In["node"], c.In["checksum-algorithm"], c.In["checksum"]
	temporary := "/var/tmp/pveupload-" + w.Rng.Hex(32)
	size := up.Size
	if content == "import" {
		size = up.DiskSize()
	}
	return w.Fork(c, w.Cfg.Node, core.Job{Kind: "imgcopy", Begin: func(t *core.Task) error {
		t.Logf("starting file import from: %s", temporary)
		if algorithm != "" {
			if err := checksum(t, up.Sums()[algorithm], sum); err != nil {
				return err
			}
		}
		if content == "import" {
			if err := up.Check(name, temporary, t.Logf); err != nil {
				return err
			}
		}
		t.Logf("target node: %s", node)
		t.Logf("target file: %s", s.FilePath(content+"/"+name))
		t.Logf("file size is: %d", up.Size)
		return s.Room(node, up.Size)
	}, End: func(t *core.Task) error {
		t.Logf("command: cp -- %s %s", temporary, s.FilePath(content+"/"+name))
		v := &core.Volume{
			Name: content + "/" + name, Content: content, Format: core.FileFormat(content, name), Size: size, Length: up.Size,
			Used: (up.Size + 4095) / 4096 * 4096, Ctime: w.Now.Unix(), System: content == "import", Sums: up.Sums,
			Root: up.Root, Broken: content == "vztmpl" && !up.Unpacks(name),
		}
		if content == "iso" {
			v.Disc = up.All()
		}
		s.Put(node, v)
		t.Logf("finished file import successfully")
		return nil
	}}), nil
}

// apiDownload is POST …/storage/{storage}/download-url.
func apiDownload(w *core.World, c *core.Call, s *core.Store) (any, error) {
	node := c.In["node"]
	if err := mayDownload(c, node); err != nil {
		return nil, err
	}
	content := c.In["content"]
	if !s.Files() {
		return nil, perl.Fail("can't upload to storage type '%s', not a file based storage!", s.Type)
	}
	if err := checkContent(s, content); err != nil {
		return nil, err
	}
	name, err := fileName(content, c.In["filename"], w.V9())
	if err != nil {
		return nil, err
	}
	from, sum := c.In["url"], c.In["checksum"]
	found, algorithm := page(w, from), c.In["checksum-algorithm"]
	volname := content + "/" + name
	return w.Fork(c, node, core.Job{Kind: "download", ID: name, Begin: func(t *core.Task) error {
		if c.In["compression"] != "" && content != "iso" {
			return perl.Fail("decompression not supported for %s", content)
		}
		t.Logf("downloading %s to %s", from, s.FilePath(volname))
		if old := s.Find(node, volname); old != nil {
			if sum == "" {
				return perl.Fail("refusing to override existing file '%s'", s.FilePath(volname))
			}
			if !is(found, old, from, algorithm, sum) {
				t.Logf("calculating checksum of existing file...")
				return perl.Fail("checksum mismatch: got '%s' != expect '%s', aborting", checksumOf(old, algorithm), sum)
			}
			t.Logf("calculating checksum of existing file...OK, got correct file already, no need to download")
			return nil
		}
		if err := fetch(found, t, from, algorithm, sum); err != nil {
			return err
		}
		if found.File != nil && content == "import" {
			temporary := fmt.Sprintf("%s.tmp_dwnl.%d", s.FilePath(volname), t.Pid)
			if err := found.File.Check(name, temporary, t.Logf); err != nil {
				return perl.Fail("failed to verify file: %s", err)
			}
		}
		return s.Room(node, found.Size)
	}, End: func(t *core.Task) error {
		if old := s.Find(node, volname); old != nil && sum != "" && is(found, old, from, algorithm, sum) {
			return nil
		}
		v := &core.Volume{
			Name: volname, Content: content, Format: core.FileFormat(content, name), Size: found.Size, Length: found.Size, Used: found.Size,
			Ctime: w.Now.Unix(), System: content == "import", URL: from, Sums: known(found.Sums),
		}
		if known := found.Known(); content == "vztmpl" && known != nil {
			v.Root, v.Broken = known.Root, !known.Unpacks(name)
		}
		if content == "import" {
			v.Size = found.Disk
		}
		s.Put(node, v)
		t.Logf("download of '%s' to '%s' finished", from, s.FilePath(volname))
		return nil
	}}), nil
}

// mayDownload: the host goes out to the network, so more is needed than rights
// on the storage.
func mayDownload(c *core.Call, node string) error {
	if c.Can("/nodes/"+node, "Sys.AccessNetwork") || c.Can("/", "Sys.Audit") && c.Can("/", "Sys.Modify") {
		return nil
	}
	return perl.Forbidden("")
}

// page looks up an address. Without a declared web, every page of http and https exists: its size is derived from
// the address, and any checksum is right.
func page(w *core.World, address string) content.Page {
	for _, d := range w.Cfg.Downloads {
		if !d.Matches(address) {
			continue
		}
		if d.Sized {
			d.Page.Disk = w.Sized("disk "+address, 2, 4) << 30
		}
		return d.Page
	}
	if w.Cfg.Web != nil {
		p := w.Cfg.Web(address)
		if p.Disk == 0 {
			p.Disk = p.Size
		}
		return p
	}
	p := content.Page{Size: w.Sized(address, 256<<10, 768<<10) << 10}
	p.Disk = w.Sized("disk "+address, 2, 4) << 30
	return p
}

// reachable says whether there can be a server at an address at all; a name that ends
// in .invalid is never found (RFC 6761).
func reachable(address string) bool {
	parsed, err := url.Parse(address)
	return err == nil && (parsed.Scheme == "https" || parsed.Scheme == "http") && !strings.HasSuffix(parsed.Hostname(), ".invalid")
}

// fetch returns the output of wget, and of the check after it, for a download
// (download_file_from_url in PVE/Tools.pm).
func fetch(p content.Page, t *core.Task, from, algorithm, sum string) error {
	if p.Missing != "" {
		code, reason, _ := strings.Cut(p.Missing, " ")
		t.Logf("HTTP request sent, awaiting response... %s", p.Missing)
		t.Logf("%s ERROR %s: %s.", t.Start.UTC().Format("2006-01-02 15:04:05"), code, reason)
		return perl.Fail("download failed: exit code 8") // wget: the server answered with an error.
	}
	if !reachable(from) {
		return perl.Fail("download failed: exit code 4") // wget: network failure.
	}
	if sum == "" {
		return nil
	}
	got := sum
	if p.Sums != nil {
		got = p.Sums[algorithm]
	}
	return checksum(t, got, sum)
}

// checksum compares the sum of a file with what was asked for. The line of a wrong one
// ends early, so that the error stands alone (PVE/Tools.pm, PVE/API2/Storage/Status.pm).
func checksum(t *core.Task, got, want string) error {
	if strings.EqualFold(got, want) {
		t.Logf("calculating checksum...OK, checksum verified")
		return nil
	}
	t.Logf("calculating checksum...")
	return perl.Fail("checksum mismatch: got '%s' != expect '%s'", got, want)
}

// known are the declared checksums of a page; nil without any.
func known(sums map[string]string) func() map[string]string {
	if sums == nil {
		return nil
	}
	return func() map[string]string { return sums }
}

// checksumOf is the checksum of a file. That of an undeclared page is invented.
func checksumOf(v *core.Volume, algorithm string) string {
	if v.Sums != nil {
		return v.Sums()[algorithm]
	}
	return content.Sums([]byte(v.URL + v.Name))[algorithm]
}

// is says whether a file that is there already is the one that a download would bring.
func is(p content.Page, old *core.Volume, from, algorithm, sum string) bool {
	if old.Sums != nil {
		return strings.EqualFold(old.Sums()[algorithm], sum)
	}
	return old.URL == from && (p.Sums == nil || strings.EqualFold(p.Sums[algorithm], sum))
}

// apiURLMetadata is GET /nodes/{node}/query-url-metadata.
func apiURLMetadata(w *core.World, c *core.Call) (any, error) {
	from := c.In["url"]
	if !reachable(from) {
		return nil, perl.Fail("invalid server response: '500 Can't connect to %s'", from)
	}
	p := page(w, from)
	if p.Missing != "" {
		return nil, perl.Fail("invalid server response: '%s'", p.Missing)
	}
	parsed, _ := url.Parse(from) // It was reachable.
	return map[string]any{"filename": path.Base(parsed.Path), "size": p.Size, "mimetype": "application/octet-stream"}, nil
}

// appliance is a container template that can be downloaded by name.
type appliance struct{ system, release, headline string }

// appliances are a few of those that Proxmox offers.
var appliances = map[string]appliance{
	"alpine-3.22-default_20250617_amd64.tar.xz":   {"alpine", "3.22", "LXC default image for alpine 3.22 (20250617)"},
	"debian-12-standard_12.12-1_amd64.tar.zst":    {"debian-12", "12.12-1", "Debian 12 Bookworm (standard)"},
	"debian-13-standard_13.1-2_amd64.tar.zst":     {"debian-13", "13.1-2", "Debian 13 Trixie (standard)"},
	"ubuntu-24.04-standard_24.04-2_amd64.tar.zst": {"ubuntu-24.04", "24.04-2", "Ubuntu 24.04 Noble (standard)"},
}

// apiAppliances is GET /nodes/{node}/aplinfo.
func apiAppliances(*core.World, *core.Call) (any, error) {
	list := []map[string]any{}
	for name, a := range perl.Sorted(appliances) {
		list = append(list, map[string]any{
			"template": name, "package": a.system, "os": a.system, "version": a.release, "headline": a.headline, "type": "lxc", "section": "system",
			"source": "http://download.proxmox.com/images", "location": "http://download.proxmox.com/images/system/" + name,
			"architecture": "amd64", "sha512sum": fmt.Sprintf("%x", sha512.Sum512([]byte(name))), "description": a.headline, "infopage": "https://linuxcontainers.org",
			"maintainer": "Proxmox Support Team <support@proxmox.com>",
		})
	}
	return list, nil
}

// apiDownloadAppliance is POST /nodes/{node}/aplinfo.
func apiDownloadAppliance(w *core.World, c *core.Call) (any, error) {
	name := c.In["template"]
	if _, ok := appliances[name]; !ok {
		return nil, perl.BadParam("template", "no such template")
	}
	s, err := w.Store(c.In["storage"])
	if err != nil {
		return nil, err
	}
	if !s.Files() || !s.Holds("vztmpl") {
		return nil, perl.Fail("cannot download to storage type '%s'", s.Type)
	}
	node, volname := c.In["node"], "vztmpl/"+name
	size := w.Sized(name, 100<<10, 300<<10) << 10
	return w.Fork(c, node, core.Job{Kind: "download", ID: name, Begin: func(t *core.Task) error {
		t.Logf("downloading http://download.proxmox.com/images/system/%s to %s", name, s.FilePath(volname))
		return s.Room(node, size)
	}, End: func(t *core.Task) error {
		s.Put(node, &core.Volume{
			Name: volname, Content: "vztmpl", Format: core.FileFormat("vztmpl", name), Size: size, Length: size, Used: size, Ctime: w.Now.Unix(),
		})
		t.Logf("download of '%s' to '%s' finished", name, s.FilePath(volname))
		return nil
	}}), nil
}

// apiPullImage is POST …/oci-registry-pull (PVE/API2/Storage/Status.pm).
func apiPullImage(w *core.World, c *core.Call, s *core.Store) (any, error) {
	if !s.Files() {
		return nil, perl.Fail("can't upload to storage type '%s', not a file based storage!", s.Type)
	}
	if err := checkContent(s, "vztmpl"); err != nil {
		return nil, err
	}
	node, reference := c.In["node"], c.In["reference"]
	name := normalName(cmp.Or(c.In["filename"], reference)) + ".tar" // Even where it is called so already.
	volname := "vztmpl/" + name
	if s.Find(node, volname) != nil {
		return nil, perl.Fail("refusing to override existing file '%s'", name)
	}
	size := page(w, "https://"+reference).Size
	return w.Fork(c, node, core.Job{Kind: "ociregistrypull", ID: name, Begin: func(*core.Task) error {
		return s.Room(node, size)
	}, End: func(*core.Task) error {
		s.Put(node, &core.Volume{Name: volname, Content: "vztmpl", Format: "tar", Size: size, Length: size, Used: size, Ctime: w.Now.Unix(), URL: reference})
		return nil
	}}), nil
}
