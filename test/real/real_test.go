// Package real_test runs the acceptance stories that one node allows against a real
// Proxmox VE host, through the program as it is released:
//
//	make real HOST=192.0.2.10 TOKEN='root@pam!test=…'
//
// The stories are those of create, edit key by key, drift, templates, decommission, kill
// and agent. They know the host by its API alone, as users do: what holds is read from
// there and not from what the program says about itself.
//
// Nothing that is not part of the tests is touched. They use a range of VMIDs of their own
// and refuse a host where a guest or a volume is in it. They remove what they made, also
// after a failure, and fail if anything is left. Guests, disk images and container
// templates are made of files that the tests build: nothing is downloaded.
//
// The same stories run against the simulator of each version in TestOnTheSimulator, so
// that a story which a host fails shows where the simulator answers differently.
package real_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
	"github.com/homestak/homestak-gitops/test/released"
)

// stories are run one after another: each begins with a range in which nothing is, and
// ends so.
var stories = []struct {
	name string
	run  func(*story)
}{
	{"create", create},
	{"edit a VM key by key", editVM},
	{"edit a container key by key", editContainer},
	{"drift", drift},
	{"templates", templates},
	{"decommission", decommission},
	{"kill", kill},
	{"agent", agent},
}

// TestReal runs the stories on the host that make real names.
func TestReal(t *testing.T) {
	s := fromEnvironment()
	if s.host == "" {
		t.Skip("needs a Proxmox VE host: make real HOST=… TOKEN=…")
	}
	runOn(t, s)
}

// TestOnTheSimulator runs the stories on a simulated host of each version.
func TestOnTheSimulator(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a minute")
	}
	for _, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			// So a pass of the story of kills takes half a second.
			h := pve.New(pve.Config{Version: version, BootTime: 200 * time.Millisecond, TaskTime: 50 * time.Millisecond, Guests: 4})
			before := h.Snapshot()
			api, _ := simtest.Listen(t, h)
			s := settings{
				host: api, token: h.Token(), fingerprint: h.Fingerprint(), vmids: "51000-51099", patience: 10 * time.Minute,
				again: 100 * time.Millisecond, kills: []time.Duration{0, 70 * time.Millisecond, 150 * time.Millisecond, 250 * time.Millisecond, 350 * time.Millisecond, 450 * time.Millisecond},
			}
			runOn(t, s)
			openLab(t, s) // which refuses a host where anything was left
			after := h.Snapshot()
			require.Equal(t, before.Guests, after.Guests, "guests of others were touched")
			require.Equal(t, before.Volumes, after.Volumes)
			require.Empty(t, after.Unimplemented)
		})
	}
}

// runOn runs all stories on one host.
func runOn(t *testing.T, s settings) {
	t.Helper()
	l := openLab(t, s)
	t.Cleanup(func() { l.cleanUp(t, "") })
	program, err := released.Path(t.Context(), t.TempDir())
	require.NoError(t, err)
	l.program = program
	name := prefix + "template.tar.gz"
	require.NoError(t, l.upload(t.Context(), l.node, l.files, "vztmpl", name, containerTemplate(t)))
	l.template = l.files + ":vztmpl/" + name
	for _, one := range stories {
		if !t.Run(one.name, func(t *testing.T) {
			one.run(begin(t, l))
			l.requireNothingLeft(t, l.template)
		}) {
			l.cleanUp(t, l.template) // for the next one
		}
	}
	require.NoError(t, l.free(t.Context(), l.template))
	l.requireNothingLeft(t)
}

// api asks a host as an administrator does who changes things by hand. It is apart from
// the driver on purpose: the driver is what is tested.
type api struct {
	base   string // https://host:8006/api2/json
	header string // Authorization
	client *http.Client
}

// newAPI trusts exactly the certificate with that fingerprint.
func newAPI(base, token, fingerprint string) *api {
	pinned := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // VerifyPeerCertificate compares the fingerprint in its place.
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			if got := fingerprintOf(raw[0]); got != fingerprint {
				return fmt.Errorf("the certificate has the fingerprint %s, not %s", got, fingerprint)
			}
			return nil
		},
	}
	return &api{base: base + "/api2/json", header: "PVEAPIToken=" + token, client: &http.Client{
		Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: pinned, IdleConnTimeout: 4 * time.Second},
	}}
}

