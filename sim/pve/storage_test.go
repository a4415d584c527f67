package pve_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
	require.Contains(t, c.log(), "disk image '/var/lib/vz/import/d.qcow2' does not exist", "nobody minds")
	for _, scheme := range []string{"http", "https"} {
		require.Equal(t, "f.iso", c.object("/nodes/father/query-url-metadata?url=" + scheme + "://images.test/f.iso")["filename"])
		c.done("POST", path, form{"url": scheme + "://images.test/f.iso", "filename": scheme + ".iso", "content": "iso"})
	}
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

// TestDelayedAnswers: some calls wait for their task if asked to.
func TestDelayedAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: 3 * time.Second})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		began := time.Now()
		require.Nil(t, c.ok("POST", vmURL("100", "/config"), form{"name": "x", "background_delay": "10"}))
		require.Equal(t, 3*time.Second, time.Since(began))
		require.NotNil(t, c.ok("POST", vmURL("100", "/config"), form{"name": "y", "background_delay": "1"}))
		require.Equal(t, 4*time.Second, time.Since(began))
		c.ok("GET", "/version", nil)
		time.Sleep(3 * time.Second)
		g, _ := c.h.Snapshot().Guest(100)
		require.Equal(t, "y", g.Config["name"])
		require.Equal(t, []string{"update VM 100: -name y", "TASK OK"}, c.log())
		c.h.Edit(func(e *pve.Edit) { e.Quorum(false) })
		a := c.ask("DELETE", "/nodes/father/storage/local/content/local:iso%2Fnone.iso?delay=5", nil)
		require.Equal(t, 200, a.status)
		require.Nil(t, a.data)
	})
}

// TestPools: a guest is in one pool at most, and only an empty pool can go.
func TestPools(t *testing.T) {
	c := newClient(t, pve.Config{})
	for _, name := range []string{"a", "b", "a/sub"} {
		c.ok("POST", "/pools", form{"poolid": name, "comment": "the " + name})
	}
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "pool": "a"})
	require.Equal(t, "update pools failed: VM 100 belongs already to pool 'a' and 'allow-move' is not set", c.ask("PUT", "/pools", form{"poolid": "b", "vms": "100"}).reason)
	c.ok("PUT", "/pools", form{"poolid": "b", "vms": "100", "storage": "local", "allow-move": "1"})
	require.Len(t, c.object("/pools/b")["members"], 2)
	g, _ := c.h.Snapshot().Guest(100)
	require.Equal(t, "b", g.Pool)
	require.Equal(t, "delete pool failed: pool 'a' is not empty (contains pool 'a/sub')", c.ask("DELETE", "/pools?poolid=a", nil).reason)
	require.Equal(t, "delete pool failed: pool 'b' is not empty (contains VM 100)", c.ask("DELETE", "/pools/b", nil).reason)
	c.ok("PUT", "/pools/b", form{"vms": "100", "storage": "local", "delete": "1"})
	c.ok("DELETE", "/pools/b", nil)
	c.ok("DELETE", "/pools?poolid=a%2Fsub", nil)
	c.ok("DELETE", "/pools/a", nil)
	require.Empty(t, c.list("/pools"))
}

// TestTaskLists: filters and pages.
func TestTaskLists(t *testing.T) {
	c := newClient(t, pve.Config{})
	for i := range 3 {
		c.done("POST", "/nodes/father/qemu", form{"vmid": fmt.Sprint(100 + i)})
	}
	c.done("POST", vmURL("101", "/status/start"), nil)
	require.NotEqual(t, "OK", c.task("POST", vmURL("101", "/status/start"), nil))
	for query, want := range map[string]int{
		"": 5, "?vmid=101": 3, "?typefilter=qmcreate": 3, "?errors=1": 1, "?statusfilter=ok": 4, "?statusfilter=error": 1, "?userfilter=sim": 5,
		"?userfilter=nobody": 0, "?limit=2": 2, "?start=4": 1, "?start=9": 0, "?source=active": 0, "?source=all": 5, "?since=4000000000": 0,
	} {
		require.Len(t, c.list("/nodes/father/tasks"+query), want, query)
	}
	require.Len(t, c.list("/cluster/tasks"), 5)
	require.Equal(t, "VM 101 already running", c.list("/nodes/father/tasks?limit=1")[0]["status"], "newest first")
	require.Equal(t, map[string]string{"upid": "no such task"}, c.ask("GET", "/nodes/father/tasks/UPID:father:00000001:00000001:00000001:qmstart:1:root@pam:/status", nil).errors)
	require.Equal(t, map[string]string{"upid": "unable to parse worker upid"}, c.ask("GET", "/nodes/father/tasks/x/status", nil).errors)
}
