package pve_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

func TestParseStorage(t *testing.T) {
	got, err := pve.ParseStorage("fast:zfspool:images,rootdir:100")
	require.NoError(t, err)
	require.Equal(t, pve.Storage{Name: "fast", Type: "zfspool", Content: []string{"images", "rootdir"}, Size: 100 << 30}, got)
	got, err = pve.ParseStorage("far:dir:iso:7:/srv/far:shared")
	require.NoError(t, err)
	require.Equal(t, pve.Storage{Name: "far", Type: "dir", Content: []string{"iso"}, Size: 7 << 30, Path: "/srv/far", Shared: true}, got)
	for _, text := range []string{
		"a:dir:iso:/x:/y", "a:dir:iso:/x:5", "a:dir:iso:shared:5", "a:dir:iso:shared:shared", "a:lvmthin:images:/x", "", "fast", "fast:zfspool", ":dir:iso", "a:nosuch:iso", "a:dir:nosuch", "a:dir:iso:x", "a:dir:iso:0", "a:dir:iso:1:2",
	} {
		_, err := pve.ParseStorage(text)
		require.ErrorContains(t, err, fmt.Sprintf("%q", text))
	}
}

// TestStorageEntries: PVE/API2/Storage/Config.pm, check_config in PVE/SectionConfig.pm,
// PVE/API2/Storage/Status.pm.
func TestStorageEntries(t *testing.T) {
	c := likeRecorded(t)
	c.steps(
		step{"POST", "/storage", form{"storage": "d1", "type": "dir", "path": "/srv/d1", "server": "192.0.2.1"}, "500 unexpected property 'server'"},
		step{"POST", "/storage", form{"storage": "d1", "type": "dir", "path": "/srv/d1", "content": "iso", "nodes": "father"}, "OK"},
		step{"PUT", "/storage/d1", form{"delete": "nosuch"}, "500 update storage failed: no such option 'nosuch'"},
		step{"PUT", "/storage/d1", form{"delete": "path"}, "500 update storage failed: unable to delete required option 'path'"},
		step{"PUT", "/storage/d1", form{"delete": "content", "content": "iso"}, "500 update storage failed: cannot set and delete property 'content' at the same time!"},
		step{"PUT", "/storage/d1", form{"digest": "00"}, "500 update storage failed: detected modified configuration - file changed by other user? Try again."},
		step{"GET", "/nodes/father/storage", form{"storage": "nosuch"}, "storage: No such storage."},
		step{"GET", "/nodes/father/storage", form{"storage": "local", "content": "images"}, "storage: No such storage."},
		step{"PUT", "/storage/d1", form{"nodes": "mother"}, "OK"},
		step{"GET", "/nodes/father/storage/d1/content", nil, "500 storage 'd1' is not available on node 'father'"},
		step{"PUT", "/storage/d1", form{"delete": "nodes,content"}, "OK"},
	)
	require.Equal(t, "images,rootdir", c.object("/storage/d1")["content"])
	c.ok("PUT", "/storage/d1", form{"disable": "1"})
	status := c.object("/nodes/father/storage/d1/status")
	require.EqualValues(t, 0, status["enabled"])
	require.EqualValues(t, 0, status["total"])
	require.Len(t, c.list("/cluster/resources?type=storage"), 2)
	require.Len(t, c.list("/nodes/father/storage"), 3)
	require.Len(t, c.list("/nodes/father/storage?enabled=1"), 2)
	require.Empty(t, c.list("/nodes/father/storage?target=mother"), "nothing is shared")
}

// TestStorageEdit: a storage that was added can be used, one that is disabled cannot.
func TestStorageEdit(t *testing.T) {
	c := newClient(t, pve.Config{})
	require.Equal(t, "missing value for required option 'pool'", c.ask("POST", "/storage", form{"storage": "tank", "type": "zfspool"}).reason)
	c.ok("POST", "/storage", form{"storage": "tank", "type": "zfspool", "pool": "tank/vms", "content": "images", "sparse": "1"})
	require.Equal(t, "create storage failed: storage ID 'tank' already defined", c.ask("POST", "/storage", form{"storage": "tank", "type": "zfspool", "pool": "x"}).reason)
	entry := c.object("/storage/tank")
	require.Equal(t, []any{"tank/vms", 1.0}, []any{entry["pool"], entry["sparse"]})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "tank:1"})
	require.NotContains(t, c.list("/nodes/father/storage/tank/content")[0], "ctime", "ZFS shows no time of a volume")
	c.ok("PUT", "/storage/tank", form{"disable": "1", "digest": fmt.Sprint(entry["digest"])})
	require.Contains(t, c.ask("PUT", "/storage/tank", form{"disable": "0", "digest": fmt.Sprint(entry["digest"])}).reason, "detected modified configuration")
	require.Equal(t, "storage 'tank' is disabled", c.task("POST", vmURL("100", "/status/start"), nil))
	c.ok("PUT", "/storage/tank", form{"delete": "disable"})
	c.done("POST", vmURL("100", "/status/start"), nil)
	c.ok("DELETE", "/storage/tank", nil)
	require.Equal(t, "storage 'tank' does not exist", c.ask("GET", "/storage/tank", nil).reason)
	require.Equal(t, 501, c.ask("POST", "/storage", form{"storage": "vm", "type": "esxi", "server": "x", "username": "y"}).status)
}

