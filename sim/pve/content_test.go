package pve_test

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// uploaded is the answer to the upload of a file, in one line as of a step.
func (c *client) uploaded(content, name, data string, fields ...[2]string) string {
	c.t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	for _, field := range append([][2]string{{"content", content}}, fields...) {
		require.NoError(c.t, w.WriteField(field[0], field[1]))
	}
	part, err := w.CreateFormFile("filename", name)
	require.NoError(c.t, err)
	_, err = part.Write([]byte(data))
	require.NoError(c.t, err)
	require.NoError(c.t, w.Close())
	r, err := http.NewRequest(http.MethodPost, "https://pve/api2/json/nodes/father/storage/local/upload", &body)
	require.NoError(c.t, err)
	r.Header.Set("Content-Type", w.FormDataContentType())
	return c.line(c.send(r))
}

// TestUploadChecks: names by ISO_EXT_RE_0 and VZTMPL_EXT_RE_1 (PVE/Storage.pm), an archive
// of a machine by what is in it, and a sum before anything is said of the target
// (PVE/API2/Storage/Status.pm, upload).
func TestUploadChecks(t *testing.T) {
	c := likeRecorded(t)
	sum := pve.Sums([]byte("hello"))["md5"]
	for _, u := range []struct{ content, name, data, want string }{
		{"iso", ".iso", "hello", "filename: wrong file extension"},
		{"vztmpl", "a.tgz", "hello", "filename: wrong file extension"},
		{"vztmpl", "a.tar.zip", "hello", "filename: wrong file extension"},
		{"vztmpl", "a.tar.BZ2", "hello", "OK"},
		{"import", "a.ova", archive(t, "machine.ovf"), "OK"},
	} {
		require.Equal(t, u.want, c.uploaded(u.content, u.name, u.data), u.name)
	}
	require.Equal(t, "checksum mismatch: got '"+sum+"' != expect '0'",
		c.uploaded("iso", "a.iso", "hello", [2]string{"checksum-algorithm", "md5"}, [2]string{"checksum", "0"}))
	require.Equal(t, []string{"calculating checksum...", "TASK ERROR: checksum mismatch: got '" + sum + "' != expect '0'"}, c.log()[1:])
	require.Equal(t, "OK", c.uploaded("iso", "a.iso", "hello", [2]string{"checksum-algorithm", "md5"}, [2]string{"checksum", sum}))
	require.Equal(t, []string{"calculating checksum...OK, checksum verified", "target node: father"}, c.log()[1:3])
	require.Equal(t, "OK", c.uploaded("iso", "empty.iso", ""))
	at := "/nodes/father/storage/local"
	c.steps(
		step{"POST", at + "/upload", form{"content": "iso", "filename": "a.txt"}, "500 missing temporary file name"},
		step{"GET", at + "/content/iso/empty.iso", nil, "500 volume 'local:iso/empty.iso' has size zero"}, // PVE/API2/Storage/Content.pm
	)
}

// TestDownloadChecks: what download-url asks for in which order (PVE/API2/Storage/Status.pm),
// and what becomes of a file that is there (download_file_from_url in PVE/Tools.pm).
func TestDownloadChecks(t *testing.T) {
	c := likeRecorded(t)
	require.Equal(t, "OK", c.uploaded("iso", "a.iso", "hello"))
	sums := pve.Sums([]byte("hello"))
	load := func(content, name, want string, more ...string) step {
		params := form{"content": content, "filename": name, "url": "http://x.test/a"}
		for i := 0; i < len(more); i += 2 {
			params[more[i]] = more[i+1]
		}
		return step{"POST", "/nodes/father/storage/local/download-url", params, want}
	}
	c.steps(
		load("iso", "a.iso", "checksum mismatch: got '"+sums["sha1"]+"' != expect '0', aborting", "checksum", "0", "checksum-algorithm", "sha1"),
		load("iso", "a.iso", "OK", "checksum", sums["sha1"], "checksum-algorithm", "sha1"),
		load("vztmpl", "a.tar.gz", "decompression not supported for vztmpl", "compression", "gz"),
		step{"PUT", "/storage/local", form{"content": "iso"}, "OK"},
		load("import", "a.txt", "500 storage 'local' is not configured for content-type 'import'"),
	)
}

// TestAllocateUnnamed: a disk without a name gets the next free one (alloc_image in
// PVE/Storage/Plugin.pm).
func TestAllocateUnnamed(t *testing.T) {
	c := likeRecorded(t)
	for _, want := range []string{"vmstore:400/vm-400-disk-0.qcow2", "vmstore:400/vm-400-disk-1.qcow2"} {
		params := form{"vmid": "400", "filename": "", "size": "1G", "format": "qcow2"}
		require.Equal(t, want, c.ok("POST", "/nodes/father/storage/vmstore/content", params))
	}
}

// TestBackupNotes: of a backup both attributes are told, its listing has the first line of
// its notes, and one that is not there takes them without a word (PVE/Storage/DirPlugin.pm,
// get_subdir_files in PVE/Storage/Plugin.pm).
func TestBackupNotes(t *testing.T) {
	c := likeRecorded(t)
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "vmstore:1"})
	c.done("POST", "/nodes/father/vzdump", form{"vmid": "100", "storage": "local", "mode": "stop"})
	at := "/nodes/father/storage/local/content"
	volid, _ := c.list(at + "?content=backup")[0]["volid"].(string)
	shown := c.object(at + "/" + volid)
	require.Equal(t, []any{"", 0.0}, []any{shown["notes"], shown["protected"]})
	c.ok("PUT", at+"/"+volid, form{"notes": "before\nthe change"})
	require.Equal(t, "before\nthe change", c.object(at + "/" + volid)["notes"])
	require.Equal(t, "before", c.list(at + "?content=backup")[0]["notes"])
	c.steps(
		step{"PUT", at + "/backup/vzdump-qemu-100-2001_01_01-00_00_00.vma", form{"notes": "x", "protected": "1"}, "OK"},
		step{"GET", "/nodes/father/vzdump/extractconfig?volume=local:backup/x", nil, "500 unable to parse directory volume name 'backup/x'"},
	)
}
