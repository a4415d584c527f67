package proxmoxtest

import (
	"bytes"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

const base = "https://pve.example:8006/api2/json"

func TestValidateRequest(t *testing.T) {
	const (
		form   = "application/x-www-form-urlencoded"
		asJSON = "application/json; charset=utf-8"
		config = base + "/nodes/pve1/qemu/100/config"
	)
	tests := map[string]struct {
		verb, url, contentType, body string
		want                         []string // Parts of the error; none: the request is fine.
	}{
		"a query":              {"GET", base + "/cluster/resources?type=vm", "", "", nil},
		"a form":               {"PUT", config, form, "memory=512&description=a%3Bb%3Dc", nil},
		"a form without type":  {"PUT", config, "", "memory=512", nil},
		"JSON":                 {"PUT", config, asJSON, `{"onboot":true,"memory":512,"tags":["a","b"]}`, nil},
		"query of a PUT":       {"PUT", config + "?memory=512", form, "", nil},
		"DELETE with query":    {"DELETE", base + "/nodes/pve1/qemu/100?purge=1", "", "", nil},
		"encoded volume":       {"DELETE", base + "/nodes/pve1/storage/local/content/local%3Aiso%2Fa.iso", "", "", nil},
		"path said twice":      {"PUT", config, form, "vmid=100", nil},
		"elsewhere":            {"GET", "https://pve.example/version", "", "", []string{"GET /version: not below /api2/json"}},
		"no such path":         {"GET", base + "/nosuch", "", "", []string{"GET /nosuch: no such path"}},
		"no such verb":         {"PATCH", config, "", "", []string{"PATCH /nodes/pve1/qemu/100/config: the path knows no such verb"}},
		"boolean in a query":   {"DELETE", base + "/nodes/pve1/qemu/100?purge=true", "", "", []string{"purge: type check ('boolean') failed - got 'true'"}},
		"everything at once":   {"PUT", config, form, "memroy=1&onboot=yes&cores=0&net0=virtio,vlan%3D5", []string{"memroy: property is not defined", "onboot: type check", "cores: value must have a minimum", "net0.vlan: property is not defined"}},
		"missing":              {"POST", base + "/nodes/pve1/qemu/100/clone", form, "full=1", []string{"newid: property is missing and it is not optional"}},
		"bad path":             {"GET", base + "/nodes/pve1/qemu/abc/config", "", "", []string{"vmid: type check ('integer') failed - got 'abc'"}},
		"another path":         {"PUT", config, form, "vmid=101", []string{"vmid: given in the path and, differently, as a parameter"}},
		"GET with body":        {"GET", base + "/version", form, "x=1", []string{"refuses a body"}},
		"DELETE with body":     {"DELETE", base + "/nodes/pve1/qemu/100", form, "purge=1", []string{"refuses a body"}},
		"bare semicolon":       {"PUT", config, form, "tags=web;cores=2", []string{"a bare ;"}},
		"bare equals sign":     {"PUT", config, form, "description=a=b", []string{"description: PVE cuts a value at a bare ="}},
		"bare in the query":    {"GET", base + "/cluster/resources?type=vm;x", "", "", []string{"a bare ;", "x: property is not defined"}},
		"broken JSON":          {"PUT", config, asJSON, `{"memory":`, []string{"JSON body"}},
		"JSON, no object":      {"PUT", config, asJSON, `[1]`, []string{"JSON body"}},
		"unknown type":         {"PUT", config, "text/plain", "memory=512", []string{`PVE takes no body of type "text/plain"`}},
		"broken type":          {"PUT", config, "text/plain; x", "memory=512", []string{`content type "text/plain; x" of the body`}},
		"too large":            {"PUT", config, form, "description=" + strings.Repeat("x", 512<<10), []string{"PVE reads up to 524288", "value may only be 8192 characters long"}},
		"multipart, no closer": {"POST", base + "/nodes/pve1/storage/local/upload", "multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso", []string{"multipart body: read part \"content\""}},
		"multipart, nothing":   {"POST", base + "/nodes/pve1/storage/local/upload", "multipart/form-data; boundary=b", "x", []string{"content: property is missing", "filename: property is missing"}},
		"multipart, broken":    {"POST", base + "/nodes/pve1/storage/local/upload", "multipart/form-data; boundary=b", "--b\r\nno header", []string{"multipart body: read a part"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), test.verb, test.url, strings.NewReader(test.body))
			require.NoError(t, err)
			if test.contentType != "" {
				r.Header.Set("Content-Type", test.contentType)
			}
			err = ValidateRequest(r)
			if test.want == nil {
				require.NoError(t, err)
			}
			for _, part := range test.want {
				require.ErrorContains(t, err, part)
			}
			body, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Equal(t, test.body, string(body), "the sender still has the body")
		})
	}
}

