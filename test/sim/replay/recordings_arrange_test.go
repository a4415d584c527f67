package replay_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
)

// labWeb is the web server of the recordings.
func labWeb(address string) pve.Page {
	switch address {
	case "http://127.0.0.1:18099/tiny.qcow2":
		return pve.Page{Size: 15676928, Disk: 64 << 20, Sums: map[string]string{"sha256": "d12aeb0f99e964a33b537843c8530866c7be8008a581a7266850edc9b717a7b7"}}
	case "http://127.0.0.1:18099/small.iso":
		return pve.Page{Size: 5}
	default:
		return pve.Page{Missing: "404 File not found"}
	}
}

// arrange makes what a recording needs and no recording made.
func (r *recorder) arrange(t *testing.T, name string) {
	t.Helper()
	switch name {
	case "cluster-nextid":
		r.upload(t, "import", "tiny.qcow2", image(64<<20, 15676928))
		r.upload(t, "vztmpl", "alpine-3.20-tiny_1_amd64.tar.gz", template(1032754))
		r.ok(t, "POST", "/nodes/pve1/lxc", url.Values{
			"vmid": {"200"}, "ostemplate": {"vmstore:vztmpl/alpine-3.20-tiny_1_amd64.tar.gz"}, "rootfs": {"vmstore:3"}, "mp0": {"vmstore:1,mp=/data"},
			"storage": {"vmstore"}, "hostname": {"ct01"}, "cores": {"1"}, "memory": {"160"}, "unprivileged": {"1"}, "pool": {"homelab"}, "tags": {"gitops;web"},
		})
		r.ok(t, "POST", "/nodes/pve1/lxc/200/template", nil)
	case "errors-permission":
		for _, id := range []string{"513", "520", "524"} {
			r.ok(t, "DELETE", "/nodes/pve1/qemu/"+id, nil)
		}
		r.ok(t, "PUT", "/nodes/pve1/qemu/100/config", url.Values{"onboot": {"0"}})
	case "download-url":
		r.upload(t, "iso", "small.iso", make([]byte, 5))
		r.upload(t, "iso", "up.iso", make([]byte, 9))
		r.ok(t, "POST", "/nodes/pve1/storage/vmstore/content", url.Values{"vmid": {"100"}, "filename": {"vm-100-disk-9.qcow2"}, "size": {"1G"}, "format": {"qcow2"}})
	case "lxc":
		r.ok(t, "DELETE", "/nodes/pve1/lxc/200", nil)
	}
}

var loginForm = regexp.MustCompile(`^PVEAPIToken=([^!]+)!([^=]+)=(.*)$`)

// introduce makes tickets and tokens that recorded requests bring and that were made
// outside of the recordings, and finds the tasks whose start was left out.
func (r *recorder) introduce(t *testing.T, e storyExchange) {
	t.Helper()
	if e.Response.Status == http.StatusUnauthorized {
		return
	}
	for _, id := range identify(e.Request.Headers["Authorization"]) {
		login := loginForm.FindStringSubmatch(e.Request.Headers["Authorization"])
		if login == nil || r.known[id.value] || strings.HasSuffix(r.host.Token(), "="+id.value) {
			continue
		}
		made, _ := r.ok(t, "POST", "/access/users/"+login[1]+"/token/"+login[2], nil).(map[string]any)
		r.meet(id.value, fmt.Sprint(made["value"]))
	}
	if ticket, err := url.PathUnescape(e.Request.Headers["Cookie"]); err == nil && ticket != "" {
		r.login(t, strings.TrimPrefix(ticket, "PVEAuthCookie="), e.Request.Headers["CSRFPreventionToken"])
	}
	path, err := url.PathUnescape(e.Request.Path)
	require.NoError(t, err)
	_, rest, isTask := strings.Cut(path, "/tasks/UPID:")
	parts := strings.Split(rest, ":")
	if !isTask || len(parts) < 7 {
		return
	}
	if recorded := strings.Join(parts[1:4], ":"); !r.known[recorded] && recorded != noTask && e.Response.Status == http.StatusOK {
		r.repeat(t, e, parts[4], parts[5])
		for _, task := range r.host.Snapshot().Tasks {
			atHand := strings.Join(strings.Split(task.UPID, ":")[2:5], ":")
			if task.Type == parts[4] && task.ID == parts[5] && task.User == parts[6] && r.ids.recorded[strings.ToLower(atHand)] == "" {
				r.meet(recorded, atHand)
			}
		}
	}
}

// noTask stands in the recordings where a task was asked for that never was.
const noTask = "00000001:00000001:00000001"

