package pve_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
)

// TestRequestForms: how PVE reads queries, forms and JSON.
func TestRequestForms(t *testing.T) {
	const asForm, asJSON = "application/x-www-form-urlencoded", "application/json"
	tests := map[string]struct {
		query, kind, body string
		status            int
		description       string // As stored.
		failed            string // A parameter with an error.
		raw               string // The body, where it is no JSON.
	}{
		"encoded separators":        {"", asForm, "description=a%3Db%3Bc%26d", 200, "a=b;c&d", "", ""},
		"a second = cuts off":       {"", asForm, "description=a=b", 200, "a", "", ""},
		"; separates":               {"", asForm, "description=a;other=1", 400, "", "other", ""},
		"plus is a blank":           {"", asForm, "description=a+b%20c", 200, "a b c", "", ""},
		"a broken escape stays":     {"", asForm, "description=a%zzb", 200, "a%zzb", "", ""},
		"twice is a list":           {"", asForm, "description=a&description=b", 400, "", "description", ""},
		"the query counts too":      {"description=q", asForm, "name=x", 200, "q", "", ""},
		"in the path and the query": {"vmid=100&description=q", asForm, "", 200, "q", "", ""},
		"not as in the path":        {"vmid=101&description=q", asForm, "", 400, "", "vmid", ""},
		"JSON":                      {"", asJSON, `{"description":"j","onboot":true}`, 200, "j", "", ""},
		"true in a form":            {"", asForm, "description=x&onboot=true", 400, "", "onboot", ""},
		"JSON null":                 {"", asJSON, `{"description":null}`, 500, "", "", ""},
		"a JSON list":               {"", asJSON, `[1]`, 500, "", "", "Not a HASH reference at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 978.\n"},
		"broken JSON":               {"", asJSON, `{not json`, 500, "", "", "'\"' expected, at character offset 1 (before \"not json\") at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 934.\n"},
		"another type":              {"", "application/xml", "<x/>", 506, "", "", "upload 'Content-Type 'application/xml' not implemented"},
		"no type is a form":         {"", "", "description=n", 200, "n", "", ""},
		"too long":                  {"", asForm, "description=" + strings.Repeat("x", 600<<10), 501, "", "", "for data too large"},
		"unknown":                   {"", asForm, "nosuch=1", 400, "", "nosuch", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, pve.Config{})
			c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
			r, err := http.NewRequest(http.MethodPut, "https://pve/api2/json/nodes/father/qemu/100/config?"+test.query, strings.NewReader(test.body))
			require.NoError(t, err)
			if test.kind != "" {
				r.Header.Set("Content-Type", test.kind)
			}
			a := c.send(r)
			require.Equal(t, test.status, a.status, a.raw)
			if test.failed != "" {
				require.Contains(t, a.errors, test.failed)
				require.Equal(t, "Parameter verification failed.", a.reason)
				require.Equal(t, "Parameter verification failed.\n", a.message)
			}
			if test.raw != "" {
				require.Equal(t, test.raw, a.raw)
				require.Equal(t, strings.TrimSuffix(test.raw, "\n"), a.reason)
				require.Empty(t, a.header.Get("Content-Type"))
			}
			g, found := c.h.Snapshot().Guest(100)
			require.True(t, found)
			require.Equal(t, test.description, g.Config["description"])
		})
	}
}

// TestVerbsAndPaths: what does not exist is 501, before parameters and after
// the login.
func TestVerbsAndPaths(t *testing.T) {
	c := newClient(t, pve.Config{})
	for request, reason := range map[string]string{
		"HEAD /version":                        "method 'HEAD' not available",
		"PATCH /version":                       "method 'PATCH' not available",
		"OPTIONS /version":                     "method 'OPTIONS' not available",
		"POST /version":                        "Method 'POST /version' not implemented",
		"GET /nosuch":                          "Method 'GET /nosuch' not implemented",
		"GET /nodes/father/qemu/100/status/on": "Method 'GET /nodes/father/qemu/100/status/on' not implemented",
		"GET /nodes/father/qemu/100/mtunnelwebsocket?socket=x&ticket=y": "the simulator does not implement GET /nodes/{node}/qemu/{vmid}/mtunnelwebsocket",
	} {
		verb, path, _ := strings.Cut(request, " ")
		a := c.ask(verb, path, nil)
		require.Equal(t, 501, a.status, request)
		require.Equal(t, reason, a.reason)
		require.Equal(t, []string{"close"}, a.header["Connection"])
	}
	require.Equal(t, []string{"GET /nodes/{node}/qemu/{vmid}/mtunnelwebsocket"}, c.h.Snapshot().Unimplemented)
	require.Equal(t, 200, c.ask("GET", "//version/", nil).status, "slashes mean nothing")
	for path, lines := range map[string][]string{
		"/version": {"Keep-Alive"}, "/cluster/resources": {"Keep-Alive"}, "/nodes/father/qemu": {"close", "Keep-Alive"},
	} {
		require.Equal(t, lines, c.ask("GET", path, nil).header["Connection"], path)
	}

	r, err := http.NewRequest(http.MethodDelete, "https://pve/api2/json/nodes/father/qemu/100", strings.NewReader("purge=1"))
	require.NoError(t, err)
	a := c.send(r)
	require.Equal(t, 501, a.status)
	require.Equal(t, "Unexpected content for method 'DELETE'", a.raw)

	r, err = http.NewRequest(http.MethodGet, "https://pve/index.html", nil)
	require.NoError(t, err)
	require.Equal(t, 404, c.send(r).status)
}

