package pveapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// The recordings are exchanges with a real PVE 8.4.21; their layout is in the
// README beside them.
type exchange struct {
	name    string // File and number.
	Request struct {
		Method, Path string
		Headers      map[string]string
		Form         [][2]any
		JSON         any
		RawBody      string `json:"raw_body"`
		Upload       *struct {
			Fields   [][2]any
			Filename string
		}
	}
	Response struct {
		Status  int
		BodyRaw string `json:"body_raw"`
		Body    struct {
			Data    any
			Message string
			Errors  map[string]string
		}
	}
}

// recordings reads all exchanges, or skips the test.
func recordings(t *testing.T) []exchange {
	t.Helper()
	folder := os.Getenv("HOMESTAK_RECORDINGS")
	if folder == "" {
		folder = filepath.Join("..", "..", "..", "..", "shared", "pve-recordings")
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	require.NoError(t, err)
	stories, err := filepath.Glob(filepath.Join(folder, "stories", "*.json"))
	require.NoError(t, err)
	files = append(files, stories...)
	if len(files) == 0 {
		t.Skip("needs the recordings of a real PVE: set HOMESTAK_RECORDINGS to their folder")
	}
	var all []exchange
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		var recording struct{ Exchanges []exchange }
		decoder := json.NewDecoder(bytes.NewReader(content))
		decoder.UseNumber()
		require.NoError(t, decoder.Decode(&recording), file)
		for i, e := range recording.Exchanges {
			e.name = fmt.Sprintf("%s/%d %s %s", strings.TrimSuffix(filepath.Base(file), ".json"), i, e.Request.Method, e.Request.Path)
			all = append(all, e)
		}
	}
	return all
}

// request is the recorded request as a client would send it.
func (e exchange) request(t *testing.T) *http.Request {
	t.Helper()
	var body bytes.Buffer
	contentType := e.Request.Headers["Content-Type"]
	switch {
	case e.Request.Upload != nil:
		w := multipart.NewWriter(&body)
		for _, field := range e.Request.Upload.Fields {
			require.NoError(t, w.WriteField(fmt.Sprint(field[0]), fmt.Sprint(field[1])))
		}
		_, err := w.CreateFormFile("filename", e.Request.Upload.Filename)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		contentType = w.FormDataContentType()
	case e.Request.RawBody != "":
		body.WriteString(e.Request.RawBody)
	case e.Request.JSON != nil:
		require.NoError(t, json.NewEncoder(&body).Encode(e.Request.JSON))
	default:
		var pairs []string
		for _, pair := range e.Request.Form {
			pairs = append(pairs, url.QueryEscape(fmt.Sprint(pair[0]))+"="+url.QueryEscape(fmt.Sprint(pair[1])))
		}
		body.WriteString(strings.Join(pairs, "&"))
	}
	r, err := http.NewRequestWithContext(t.Context(), e.Request.Method, "https://pve.example:8006"+e.Request.Path, &body)
	require.NoError(t, err)
	r.Header.Set("Content-Type", contentType)
	return r
}

// values are the parameters of the request, as PVE reads them.
func (e exchange) values(vars map[string]string) map[string]any {
	_, query, _ := strings.Cut(e.Request.Path, "?")
	values := pveapi.DecodeForm(query)
	var pairs []string
	fields := e.Request.Form
	if e.Request.Upload != nil {
		fields = e.Request.Upload.Fields
		values["filename"] = e.Request.Upload.Filename
	}
	for _, pair := range fields {
		pairs = append(pairs, url.QueryEscape(fmt.Sprint(pair[0]))+"="+url.QueryEscape(fmt.Sprint(pair[1])))
	}
	maps.Copy(values, pveapi.DecodeForm(strings.Join(pairs, "&")))
	if strings.HasPrefix(e.Request.Headers["Content-Type"], "application/x-www-form-urlencoded") {
		maps.Copy(values, pveapi.DecodeForm(e.Request.RawBody))
	}
	if object, ok := e.Request.JSON.(map[string]any); ok {
		maps.Copy(values, object)
	}
	for name, value := range vars {
		values[name] = value
	}
	return values
}