func fingerprintOf(certificate []byte) string {
	sum := sha256.Sum256(certificate)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// presented asks a server for its certificate, and gives its fingerprint.
func presented(ctx context.Context, address string) (string, error) {
	d := &tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}} //nolint:gosec // Only looked at; nothing is sent.
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // Nothing was written.
	chain := conn.(*tls.Conn).ConnectionState().PeerCertificates
	if len(chain) == 0 {
		return "", errors.New("the server shows no certificate")
	}
	return fingerprintOf(chain[0].Raw), nil
}

// statusError is an answer that is no success.
type statusError struct {
	status  int
	message string
}

func (e *statusError) Error() string { return fmt.Sprintf("%d %s", e.status, e.message) }

// call sends a request and decodes the data of its answer into out, if that is not nil.
func (a *api) call(ctx context.Context, method, path string, form url.Values, out any) error {
	var body io.Reader = http.NoBody
	switch {
	case len(form) == 0:
	case method == http.MethodGet || method == http.MethodDelete:
		path += "?" + form.Encode()
	default:
		body = strings.NewReader(form.Encode())
	}
	r, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return err
	}
	if body != http.NoBody {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return a.send(r, out)
}

func (a *api) send(r *http.Request, out any) error {
	r.Header.Set("Authorization", a.header)
	answer, err := a.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, &statusError{answer.StatusCode, strings.TrimSpace(answer.Status + " " + string(text))})
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, &struct{ Data any }{out})
}

// upload puts a file into a storage and waits for its task.
func (a *api) upload(ctx context.Context, node, storage, content, name string, file []byte) error {
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	if err := w.WriteField("content", content); err != nil {
		return err
	}
	part, err := w.CreateFormFile("filename", name)
	if err != nil {
		return err
	}
	if _, err := part.Write(file); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+"/nodes/"+node+"/storage/"+storage+"/upload", &body)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", w.FormDataContentType())
	var upid string
	if err := a.send(r, &upid); err != nil {
		return err
	}
	return a.finished(ctx, node, upid)
}

// task sends a request whose answer is a task, and waits until that has ended well.
func (a *api) task(ctx context.Context, node, method, path string, form url.Values) error {
	var upid *string
	if err := a.call(ctx, method, path, form, &upid); err != nil || upid == nil {
		return err
	}
	return a.finished(ctx, node, *upid)
}

// finished waits for the end of a task.
func (a *api) finished(ctx context.Context, node, upid string) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		var task struct{ Status, ExitStatus string }
		if err := a.call(ctx, http.MethodGet, "/nodes/"+node+"/tasks/"+url.PathEscape(upid)+"/status", nil, &task); err != nil {
			return err
		}
		switch {
		case task.Status == "stopped" && (task.ExitStatus == "OK" || strings.HasPrefix(task.ExitStatus, "WARNINGS")):
			return nil
		case task.Status == "stopped":
			return fmt.Errorf("task %s: %s", upid, task.ExitStatus)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

const (
	siteName = "homestak-real"
	prefix   = "hsreal-" // of the names of all guests and files that the tests make
)

// settings say which host to use, and what of it.
type settings struct {
	host        string // name or address, with or without port, or a URL
	token       string // user@realm!name=secret
	fingerprint string // of its certificate; "" to trust the one that it shows now
	node        string // "" where the host has one only
	storage     string // of disks; "" for the first that takes disks of VMs and of containers
	bridge      string // "" for the first
	vmids       string // FROM-TO
	noKVM       bool   // the host cannot virtualise by hardware

	patience time.Duration   // bounds each run of the program, and each wait for an agent
	again    time.Duration   // until a host is asked once more what it was asked just now
	kills    []time.Duration // moments of a pass at which the program is killed
}

// fromEnvironment reads what make real hands over.
func fromEnvironment() settings {
	get := func(name string) string { return os.Getenv("HOMESTAK_REAL_" + name) }
	return settings{
		host: get("HOST"), token: get("TOKEN"), fingerprint: get("FINGERPRINT"), node: get("NODE"),
		storage: get("STORAGE"), bridge: get("BRIDGE"), vmids: cmp.Or(get("RANGE"), "51000-51099"), noKVM: get("KVM") == "0",
		patience: 10 * time.Minute, // a pass creates, backs up and shuts down several guests, without KVM on some hosts
		again:    time.Second,
		kills:    []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond, time.Second, 2 * time.Second},
	}
}

