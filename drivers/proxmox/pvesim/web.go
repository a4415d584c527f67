package pvesim

import (
	"bytes"
	"crypto/md5"  //nolint:gosec // Offered by PVE for checksums.
	"crypto/sha1" //nolint:gosec // The same.
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"hash"
	"io"
	"net/url"
	"path"
	"strings"
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

	content *fileContent // Known of a page that a file stands for, see [PageOf].
}

// PageOf is a page with a content: its size, its checksums, and what is checked of an
// image or archive that is downloaded. The content is read to its end and not kept.
func PageOf(content io.Reader) (Page, error) {
	f, err := readContent(content)
	if err != nil {
		return Page{}, err
	}
	return Page{Size: f.size, Disk: f.diskSize(), Sums: f.sums, content: f}, nil
}

// known is what is known of the content of a page; nil if that is nothing.
func (p Page) known() *fileContent {
	if p.content != nil || p.Content == nil {
		return p.content
	}
	f, _ := readContent(bytes.NewReader(p.Content)) // Memory can be read.
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

// page looks at an address. Where nobody said what the web is, every page of http and
// https is there: its size is invented from the address, and any checksum is right.
func (w *world) page(address string) Page {
	for _, d := range w.cfg.Downloads {
		if !d.matches(address) {
			continue
		}
		if d.sized {
			d.page.Disk = w.sized("disk "+address, 2, 4) << 30
		}
		return d.page
	}
	if w.cfg.Web != nil {
		p := w.cfg.Web(address)
		if p.Disk == 0 {
			p.Disk = p.Size
		}
		return p
	}
	p := Page{Size: w.sized(address, 256<<10, 768<<10) << 10}
	p.Disk = w.sized("disk "+address, 2, 4) << 30
	return p
}

// reachable says whether there can be a server at an address at all; a name that ends
// in .invalid is never found (RFC 6761).
func reachable(address string) bool {
	parsed, err := url.Parse(address)
	return err == nil && (parsed.Scheme == "https" || parsed.Scheme == "http") && !strings.HasSuffix(parsed.Hostname(), ".invalid")
}

// fetch is what wget and the check after it say of a download
// (download_file_from_url in PVE/Tools.pm).
func (p Page) fetch(t *task, from, algorithm, sum string) error {
	if p.Missing != "" {
		code, reason, _ := strings.Cut(p.Missing, " ")
		t.logf("HTTP request sent, awaiting response... %s", p.Missing)
		t.logf("%s ERROR %s: %s.", t.start.UTC().Format("2006-01-02 15:04:05"), code, reason)
		return fail("download failed: exit code 8") // wget: the server answered with an error.
	}
	if !reachable(from) {
		return fail("download failed: exit code 4") // wget: network failure.
	}
	if sum == "" {
		return nil
	}
	got := sum
	if p.Sums != nil {
		got = p.Sums[algorithm]
	}
	return t.checksum(got, sum)
}

// checksum compares the sum of a file with what was asked for. The line of a wrong one
// ends early, so that the error stands alone (PVE/Tools.pm, PVE/API2/Storage/Status.pm).
func (t *task) checksum(got, want string) error {
	if strings.EqualFold(got, want) {
		t.logf("calculating checksum...OK, checksum verified")
		return nil
	}
	t.logf("calculating checksum...")
	return fail("checksum mismatch: got '%s' != expect '%s'", got, want)
}

// sum is the checksum of a file. That of a page nobody described is invented.
func (v *volume) sum(algorithm string) string {
	if v.sums != nil {
		return v.sums[algorithm]
	}
	return Sums([]byte(v.url + v.name))[algorithm]
}

// is says whether a file that is there already is the one that a download would bring.
func (p Page) is(old *volume, from, algorithm, sum string) bool {
	if old.sums != nil {
		return strings.EqualFold(old.sums[algorithm], sum)
	}
	return old.url == from && (p.Sums == nil || strings.EqualFold(p.Sums[algorithm], sum))
}

// apiURLMetadata is GET /nodes/{node}/query-url-metadata.
func apiURLMetadata(w *world, c *call) (any, error) {
	from := c.in["url"]
	if !reachable(from) {
		return nil, fail("invalid server response: '500 Can't connect to %s'", from)
	}
	p := w.page(from)
	if p.Missing != "" {
		return nil, fail("invalid server response: '%s'", p.Missing)
	}
	parsed, _ := url.Parse(from) // It was reachable.
	return map[string]any{"filename": path.Base(parsed.Path), "size": p.Size, "mimetype": "application/octet-stream"}, nil
}
