package storage

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

var (
	oddName    = regexp.MustCompile(`[^-a-zA-Z0-9_.]`)
	importName = regexp.MustCompile(`^[a-zA-Z0-9_.-]+\.(?:qcow2|raw|vmdk|ova)$`)
)

// NormalName makes a name of a file of what was asked for (normalize_content_filename in
// PVE/Storage.pm).
func NormalName(name string) string {
	return oddName.ReplaceAllString(path.Base("/"+strings.ReplaceAll(name, "\\", "/")), "_")
}

// fileName normalises the name of a new file and checks it against its content.
func fileName(content, name string, v9 bool) (string, error) {
	name = NormalName(name)
	switch {
	case content == "import" && !importName.MatchString(name):
		return "", perl.BadParam("filename", "invalid filename or wrong extension")
	case !core.ExtensionFits(content, name), content == "vztmpl" && !v9 && strings.EqualFold(path.Ext(name), ".tar"):
		return "", perl.BadParam("filename", "wrong file extension")
	}
	return name, nil
}

// CheckContent fails when a storage does not take a kind of file.
func CheckContent(s *core.Store, content string) error {
	if !s.Files() || !s.Holds(content) {
		return perl.Fail("storage '%s' is not configured for content-type '%s'", s.Name, content)
	}
	return nil
}

// apiUpload is POST …/storage/{storage}/upload. PVE does not hand it on to the node that
// it is for: the one that was asked copies the file there, and has the task.
func apiUpload(w *core.World, c *core.Call) (any, error) {
	s, err := w.Store(c.In["storage"])
	if err != nil {
		return nil, err
	}
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
			if err := checksum(t, up.Sums[algorithm], sum); err != nil {
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
		s.Put(node, &core.Volume{
			Name: content + "/" + name, Content: content, Format: core.FileFormat(content, name), Size: size, Length: up.Size,
			Used: (up.Size + 4095) / 4096 * 4096, Ctime: w.Now.Unix(), System: content == "import", Sums: up.Sums,
			Root: up.Root, Broken: content == "vztmpl" && !up.Unpacks(name),
		})
		t.Logf("finished file import successfully")
		return nil
	}}), nil
}

// apiDownload is POST …/storage/{storage}/download-url.
func apiDownload(w *core.World, c *core.Call) (any, error) {
	s, err := w.Store(c.In["storage"])
	if err != nil {
		return nil, err
	}
	node := c.In["node"]
	if err := mayDownload(c, node); err != nil {
		return nil, err
	}
	content := c.In["content"]
	if !s.Files() {
		return nil, perl.Fail("can't upload to storage type '%s', not a file based storage!", s.Type)
	}
	if err := CheckContent(s, content); err != nil {
		return nil, err
	}
	name, err := fileName(content, c.In["filename"], w.V9())
	if err != nil {
		return nil, err
	}
	from, sum := c.In["url"], c.In["checksum"]
	found, algorithm := Page(w, from), c.In["checksum-algorithm"]
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
			Ctime: w.Now.Unix(), System: content == "import", URL: from, Sums: found.Sums,
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
