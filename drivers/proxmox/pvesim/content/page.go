package content

import (
	"bytes"
	"crypto/md5"  //nolint:gosec // Offered by PVE for checksums.
	"crypto/sha1" //nolint:gosec // The same.
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"hash"
	"io"
)

// Page is what the simulated web has at an address.
type Page struct {
	Size int64
	Disk int64             // Of a disk image: how large a guest sees it; default Size.
	Sums map[string]string // Checksums by the name of the algorithm, see [Sums].
	// Content is the file itself. It is needed of a template of containers alone: its system
	// is found out from it, and whether it can be unpacked. Without it the name must tell.
	Content []byte
	// Missing is what the server answers of a page that is not there: "404 Not Found".
	Missing string

	File *FileContent // Known of a page that a file stands for, see [PageOf].
}

// PageOf is a page with a content: its size, its checksums, and what is checked of an
// image or archive that is downloaded. The content is read to its end and not kept.
func PageOf(content io.Reader) (Page, error) {
	f, err := ReadContent(content)
	if err != nil {
		return Page{}, err
	}
	return Page{Size: f.Size, Disk: f.DiskSize(), Sums: f.Sums, File: f}, nil
}

// Known is what is known of the content of a page; nil if that is nothing.
func (p Page) Known() *FileContent {
	if p.File != nil || p.Content == nil {
		return p.File
	}
	f, _ := ReadContent(bytes.NewReader(p.Content)) // Memory can be read.
	return f
}

// Sums are the checksums of a content, by the names of the algorithms of PVE.
func Sums(content []byte) map[string]string {
	sums := map[string]string{}
	for name, h := range hashes() {
		_, _ = h.Write(content)
		sums[name] = hex.EncodeToString(h.Sum(nil))
	}
	return sums
}

func hashes() map[string]hash.Hash {
	return map[string]hash.Hash{
		"md5": md5.New(), "sha1": sha1.New(), "sha224": sha256.New224(), "sha256": sha256.New(), //nolint:gosec // As offered.
		"sha384": sha512.New384(), "sha512": sha512.New(),
	}
}