// method finds the method of an exchange; nil where PVE has none in the table.
func (e exchange) method() (*pveapi.Method, map[string]string) {
	path, _, _ := strings.Cut(strings.TrimPrefix(e.Request.Path, "/api2/json"), "?")
	m, vars, _ := pveapi.Lookup(e.Request.Method, path)
	return m, vars
}

// behindSchema are texts of refusals that come as 400 with errors by parameter,
// but from code that runs after the schema was content.
var behindSchema = regexp.MustCompile(`^(?:` + strings.Join([]string{
	`Only root may (?:use|set) this option\.`,                // Who asks is root@pam or not.
	`Token already exists\.`, `(?:VM|CT) \d+ already exists`, // What there is already.
	`No such storage\.`, `no such task`, `interface does not exist`, // What there is not.
	`script '.*' does not exist\s*`,
	`storage '.*' does not support vm images`, // What the storage can do.
	`content type needs to be 'images' or 'iso'`,
	`explicit 'media=cdrom' is required for iso images`,
	`storage ID mismatch .*\s*`,
	`wrong file extension`, `invalid filename or wrong extension`,
	`unknown option '.*'`, `you can't use '-.*' and -delete .* at the same time`, // What delete and revert name.
	`hotplug problem - [\s\S]*`,
	`target is local node\.`,
	`invalid ACL path '.*'`,
	`unable to parse worker upid`,
	`property is missing`, // vzdump's own check of vmid.
}, "|") + `)$`)

// olderEnumerations are parameters whose enumeration differs between 8.4 and the
// newest version, which is the only one that the table has.
var olderEnumerations = map[string]string{
	"GET /nodes/{node}/rrddata timeframe": "9.0 added decade",
	"POST /storage type":                  "9.0 dropped glusterfs",
}

// TestRecordedRefusals: what the real PVE said about parameters is said here,
// word for word.
func TestRecordedRefusals(t *testing.T) {
	compared, behind := 0, 0
	for _, e := range recordings(t) {
		if e.Response.Status != http.StatusBadRequest || len(e.Response.Body.Errors) == 0 {
			continue
		}
		m, vars := e.method()
		require.NotNil(t, m, e.name)
		got, want := m.CheckFor("8.4.21", e.values(vars)), e.Response.Body.Errors
		beyond, older := false, false
		for name, text := range want {
			beyond = beyond || behindSchema.MatchString(text)
			_, known := olderEnumerations[m.Verb+" "+m.Path+" "+name]
			older = older || known
		}
		switch {
		case beyond:
			behind++
			require.Empty(t, got, "%s: PVE's schema was content", e.name)
		case older:
			for name := range want {
				require.Contains(t, got[name], "does not have a value in the enumeration", e.name)
			}
		default:
			compared++
			require.Equal(t, want, got, e.name)
			require.Error(t, proxmoxtest.ValidateRequestFor("8.4.21", e.request(t)), e.name)
		}
	}
	require.Greater(t, compared, 150, "too few comparisons: are the recordings complete?")
	t.Logf("%d refusals agree, %d come from behind the schema", compared, behind)
}

