package pve_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
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

// as is the same host asked with another token.
func (c *client) as(token string) *client { return &client{t: c.t, h: c.h, token: token} }

// answer is what came back.
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

func vmURL(vmid, rest string) string { return "/nodes/father/qemu/" + vmid + rest }

// image puts a disk image there to import from.
func (c *client) image() {
	c.t.Helper()
	c.done("POST", "/nodes/father/storage/local/download-url", form{"url": "https://images.test/debian.qcow2", "filename": "debian.qcow2", "content": "import"})
}

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

// newRequest is a GET with the host's own token.
func newRequest(h *pve.Host, path string) (*http.Request, error) {
	r, err := http.NewRequest(http.MethodGet, "https://pve/api2/json"+path, nil)
	if err == nil {
		r.Header.Set("Authorization", "PVEAPIToken="+h.Token())
	}
	return r, err
}