// leftOut are calls that started tasks and were left out of the recordings.
var leftOut = map[string][2]string{
	"qmstart": {"POST", "/nodes/pve1/qemu/%s/status/start"}, "qmstop": {"POST", "/nodes/pve1/qemu/%s/status/stop"},
	"qmdestroy": {"DELETE", "/nodes/pve1/qemu/%s?purge=1"}, "vzdestroy": {"DELETE", "/nodes/pve1/lxc/%s?purge=1"},
}

// repeat makes the call that must have started a task, as the one who asks for it.
func (r *recorder) repeat(t *testing.T, e storyExchange, kind, id string) {
	t.Helper()
	call, ok := leftOut[kind]
	if !ok || strings.HasSuffix(e.Request.Path, "/log") {
		return
	}
	request, err := http.NewRequest(call[0], "https://pve1/api2/json"+fmt.Sprintf(call[1], id), nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", r.vars.in(e.Request.Headers["Authorization"]))
	response, err := r.host.RoundTrip(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
}

// meet notes which identifier stands for a recorded one.
func (r *recorder) meet(recorded, atHand string) {
	r.known[recorded] = true
	if ids := identify("UPID:n:" + recorded + ":"); len(ids) == 1 {
		r.ids.actual[ids[0].value] = strings.ToLower(atHand)
		r.ids.recorded[strings.ToLower(atHand)] = ids[0].value
	}
	r.vars.learn(storyVar{Recorded: recorded}, atHand)
}

// login makes a ticket of root@pam for a recorded one.
func (r *recorder) login(t *testing.T, ticket, csrf string) {
	t.Helper()
	ids := identify(ticket)
	if len(ids) != 1 || r.known[ticket[ids[0].from:ids[0].to]] {
		return
	}
	made, _ := r.ok(t, "POST", "/access/ticket", url.Values{"username": {"root@pam"}, "password": {"Lab-throwaway-1"}}).(map[string]any)
	fresh := fmt.Sprint(made["ticket"])
	r.meet(ticket[ids[0].from:ids[0].to], fresh[identify(fresh)[0].from:])
	if csrf != "" {
		r.meet(csrf, fmt.Sprint(made["CSRFPreventionToken"]))
	}
}

// ok makes a call as root and waits for the end of its task.
func (r *recorder) ok(t *testing.T, verb, path string, form url.Values) any {
	t.Helper()
	request, err := http.NewRequest(verb, "https://pve1/api2/json"+path, strings.NewReader(form.Encode()))
	require.NoError(t, err)
	return r.send(t, request, "application/x-www-form-urlencoded")
}

func (r *recorder) send(t *testing.T, request *http.Request, kind string) any {
	t.Helper()
	request.Header.Set("Authorization", "PVEAPIToken="+r.host.Token())
	if request.Method != http.MethodDelete {
		request.Header.Set("Content-Type", kind)
	}
	response, err := r.host.RoundTrip(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, string(body))
	var answer struct{ Data any }
	require.NoError(t, json.Unmarshal(body, &answer))
	if text, ok := answer.Data.(string); ok && strings.HasPrefix(text, "UPID:") || answer.Data == nil {
		wait(t, time.Second)
	}
	for _, task := range r.host.Snapshot().Tasks {
		if task.UPID == answer.Data {
			require.Equal(t, "OK", task.Status, task.Log)
		}
	}
	return answer.Data
}

// template is the archive of a container of Alpine; what makes it as large as the recorded
// one stands behind its end.
func template(size int) []byte {
	archive := simtest.RootArchive(map[string]string{"bin/sh": simtest.ELF("\x3e"), "etc/alpine-release": "3.20.0", "etc/os-release": "ID=alpine\n"})
	return append(archive, make([]byte, size-len(archive))...)
}

// image is a disk image, of which the head tells how large the disk is.
func image(size uint64, length int) []byte {
	content := make([]byte, length)
	copy(content, "QFI\xfb\x00\x00\x00\x03")
	binary.BigEndian.PutUint64(content[24:], size)
	return content
}

// upload puts a file on the storage vmstore.
func (r *recorder) upload(t *testing.T, kind, name string, content []byte) {
	t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	require.NoError(t, w.WriteField("content", kind))
	part, err := w.CreateFormFile("filename", name)
	require.NoError(t, err)
	_, err = part.Write(content)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	request, err := http.NewRequest(http.MethodPost, "https://pve1/api2/json/nodes/pve1/storage/vmstore/upload", &body)
	require.NoError(t, err)
	r.send(t, request, w.FormDataContentType())
}
