package pve_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestUploadedImagesAreLookedAt: a file is what its name says, or the task fails
// (PVE/API2/Storage/Status.pm, upload). The node that was asked has the task, whatever node
// the file is for.
func TestUploadedImagesAreLookedAt(t *testing.T) {
	tests := map[string]struct{ name, data, task string }{
		"qcow2":                        {"d.qcow2", "QFI\xfb\x00\x00\x00\x03" + zeros(100), "OK"},
		"no qcow2":                     {"d.qcow2", "just text", "qemu-img: Could not open '%s': Image is not in qcow2 format"},
		"qcow2 of another version":     {"d.qcow2", "QFI\xfb\x00\x00\x00\x07" + zeros(100), "qemu-img: Could not open '%s': Unsupported qcow2 version 7"},
		"qcow2 that refers to a file":  {"d.qcow2", "QFI\xfb\x00\x00\x00\x03" + zeros(7) + "\x70" + zeros(100), "backing file not allowed for untrusted image '%s'!"},
		"vmdk":                         {"d.vmdk", "KDMV and so on", "OK"},
		"no vmdk":                      {"d.vmdk", "QFI\xfb", "qemu-img: Could not open '%s': invalid VMDK image descriptor"},
		"a vmdk that is too small":     {"d.vmdk", "KDM", "qemu-img: Could not open '%s': File is too small, not a valid image"},
		"raw, be it empty":             {"d.raw", "x", "OK"},
		"a machine":                    {"d.ova", archive(t, "a.mf", "a.ovf"), "OK"},
		"a machine without itself":     {"d.ova", archive(t, "a.mf"), "ova archive has no .ovf file inside"},
		"an empty machine":             {"d.ova", "", "ova archive has no .ovf file inside"},
		"a machine that is no archive": {"d.ova", "just text", "command 'tar -t -f %s' failed: exit code 2"},
		"half a machine":               {"d.ova", archive(t, "a.ovf", "a.vmdk")[:1600], "command 'tar -t -f %s' failed: exit code 2"},
		"half a header of a machine":   {"d.ova", archive(t, "a.ovf", "a.vmdk")[:1100], "command 'tar -t -f %s' failed: exit code 2"},
		"a machine with a wrong block": {"d.ova", archive(t, "a.ovf")[:1536] + strings.Repeat("x", 512), "command 'tar -t -f %s' failed: exit code 2"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, pve.Config{Nodes: []string{"mother"}})
			var body bytes.Buffer
			w := multipart.NewWriter(&body)
			require.NoError(t, w.WriteField("content", "import"))
			part, err := w.CreateFormFile("filename", test.name)
			require.NoError(t, err)
			_, err = part.Write([]byte(test.data))
			require.NoError(t, err)
			require.NoError(t, w.Close())
			r, err := http.NewRequest(http.MethodPost, "https://pve/api2/json/nodes/mother/storage/local/upload", &body)
			require.NoError(t, err)
			r.Header.Set("Content-Type", w.FormDataContentType())
			upid := fmt.Sprint(c.send(r).data)
			require.Contains(t, upid, "UPID:father:")
			status := c.wait(upid)
			temporary := regexp.MustCompile("/var/tmp/pveupload-[0-9a-f]{32}").FindString(fmt.Sprint(c.log()))
			require.NotEmpty(t, temporary)
			require.Equal(t, strings.ReplaceAll(test.task, "%s", temporary), status)
			for _, v := range c.h.Snapshot().Volumes["local"] {
				require.Equal(t, "mother", v.Node)
			}
		})
	}
}

func zeros(n int) string { return strings.Repeat("\x00", n) }

// archive is one of tar, whose members hold 600 bytes each.
func archive(t *testing.T, names ...string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 600}))
		_, err := w.Write(make([]byte, 600))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.String()
}

// TestUploadFieldsInTheirOrder: PVE looks in a form for content, checksum-algorithm,
// checksum and the file, in this order, and takes each from where the last one ended
// (pve-http-server, PVE/APIServer/AnyEvent.pm, file_upload_multipart). What it meets on
// its way to one of them is taken for a part of that one's head, and refused.
func TestUploadFieldsInTheirOrder(t *testing.T) {
	const (
		boundary  = "b0undary"
		content   = "Content-Disposition: form-data; name=\"content\"\r\n\r\niso"
		algorithm = "Content-Disposition: form-data; name=\"checksum-algorithm\"\r\n\r\nsha1"
		sum       = "Content-Disposition: form-data; name=\"checksum\"\r\n\r\naaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d"
		file      = "Content-Disposition: form-data; name=\"filename\"; filename=\"s.iso\"\r\nContent-Type: application/octet-stream\r\n\r\nhello"
	)
	tests := map[string]struct {
		parts  []string
		status int
		reason string
	}{
		"as PVE looks for them": {[]string{content, algorithm, sum, file}, 200, ""},
		"without a sum":         {[]string{content, file}, 200, ""},
		"a file without a type": {[]string{content, algorithm, sum, strings.Replace(file, "Content-Type: application/octet-stream\r\n", "", 1)}, 200, ""},
		"the sum before its algorithm": {
			[]string{content, sum, algorithm, file},
			400,
			"Bad Request", // What it met has several lines (response in AnyEvent.pm).
		},
		"content behind the sum": {
			[]string{algorithm, sum, content, file},
			400,
			"Bad Request",
		},
		"the file before its fields": {
			[]string{file, content},
			400,
			"Parameter verification failed.", // it went into the file
		},
		"the type of the file before what it is": {
			[]string{content, "Content-Type: text/plain\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"s.iso\"\r\n\r\nhello"},
			500,
			"upload failed at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1370.",
		},
		"a field of another name": {
			[]string{content, strings.Replace(file, `name="filename"`, `name="file"`, 1)},
			500,
			"wrong field name 'file' for file upload, expected 'filename'",
		},
		"a field that PVE does not know": {
			[]string{content, "Content-Disposition: form-data; name=\"notes\"\r\n\r\nx", file},
			400,
			"Bad Request",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, pve.Config{})
			var body strings.Builder
			for _, part := range test.parts {
				body.WriteString("--" + boundary + "\r\n" + part + "\r\n")
			}
			body.WriteString("--" + boundary + "--\r\n")
			r, err := http.NewRequest(http.MethodPost, "https://pve/api2/json/nodes/father/storage/local/upload", strings.NewReader(body.String()))
			require.NoError(t, err)
			r.Header.Set("Content-Type", "multipart/form-data; boundary="+boundary)
			a := c.send(r)
			require.Equal(t, test.status, a.status, a.raw)
			if test.status != 200 {
				require.Contains(t, a.reason, test.reason)
				require.Empty(t, c.h.Snapshot().Volumes["local"])
				return
			}
			require.Equal(t, "OK", c.wait(fmt.Sprint(a.data)))
			require.Equal(t, int64(len("hello")), c.h.Snapshot().Volumes["local"][0].Size)
		})
	}
}
