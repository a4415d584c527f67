// Package content inspects a file that is uploaded or downloaded, and keeps only its size, checksums, the format of
// a disk image, and the system in the archive of a root file system. A [Page] is such a file in the simulated web.
package content

import (
	"bytes"
	"crypto/md5"  //nolint:gosec // Offered by PVE for checksums.
	"crypto/sha1" //nolint:gosec // The same.
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// Page is a page of the simulated web.
type Page struct {
	Size int64
	Disk int64             // Of a disk image: how large a guest sees it; default Size.
	Sums map[string]string // Checksums by the name of the algorithm, see [Sums].
	// Content is the file itself. It is needed of a template of containers alone: its system
	// is found out from it, and whether it can be unpacked. Without it the name must tell.
	Content []byte
	// Missing is the status of a page that does not exist: "404 Not Found".
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
	return Page{Size: f.Size, Disk: f.DiskSize(), Sums: f.Sums(), File: f}, nil
}

// Known describes the content of a page; nil if the content is unknown.
func (p Page) Known() *FileContent {
	if p.File != nil || p.Content == nil {
		return p.File
	}
	f, _ := ReadContent(bytes.NewReader(p.Content)) // Memory can be read.
	return f
}

// Sums are the checksums of a content, by the names of the algorithms of PVE.
func Sums(content []byte) map[string]string {
	all := hashes()
	for _, h := range all {
		_, _ = h.Write(content)
	}
	return sumsOf(all)
}

func sumsOf(all map[string]hash.Hash) map[string]string {
	sums := map[string]string{}
	for name, h := range all {
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

// Download says what a download from some addresses fetches.
type Download struct {
	// Pattern is an address in which * stands for any run of characters, slashes too.
	Pattern string
	Page    Page
	Sized   bool // Only the size is given; the rest is generated as usual.
}

// ParseDownload reads the text form of a rule, "URL-PATTERN [status=N] [file=PATH]
// [size=BYTES]": a status from 400 on, which the server answers instead of a file; the file
// that is fetched, of which checksums and format are then as they are; or how large the
// fetched file is. The file is read at once. The error names what is wrong with the text.
func ParseDownload(text string) (Download, error) {
	fields := strings.Fields(text)
	if len(fields) < 2 {
		return Download{}, fmt.Errorf("download %q: want URL-PATTERN and one of status=N, file=PATH, size=BYTES", text)
	}
	d := Download{Pattern: fields[0]}
	said := map[string]string{}
	for _, field := range fields[1:] {
		key, value, _ := strings.Cut(field, "=")
		_, twice := said[key]
		switch {
		case key != "status" && key != "file" && key != "size":
			return Download{}, fmt.Errorf("download %q: %q is none of status=N, file=PATH, size=BYTES", text, field)
		case twice:
			return Download{}, fmt.Errorf("download %q: %s is listed twice", text, key)
		}
		said[key] = value
	}
	if len(said) > 1 {
		return Download{}, fmt.Errorf("download %q: want only one of status, file and size: an error has no file, and a file has its own size", text)
	}
	if err := d.set(said); err != nil {
		return Download{}, fmt.Errorf("download %q: %w", text, err)
	}
	return d, nil
}

func (d *Download) set(said map[string]string) (err error) {
	for key, value := range said {
		switch key {
		case "status":
			n, err := strconv.Atoi(value)
			if err != nil || http.StatusText(n) == "" {
				return fmt.Errorf("status %q is none of HTTP", value)
			}
			if n < 400 {
				return fmt.Errorf("status %d has no effect: want one from 400 on", n)
			}
			d.Page.Missing = strconv.Itoa(n) + " " + http.StatusText(n)
		case "size":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 0 {
				return fmt.Errorf("size %q is not a number of bytes, 0 or more", value)
			}
			d.Page.Size, d.Sized = n, true
		case "file":
			d.Page, err = pageOfFile(value)
		}
	}
	return err
}

func pageOfFile(name string) (p Page, err error) {
	f, err := os.Open(name)
	if err != nil {
		return Page{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if p, err = PageOf(f); err != nil {
		return Page{}, fmt.Errorf("reading the file: %w", err)
	}
	return p, nil
}

// Matches says whether the rule is about an address.
func (d Download) Matches(address string) bool {
	parts := strings.Split(d.Pattern, "*")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile(`(?s)^` + strings.Join(parts, ".*") + `$`).MatchString(address)
}