// TestRecordedSuccesses: what the real PVE took passes, and what it answered is
// what the table promises.
func TestRecordedSuccesses(t *testing.T) {
	// Deviations of real answers from PVE's own schema, indexes left out.
	answers := map[string]string{
		"GET /access/roles/{roleid} VM.Monitor: not in the description, which allows no more":                 "gone in PVE 9, and with it from the description",
		"GET /nodes/{node}/lxc/{vmid}/interfaces data: null instead of array":                                 "of a stopped container",
		"GET /nodes/{node}/qemu/{vmid}/migrate has-dbus-vmstate: missing":                                     "new in PVE 9",
		"GET /nodes/{node}/qemu/{vmid}/migrate local_disks[].size: missing":                                   "of a volume that has none",
		"GET /nodes/{node}/status memory.available: missing":                                                  "new in PVE 9",
		"GET /nodes/{node}/tasks/{upid}/log data: object instead of array":                                    "of an unknown task",
		"GET /nodes/{node}/vzdump/defaults fleecing: object instead of string":                                "PVE parses it",
		"GET /nodes/{node}/vzdump/defaults performance: object instead of string":                             "PVE parses it",
		"GET /nodes/{node}/vzdump/defaults notification-policy: not in the description, which allows no more": "gone in PVE 9",
		"GET /pools/{poolid} poolid: not in the description, which allows no more":                            "PVE adds it when asked by the other path",
	}
	// Requests that a client should not send, and PVE takes all the same.
	loose := map[string]string{
		"request-encoding/2": "a bare = cuts the value off",
	}
	outside := regexp.MustCompile(`^/api2/json(?:/?$|/cluster/(?:sdn|mapping|metrics)/)`)
	index := regexp.MustCompile(`\[\d+\]`)
	seen := map[string]bool{}
	checked := 0
	for _, e := range recordings(t) {
		if e.Response.Status >= 300 {
			continue
		}
		m, vars := e.method()
		if m == nil {
			require.Regexp(t, outside, e.Request.Path, "%s: not in the table", e.name)
			continue
		}
		checked++
		if contentType := e.Request.Headers["Content-Type"]; !strings.HasPrefix(contentType, "multipart/") {
			require.Empty(t, m.CheckFor("8.4.21", e.values(vars)), e.name)
		}
		for _, deviation := range m.CheckReturn(e.Response.Body.Data) {
			line := m.Verb + " " + m.Path + " " + index.ReplaceAllString(deviation, "[]")
			require.Contains(t, answers, line, e.name)
			seen[line] = true
		}
		id, _, _ := strings.Cut(e.name, " ")
		if _, known := loose[id]; known {
			seen[id] = true
			require.Error(t, proxmoxtest.ValidateRequestFor("8.4.21", e.request(t)), e.name)
			continue
		}
		require.NoError(t, proxmoxtest.ValidateRequestFor("8.4.21", e.request(t)), e.name)
	}
	require.Greater(t, checked, 1000, "too few comparisons: are the recordings complete?")
	maps.Copy(answers, loose)
	for line, why := range answers {
		require.True(t, seen[line], "the exception %q (%s) was not needed", line, why)
	}
	t.Logf("%d requests and answers agree", checked)
}

// TestRecordedNoMethod: PVE's 501 for a method means that the table has none, and
// the other way round.
func TestRecordedNoMethod(t *testing.T) {
	missing := 0
	for _, e := range recordings(t) {
		m, _ := e.method()
		switch {
		case strings.Contains(e.Response.Body.Message, "not implemented"):
			missing++
			require.Equal(t, http.StatusNotImplemented, e.Response.Status, e.name)
			require.Nil(t, m, e.name)
		case m == nil && e.Response.Status >= 300:
			// Without a login nobody learns what there is; HEAD and the like have
			// no body.
			require.Contains(t, []int{http.StatusUnauthorized, http.StatusNotImplemented}, e.Response.Status, e.name)
		}
	}
	require.Greater(t, missing, 15)
}

// TestRecordedForbidden: where PVE refused for want of a privilege that the
// schema declares, the same path and privilege are named here.
func TestRecordedForbidden(t *testing.T) {
	refusal := regexp.MustCompile(`^Permission check failed \((\S*), (\S+)\)\n$`)
	compared := 0
	for _, e := range recordings(t) {
		match := refusal.FindStringSubmatch(e.Response.Body.Message)
		m, vars := e.method()
		if e.Response.Status != http.StatusForbidden || match == nil || m == nil {
			continue
		}
		path, privs := match[1], strings.Split(match[2], "|")
		has := func(p, priv string) bool { return p != path || !slices.Contains(privs, priv) }
		ok, failedPath, failedPrivs := m.PermFor("8.4.21").Permitted(e.values(vars), has)
		if ok {
			continue // A check in PVE's code, not in the schema.
		}
		compared++
		require.Equal(t, path, failedPath, e.name)
		require.Equal(t, match[2], strings.Join(failedPrivs, "|"), e.name)
	}
	require.Greater(t, compared, 20)
	t.Logf("%d refusals agree", compared)
}
