package pvesim

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"io"
	"path"
	"strings"
)

// rootFS is the content of the archive of a root file system, as far as PVE looks at it:
// the paths, where links lead, and how files begin.
type rootFS map[string]*rootFile

type rootFile struct {
	dir  bool
	link string // where a symbolic link leads
	head []byte
}

// headMost is how much of a file is kept: all of those that tell of a system are shorter.
const headMost = 4096

// readRoot looks into an archive; nil if it is none that can be read here: tar without
// compression, with gzip or with bzip2.
func readRoot(archive io.Reader) *rootSystem {
	stream := bufio.NewReader(archive)
	head, _ := stream.Peek(512)
	var plain io.Reader = stream
	switch {
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		unpacked, err := gzip.NewReader(stream)
		if err != nil {
			return nil
		}
		plain = unpacked
	case bytes.HasPrefix(head, []byte("BZh")):
		plain = bzip2.NewReader(stream)
	case len(head) < 512 || string(head[257:262]) != "ustar":
		return nil
	}
	fs := rootFS{}
	for files := tar.NewReader(plain); ; {
		file, err := files.Next()
		switch {
		case errors.Is(err, io.EOF):
			return fs.system()
		case err != nil:
			return nil
		}
		entry := &rootFile{dir: file.Typeflag == tar.TypeDir}
		name := path.Clean("/" + file.Name)
		switch file.Typeflag {
		case tar.TypeSymlink:
			entry.link = file.Linkname
		case tar.TypeLink:
			if entry = fs[path.Clean("/"+file.Linkname)]; entry == nil {
				continue
			}
		case tar.TypeReg:
			if entry.head, err = io.ReadAll(io.LimitReader(files, headMost)); err != nil {
				return nil
			}
		}
		fs[name] = entry
	}
}

// resolve finds a file by its path, through symbolic links, as a program in the root
// file system would; nil if there is none.
func (fs rootFS) resolve(name string) *rootFile {
	const mostLinks = 40 // as Linux
	done, rest := "/", strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		next := path.Join(done, rest[0])
		rest = rest[1:]
		f := fs[next]
		if f == nil || f.link == "" {
			done = next
			continue
		}
		if links++; links > mostLinks {
			return nil
		}
		if path.IsAbs(f.link) {
			done = "/"
		}
		rest = append(strings.Split(strings.Trim(f.link, "/"), "/"), rest...)
	}
	return fs[done]
}

// packers are how compressed files begin, and the option of tar for them, by the ending of
// an archive (tar_compression_option in PVE/LXC/Create.pm).
var packers = map[string]struct{ begins, option string }{
	".gz": {"\x1f\x8b", "-z"}, ".bz2": {"BZh", "-j"}, ".xz": {"\xfd7zXZ\x00", "-J"}, ".zst": {"\x28\xb5\x2f\xfd", "--zstd"},
}

// unpacks says whether tar can unpack a file that has a name: its ending tells how it is
// compressed. Of xz and zstd only the beginning is looked at.
func (f *fileContent) unpacks(name string) bool {
	ending := path.Ext(name)
	packer, packed := packers[ending]
	switch {
	case !packed:
		return f.tar.broken() == nil
	case !bytes.HasPrefix(f.head, []byte(packer.begins)):
		return false
	default:
		return f.root != nil || ending == ".xz" || ending == ".zst"
	}
}

// unpackFails is the error of a create whose template tar cannot unpack; nil if it goes on
// with what there is. PVE 9 lists a file without compression first, to see whether it is an
// image of OCI (restore_archive and archive_is_oci_format in PVE/LXC/Create.pm).
func (w *world) unpackFails(vmid int, file string, order ctOrder, log func(string, ...any)) error {
	packer := packers[path.Ext(file)]
	if packer.option == "" && w.v9() {
		return fail("command 'tar -tf %s' failed: exit code 2", file)
	}
	log("extracting archive '%s'", file)
	if order.ignore {
		return nil
	}
	command := "tar xpf - "
	if order.set["unprivileged"] == "1" {
		command = "lxc-usernsexec -m u:0:100000:65536 -m g:0:100000:65536 -- " + command
	}
	if packer.option != "" {
		command += packer.option + " "
	}
	command += "--totals --one-file-system -p --sparse --numeric-owner --acls --xattrs '--xattrs-include=user.*' '--xattrs-include=security.capability' " +
		"'--warning=no-file-ignored' '--warning=no-xattr-write' -C /var/lib/lxc/" + itoa(vmid) + "/rootfs --skip-old-files --anchored --exclude './dev/*'"
	return fail("command '%s' failed: exit code 2", command)
}

// rootReader looks into an archive while somebody writes it.
type rootReader struct {
	*io.PipeWriter
	found chan *rootSystem
}

func newRootReader() *rootReader {
	from, to := io.Pipe()
	r := &rootReader{PipeWriter: to, found: make(chan *rootSystem, 1)}
	go func() {
		root := readRoot(from)
		_, _ = io.Copy(io.Discard, from)
		r.found <- root
	}()
	return r
}

// end says what was found, once all is written.
func (r *rootReader) end() *rootSystem {
	_ = r.Close() // Of a pipe it never fails.
	return <-r.found
}
