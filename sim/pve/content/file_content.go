package content

import (
	"bytes"
	"encoding/binary"
	"hash"
	"io"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// FileContent has what is known of a file that was uploaded or downloaded. Of a large one the file
// itself is not kept.
type FileContent struct {
	Size int64
	head []byte                   // Its beginning: enough to know a disk image by.
	all  []byte                   // All of it, where it is small.
	Sums func() map[string]string // Its checksums, see [Sums].
	tar  tarListing
	Root *RootSystem // If it is the archive of a root file system.
}

// ReadContent reads a file to its end.
func ReadContent(from io.Reader) (*FileContent, error) {
	f, begin := &FileContent{}, &bytes.Buffer{}
	n, err := io.Copy(begin, io.LimitReader(from, mostKept+1))
	if err != nil {
		return nil, err
	}
	root := newRootReader()
	writers, all := []io.Writer{&f.tar, root}, map[string]hash.Hash{}
	if n > mostKept {
		all = hashes()
		for _, h := range all {
			writers = append(writers, h)
		}
	}
	f.head = begin.Bytes()[:min(512, begin.Len())]
	f.Size, err = io.Copy(io.MultiWriter(writers...), io.MultiReader(bytes.NewReader(begin.Bytes()), from))
	f.Root = root.end()
	if err != nil {
		return nil, err
	}
	if n > mostKept {
		sums := sumsOf(all)
		f.head, f.Sums = bytes.Clone(f.head), func() map[string]string { return sums }
		return f, nil
	}
	f.all = begin.Bytes()
	f.Sums = sync.OnceValue(func() map[string]string { return Sums(f.all) }) // hardly any is asked for
	return f, nil
}

// mostKept is the largest file that is kept: some more than an image for a first boot has.
const mostKept = 1 << 20

// All is the whole file; nil if it is too large to be kept.
func (f *FileContent) All() []byte { return f.all }

// qcowMagic begins an image of qcow2.
const qcowMagic = "QFI\xfb"

// number is the number of 8 bytes at an offset of the head; 0 where the file ends earlier.
func (f *FileContent) number(at int) uint64 {
	if len(f.head) < at+8 {
		return 0
	}
	return binary.BigEndian.Uint64(f.head[at:])
}

// DiskSize returns the size of the image as a guest sees it: of qcow2 the header tells (virtual size,
// bytes 24 to 31), else it is the file's own size in whole sectors.
func (f *FileContent) DiskSize() int64 {
	if bytes.HasPrefix(f.head, []byte(qcowMagic)) && len(f.head) >= 32 {
		return int64(f.number(24)) //nolint:gosec // An absurd size is the sender's.
	}
	return Sectors(f.Size)
}

// Sectors is a size as qemu-img tells it: in whole sectors of 512 bytes.
func Sectors(size int64) int64 { return (size + 511) / 512 * 512 }

// Check checks a file that is to be kept as an import, as PVE does: it rejects a file that is not an image of the
// type in its name, or that refers to another file (upload and download_url in PVE/API2/Storage/Status.pm:
// file_size_info of an untrusted file, which is the output of qemu-img, and assert_ova_contents). The file still
// has a temporary name. Lines before the error are those of tar.
func (f *FileContent) Check(name, temporary string, logf func(string, ...any)) error {
	refused := func(why string) error { return perl.Fail("qemu-img: Could not open '%s': %s", temporary, why) }
	switch path.Ext(name) {
	case ".ova":
		return f.tar.check(temporary, logf)
	case ".qcow2":
		version := f.number(4) >> 32 // Four bytes behind the magic ones.
		switch {
		case !bytes.HasPrefix(f.head, []byte(qcowMagic)):
			return refused("Image is not in qcow2 format")
		case version < 2 || version > 3:
			return refused("Unsupported qcow2 version " + strconv.FormatUint(version, 10))
		case f.number(8) != 0:
			return perl.Fail("backing file not allowed for untrusted image '%s'!", temporary)
		}
	case ".vmdk":
		if f.Size < 4 {
			return refused("File is too small, not a valid image")
		}
		for _, magic := range []string{"KDMV", "COWD", "# Disk DescriptorFile"} {
			if bytes.HasPrefix(f.head, []byte(magic)) {
				return nil
			}
		}
		return refused("invalid VMDK image descriptor")
	}
	return nil // A raw image is anything.
}

// tarListing reads along what tar would list of a file: the names of its members, and
// whether it is an archive from the beginning to the end.
type tarListing struct {
	block   []byte // Of a header, as far as it was read.
	left    int64  // Of the data of a member, padding included.
	members int
	ended   bool // A block of zeros came, behind which nothing counts.
	invalid bool // A block that is not a header came.
	ovf     bool
}

const tarBlock = 512

// Write takes the next part of the file.
func (t *tarListing) Write(p []byte) (int, error) {
	all := len(p)
	for len(p) > 0 && !t.ended && !t.invalid {
		if skip := min(t.left, int64(len(p))); skip > 0 {
			t.left -= skip
			p = p[skip:]
			continue
		}
		n := min(tarBlock-len(t.block), len(p))
		t.block, p = append(t.block, p[:n]...), p[n:]
		if len(t.block) == tarBlock {
			t.header(t.block)
			t.block = t.block[:0]
		}
	}
	return all, nil
}

// header reads a header of POSIX.1-1988, which those of GNU and of pax look like.
func (t *tarListing) header(block []byte) {
	if len(bytes.Trim(block, "\x00")) == 0 {
		t.ended = true
		return
	}
	want, sum := octal(block[148:156]), int64(8*' ') // The sum counts itself as blanks.
	for i, b := range block {
		if i < 148 || i >= 156 {
			sum += int64(b)
		}
	}
	if want != sum {
		t.invalid = true
		return
	}
	name, _, _ := bytes.Cut(block[:100], []byte{0})
	t.members++
	t.ovf = t.ovf || bytes.HasSuffix(name, []byte(".ovf"))
	t.left = (octal(block[124:136]) + tarBlock - 1) / tarBlock * tarBlock
}

// octal is a number of a header; one that is none is -1.
func octal(field []byte) int64 {
	n, err := strconv.ParseInt(strings.Trim(string(field), " \x00"), 8, 64)
	if err != nil {
		return -1
	}
	return n
}

// broken says in the words of tar why it ends with a failure; empty when it does not.
func (t *tarListing) broken() []string {
	const end = "tar: Exiting with failure status due to previous errors"
	switch {
	case t.invalid && t.members == 0, t.members == 0 && len(t.block) > 0:
		return []string{"tar: This does not look like a tar archive", end}
	case t.invalid:
		return []string{"tar: Skipping to next header", end}
	case !t.ended && (t.left > 0 || len(t.block) > 0):
		return []string{"tar: Unexpected EOF in archive", "tar: Error is not recoverable: exiting now"}
	default:
		return nil
	}
}

// check is assert_ova_contents in PVE/API2/Storage/Status.pm.
func (t *tarListing) check(file string, logf func(string, ...any)) error {
	if lines := t.broken(); lines != nil {
		for _, line := range lines {
			logf("%s", line)
		}
		return perl.Fail("command 'tar -t -f %s' failed: exit code 2", file)
	}
	if !t.ovf {
		return perl.Fail("ova archive has no .ovf file inside")
	}
	return nil
}

// Unpacks says whether tar can unpack a file that has a name: its ending tells how it is
// compressed. Of xz and zstd only the beginning is read.
func (f *FileContent) Unpacks(name string) bool {
	ending := path.Ext(name)
	packer, packed := Packers[ending]
	switch {
	case !packed:
		return f.tar.broken() == nil
	case !bytes.HasPrefix(f.head, []byte(packer.begins)):
		return false
	default:
		return f.Root != nil || ending == ".xz" || ending == ".zst"
	}
}

// Packers have the beginnings of compressed files, and the option of tar for them, by the ending of
// an archive (tar_compression_option in PVE/LXC/Create.pm).
var Packers = map[string]struct{ begins, Option string }{
	".gz": {"\x1f\x8b", "-z"}, ".bz2": {"BZh", "-j"}, ".xz": {"\xfd7zXZ\x00", "-J"}, ".zst": {"\x28\xb5\x2f\xfd", "--zstd"},
}
