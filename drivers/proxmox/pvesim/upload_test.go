package pvesim_test

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
)

// TestUploadedImagesAreLookedAt: a file is what its name says, or the task fails
// (PVE/API2/Storage/Status.pm, upload). The node that was asked has the task, whatever node
// the file is for.
func TestUploadedImagesAreLookedAt(t *testing.T) {
	tests := map[string]struct{ name, data, task string }{
		"qcow2":            {"d.qcow2", "QFI\xfb and so on", "OK"},
		"no qcow2":         {"d.qcow2", "just text", "failed to query file information with qemu-img"},
		"vmdk":             {"d.vmdk", "KDMV and so on", "OK"},
		"no vmdk":          {"d.vmdk", "QFI\xfb", "failed to query file information with qemu-img"},
		"raw, be it empty": {"d.raw", "x", "OK"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, pvesim.Config{Nodes: []string{"mother"}})
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
			require.Equal(t, test.task, c.wait(upid))
			for _, v := range c.h.Snapshot().Volumes["local"] {
				require.Equal(t, "mother", v.Node)
			}
		})
	}
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
		"the sum before its algorithm": {
			[]string{content, sum, algorithm, file},
			501,
			`wrong Content-Disposition 'form-data; name="checksum"' in multipart, expected 'form-data'`,
		},
		"content behind the sum": {
			[]string{algorithm, sum, content, file},
			501,
			`wrong Content-Disposition 'form-data; name="checksum-algorithm"' in multipart, expected 'form-data'`,
		},
		"the file before its fields": {
			[]string{file, content},
			400,
			"Parameter verification failed.", // it went into the file
		},
		"the type of the file before what it is": {
			[]string{content, "Content-Type: text/plain\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"s.iso\"\r\n\r\nhello"},
			501,
			"upload failed",
		},
		"a field of another name": {
			[]string{content, strings.Replace(file, `name="filename"`, `name="file"`, 1)},
			501,
			"wrong field name 'file' for file upload, expected 'filename'",
		},
		"a field that PVE does not know": {
			[]string{content, "Content-Disposition: form-data; name=\"notes\"\r\n\r\nx", file},
			501,
			"wrong field name 'notes",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, pvesim.Config{})
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
