package pve_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/luthermonson/go-proxmox"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
)

// form are parameters, in a form readable in tests.
type form map[string]string

// client asks a host in process. Every good answer is held against the API
// table; an answer that PVE would not give fails the test.
type client struct {
	t     *testing.T
	h     *pve.Host
	token string
	// ticket and its CSRF token are sent instead of the token, if they are there.
	ticket [2]string
}

func newClient(t *testing.T, c pve.Config) *client {
	t.Helper()
	c.Promise = func(deviation string) { t.Error("not what the API promises:", deviation) }
	h := pve.New(c)
	return &client{t: t, h: h, token: h.Token()}
}

// likeRecorded is a host as the recordings have it: all storages are directories.
func likeRecorded(t *testing.T) *client {
	t.Helper()
	local, err := pve.ParseStorage("local:dir:iso,vztmpl,backup,snippets,import:100:/var/lib/vz")
	require.NoError(t, err)
	all, err := pve.ParseStorage("vmstore:dir:images,rootdir,iso,vztmpl,backup,snippets,import:100:/srv/vmstore")
	require.NoError(t, err)
	return newClient(t, pve.Config{Version: "8.4", Storages: []pve.Storage{local, all}})
}

// files is a host with one file storage that holds everything.
func files(version string) pve.Config {
	return pve.Config{Version: version, Storages: []pve.Storage{
		{Name: "files", Type: "dir", Path: "/srv/files", Content: []string{"images", "rootdir", "iso", "vztmpl", "backup", "snippets", "import"}},
		{Name: "thin", Type: "lvmthin", Content: []string{"images"}},
		{Name: "dumps", Type: "dir", Path: "/srv/dumps", Content: []string{"backup"}},
	}}
}

// pair is a cluster of two nodes with a storage that both see.
func pair(t *testing.T, version string) *client {
	t.Helper()
	nas, err := pve.ParseStorage("nas:nfs:images,iso,import,rootdir")
	require.NoError(t, err)
	return newClient(t, pve.Config{Nodes: []string{"mother"}, Version: version, Storages: append(pve.DefaultStorages(), nas)})
}

// as is the same host asked with another token.
func (c *client) as(token string) *client { return &client{t: c.t, h: c.h, token: token} }

// ticketed is a client with a ticket of root@pam, for whom nothing is forbidden.
func (c *client) ticketed() *client {
	c.t.Helper()
	_, secret, _ := strings.Cut(c.token, "=")
	login := c.ok("POST", "/access/ticket", form{"username": "root@pam", "password": secret}).(map[string]any)
	root := *c
	root.ticket = [2]string{fmt.Sprint(login["ticket"]), fmt.Sprint(login["CSRFPreventionToken"])}
	return &root
}

// agent makes a pool, a user and a token with rights on that pool, one storage
// and one bridge alone.
func (c *client) agent() *client {
	c.t.Helper()
	c.ok("POST", "/pools", form{"poolid": "ours"})
	c.ok("POST", "/access/roles", form{"roleid": "Agent", "privs": agentRole})
	c.ok("POST", "/access/users", form{"userid": "agent@pve"})
	token, ok := c.ok("POST", "/access/users/agent@pve/token/tk", nil).(map[string]any)
	require.True(c.t, ok)
	for path, role := range map[string]string{
		"/pool/ours": "Agent", "/storage/local-lvm": "PVEDatastoreUser", "/storage/local": "PVEDatastoreUser", "/sdn/zones/localnetwork/vmbr0": "PVESDNUser",
	} {
		c.ok("PUT", "/access/acl", form{"path": path, "roles": role, "users": "agent@pve", "tokens": "agent@pve!tk"})
	}
	return c.as("agent@pve!tk=" + fmt.Sprint(token["value"]))
}

// agentRole has the privileges that an agent needs on its pool.
const agentRole = "VM.Allocate,VM.Audit,VM.Clone,VM.Config.CDROM,VM.Config.CPU,VM.Config.Cloudinit,VM.Config.Disk,VM.Config.HWType," +
	"VM.Config.Memory,VM.Config.Network,VM.Config.Options,VM.PowerMgmt,VM.GuestAgent.Audit,Pool.Audit"

// tokenOf makes a token of a user, who has all that the user has.
func (c *client) tokenOf(userid string) string {
	made := c.ok("POST", "/access/users/"+userid+"/token/tk", form{"privsep": "0"}).(map[string]any)
	return fmt.Sprint(made["full-tokenid"], "=", made["value"])
}