// TestFullStorage: what needs room fails in its task.
func TestFullStorage(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.image()
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local-lvm:1"})
	c.h.Edit(func(e *pve.Edit) { e.Fill("local", true); e.Fill("local-lvm", true) })
	status := c.object("/nodes/father/storage/local/status")
	require.EqualValues(t, 0, status["avail"])
	require.Equal(t, status["total"], status["used"])
	require.Contains(t, c.task("POST", vmURL("100", "/clone"), form{"newid": "101"}), "clone failed: lvcreate")
	require.Contains(t, c.task("POST", "/nodes/father/storage/local/download-url", form{"url": "https://x.test/a.iso", "filename": "a.iso", "content": "iso"}), "No space left")
	require.Contains(t, c.ask("PUT", vmURL("100", "/config"), form{"scsi1": "local-lvm:1"}).reason, "free space in thin pool")
	c.h.Edit(func(e *pve.Edit) { e.Fill("local-lvm", false) })
	c.done("POST", vmURL("100", "/clone"), form{"newid": "101"})
	require.Len(t, c.h.Snapshot().Guests, 2)
}

// TestLocalStorage: the same name on two nodes holds two things; a shared one
// the same.
func TestLocalStorage(t *testing.T) {
	shared, err := pve.ParseStorage("nas:nfs:images,iso")
	require.NoError(t, err)
	c := newClient(t, pve.Config{Nodes: []string{"mother"}, Storages: append(pve.DefaultStorages(), shared)})
	iso := form{"url": "https://x.test/a.iso", "filename": "a.iso", "content": "iso"}
	c.done("POST", "/nodes/father/storage/local/download-url", iso)
	c.done("POST", "/nodes/father/storage/nas/download-url", iso)
	require.Empty(t, c.list("/nodes/mother/storage/local/content"))
	require.Len(t, c.list("/nodes/mother/storage/nas/content"), 1)
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local-lvm:1"})
	require.Contains(t, c.ask("POST", vmURL("100", "/clone"), form{"newid": "101", "target": "mother"}).reason, "VM uses local storage")
	c.done("POST", "/nodes/father/qemu", form{"vmid": "102", "scsi0": "nas:1"})
	c.done("POST", vmURL("102", "/clone"), form{"newid": "103", "target": "mother"})
	g, _ := c.h.Snapshot().Guest(103)
	require.Equal(t, "mother", g.Node)
}

