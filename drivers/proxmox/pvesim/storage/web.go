package storage

import (
	"net/url"
	"path"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/content"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// Page looks at an address. Where nobody said what the web is, every page of http and
// https is there: its size is invented from the address, and any checksum is right.
func Page(w *core.World, address string) content.Page {
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

// fetch is what wget and the check after it say of a download
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

// checksumOf is the checksum of a file. That of a page nobody described is invented.
func checksumOf(v *core.Volume, algorithm string) string {
	if v.Sums != nil {
		return v.Sums[algorithm]
	}
	return content.Sums([]byte(v.URL + v.Name))[algorithm]
}

// is says whether a file that is there already is the one that a download would bring.
func is(p content.Page, old *core.Volume, from, algorithm, sum string) bool {
	if old.Sums != nil {
		return strings.EqualFold(old.Sums[algorithm], sum)
	}
	return old.URL == from && (p.Sums == nil || strings.EqualFold(p.Sums[algorithm], sum))
}

// apiURLMetadata is GET /nodes/{node}/query-url-metadata.
func apiURLMetadata(w *core.World, c *core.Call) (any, error) {
	from := c.In["url"]
	if !reachable(from) {
		return nil, perl.Fail("invalid server response: '500 Can't connect to %s'", from)
	}
	p := Page(w, from)
	if p.Missing != "" {
		return nil, perl.Fail("invalid server response: '%s'", p.Missing)
	}
	parsed, _ := url.Parse(from) // It was reachable.
	return map[string]any{"filename": path.Base(parsed.Path), "size": p.Size, "mimetype": "application/octet-stream"}, nil
}
