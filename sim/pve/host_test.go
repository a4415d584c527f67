package pve_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
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
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
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

// TestSaidTwice: what the path says may stand in the body too, as long as it is the
// same (rest_handler in PVE/HTTPServer.pm).
func TestSaidTwice(t *testing.T) {
	c := newClient(t, pve.Config{})
	from := form{"url": "https://images.test/x.iso", "content": "iso", "filename": "x.iso", "node": "father", "storage": "local"}
	c.done("POST", "/nodes/father/storage/local/download-url", from)
	from["storage"] = "local-lvm"
	a := c.ask("POST", "/nodes/father/storage/local/download-url", from)
	require.Equal(t, 400, a.status)
	require.Equal(t, map[string]string{"storage": "duplicate parameter (already defined in URI) with conflicting values!"}, a.errors)
}

// TestTextNumbers: what is a number with a fraction comes as text, and a password not
// at all.
func TestTextNumbers(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "cpulimit": "1.5", "cores": "2", "cipassword": "secret99", "memory": "512"})
	config := c.object(vmURL("100", "/config"))
	require.Equal(t, []any{"1.5", 2.0, "512", "**********"}, []any{config["cpulimit"], config["cores"], config["memory"], config["cipassword"]})
	c.ok("PUT", vmURL("100", "/config"), form{"cpulimit": "2"})
	require.Equal(t, "2", c.object(vmURL("100", "/config"))["cpulimit"], "also where it is a whole one")
}

// TestFormats: each format of the API (PVE/APIServer/Formatter/Standard.pm): ExtJS gets
// its failures with status 200, in the content.
func TestFormats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		json, page := "application/json;charset=UTF-8", "text/html;charset=UTF-8"
		for _, test := range []struct{ verb, path, body, line, kind, content string }{
			{"GET", "/api2/extjs/cluster/nextid", "", "200 OK", json, `{"data":"100","success":1}`},
			{"GET", "/api2/extjs/cluster/nextid?_dc=1", "", "200 OK", json, `{"data":"100","success":1}`},
			{"GET", "/api2/json/cluster/nextid?_dc=1", "", "200 OK", json, `{"data":"100"}`},
			{"GET", "/api2//extjs//cluster/nextid", "", "200 OK", json, `{"data":"100","success":1}`},
			{
				"GET", "/api2/extjs/nodes/father/qemu/100/config", "", "200 OK", json,
				`{"data":null,"message":"Configuration file 'nodes/father/qemu-server/100.conf' does not exist\n","status":500,"success":0}`,
			},
			{
				"POST", "/api2/extjs/pools", "", "200 OK", json,
				`{"data":null,"errors":{"poolid":"property is missing and it is not optional"},"message":"Parameter verification failed.\n","status":400,"success":0}`,
			},
			{"GET", "/api2/extjs/no/such", "", "200 OK", json, `{"data":null,"message":"Method 'GET /no/such' not implemented","status":501,"success":0}`},
			{"GET", "/api2/htmljs/cluster/nextid", "", "200 OK", page, `{&#34;data&#34;:&#34;100&#34;,&#34;success&#34;:1}`},
			{"GET", "/api2/html/cluster/nextid", "", "200 OK", page, "<!DOCTYPE html>\n<html><body><pre>{\n  &#34;data&#34;: &#34;100&#34;\n}\n</pre></body></html>\n"},
			{"GET", "/api2/yaml/version", "", "501 no formatter for uri /version, yaml", "", "no formatter for uri /version, yaml"},
		} {
			line, kind, content := c.rawly(test.verb, test.path, test.body)
			require.Equal(t, []string{test.line, test.kind, test.content}, []string{line, kind, content}, test.path)
		}
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		_, _, content := c.rawly("GET", "/api2/extjs/nodes/father/tasks", "")
		require.Contains(t, content, `"success":1,"total":1`)

		line, _, content := c.as("").rawly("GET", "/api2/extjs/version", "")
		require.Equal(t, []string{"401 No ticket", ""}, []string{line, content}, "who is not known gets the status itself")
		began := time.Now()
		line, _, content = c.rawly("POST", "/api2/extjs/access/ticket", "username=root@pam&password=wrong")
		require.Equal(t, "200 OK", line)
		require.Contains(t, content, `"status":401,"success":0`)
		require.Equal(t, 3*time.Second, time.Since(began), "a failed login is held back in every format")
	})
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
		anonymous := c.as("")
		a := anonymous.ask("POST", "/access/ticket", form{"username": "root@pam", "password": "wrong"})
		require.Equal(t, 401, a.status)
		require.Equal(t, "authentication failure\n", a.message)

		login, ok := anonymous.ok("POST", "/access/ticket", form{"username": "root", "realm": "pam", "password": "pw"}).(map[string]any)
		require.True(t, ok)
		withTicket := func(verb, csrf string) answer {
			r, err := http.NewRequest(verb, "https://pve/api2/json/pools", nil)
			require.NoError(t, err)
			if verb == "POST" {
				r.URL.RawQuery = "poolid=p"
			}
			r.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: fmt.Sprint(login["ticket"])})
			r.Header.Set("CSRFPreventionToken", csrf)
			return anonymous.send(r)
		}
		require.Equal(t, 200, withTicket("GET", "").status, "reading needs no CSRF token")
		require.Equal(t, "Permission denied - invalid csrf token", withTicket("POST", "").reason)
		require.Equal(t, 200, withTicket("POST", fmt.Sprint(login["CSRFPreventionToken"])).status)
		again := form{"username": "root@pam", "password": fmt.Sprint(login["ticket"])}
		require.Equal(t, 200, anonymous.ask("POST", "/access/ticket", again).status, "a ticket can be renewed")
		asked := func(authorization, cookie string) answer {
			r, err := http.NewRequest(http.MethodGet, "https://pve/api2/json/version", nil)
			require.NoError(t, err)
			r.Header.Set("Authorization", authorization)
			if cookie != "" {
				r.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: cookie})
			}
			return anonymous.send(r)
		}
		ticket := url.QueryEscape(fmt.Sprint(login["ticket"]))
		require.Equal(t, 200, asked("PVEAuthCookie="+ticket, "").status, "the header carries a ticket, too")
		require.Equal(t, 200, asked("PVEAPIToken=nonsense", ticket).status, "a ticket is asked before a token")
		require.Equal(t, 401, asked("PVEAPIToken="+good, "nonsense").status, "and a bad one is not made up for")
		require.Equal(t, 200, asked("PVEAPIToken="+good, "").status)
		require.Equal(t, "No ticket", asked("Bearer "+good, "").reason)
		time.Sleep(3 * time.Hour)
		require.Equal(t, 401, withTicket("GET", "").status, "a ticket ends")
		require.Equal(t, 401, anonymous.ask("POST", "/access/ticket", again).status)
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

