package pvesim

import (
	"fmt"
	"path"
	"regexp"
	"strings"
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
		return "", badParam("filename", "invalid filename or wrong extension")
	case !extensionFits(content, name), content == "vztmpl" && !v9 && strings.EqualFold(path.Ext(name), ".tar"):
		return "", badParam("filename", "wrong file extension")
	}
	return name, nil
}

// checkContent fails when a storage does not take a kind of file.
func (s *store) checkContent(content string) error {
	if !s.files() || !s.holds(content) {
		return fail("storage '%s' is not configured for content-type '%s'", s.Name, content)
	}
	return nil
}

// apiUpload is POST …/storage/{storage}/upload. PVE does not hand it on to the node that
// it is for: the one that was asked copies the file there, and has the task.
func apiUpload(w *world, c *call) (any, error) {
	s, err := w.store(c.in["storage"])
	if err != nil {
		return nil, err
	}
	content, up := c.in["content"], c.req.upload
	switch {
	case !s.files():
		return nil, fail("can't upload to storage type '%s'", s.Type)
	case up == nil:
		return nil, fail("missing temporary file name")
	}
	name, err := fileName(content, c.in["filename"], w.v9())
	if err != nil {
		return nil, err
	}
	if !s.holds(content) {
		return nil, fail("storage '%s' does not support '%s' content", s.Name, content)
	}
	node, algorithm, sum := c.in["node"], c.in["checksum-algorithm"], c.in["checksum"]
	temporary := "/var/tmp/pveupload-" + w.hex(32)
	size := up.size
	if content == "import" {
		size = up.diskSize()
	}
	return w.fork(c, w.cfg.Node, job{kind: "imgcopy", begin: func(t *task) error {
		t.logf("starting file import from: %s", temporary)
		if algorithm != "" {
			if err := t.checksum(up.sums[algorithm], sum); err != nil {
				return err
			}
		}
		if content == "import" {
			if err := up.check(name, temporary, t.logf); err != nil {
				return err
			}
		}
		t.logf("target node: %s", node)
		t.logf("target file: %s", s.path(content+"/"+name))
		t.logf("file size is: %d", up.size)
		return s.room(node, up.size)
	}, end: func(t *task) error {
		t.logf("command: cp -- %s %s", temporary, s.path(content+"/"+name))
		s.put(node, &volume{
			name: content + "/" + name, content: content, format: fileFormat(content, name), size: size, length: up.size,
			used: (up.size + 4095) / 4096 * 4096, ctime: w.now.Unix(), system: content == "import", sums: up.sums,
			root: up.root, broken: content == "vztmpl" && !up.unpacks(name),
		})
		t.logf("finished file import successfully")
		return nil
	}}), nil
}

// apiDownload is POST …/storage/{storage}/download-url.
func apiDownload(w *world, c *call) (any, error) {
	s, err := w.store(c.in["storage"])
	if err != nil {
		return nil, err
	}
	node := c.in["node"]
	if err := c.mayDownload(node); err != nil {
		return nil, err
	}
	content := c.in["content"]
	if !s.files() {
		return nil, fail("can't upload to storage type '%s', not a file based storage!", s.Type)
	}
	if err := s.checkContent(content); err != nil {
		return nil, err
	}
	name, err := fileName(content, c.in["filename"], w.v9())
	if err != nil {
		return nil, err
	}
	from, sum := c.in["url"], c.in["checksum"]
	found, algorithm := w.page(from), c.in["checksum-algorithm"]
	volname := content + "/" + name
	return w.fork(c, node, job{kind: "download", id: name, begin: func(t *task) error {
		if c.in["compression"] != "" && content != "iso" {
			return fail("decompression not supported for %s", content)
		}
		t.logf("downloading %s to %s", from, s.path(volname))
		if old := s.find(node, volname); old != nil {
			if sum == "" {
				return fail("refusing to override existing file '%s'", s.path(volname))
			}
			if !found.is(old, from, algorithm, sum) {
				t.logf("calculating checksum of existing file...")
				return fail("checksum mismatch: got '%s' != expect '%s', aborting", old.sum(algorithm), sum)
			}
			t.logf("calculating checksum of existing file...OK, got correct file already, no need to download")
			return nil
		}
		if err := found.fetch(t, from, algorithm, sum); err != nil {
			return err
		}
		if found.File != nil && content == "import" {
			temporary := fmt.Sprintf("%s.tmp_dwnl.%d", s.path(volname), t.pid)
			if err := found.File.check(name, temporary, t.logf); err != nil {
				return fail("failed to verify file: %s", err)
			}
		}
		return s.room(node, found.Size)
	}, end: func(t *task) error {
		if old := s.find(node, volname); old != nil && sum != "" && found.is(old, from, algorithm, sum) {
			return nil
		}
		v := &volume{
			name: volname, content: content, format: fileFormat(content, name), size: found.Size, length: found.Size, used: found.Size,
			ctime: w.now.Unix(), system: content == "import", url: from, sums: found.Sums,
		}
		if known := found.known(); content == "vztmpl" && known != nil {
			v.root, v.broken = known.root, !known.unpacks(name)
		}
		if content == "import" {
			v.size = found.Disk
		}
		s.put(node, v)
		t.logf("download of '%s' to '%s' finished", from, s.path(volname))
		return nil
	}}), nil
}

// mayDownload: the host goes out to the network, so more is needed than rights
// on the storage.
func (c *call) mayDownload(node string) error {
	if c.can("/nodes/"+node, "Sys.AccessNetwork") || c.can("/", "Sys.Audit") && c.can("/", "Sys.Modify") {
		return nil
	}
	return forbidden("")
}