// TestAllocate: alloc_image in PVE/Storage/Plugin.pm and update_volume_attribute in
// PVE/Storage/DirPlugin.pm.
func TestAllocate(t *testing.T) {
	c := likeRecorded(t)
	allocate := func(name, format, want string) step {
		params := form{"vmid": "400", "filename": name, "size": "1024"}
		if format != "" {
			params["format"] = format
		}
		return step{"POST", "/nodes/father/storage/vmstore/content", params, want}
	}
	c.steps(
		allocate("vm-400-disk-0.raw", "", "OK"),
		allocate("vm-401-disk-0.qcow2", "", "OK"),
		allocate("vm-400-disk-0.raw", "", "500 disk image '/srv/vmstore/images/400/vm-400-disk-0.raw' already exists"),
		allocate("x.iso", "", "500 unable to parse volume filename 'x.iso'"),
		allocate("vm-400-disk-1", "qcow2", "500 unable to parse volume filename 'vm-400-disk-1'"),
		allocate("vm-400-disk-1.raw", "qcow2", "format: different storage formats (qcow2 != raw)"),
		allocate("vm-400-disk-1.subvol", "raw", "500 illegal name 'vm-400-disk-1.subvol' - wrong extension for format ('subvol != 'raw')"),
		allocate("subvol-400-disk-1.subvol", "subvol", "500 storage does not support subvol quotas"),
		step{"PUT", "/nodes/father/storage/vmstore/content/400%2Fvm-400-disk-0.raw", form{"protected": "1"}, "500 only backups support attribute 'protected'"},
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

// TestDownload: any http or https address is there, to be asked after as well; what is there already is only taken
// for right if its sum was asked for.
func TestDownload(t *testing.T) {
	c := newClient(t, pve.Config{Seed: 7})
	path := "/nodes/father/storage/local/download-url"
	image := form{"url": "https://images.test/d.qcow2", "filename": "d.qcow2", "content": "import"}
	c.done("POST", path, image)
	require.Equal(t, "refusing to override existing file '/var/lib/vz/import/d.qcow2'", c.task("POST", path, image))
	image["checksum"], image["checksum-algorithm"] = strings.Repeat("a", 64), "sha256"
	c.done("POST", path, image)
	require.Contains(t, c.log(), "calculating checksum of existing file...OK, got correct file already, no need to download")
	for changed, wrong := range map[string]string{"filename=d.txt": "filename", "content=images": "content", "url=nonsense": "url"} {
		key, value, _ := strings.Cut(changed, "=")
		params := form{"url": "https://images.test/e.iso", "filename": "e.iso", "content": "iso"}
		params[key] = value
		require.Contains(t, c.ask("POST", path, params).errors, wrong)
	}
	require.Contains(t, c.ask("POST", "/nodes/father/storage/local-lvm/download-url", image).reason, "can't upload to storage type 'lvmthin', not a file based storage!")
	volume := c.object("/nodes/father/storage/local/content/local:import%2Fd.qcow2")
	listed := c.list("/nodes/father/storage/local/content")[0]
	require.Greater(t, volume["size"], listed["size"], "the disk in the file is larger than the file")
	other := newClient(t, pve.Config{Seed: 7})
	other.done("POST", path, image)
	require.Equal(t, c.h.Snapshot().Volumes["local"], other.h.Snapshot().Volumes["local"], "sizes are of the seed")

	c.done("DELETE", "/nodes/father/storage/local/content/import/d.qcow2", nil)
	require.Empty(t, c.h.Snapshot().Volumes["local"])
	c.done("DELETE", "/nodes/father/storage/local/content/local:import%2Fd.qcow2", nil)
	require.Contains(t, c.log(), "disk image '/var/lib/vz/import/d.qcow2' does not exist", "the missing file is only logged")
	for _, scheme := range []string{"http", "https"} {
		require.Equal(t, "f.iso", c.object("/nodes/father/query-url-metadata?url=" + scheme + "://images.test/f.iso")["filename"])
		c.done("POST", path, form{"url": scheme + "://images.test/f.iso", "filename": scheme + ".iso", "content": "iso"})
	}
}

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

func zeros(n int) string { return strings.Repeat("\x00", n) }

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

// TestUploadedImagesAreChecked: a file is what its name says, or the task fails
// (PVE/API2/Storage/Status.pm, upload). The node that was asked has the task, whatever node
// the file is for.
func TestUploadedImagesAreChecked(t *testing.T) {
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

// TestElsewhere: what reaches out of the host.
func TestElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		const pull = "/nodes/father/storage/local/oci-registry-pull"
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		c.steps(
			step{"POST", pull, form{"reference": "docker.io/library/nginx:alpine"}, "OK"},
			step{"POST", pull, form{"reference": "docker.io/library/nginx:alpine"}, "500 refusing to override existing file 'nginx_alpine.tar'"},
			step{"POST", pull, form{"reference": "docker.io/library/nginx:alpine", "filename": "web.tar"}, "OK"},
			step{"POST", "/nodes/father/storage/local-lvm/oci-registry-pull", form{"reference": "docker.io/library/nginx:alpine"}, "500 can't upload to storage type 'lvmthin', not a file based storage!"},
		)
		var names []string
		for _, v := range c.list("/nodes/father/storage/local/content?content=vztmpl") {
			names = append(names, fmt.Sprint(v["volid"]))
		}
		require.Equal(t, []string{"local:vztmpl/nginx_alpine.tar", "local:vztmpl/web.tar.tar"}, names)
		shown := func(c *client) []any {
			entry := c.object("/nodes/father/subscription")
			return []any{entry["status"], entry["key"], entry["level"], entry["serverid"] != nil, entry["message"]}
		}
		c.ok("POST", "/access/users", form{"userid": "guest@pve"})
		token, _ := c.ok("POST", "/access/users/guest@pve/token/look", nil).(map[string]any)
		guest := c.as(fmt.Sprint("guest@pve!look=", token["value"]))
		require.Equal(t, []any{"notfound", nil, nil, true, "There is no subscription key"}, shown(c))
		require.Equal(t, []any{"notfound", nil, nil, false, "There is no subscription key"}, shown(guest))
	})
}
