package pve_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

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
