package pvesim_test

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
)

// incomparable are exchanges whose answer hangs on what the host of the recordings
// was, by file and number, each with the reason.
var incomparable = map[string]map[int]string{
	"storage-config":      {0: untouched},
	"qemu-start":          {7: leftOut, 8: leftOut},
	"qemu-agent":          {0: bootSpeed},
	"qemu-lifecycle":      {15: bootSpeed, 16: bootSpeed, 46: bootSpeed, 48: bootSpeed},
	"tasks":               {10: leftOut, 28: bootSpeed},
	"errors-permission":   {20: leftOut},
	"download-url":        {2: noWeb, 13: noWeb, 16: noWeb, 17: noWeb, 20: leftOut, 54: leftOut},
	"qemu-template-clone": {10: leftOut, 11: leftOut},
	"qemu-create-errors":  {22: otherMachine, 30: otherMachine},
	"qemu-destroy":        {8: leftOut},
	"lxc":                 {40: leftOut},
}

// The reasons.
const (
	untouched    = "the recorded storage.cfg was the one PVE assumes when there is none"
	leftOut      = "it shows what calls did that were left out of the recordings"
	bootSpeed    = "the recorded guest takes longer to boot and to shut down"
	noWeb        = "there is no web server to ask: every https address is there, and every checksum is right"
	otherMachine = "the recorded machine had two processors and no KVM"
)

// arrange makes what a recording needs and no recording made.
func (r *recorder) arrange(t *testing.T, name string) {
	t.Helper()
	switch name {
	case "storage-content":
		r.uploadImage(t, "tiny.qcow2", 64<<20)
		r.ok(t, "POST", "/nodes/pve1/storage/vmstore/download-url", url.Values{
			"content": {"vztmpl"}, "filename": {"alpine-3.20-tiny_1_amd64.tar.gz"}, "url": {"https://templates.test/alpine.tar.gz"},
		})
		r.ok(t, "POST", "/nodes/pve1/lxc", url.Values{
			"vmid": {"200"}, "ostemplate": {"vmstore:vztmpl/alpine-3.20-tiny_1_amd64.tar.gz"}, "rootfs": {"vmstore:3"}, "mp0": {"vmstore:1,mp=/data"},
			"storage": {"vmstore"}, "hostname": {"ct01"}, "unprivileged": {"1"}, "pool": {"homelab"}, "tags": {"gitops;web"},
		})
		r.ok(t, "POST", "/nodes/pve1/lxc/200/template", nil)
	case "download-url": // Here every https address is there, and no other.
		r.vars.learn(storyVar{Recorded: "http://127.0.0.1:18099"}, "https://web.test")
	case "request-encoding": // What could be downloaded here and not there.
		r.ok(t, "DELETE", "/nodes/pve1/storage/vmstore/content/vmstore:import%2Fnosuch.qcow2", nil)
	case "lxc":
		r.ok(t, "DELETE", "/nodes/pve1/lxc/200", nil)
	}
}

// unknownHere gives the reason why an exchange cannot be compared that the answer
// itself tells.
func unknownHere(e storyExchange, found string) string {
	switch {
	case strings.Contains(found, "got 501 the simulator does not implement"):
		return "the call is not simulated"
	case strings.HasPrefix(found, "want 200") && strings.Contains(found, "got 501 Method '"):
		return "the call is not in the API table"
	case strings.Contains(e.Request.Path, "/tasks/UPID") && strings.Contains(found, "got 400 Parameter verification failed."):
		return "the call that started the task was left out of the recording"
	default:
		return ""
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
	if recorded := strings.Join(parts[1:4], ":"); !r.known[recorded] {
		for _, task := range r.host.Snapshot().Tasks {
			if task.Type == parts[4] && task.ID == parts[5] && task.User == parts[6] {
				r.meet(recorded, strings.Join(strings.Split(task.UPID, ":")[2:5], ":"))
			}
		}
	}
}

// meet notes which identifier stands for a recorded one.
func (r *recorder) meet(recorded, atHand string) {
	r.known[recorded] = true
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

// uploadImage puts the head of a disk image there: it tells how large the disk is.
func (r *recorder) uploadImage(t *testing.T, name string, size uint64) {
	t.Helper()
	head := make([]byte, 512)
	copy(head, "QFI\xfb")
	binary.BigEndian.PutUint64(head[24:], size)
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	require.NoError(t, w.WriteField("content", "import"))
	part, err := w.CreateFormFile("filename", name)
	require.NoError(t, err)
	_, err = part.Write(head)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	request, err := http.NewRequest(http.MethodPost, "https://pve1/api2/json/nodes/pve1/storage/vmstore/upload", &body)
	require.NoError(t, err)
	r.send(t, request, w.FormDataContentType())
}