// TestLogin: a 401 comes three seconds late and has no body.
func TestLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Password: "pw"})
		good := c.token
		for token, reason := range map[string]string{
			"": "No ticket", "nonsense": "Authentication failed!", good + "x": "Authentication failed!",
			"root@pam!other=" + good: "Authentication failed!", "x@pve!sim=" + good: "Authentication failed!",
		} {
			began := time.Now()
			a := c.as(token).ask("GET", "/version", nil)
			require.Equal(t, 401, a.status)
			require.Equal(t, reason, a.reason)
			require.Empty(t, a.raw)
			require.Equal(t, 3*time.Second, time.Since(began))
		}
		nobody := c.as("")
		a := nobody.ask("POST", "/access/ticket", form{"username": "root@pam", "password": "wrong"})
		require.Equal(t, 401, a.status)
		require.Equal(t, "authentication failure\n", a.message)

		login, ok := nobody.ok("POST", "/access/ticket", form{"username": "root", "realm": "pam", "password": "pw"}).(map[string]any)
		require.True(t, ok)
		withTicket := func(verb, csrf string) answer {
			r, err := http.NewRequest(verb, "https://pve/api2/json/pools", nil)
			require.NoError(t, err)
			if verb == "POST" {
				r.URL.RawQuery = "poolid=p"
			}
			r.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: fmt.Sprint(login["ticket"])})
			r.Header.Set("CSRFPreventionToken", csrf)
			return nobody.send(r)
		}
		require.Equal(t, 200, withTicket("GET", "").status, "reading needs no CSRF token")
		require.Equal(t, "Permission denied - invalid csrf token", withTicket("POST", "").reason)
		require.Equal(t, 200, withTicket("POST", fmt.Sprint(login["CSRFPreventionToken"])).status)
		again := form{"username": "root@pam", "password": fmt.Sprint(login["ticket"])}
		require.Equal(t, 200, nobody.ask("POST", "/access/ticket", again).status, "a ticket can be renewed")
		asked := func(authorization, cookie string) answer {
			r, err := http.NewRequest(http.MethodGet, "https://pve/api2/json/version", nil)
			require.NoError(t, err)
			r.Header.Set("Authorization", authorization)
			if cookie != "" {
				r.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: cookie})
			}
			return nobody.send(r)
		}
		ticket := url.QueryEscape(fmt.Sprint(login["ticket"]))
		require.Equal(t, 200, asked("PVEAuthCookie="+ticket, "").status, "the header carries a ticket, too")
		require.Equal(t, 200, asked("PVEAPIToken=nonsense", ticket).status, "a ticket is asked before a token")
		require.Equal(t, 401, asked("PVEAPIToken="+good, "nonsense").status, "and a bad one is not made up for")
		require.Equal(t, 200, asked("PVEAPIToken="+good, "").status)
		require.Equal(t, "No ticket", asked("Bearer "+good, "").reason)
		time.Sleep(3 * time.Hour)
		require.Equal(t, 401, withTicket("GET", "").status, "a ticket ends")
		require.Equal(t, 401, nobody.ask("POST", "/access/ticket", again).status)
	})
}

// TestConnections: PVE keeps a connection for 100 requests, and closes it after
// every failure and every call that ran in pvedaemon.
func TestConnections(t *testing.T) {
	h := pve.New(pve.Config{})
	address, transport := simtest.Listen(t, h)
	get := func(path string) (reused bool, status string) {
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
		r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, address+"/api2/json"+path, nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "PVEAPIToken="+h.Token())
		response, err := transport.RoundTrip(r)
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1", response.Proto)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return reused, response.Status
	}
	for i := range 100 {
		reused, _ := get("/version")
		require.Equal(t, i > 0, reused, "request %d", i)
	}
	reused, _ := get("/version")
	require.False(t, reused, "after 100 requests")
	reused, status := get("/nodes/father/qemu")
	require.True(t, reused)
	require.Equal(t, "200 OK", status)
	reused, _ = get("/version")
	require.False(t, reused, "after a call that ran in pvedaemon")
	reused, status = get("/nodes/father/qemu/999/config")
	require.True(t, reused)
	require.Equal(t, "500 Configuration file 'nodes/father/qemu-server/999.conf' does not exist", status)
	reused, _ = get("/cluster/resources")
	require.False(t, reused, "after a failure")
	require.Equal(t, 4, h.Snapshot().Connections)
}