// answer is the answer to a request.
type answer struct {
	status  int
	reason  string
	data    any
	errors  map[string]string
	message string
	header  http.Header
	raw     string
}

// ask sends a request and fails the test if there is no answer.
func (c *client) ask(verb, path string, params form) answer {
	c.t.Helper()
	r, err := http.NewRequest(verb, "https://pve/api2/json"+path, nil)
	require.NoError(c.t, err)
	values := url.Values{}
	for key, value := range params {
		values.Set(key, value)
	}
	if verb == http.MethodGet || verb == http.MethodDelete {
		r.URL.RawQuery = strings.TrimPrefix(r.URL.RawQuery+"&"+values.Encode(), "&")
	} else {
		r, err = http.NewRequest(verb, "https://pve/api2/json"+path, strings.NewReader(values.Encode()))
		require.NoError(c.t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return c.send(r)
}

func (c *client) send(r *http.Request) answer {
	c.t.Helper()
	switch {
	case c.ticket[0] != "":
		r.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: url.QueryEscape(c.ticket[0])})
		r.Header.Set("CSRFPreventionToken", c.ticket[1])
	case c.token != "":
		r.Header.Set("Authorization", "PVEAPIToken="+c.token)
	}
	response, err := c.h.RoundTrip(r)
	require.NoError(c.t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(c.t, err)
	a := answer{status: response.StatusCode, header: response.Header, raw: string(body)}
	_, a.reason, _ = strings.Cut(response.Status, " ")
	if len(body) > 0 && response.Header.Get("Content-Type") != "" {
		var parsed struct {
			Data    any               `json:"data"`
			Errors  map[string]string `json:"errors"`
			Message string            `json:"message"`
		}
		require.NoError(c.t, json.Unmarshal(body, &parsed))
		a.data, a.errors, a.message = parsed.Data, parsed.Errors, parsed.Message
	}
	return a
}

// body asks with a body that is written out, for parameters that come twice.
func (c *client) body(verb, path, body string) answer {
	c.t.Helper()
	r, err := http.NewRequest(verb, "https://pve/api2/json"+path, strings.NewReader(body))
	require.NoError(c.t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return c.send(r)
}

// raw asks for a whole path and returns status, type of the content, and content.
func (c *client) rawly(verb, path, body string) (line, kind, content string) {
	c.t.Helper()
	r, err := http.NewRequest(verb, "https://pve"+path, strings.NewReader(body))
	require.NoError(c.t, err)
	if verb == http.MethodGet {
		r.Body = nil
	}
	r.Header.Set("Authorization", "PVEAPIToken="+c.token)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := c.h.RoundTrip(r)
	require.NoError(c.t, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	require.NoError(c.t, err)
	return response.Status, response.Header.Get("Content-Type"), string(text)
}

// firstError is the reason of an answer, or the one parameter that was wrong.
func firstError(a answer) string {
	for name, text := range a.errors {
		return name + ": " + text
	}
	return a.reason
}

// newRequest is a GET with the host's own token.
func newRequest(h *pve.Host, path string) (*http.Request, error) {
	r, err := http.NewRequest(http.MethodGet, "https://pve/api2/json"+path, nil)
	if err == nil {
		r.Header.Set("Authorization", "PVEAPIToken="+h.Token())
	}
	return r, err
}

// step is a request with what PVE answers to it: "OK" (for a task: how it ended), the
// status and its line, or, of a 400, each parameter with its text. Where a text is from
// is said above the steps.
type step struct {
	verb, path string
	params     form
	want       string
}

// steps plays requests in order.
func (c *client) steps(all ...step) {
	c.t.Helper()
	for _, s := range all {
		require.Equal(c.t, s.want, c.answer(s), "%s %s %v", s.verb, s.path, s.params)
	}
}

// answer is the answer to a step in one line.
func (c *client) answer(s step) string {
	c.t.Helper()
	return c.line(c.ask(s.verb, s.path, s.params))
}

// line is an answer in one line, with the outcome of its task.
func (c *client) line(a answer) string {
	c.t.Helper()
	upid, _ := a.data.(string)
	switch {
	case len(a.errors) > 0:
		var wrong []string
		for _, name := range slices.Sorted(maps.Keys(a.errors)) {
			wrong = append(wrong, name+": "+strings.TrimSpace(a.errors[name]))
		}
		return strings.Join(wrong, "; ")
	case a.status != 200:
		return fmt.Sprint(a.status, " ", a.reason)
	case strings.HasPrefix(upid, "UPID:"):
		return c.wait(upid)
	}
	return "OK"
}

// ok asks, and fails the test unless the answer is good.
func (c *client) ok(verb, path string, params form) any {
	c.t.Helper()
	a := c.ask(verb, path, params)
	require.Equal(c.t, http.StatusOK, a.status, "%s %s: %s %v", verb, path, a.reason, a.errors)
	return a.data
}

// object and list are ok for answers of that kind.
func (c *client) object(path string) map[string]any {
	c.t.Helper()
	object, ok := c.ok(http.MethodGet, path, nil).(map[string]any)
	require.True(c.t, ok)
	return object
}

func (c *client) list(path string) []map[string]any {
	c.t.Helper()
	return objects(c.t, c.ok(http.MethodGet, path, nil))
}

func objects(t *testing.T, data any) []map[string]any {
	t.Helper()
	entries, ok := data.([]any)
	require.True(t, ok)
	list := make([]map[string]any, len(entries))
	for i := range entries {
		list[i], ok = entries[i].(map[string]any)
		require.True(t, ok)
	}
	return list
}

// resource finds a guest in /cluster/resources.
func (c *client) resource(vmid float64) map[string]any {
	c.t.Helper()
	for _, entry := range c.list("/cluster/resources?type=vm") {
		if entry["vmid"] == vmid {
			return entry
		}
	}
	return nil
}

// pendingOf returns the pending value of a key, and whether its deletion is pending.
func (c *client) pendingOf(path, key string) (value, pending, gone any) {
	for _, row := range c.list(path) {
		if row["key"] == key {
			return row["value"], row["pending"], row["delete"]
		}
	}
	return nil, nil, nil
}

// task starts a task, waits for its end and returns its exit status.
func (c *client) task(verb, path string, params form) string {
	c.t.Helper()
	upid, ok := c.ok(verb, path, params).(string)
	require.True(c.t, ok, "%s %s starts no task", verb, path)
	return c.wait(upid)
}

// done is task for those that must succeed.
func (c *client) done(verb, path string, params form) {
	c.t.Helper()
	require.Equal(c.t, "OK", c.task(verb, path, params), "%s %s", verb, path)
}

// wait polls until a task is over.
func (c *client) wait(upid string) string {
	c.t.Helper()
	path := "/nodes/" + strings.Split(upid, ":")[1] + "/tasks/" + url.PathEscape(upid) + "/status"
	for {
		if status := c.object(path); status["status"] == "stopped" {
			text, ok := status["exitstatus"].(string)
			require.True(c.t, ok)
			return text
		}
		<-time.After(100 * time.Millisecond)
	}
}

// log is the log of the last task.
func (c *client) log() []string {
	tasks := c.h.Snapshot().Tasks
	return tasks[len(tasks)-1].Log
}

// logOf is the log of the last task of a kind.
func (c *client) logOf(kind string) (log []string) {
	for _, task := range c.h.Snapshot().Tasks {
		if task.Type == kind {
			log = task.Log
		}
	}
	return log
}

// logOf is the log of a task that is over.
func logOf(c *client, upid any) []string {
	c.wait(fmt.Sprint(upid))
	tasks := c.h.Snapshot().Tasks
	for _, task := range tasks {
		if task.UPID == upid {
			return task.Log
		}
	}
	return nil
}

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

func vmURL(vmid, rest string) string { return "/nodes/father/qemu/" + vmid + rest }

// vm makes a VM with a system on its disk.
func (c *client) vm(vmid string, more form) {
	c.t.Helper()
	params := form{
		"vmid": vmid, "name": "vm-" + vmid, "memory": "1024", "net0": "virtio,bridge=vmbr0", "agent": "1", "ostype": "l26",
		"scsi0": "local-lvm:0,import-from=local:import/debian.qcow2",
	}
	maps.Copy(params, more)
	c.done("POST", "/nodes/father/qemu", params)
}

// image puts a disk image there to import from.
func (c *client) image() {
	c.t.Helper()
	c.done("POST", "/nodes/father/storage/local/download-url", form{"url": "https://images.test/debian.qcow2", "filename": "debian.qcow2", "content": "import"})
}

func ctURL(vmid, rest string) string { return "/nodes/father/lxc/" + vmid + rest }

// ct makes a container, with a template that is there after the first one.
func (c *client) ct(vmid string, more form) {
	c.t.Helper()
	c.done("POST", "/nodes/father/aplinfo", form{"storage": "local", "template": debianTemplate})
	params := form{
		"vmid": vmid, "hostname": "ct-" + vmid, "ostemplate": "local:vztmpl/" + debianTemplate, "rootfs": "local-lvm:2", "unprivileged": "1",
		"net0": "name=eth0,bridge=vmbr0,ip=192.0.2.50/24,gw=192.0.2.1", "password": "throwaway", "storage": "local-lvm",
	}
	maps.Copy(params, more)
	c.done("POST", "/nodes/father/lxc", params)
}

// ctTemplate makes a container a template. The call does not name the task that does it.
func (c *client) ctTemplate(vmid string) {
	c.t.Helper()
	c.ok("POST", ctURL(vmid, "/template"), nil)
	upid, _ := c.list("/nodes/father/tasks?source=all&typefilter=vztemplate&vmid=" + vmid)[0]["upid"].(string)
	require.Equal(c.t, "OK", c.wait(upid))
}

const debianTemplate = "debian-13-standard_13.1-2_amd64.tar.zst"

// libraryStory is the life of a VM by typed calls.
func libraryStory(t *testing.T, c *proxmox.Client, id int) {
	t.Helper()
	ctx, name := t.Context(), strconv.Itoa(id)
	version, err := c.Version(ctx)
	require.NoError(t, err)
	require.Equal(t, "9.2", version.Release)

	nodes, err := c.Nodes(ctx)
	require.NoError(t, err)
	require.Len(t, nodes, 1)
	node, err := c.Node(ctx, "father")
	require.NoError(t, err)
	require.Equal(t, 64, node.CPUInfo.CPUs)

	storage, err := node.Storage(ctx, "local")
	require.NoError(t, err)
	finish(t, "download")(storage.DownloadURL(ctx, "import", name+".qcow2", "https://images.test/debian.qcow2"))

	cluster, err := c.Cluster(ctx)
	require.NoError(t, err)
	next, err := cluster.NextID(ctx)
	require.NoError(t, err)
	require.NotZero(t, next)
	finish(t, "create")(node.NewVirtualMachine(ctx, id,
		proxmox.VirtualMachineOption{Name: "name", Value: "lib"},
		proxmox.VirtualMachineOption{Name: "memory", Value: 1024},
		proxmox.VirtualMachineOption{Name: "agent", Value: "1"},
		proxmox.VirtualMachineOption{Name: "net0", Value: "virtio,bridge=vmbr0"},
		proxmox.VirtualMachineOption{Name: "scsi0", Value: "local-lvm:0,import-from=local:import/" + name + ".qcow2"},
		proxmox.VirtualMachineOption{Name: "ide2", Value: "local-lvm:cloudinit"}))

	vm, err := node.VirtualMachine(ctx, id)
	require.NoError(t, err)
	require.Equal(t, "lib", vm.Name)
	require.NotEmpty(t, vm.VirtualMachineConfig.Digest)
	require.Contains(t, vm.VirtualMachineConfig.Nets["net0"], "virtio=BC:24:11:")
	finish(t, "config")(vm.Config(ctx, proxmox.VirtualMachineOption{Name: "cores", Value: 2}))
	finish(t, "resize")(vm.ResizeDisk(ctx, "scsi0", "10G"))
	finish(t, "start")(vm.Start(ctx))
	require.NoError(t, vm.WaitForAgent(ctx, 20))
	interfaces, err := vm.AgentGetNetworkIFaces(ctx)
	require.NoError(t, err)
	require.Len(t, interfaces, 1, "the library leaves out the loopback")
	pid, err := vm.AgentExec(ctx, []string{"cat", "/etc/hostname"}, "")
	require.NoError(t, err)
	run, err := vm.WaitForAgentExecExit(ctx, pid, 5)
	require.NoError(t, err)
	require.Equal(t, "lib\n", run.OutData)
	finish(t, "shutdown")(vm.Shutdown(ctx))

	newID, task, err := vm.Clone(ctx, &proxmox.VirtualMachineCloneOptions{NewID: id + 1000, Name: "copy", Full: true})
	finish(t, "clone")(task, err)
	copied, err := node.VirtualMachine(ctx, newID)
	require.NoError(t, err)
	require.Equal(t, "copy", copied.Name)
	for _, gone := range []*proxmox.VirtualMachine{copied, vm} {
		finish(t, "delete")(gone.Delete(ctx, nil))
	}
	_, err = node.VirtualMachine(ctx, id)
	require.ErrorContains(t, err, "does not exist")
}

// libraryContainer is the life of a container by typed calls, with the firewall, the
// HA manager and snapshots beside it.
func libraryContainer(t *testing.T, c *proxmox.Client, id int) {
	t.Helper()
	ctx := t.Context()
	node, err := c.Node(ctx, "father")
	require.NoError(t, err)
	finish(t, "create")(node.NewContainer(ctx, id,
		proxmox.ContainerOption{Name: "ostemplate", Value: "local:vztmpl/" + debianTemplate},
		proxmox.ContainerOption{Name: "hostname", Value: "lib"},
		proxmox.ContainerOption{Name: "rootfs", Value: "local-lvm:1"},
		proxmox.ContainerOption{Name: "unprivileged", Value: 1},
		proxmox.ContainerOption{Name: "net0", Value: "name=eth0,bridge=vmbr0,ip=dhcp"}))
	ct, err := node.Container(ctx, id)
	require.NoError(t, err)
	require.Equal(t, "lib", ct.Name)
	finish(t, "start")(ct.Start(ctx))
	interfaces, err := ct.Interfaces(ctx)
	require.NoError(t, err)
	require.Len(t, interfaces, 2)
	finish(t, "snapshot")(ct.NewSnapshot(ctx, "one"))
	snapshots, err := ct.Snapshots(ctx)
	require.NoError(t, err)
	require.Len(t, snapshots, 2)
	finish(t, "resize")(ct.Resize(ctx, "rootfs", "+1G"))
	finish(t, "stop")(ct.Stop(ctx))
	copyID, task, err := ct.Clone(ctx, &proxmox.ContainerCloneOptions{NewID: id + 1, Hostname: "copy"})
	finish(t, "clone")(task, err)
	copied, err := node.Container(ctx, copyID)
	require.NoError(t, err)

	cluster, err := c.Cluster(ctx)
	require.NoError(t, err)
	require.NoError(t, cluster.NewHAResource(ctx, &proxmox.HAResourceCreateOption{SID: fmt.Sprint("ct:", copyID), State: new("stopped")}))
	managed, err := cluster.HAResources(ctx, "ct")
	require.NoError(t, err)
	require.Len(t, managed, 1)
	require.NoError(t, cluster.HAResourceDelete(ctx, managed[0].SID, false))
	for _, gone := range []*proxmox.Container{copied, ct} {
		finish(t, "delete")(gone.Delete(ctx, nil))
	}
}

// finish returns a function that waits for a task and fails unless it succeeds.
func finish(t *testing.T, what string) func(*proxmox.Task, error) {
	t.Helper()
	return func(task *proxmox.Task, err error) {
		t.Helper()
		require.NoError(t, err, what)
		require.NotNil(t, task, what)
		require.NoError(t, task.Wait(t.Context(), 10*time.Millisecond, 20*time.Second), what)
		require.True(t, task.IsSuccessful, "%s: %s", what, task.ExitStatus)
	}
}

// TestLibrary: the typed calls of go-proxmox, with a token and with a password,
// work against a host over TLS.
func TestLibrary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // The library polls by the second.
		h := pve.New(pve.Config{Guests: 3, Password: "secret"})
		transport := simtest.Pipe(t, h)
		id, secret, _ := strings.Cut(h.Token(), "=")
		c := &client{t: t, h: h, token: h.Token()}
		c.done("POST", "/nodes/father/aplinfo", form{"storage": "local", "template": debianTemplate})
		logins := map[int]proxmox.Option{ // By the id of the VM that is made with it.
			500: proxmox.WithAPIToken(id, secret),
			600: proxmox.WithCredentials(&proxmox.Credentials{Username: "root@pam", Password: "secret"}),
		}
		for vmid, option := range logins {
			client := proxmox.NewClient("https://pve/api2/json", proxmox.WithHTTPClient(&http.Client{Transport: transport}), option)
			libraryStory(t, client, vmid)
			libraryContainer(t, client, vmid+10)
		}
		require.Empty(t, h.Snapshot().Unimplemented)
		require.Len(t, h.Snapshot().Guests, 3)
	})
}
