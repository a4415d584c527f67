package pvesim

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// upload is the file part of a multipart body.
type upload struct {
	filename string
	size     int64
	head     []byte // Its beginning: enough to know a disk image by.
	sums     map[string]string
}

// readUpload reads a multipart body: text fields become parameters, the part
// named filename is the file. Only its size and sums are kept.
func readUpload(body io.Reader, boundary string, params map[string]any) (*upload, error) {
	if boundary == "" {
		return nil, bareError(http.StatusNotImplemented, "upload without a boundary")
	}
	reader := multipart.NewReader(body, boundary)
	var up *upload
	for {
		part, err := reader.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, bareError(http.StatusNotImplemented, "unable to parse upload: "+err.Error())
		}
		if part.FormName() == "filename" {
			if up, err = readFile(part); err != nil {
				return nil, bareError(http.StatusBadRequest, "reading the upload: "+err.Error())
			}
			params["filename"] = up.filename
			break // It is the last part: what follows is not read.
		}
		value, err := io.ReadAll(io.LimitReader(part, bodyLimit))
		if err != nil {
			return nil, bareError(http.StatusBadRequest, "reading the upload: "+err.Error())
		}
		params[part.FormName()] = string(value)
	}
	_, _ = io.Copy(io.Discard, body)
	if up == nil {
		return nil, bareError(http.StatusNotImplemented, "upload without a file")
	}
	return up, nil
}

func readFile(part *multipart.Part) (*upload, error) {
	up := &upload{filename: part.FileName(), sums: map[string]string{}}
	all := hashes()
	var head bytes.Buffer
	writers := []io.Writer{}
	for _, h := range all {
		writers = append(writers, h)
	}
	n, err := io.Copy(io.MultiWriter(writers...), io.TeeReader(part, &limitedWriter{w: &head, left: 512}))
	if err != nil {
		return nil, err
	}
	up.size, up.head = n, head.Bytes()
	for name, h := range all {
		up.sums[name] = hex.EncodeToString(h.Sum(nil))
	}
	return up, nil
}

// limitedWriter keeps the first bytes and swallows the others.
type limitedWriter struct {
	w    io.Writer
	left int
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if keep := p[:min(l.left, len(p))]; len(keep) > 0 {
		l.left -= len(keep)
		if _, err := l.w.Write(keep); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// diskSize is how large a guest sees the image: of qcow2 the header tells
// (virtual size, bytes 24 to 31), else it is the file's own size.
func (u *upload) diskSize() int64 {
	if len(u.head) >= 32 && string(u.head[:4]) == "QFI\xfb" {
		return int64(binary.BigEndian.Uint64(u.head[24:32])) //nolint:gosec // An absurd size is the sender's.
	}
	return u.size
}

var (
	oddName    = regexp.MustCompile(`[^-a-zA-Z0-9_.]`)
	importName = regexp.MustCompile(`^[a-zA-Z0-9_.-]+\.(?:qcow2|raw|vmdk|ova)$`)
)

// fileName normalises the name of a new file and checks it against its content.
func fileName(content, name string) (string, error) {
	name = oddName.ReplaceAllString(path.Base("/"+strings.ReplaceAll(name, "\\", "/")), "_")
	switch {
	case content == "import" && !importName.MatchString(name):
		return "", badParam("filename", "invalid filename or wrong extension")
	case !extensionFits(content, name):
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

// apiUpload is POST …/storage/{storage}/upload.
func apiUpload(w *world, c *call) (any, error) {
	s, err := w.store(c.in["storage"])
	if err != nil {
		return nil, err
	}
	content, up := c.in["content"], c.req.upload
	name, err := fileName(content, c.in["filename"])
	if err != nil {
		return nil, err
	}
	if err := s.checkContent(content); err != nil {
		return nil, err
	}
	if up == nil {
		return nil, fail("missing tmpfilename")
	}
	node, algorithm, sum := c.in["node"], c.in["checksum-algorithm"], c.in["checksum"]
	temporary := "/var/tmp/pveupload-" + w.hex(32)
	return w.fork(c, node, job{kind: "imgcopy", begin: func(t *task) error {
		t.logf("starting file import from: %s", temporary)
		t.logf("target node: %s", node)
		t.logf("target file: %s", s.path(content+"/"+name))
		t.logf("file size is: %d", up.size)
		if algorithm != "" {
			t.logf("calculating checksum...")
			if got := up.sums[algorithm]; !strings.EqualFold(got, sum) {
				return fail("checksum mismatch: got '%s' != expect '%s'", got, sum)
			}
			t.logf("OK, checksum verified")
		}
		return s.room(node, up.size)
	}, end: func(t *task) error {
		t.logf("command: cp -- %s %s", temporary, s.path(content+"/"+name))
		s.put(node, &volume{
			name: content + "/" + name, content: content, format: fileFormat(content, name), size: up.diskSize(), length: up.size,
			used: (up.size + 4095) / 4096 * 4096, ctime: w.now.Unix(), system: content == "import",
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
	name, err := fileName(content, c.in["filename"])
	if err != nil {
		return nil, err
	}
	if err := s.checkContent(content); err != nil {
		return nil, err
	}
	from, sum := c.in["url"], c.in["checksum"]
	found, algorithm := w.page(from), c.in["checksum-algorithm"]
	volname := content + "/" + name
	return w.fork(c, node, job{kind: "download", id: name, begin: func(t *task) error {
		t.logf("downloading %s to %s", from, s.path(volname))
		if old := s.find(node, volname); old != nil {
			if sum == "" {
				return fail("refusing to override existing file '%s'", s.path(volname))
			}
			if found.is(old, from, algorithm, sum) {
				t.logf("calculating checksum of existing file...OK, got correct file already, no need to download")
				return nil
			}
			t.logf("calculating checksum of existing file...mismatch, overwriting")
		}
		if err := found.fetch(t, from, algorithm, sum); err != nil {
			return err
		}
		return s.room(node, found.Size)
	}, end: func(t *task) error {
		if old := s.find(node, volname); old != nil && sum != "" && found.is(old, from, algorithm, sum) {
			return nil
		}
		v := &volume{
			name: volname, content: content, format: fileFormat(content, name), size: found.Size, length: found.Size, used: found.Size,
			ctime: w.now.Unix(), system: content == "import", url: from,
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

func itoa(n int) string { return strconv.Itoa(n) }