// lab is a host on which the stories may work, and the part of it that is theirs.
type lab struct {
	*api
	settings
	url, release string
	from, to     int    // VMIDs of the stories
	files        string // storage of disk images, container templates and backups
	template     string // volume of the container template
	program      string // the binary under test
}

// openLab checks a host and refuses it if the stories could do harm, or cannot run.
func openLab(t *testing.T, s settings) *lab {
	t.Helper()
	require.NotEmpty(t, s.token, "TOKEN is missing: user@realm!name=secret")
	l := &lab{settings: s}
	l.url = "https://" + strings.TrimSuffix(strings.TrimPrefix(s.host, "https://"), "/")
	address, err := url.Parse(l.url)
	require.NoError(t, err, "HOST")
	if address.Port() == "" {
		address.Host = net.JoinHostPort(address.Hostname(), "8006")
		l.url = address.String()
	}
	if l.fingerprint == "" {
		l.fingerprint, err = presented(t.Context(), address.Host)
		require.NoError(t, err, "connecting to %s", address.Host)
		t.Logf("trusting the certificate that %s shows: FINGERPRINT=%s", address.Host, l.fingerprint)
	}
	l.api = newAPI(l.url, s.token, l.fingerprint)
	var version struct{ Version string }
	require.NoError(t, l.call(t.Context(), http.MethodGet, "/version", nil, &version))
	l.release = version.Version
	l.findNode(t)
	l.findStorages(t)
	l.findBridge(t)
	l.findRange(t)
	t.Logf("Proxmox VE %s, node %s, VMIDs %d to %d, disks on %s, files on %s, bridge %s", l.release, l.node, l.from, l.to, l.storage, l.files, l.bridge)
	return l
}

func (l *lab) findNode(t *testing.T) {
	t.Helper()
	var nodes []struct{ Node, Status string }
	require.NoError(t, l.call(t.Context(), http.MethodGet, "/nodes", nil, &nodes))
	var names []string
	for _, n := range nodes {
		if n.Status == "online" || n.Status == "unknown" {
			names = append(names, n.Node)
		}
	}
	if l.node == "" {
		require.Len(t, names, 1, "the host has several nodes, or shows none to the token: choose one by NODE=")
		l.node = names[0]
	}
	require.Contains(t, names, l.node, "NODE")
}

func (l *lab) findStorages(t *testing.T) {
	t.Helper()
	var storages []struct {
		Storage, Content string
		Active, Enabled  int
	}
	require.NoError(t, l.call(t.Context(), http.MethodGet, "/nodes/"+l.node+"/storage", nil, &storages))
	takes := func(content string, wanted ...string) bool {
		has := strings.Split(content, ",")
		return !slices.ContainsFunc(wanted, func(w string) bool { return !slices.Contains(has, w) })
	}
	slices.SortFunc(storages, func(a, b struct {
		Storage, Content string
		Active, Enabled  int
	},
	) int {
		return strings.Compare(a.Storage, b.Storage)
	})
	for _, s := range storages {
		if s.Active == 0 || s.Enabled == 0 {
			continue
		}
		if l.storage == "" && takes(s.Content, "images", "rootdir") {
			l.storage = s.Storage
		}
		if l.files == "" && takes(s.Content, "import", "vztmpl", "backup") {
			l.files = s.Storage
		}
	}
	require.NotEmpty(t, l.storage, "no active storage of node %s takes disks of VMs and of containers (content images,rootdir)", l.node)
	require.NotEmpty(t, l.files, "no active storage of node %s takes disk images, container templates and backups: `pvesm set local --content backup,import,iso,snippets,vztmpl`", l.node)
}

func (l *lab) findBridge(t *testing.T) {
	t.Helper()
	if l.bridge != "" {
		return
	}
	var bridges []struct{ Iface string }
	require.NoError(t, l.call(t.Context(), http.MethodGet, "/nodes/"+l.node+"/network", url.Values{"type": {"any_bridge"}}, &bridges))
	require.NotEmpty(t, bridges, "node %s lists no bridge: name one by BRIDGE=", l.node)
	names := make([]string, len(bridges))
	for i, b := range bridges {
		names[i] = b.Iface
	}
	l.bridge = slices.Min(names)
}