// TestIdleConnection: the server ends a connection after five silent seconds, also one
// on which nothing was ever asked.
func TestIdleConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := pve.New(pve.Config{})
		over := simtest.Pipe(t, h)
		conn, err := over.DialContext(t.Context(), "tcp", "")
		require.NoError(t, err)
		client := tls.Client(conn, simtest.Pinned(h.Fingerprint()))
		require.NoError(t, client.HandshakeContext(t.Context()))
		reader := bufio.NewReader(client)
		ask := func() error {
			r, err := http.NewRequest(http.MethodGet, "https://pve/api2/json/version", nil)
			require.NoError(t, err)
			r.Header.Set("Authorization", "PVEAPIToken="+h.Token())
			if err := r.Write(client); err != nil {
				return err
			}
			response, err := http.ReadResponse(reader, r)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, response.Body)
			return errors.Join(err, response.Body.Close())
		}
		require.NoError(t, ask())
		time.Sleep(4900 * time.Millisecond)
		require.NoError(t, ask(), "less than five seconds")
		began := time.Now()
		_, err = reader.ReadByte()
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, 5*time.Second, time.Since(began))
		require.Error(t, ask())
	})
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

// TestAuthority: an authority of the cluster and the certificate that it signed, named
// as PVE/Cluster/Setup.pm names them and shown as PVE/API2/Certificates.pm and
// PVE/Certificate.pm show them.
func TestAuthority(t *testing.T) {
	c := likeRecorded(t)
	list := c.list("/nodes/father/certificates/info")
	require.Len(t, list, 2)
	authority, own := list[0], list[1]
	require.Equal(t, "pve-root-ca.pem", authority["filename"])
	require.Regexp(t, `^/CN=Proxmox Virtual Environment/OU=[0-9a-f-]{36}/O=PVE Cluster Manager CA$`, authority["subject"])
	require.Equal(t, []any{authority["subject"], []any{}}, []any{authority["issuer"], authority["san"]})
	require.Equal(t, []any{"pve-ssl.pem", authority["subject"], "/OU=PVE Cluster Node/O=Proxmox Virtual Environment/CN=father"},
		[]any{own["filename"], own["issuer"], own["subject"]})
	require.Equal(t, []any{"127.0.0.1", "0000:0000:0000:0000:0000:0000:0000:0001", "localhost", "father"}, own["san"])

	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM([]byte(authority["pem"].(string))))
	block, _ := pem.Decode([]byte(own["pem"].(string)))
	leaf, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"})
	require.NoError(t, err)
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