func TestValidateUpload(t *testing.T) {
	part := func(w *multipart.Writer, name, text string) { require.NoError(t, w.WriteField(name, text)) }
	file := func(w *multipart.Writer, name string) {
		to, err := w.CreateFormFile(name, "a.iso")
		require.NoError(t, err)
		_, err = io.WriteString(to, strings.Repeat("x", 1<<20))
		require.NoError(t, err)
	}
	tests := map[string]struct {
		write func(w *multipart.Writer)
		want  string
	}{
		"as PVE wants it":    {func(w *multipart.Writer) { part(w, "content", "iso"); file(w, "filename") }, ""},
		"file not last":      {func(w *multipart.Writer) { file(w, "filename"); part(w, "content", "iso") }, `part "content" comes after the file, which must be the last`},
		"file misnamed":      {func(w *multipart.Writer) { part(w, "content", "iso"); file(w, "file") }, `the part with the file is named "file", not "filename"`},
		"content impossible": {func(w *multipart.Writer) { part(w, "content", "snippets"); file(w, "filename") }, "content: value 'snippets' does not have a value in the enumeration 'iso, vztmpl, import'"},
		"no file":            {func(w *multipart.Writer) { part(w, "content", "iso") }, "filename: property is missing and it is not optional"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var body bytes.Buffer
			w := multipart.NewWriter(&body)
			test.write(w)
			require.NoError(t, w.Close())
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/nodes/pve1/storage/local/upload", &body)
			require.NoError(t, err)
			r.Header.Set("Content-Type", w.FormDataContentType())
			err = ValidateRequest(r)
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestValidateRequestFor(t *testing.T) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, base+"/nodes/pve1/qemu/100/config?allow-ksm=0", http.NoBody)
	require.NoError(t, err)
	require.NoError(t, ValidateRequest(r))
	require.NoError(t, ValidateRequestFor("9.1", r))
	require.ErrorContains(t, ValidateRequestFor("8.4", r), "allow-ksm: property is not defined")

	r, err = http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/cluster/ha/rules", http.NoBody)
	require.NoError(t, err)
	require.NoError(t, ValidateRequestFor("9.0", r))
	require.EqualError(t, ValidateRequestFor("8.4", r), "GET /cluster/ha/rules: not in version 8.4, only since 9.0")
}

// failingClose is a body that cannot be closed.
type failingClose struct{ io.Reader }

func (failingClose) Close() error { return errors.New("stuck") }

func TestValidateRequestBrokenBody(t *testing.T) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, base+"/nodes/pve1/qemu/100/config", iotest.ErrReader(errors.New("gone")))
	require.NoError(t, err)
	require.ErrorContains(t, ValidateRequest(r), "read the body: gone")
	r.Body = failingClose{strings.NewReader("memory=512")}
	require.ErrorContains(t, ValidateRequest(r), "close the body: stuck")
}

func TestDecodeForm(t *testing.T) {
	for form, want := range map[string]map[string]any{
		"":                       {},
		"a=1&b=two+words%21":     {"a": "1", "b": "two words!"},
		"a=1;b=2":                {"a": "1", "b": "2"},
		"a=b=c&d":                {"a": "b", "d": ""},
		"a=1&a=2&a=3":            {"a": []any{"1", "2", "3"}},
		"a=%zz+%41%&b=%C3%BC%4":  {"a": "%zz A%", "b": "ü%4"},
		"sshkeys=ssh%2520a&&x=;": {"sshkeys": "ssh%20a", "x": ""},
	} {
		require.Equal(t, want, pveapi.DecodeForm(form), form)
	}
}

// TestAccepted: a request that was found good is not checked again, one that differs is.
func TestAccepted(t *testing.T) {
	var accepted acceptedRequests
	for range 2 {
		for path, good := range map[string]bool{"/nodes/a/qemu/100/config": true, "/nodes/a/qemu/100/config?current=1": true, "/nodes/a/qemu/100/config?current=2": false} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://pve.test:8006/api2/json"+path, http.NoBody)
			require.NoError(t, err)
			if err = accepted.Validate(r); good {
				require.NoError(t, err, path)
			} else {
				require.Error(t, err, path)
			}
		}
		for body, good := range map[string]bool{"memory=512": true, "memory=x": false} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://pve.test:8006/api2/json/nodes/a/qemu/100/config", strings.NewReader(body))
			require.NoError(t, err)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			require.Equal(t, good, accepted.Validate(r) == nil, body)
			left, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Equal(t, body, string(left))
		}
	}
}