// findRange reads the range of VMIDs, and refuses a host where something is in it. PVE
// says of each VMID whether a guest has it, also to a token that may not see the guest.
func (l *lab) findRange(t *testing.T) {
	t.Helper()
	from, to, ok := strings.Cut(l.vmids, "-")
	var err, err2 error
	l.from, err = strconv.Atoi(from)
	l.to, err2 = strconv.Atoi(to)
	require.True(t, ok && err == nil && err2 == nil && l.from >= 100 && l.to >= l.from+29 && l.to <= 999_999_999,
		"RANGE=%s: want FROM-TO, at least 30 VMIDs from 100 to 999999999", l.vmids)
	var taken []string
	for id := l.from; id <= l.to; id++ {
		err := l.call(t.Context(), http.MethodGet, "/cluster/nextid", url.Values{"vmid": {strconv.Itoa(id)}}, nil)
		var refused *statusError
		switch {
		case errors.As(err, &refused) && refused.status == http.StatusBadRequest:
			taken = append(taken, strconv.Itoa(id))
		default:
			require.NoError(t, err)
		}
	}
	require.Empty(t, taken, "guests are in the range %s of the tests, which touch only what they made: remove them, or choose another range by RANGE=FROM-TO", l.vmids)
	require.Empty(t, l.volumes(t.Context(), t), "volumes of the range %s, or of an earlier run, are on the host: look at them and remove them (`pvesm free VOLUME`), or choose another range by RANGE=FROM-TO", l.vmids)
}

// guest is a guest in the range.
type guest struct {
	VMID             int
	Name, Type, Lock string
	Status           string
}

func (g guest) path(l *lab) string {
	return fmt.Sprintf("/nodes/%s/%s/%d", l.node, g.Type, g.VMID)
}

// guests lists what is in the range now, by VMID. It asks the node, whose lists are fresh.
func (l *lab) guests(ctx context.Context, t *testing.T) []guest {
	t.Helper()
	var out []guest
	for _, kind := range []string{"qemu", "lxc"} {
		var list []guest
		require.NoError(t, l.call(ctx, http.MethodGet, "/nodes/"+l.node+"/"+kind, nil, &list))
		for _, g := range list {
			if g.VMID >= l.from && g.VMID <= l.to {
				g.Type = kind
				out = append(out, g)
			}
		}
	}
	slices.SortFunc(out, func(a, b guest) int { return a.VMID - b.VMID })
	return out
}

// volumes lists the volumes of guests in the range, and the files that the tests and the
// program under test put onto the host.
func (l *lab) volumes(ctx context.Context, t *testing.T) []string {
	t.Helper()
	var out []string
	for _, storage := range slices.Compact(slices.Sorted(slices.Values([]string{l.storage, l.files}))) {
		var list []struct {
			VolID string
			VMID  int
		}
		require.NoError(t, l.call(ctx, http.MethodGet, "/nodes/"+l.node+"/storage/"+storage+"/content", nil, &list))
		for _, v := range list {
			if v.VMID >= l.from && v.VMID <= l.to || strings.Contains(v.VolID, prefix) || strings.Contains(v.VolID, "homestak."+siteName+".") {
				out = append(out, v.VolID)
			}
		}
	}
	return out
}

// cleanUp removes what the stories made, after whatever happened. It says what it had to
// remove: a story that goes well leaves nothing. One volume may stay.
func (l *lab) cleanUp(t *testing.T, but string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for _, g := range l.guests(ctx, t) {
		if g.Name != "" && !strings.HasPrefix(g.Name, prefix) {
			t.Errorf("%s %d %q came into the range while the tests ran; its name is none of theirs, so it stays (if a creation of theirs died there: `qm unlock %d && qm destroy %d` or the same with pct)",
				g.Type, g.VMID, g.Name, g.VMID, g.VMID)
			continue
		}
		t.Logf("removing %s %d %q", g.Type, g.VMID, g.Name)
		form := url.Values{"protection": {"0"}}
		if err := l.call(ctx, http.MethodPut, g.path(l)+"/config", form, nil); err != nil {
			t.Log(err)
		}
		if g.Status == "running" {
			if err := l.task(ctx, l.node, http.MethodPost, g.path(l)+"/status/stop", nil); err != nil {
				t.Log(err)
			}
		}
		if err := l.task(ctx, l.node, http.MethodDelete, g.path(l), url.Values{"purge": {"1"}}); err != nil {
			t.Errorf("remove it by hand: %v", err)
		}
	}
	for _, v := range l.volumes(ctx, t) {
		if v == but {
			continue
		}
		t.Logf("removing volume %s", v)
		if err := l.free(ctx, v); err != nil {
			t.Errorf("remove it by hand, `pvesm free %s`: %v", v, err)
		}
	}
}