// FuzzRequests sends requests made of parts of the API to a host with a VM. It
// must never panic, and always answer: a good status with JSON, or a failure
// with a reason on one line.
func FuzzRequests(f *testing.F) {
	methods := pveapi.Methods()
	f.Add(uint16(0), "father", "100", "memory=64&scsi0=local-lvm:1", "", false)
	f.Add(uint16(100), "mother", "999", "net0=virtio,bridge=vmbr0&boot=order=scsi0", "delete=scsi0", true)
	f.Add(uint16(250), "father", "100", `{"scsi0":"local-lvm:0,import-from=local:import/d.qcow2","description":["a"]}`, "revert=memory", true)
	f.Add(uint16(300), "father", "local-lvm:vm-100-disk-0", "content=images&size=1G&filename=vm-100-disk-9", "vmid=100", false)
	f.Add(uint16(140), "father", "one", "target=mother&online=1&newid=400&hostname=x&size=%2B1G&disk=mp0", "", true)
	f.Add(uint16(180), "father", "one", "vmid=400&ostemplate=local:vztmpl/"+debianTemplate+"&storage=local-lvm&rootfs=1&snapname=two&mp1=local-lvm:1,mp=/x", "force=1&purge=1", false)
	f.Fuzz(func(t *testing.T, which uint16, node, id, body, query string, running bool) {
		if !utf8.ValidString(query + body) {
			return
		}
		m := methods[int(which)%len(methods)]
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, pve.Config{Nodes: []string{"mother"}, Guests: 2, Workers: 1})
			c.done("POST", "/nodes/father/qemu", form{"vmid": "200", "scsi0": "local-lvm:1", "ide2": "none,media=cdrom", "net0": "virtio,bridge=vmbr0"})
			if running {
				c.h.Edit(func(e *pve.Edit) { e.Start(200) })
			}
			c.ct("300", form{"mp0": "local-lvm:1,mp=/srv"})
			c.done("POST", vmURL("200", "/snapshot"), form{"snapname": "one"})
			c.done("POST", "/nodes/father/vzdump", form{"vmid": "300", "storage": "local"})
			c.ok("POST", "/cluster/ha/resources", form{"sid": "vm:200"})
			c.ok("POST", vmURL("200", "/firewall/rules"), form{"type": "in", "action": "DROP"})
			vmid := "200"
			if strings.Contains(m.Path, "/lxc/") {
				vmid = "300"
			}
			path := strings.NewReplacer("{node}", url.PathEscape(node), "{vmid}", vmid, "{storage}", "local-lvm", "{snapname}", "one",
				"{sid}", "vm:200", "{pos}", "0").Replace(m.Path)
			for strings.Contains(path, "{") {
				from, to := strings.Index(path, "{"), strings.Index(path, "}")
				path = path[:from] + url.PathEscape(id) + path[to+1:]
			}
			r, err := http.NewRequest(m.Verb, "https://pve/api2/json"+path, nil)
			require.NoError(t, err)
			if m.Verb == http.MethodPost || m.Verb == http.MethodPut {
				r, err = http.NewRequest(m.Verb, "https://pve/api2/json"+path, strings.NewReader(body))
				require.NoError(t, err)
				if strings.HasPrefix(body, "{") {
					r.Header.Set("Content-Type", "application/json")
				}
			}
			r.URL.RawQuery = query
			r.Header.Set("Authorization", "PVEAPIToken="+c.token)
			response, err := c.h.RoundTrip(r)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.NotContains(t, response.Status, "\n")
			if response.StatusCode == http.StatusOK {
				require.NotEmpty(t, response.Header.Get("Content-Type"))
			}
			require.GreaterOrEqual(t, response.StatusCode, 200)
			c.h.Snapshot()
			time.Sleep(time.Minute) // What it started comes to its end.
			c.list("/cluster/resources")
		})
	})
}