// TestServer: the same host as a handler of net/http, with its reason phrases.
func TestServer(t *testing.T) {
	h := pve.New(pve.Config{Fault: func(r *http.Request) (int, bool) {
		if strings.HasSuffix(r.URL.Path, "/dns") {
			return -1, false
		}
		return 0, false
	}})
	server := httptest.NewServer(h)
	defer server.Close()
	for path, status := range map[string]string{
		"/version": "200 OK", "/nosuch": "501 Method 'GET /nosuch' not implemented", "/nodes/father/dns": "",
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/api2/json"+path, nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "PVEAPIToken="+h.Token())
		response, err := server.Client().Do(r)
		if status == "" {
			require.Error(t, err, "the connection was dropped")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, status, response.Status)
		require.NoError(t, response.Body.Close())
	}
}

// TestLatencyAndWorkers: a node serves so many requests at once; others wait,
// and those of another node do not care.
func TestLatencyAndWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Latency: time.Second, Workers: 2, Nodes: []string{"mother"}})
		began := time.Now()
		ends := make(chan time.Duration, 6)
		for _, node := range []string{"father", "father", "father", "father", "father", "mother"} {
			go func() {
				c.ok("GET", "/nodes/"+node+"/version", nil)
				ends <- time.Since(began)
			}()
		}
		count := map[time.Duration]int{}
		for range 6 {
			count[<-ends]++
		}
		require.Equal(t, map[time.Duration]int{time.Second: 3, 2 * time.Second: 2, 3 * time.Second: 1}, count)
		require.Equal(t, 3, c.h.Snapshot().PeakRequests)
	})
}

// TestCancelledRequest: a client that gives up gets its context's error; what
// was in service has been done.
func TestCancelledRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Latency: time.Minute})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://pve/api2/json/pools?poolid=p", nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "PVEAPIToken="+c.token)
		response, err := c.h.RoundTrip(r)
		if response != nil {
			require.NoError(t, response.Body.Close())
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Len(t, c.h.Snapshot().Pools, 1)
	})
}

// TestUpload: a file comes as the last part of a form; images are known by
// their header, sums are verified.
func TestUpload(t *testing.T) {
	qcow2 := append([]byte("QFI\xfb\x00\x00\x00\x03"), make([]byte, 1000)...)
	qcow2[28], qcow2[27] = 0x20, 0x01 // 1<<32 | 0x20<<24 bytes, big endian at 24.
	tests := map[string]struct {
		content, name, algorithm, sum string
		data                          []byte
		status                        int
		task                          string
		volume                        pve.Volume
	}{
		"an ISO": {
			content: "iso", name: "a b.iso", data: []byte("hello"), status: 200, task: "OK",
			volume: pve.Volume{ID: "local:iso/a_b.iso", Node: "father", Content: "iso", Format: "iso", Size: 5},
		},
		"a disk image": {
			content: "import", name: "d.qcow2", data: qcow2, status: 200, task: "OK",
			volume: pve.Volume{ID: "local:import/d.qcow2", Node: "father", Content: "import", Format: "qcow2", Size: 1<<32 | 0x20<<24},
		},
		"a right sum": {
			content: "iso", name: "s.iso", data: []byte("hello"), status: 200, task: "OK", algorithm: "sha1", sum: "aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d",
			volume: pve.Volume{ID: "local:iso/s.iso", Node: "father", Content: "iso", Format: "iso", Size: 5},
		},
		"a wrong sum": {
			content: "iso", name: "s.iso", data: []byte("hello"), status: 200, algorithm: "sha1", sum: "0",
			task: "checksum mismatch: got 'aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d' != expect '0'",
		},
		"a wrong extension": {content: "iso", name: "x.txt", data: []byte("x"), status: 400},
		"no such content":   {content: "images", name: "x.raw", data: []byte("x"), status: 400},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, pve.Config{})
			var body bytes.Buffer
			w := multipart.NewWriter(&body)
			require.NoError(t, w.WriteField("content", test.content))
			if test.sum != "" {
				require.NoError(t, w.WriteField("checksum-algorithm", test.algorithm))
				require.NoError(t, w.WriteField("checksum", test.sum))
			}
			part, err := w.CreateFormFile("filename", test.name)
			require.NoError(t, err)
			_, err = part.Write(test.data)
			require.NoError(t, err)
			require.NoError(t, w.Close())
			r, err := http.NewRequest(http.MethodPost, "https://pve/api2/json/nodes/father/storage/local/upload", &body)
			require.NoError(t, err)
			r.Header.Set("Content-Type", w.FormDataContentType())
			a := c.send(r)
			require.Equal(t, test.status, a.status, a.raw)
			if test.task == "" {
				return
			}
			require.Equal(t, test.task, c.wait(fmt.Sprint(a.data)))
			var want []pve.Volume
			if test.volume.ID != "" {
				want = []pve.Volume{test.volume}
			}
			require.ElementsMatch(t, want, c.h.Snapshot().Volumes["local"])
		})
	}
}
