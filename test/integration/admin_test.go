package integration_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

// What the administrator of the host does through its API, beside us.

// call sends a request as root, which must succeed, waits for its task, and gives
// the data of the answer.
func (s *story) call(method, path string, form map[string]string) json.RawMessage {
	s.t.Helper()
	values := url.Values{}
	for key, value := range form {
		values.Set(key, value)
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.api+"/api2/json"+path, strings.NewReader(values.Encode()))
	require.NoError(s.t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "PVEAPIToken="+s.host.Token())
	if method == http.MethodGet {
		req.Body, req.ContentLength = http.NoBody, 0
	}
	res, err := s.host.RoundTrip(req)
	require.NoError(s.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, http.StatusOK, res.StatusCode, "%s %s: %s %s", method, path, res.Status, text)
	var doc struct{ Data json.RawMessage }
	require.NoError(s.t, json.Unmarshal(text, &doc))
	return doc.Data
}

// template makes the VM template golden, and gives its name.
func (s *story) template() string {
	s.t.Helper()
	require.NoError(s.t, fleet.Template(s.t.Context(), s.host, s.host.Token(), s.host.Node()))
	require.Equal(s.t, "1", s.guest("golden").Config["template"])
	s.write("golden.hcl", fmt.Sprintf("template \"golden\" {\n  vmid = %d\n}\n", fleet.TemplateVMID))
	return "golden"
}

// clone is the text of a node made from the template golden.
func clone(name string, lines ...string) string {
	return strings.Replace(vm(name, lines...), "image  = image.debian-12", "template = template.golden", 1)
}
