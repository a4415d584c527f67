package pve_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestDownloads: what a rule says is fetched fails as on a host (download_file_from_url in
// PVE/Tools.pm, download_url in PVE/API2/Storage/Status.pm); the first rule that matches
// decides, and addresses without one are as ever.
func TestDownloads(t *testing.T) {
	folder := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	image := "QFI\xfb\x00\x00\x00\x03" + zeros(16) + "\x00\x00\x00\x00\x40\x00\x00\x00" + zeros(80)
	machine := archive(t, "a.ovf", "a.vmdk")
	var rules []pve.Download
	for _, text := range []string{
		"https://a.test/gone* status=404",
		"https://a.test/busy.iso status=503",
		"https://a.test/text.* file=" + file("text", "just text"),
		"*/good.qcow2?* file=" + file("good", image),
		"https://a.test/good.ova file=" + file("machine", machine),
		"https://a.test/half.ova file=" + file("half", machine[:1600]),
		"https://*/small.raw size=4096",
		"https://a.test/small.raw status=404", // Never: the one before matches.
	} {
		rule, err := pve.ParseDownload(text)
		require.NoError(t, err, text)
		rules = append(rules, rule)
	}
	sum := func(content string) string { return pve.Sums([]byte(content))["sha256"] }
	for name, test := range map[string]struct {
		url, file, sum string
		want           string // What the task ends with, or begins to.
		size           int64  // Of the volume.
	}{
		"gone":                     {"https://a.test/gone/far/x.qcow2", "x.qcow2", "", "download failed: exit code 8", 0},
		"no image":                 {"https://a.test/text.qcow2", "x.qcow2", "", "failed to verify file: qemu-img: Could not open '/var/lib/vz/import/x.qcow2.tmp_dwnl.", 0},
		"no image, but right":      {"https://a.test/text.qcow2", "x.qcow2", sum("just text"), "failed to verify file: qemu-img: Could not open '/var/lib/vz/import/x.qcow2.tmp_dwnl.", 0},
		"text is a raw image":      {"https://a.test/text.raw", "x.raw", sum("just text"), "OK", 512},
		"a sum that is wrong":      {"https://a.test/text.raw", "x.raw", sum("other text"), "checksum mismatch: got '" + sum("just text") + "' != expect '" + sum("other text") + "'", 0},
		"a wrong sum of no image":  {"https://a.test/text.qcow2", "x.qcow2", sum("other text"), "checksum mismatch: got '", 0},
		"an image":                 {"https://b.test/good.qcow2?v=1", "x.qcow2", sum(image), "OK", 1 << 30},
		"a machine":                {"https://a.test/good.ova", "x.ova", sum(machine), "OK", 0},
		"half a machine":           {"https://a.test/half.ova", "x.ova", "", "failed to verify file: command 'tar -t -f /var/lib/vz/import/x.ova.tmp_dwnl.", 0},
		"of a size":                {"https://a.test/small.raw", "x.raw", sum("any"), "OK", 0},
		"an address without rules": {"https://a.test/other.qcow2", "x.qcow2", sum("any"), "OK", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, pve.Config{Downloads: rules})
				params := form{"content": "import", "url": test.url, "filename": test.file}
				if test.sum != "" {
					params["checksum"], params["checksum-algorithm"] = test.sum, "sha256"
				}
				status := c.wait(c.ok("POST", "/nodes/father/storage/local/download-url", params).(string))
				require.Contains(t, status, test.want)
				volumes := c.h.Snapshot().Volumes["local"]
				if test.want != "OK" {
					require.Empty(t, volumes)
					return
				}
				require.Equal(t, "OK", status)
				require.Len(t, volumes, 1)
				if test.size > 0 {
					require.Equal(t, test.size, volumes[0].Size)
				}
			})
		})
	}
	c := newClient(t, pve.Config{Downloads: rules})
	ask := func(url string) answer {
		return c.ask("GET", "/nodes/father/query-url-metadata", form{"url": url})
	}
	require.Equal(t, "invalid server response: '404 Not Found'", ask("https://a.test/gone").reason)
	require.Equal(t, "invalid server response: '503 Service Unavailable'", ask("https://a.test/busy.iso").reason)
	require.Equal(t, 4096.0, ask("https://a.test/small.raw").data.(map[string]any)["size"])
	require.Equal(t, float64(len("just text")), ask("https://a.test/text.txt").data.(map[string]any)["size"])
}
