package pvesim

import (

	//nolint:gosec // Offered by PVE for checksums.
	//nolint:gosec // The same.

	"net/url"
	"path"
	"strings"
)

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