// requireNothingLeft fails if anything of the stories is on the host.
func (l *lab) requireNothingLeft(t *testing.T, but ...string) {
	t.Helper()
	require.Empty(t, l.guests(t.Context(), t), "guests are left")
	left := slices.DeleteFunc(l.volumes(t.Context(), t), func(v string) bool { return slices.Contains(but, v) })
	require.Empty(t, left, "volumes are left")
}

// free removes a volume. Final backups are protected, which only backups can be.
func (l *lab) free(ctx context.Context, volume string) error {
	storage, name, _ := strings.Cut(volume, ":")
	path := "/nodes/" + l.node + "/storage/" + storage + "/content/" + url.PathEscape(volume)
	if strings.HasPrefix(name, "backup/") {
		if err := l.call(ctx, http.MethodPut, path, url.Values{"protected": {"0"}}, nil); err != nil {
			return err
		}
	}
	return l.task(ctx, l.node, http.MethodDelete, path, nil)
}

// bootDisk is the image of a disk of 1 MiB with nothing but a boot sector, whose code
// waits for the power button of ACPI and then switches the machine off. So a VM that is
// made of it runs with 32 MiB, obeys a shutdown at once and needs no download.
//
// SeaBIOS puts the registers of the power management of i440fx and q35 at port 0x600: the
// status, 0x602 what is enabled, 0x604 the control register, where 0x2000 is soft-off
// (QEMU, hw/acpi/core.c; SeaBIOS, src/fw/pciinit.c).
func bootDisk() []byte {
	code := []byte{
		0xfb,             //       sti
		0xba, 0x02, 0x06, //       mov dx, 0x602
		0xb8, 0x00, 0x01, //       mov ax, 0x100    ; power button enable
		0xef,             //       out dx, ax
		0xf4,             // wait: hlt              ; until the next tick of the timer
		0xba, 0x00, 0x06, //       mov dx, 0x600
		0xed,             //       in ax, dx
		0xf6, 0xc4, 0x01, //       test ah, 1       ; power button status
		0x74, 0xf6, //             jz wait
		0xba, 0x04, 0x06, //       mov dx, 0x604
		0xb8, 0x00, 0x20, //       mov ax, 0x2000
		0xef,       //             out dx, ax
		0xeb, 0xed, //             jmp wait
	}
	disk := make([]byte, 1<<20)
	copy(disk, code)
	disk[510], disk[511] = 0x55, 0xaa
	return disk
}

// containerTemplate is a container template that holds one program, /sbin/init, and the
// folders that PVE mounts something on.
func containerTemplate(t *testing.T) []byte {
	t.Helper()
	program := filepath.Join(t.TempDir(), "init")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./testdata/init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	content, err := os.ReadFile(program)
	require.NoError(t, err)

	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	w := tar.NewWriter(zipped)
	for _, dir := range []string{"./", "./dev/", "./etc/", "./mnt/", "./proc/", "./root/", "./run/", "./sbin/", "./sys/", "./tmp/", "./usr/", "./var/"} {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}))
	}
	add := func(name string, mode int64, content []byte) {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}))
		_, err := w.Write(content)
		require.NoError(t, err)
	}
	add("./etc/hostname", 0o644, []byte("real\n"))
	add("./etc/os-release", 0o644, []byte("ID=homestak-test\nNAME=\"homestak test\"\n"))
	add("./sbin/init", 0o755, content)
	require.NoError(t, w.Close())
	require.NoError(t, zipped.Close())
	return packed.Bytes()
}
