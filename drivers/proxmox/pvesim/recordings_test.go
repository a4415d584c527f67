package pvesim_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
)

// chain are the recordings that do not stand alone, in the order in which they were
// made: most of them need what those before them left. TestRecordings plays all of
// them on one host, whose clock follows the recorded one.
var chain = strings.Fields(`version access-ticket errors-auth access-setup pools storage-config cluster-nextid storage-content
	qemu-create qemu-config qemu-status-stopped qemu-config-update qemu-start qemu-agent qemu-status-running qemu-pending
	qemu-snapshot-running qemu-lifecycle qemu-snapshot-stopped qemu-locked errors-root-only errors-params errors-permission
	errors-unknown nodes node-network cluster firewall tasks download-url request-encoding qemu-template-clone qemu-create-errors
	vzdump qemu-destroy qemu-misc lxc lxc-lifecycle`)

// recording is one file of exchanges, read as a story without a beginning.
func readRecording(t *testing.T, name string) *story {
	t.Helper()
	for _, folder := range recordingFolders() {
		text, err := readPacked(filepath.Join(folder, name+".json"))
		if err != nil {
			continue
		}
		s := &story{folder: folder}
		require.NoError(t, decodeJSON(text, s), name)
		return s
	}
	t.Skip("needs the recordings of a real PVE: set HOMESTAK_RECORDINGS to their folder")
	return nil
}

// TestRecordings holds status, reason, texts per parameter and the shape of the data
// (names and JSON types) of every exchange of the recordings against the answers of
// one host. What cannot be compared is counted with its reason.
func TestRecordings(t *testing.T) {
	first := readRecording(t, chain[0])
	_, token, _ := strings.Cut(first.Exchanges[0].Request.Headers["Authorization"], "=")
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{vars: &substitutions{}, known: map[string]bool{}, deviations: map[string]int{}, recorded: map[string]int{}}
		follow(t, first.Exchanges[0])
		r.host = pvesim.New(pvesim.Config{
			Node: "pve1", Version: "8.4", Token: token, TaskTime: 300 * time.Millisecond, Password: "Lab-throwaway-1", NoManager: true, Address: "10.99.0.1/24", Bridges: []string{"vmbr0"},
			Promise:  func(deviation string) { r.deviations[deviation]++ },
			Storages: []pvesim.Storage{{Name: "local", Type: "dir", Content: []string{"snippets", "images", "iso", "vztmpl", "backup", "rootdir"}}},
		})
		equal, all, reasons := 0, 0, map[string]int{}
		for _, name := range chain {
			s := readRecording(t, name)
			r.arrange(t, name)
			same := 0
			for i, e := range s.Exchanges {
				all++
				found := r.play(t, s, e)
				why := incomparable[name][i]
				if len(found) == 1 && why == "" {
					why = unknownHere(e, found[0])
				}
				switch {
				case len(found) == 0 && why == "":
					same++
				case len(found) == 0:
					t.Errorf("%s %s: the reason %q is not needed", name, s.title(i), why)
				case why != "":
					reasons[why]++
				default:
					t.Errorf("%s %s: %s\n  %s", name, s.title(i), e.Note, strings.Join(found, "\n  "))
				}
			}
			equal += same
			t.Logf("%s: %d of %d exchanges agree", name, same, len(s.Exchanges))
		}
		t.Logf("%d of %d exchanges agree", equal, all)
		require.Empty(t, r.deviations, "answers that are not what the API table promises")
		t.Logf("recorded answers that are not what the API table promises: %v", r.recorded)
		for why, n := range reasons {
			t.Logf("not comparable: %d: %s", n, why)
		}
	})
}

// recorder plays exchanges on a host.
type recorder struct {
	host  *pvesim.Host
	vars  *substitutions
	known map[string]bool // Recorded identifiers for which there is one at hand.

	deviations map[string]int // Of answers from what the API table promises.
	recorded   map[string]int // The same of the recorded answers.
}

// play sends a request at its time and returns in what the answer differs.
func (r *recorder) play(t *testing.T, s *story, e storyExchange) []string {
	follow(t, e)
	r.introduce(t, e)
	wantStopped := strings.Contains(string(e.Response.Body), `"stopped"`) && strings.Contains(e.Request.Path, "/tasks/UPID")
	for range 1000 {
		request, err := s.request(t, e, r.vars)
		require.NoError(t, err)
		response, err := r.host.RoundTrip(request)
		if err != nil {
			return []string{err.Error()}
		}
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		if wantStopped && running(body) {
			wait(t, 100*time.Millisecond)
			continue
		}
		_, reason, _ := strings.Cut(response.Status, " ")
		found := r.compare(e, response.StatusCode, reason, body)
		if want, got := e.header("Connection"), response.Header.Values("Connection"); len(found) == 0 && !slices.Equal(want, got) {
			found = append(found, fmt.Sprintf("Connection: want %q, got %q", want, got))
		}
		return found
	}
	return []string{"the task does not end"}
}

// follow waits until the recorded time. Recorded clocks tell seconds only.
func follow(t *testing.T, e storyExchange) {
	for _, text := range e.header("Date") {
		at, err := http.ParseTime(text)
		require.NoError(t, err)
		wait(t, time.Until(at))
	}
}

// header are the values of a header line of the recorded answer. Some files have the
// lines as text, some as pairs.
func (e storyExchange) header(name string) []string {
	var values []string
	for _, line := range e.Response.Headers {
		whole := fmt.Sprint(line)
		if pair, ok := line.([]any); ok && len(pair) == 2 {
			whole = fmt.Sprint(pair[0], ": ", pair[1])
		}
		if value, ok := strings.CutPrefix(whole, name+": "); ok {
			values = append(values, value)
		}
	}
	return values
}

func (r *recorder) compare(e storyExchange, status int, reason string, body []byte) []string {
	want := e.Response
	if want.Status != status || plain(want.Reason) != plain(reason) {
		return []string{fmt.Sprintf("want %d %s, got %d %s", want.Status, want.Reason, status, reason)}
	}
	if len(want.Body) == 0 {
		if len(body) > 0 && body[0] == '{' {
			return []string{"want no JSON"}
		}
		return nil
	}
	var wanted, got map[string]any
	if decodeJSON(want.Body, &wanted) != nil || decodeJSON(body, &got) != nil {
		return []string{"no JSON: " + show(string(body))}
	}
	r.learn(wanted["data"], got["data"])
	r.promised(e, wanted["data"])
	var found []string
	if a, b := outcome(wanted["data"]), outcome(got["data"]); a != b && a != "" {
		found = append(found, "exit status: want "+a+", got "+b)
	}
	if a, b := plain(show(wanted["errors"])), plain(show(got["errors"])); a != b {
		found = append(found, "errors: want "+a+", got "+b)
	}
	if strings.Contains(e.Request.Path, "/log") {
		return append(found, shapes("data", nil, nil)...)
	}
	return append(found, shapes("data", wanted["data"], got["data"])...)
}

// promised notes where a recorded answer deviates from the API table.
func (r *recorder) promised(e storyExchange, data any) {
	path, _, _ := strings.Cut(strings.TrimPrefix(e.Request.Path, "/api2/json"), "?")
	if m, _, _ := pveapi.Lookup(e.Request.Method, path); m != nil && e.Response.Status == http.StatusOK {
		for _, deviation := range m.CheckReturn(data) {
			r.recorded[m.Verb+" "+m.Path+": "+deviation]++
		}
	}
}

// outcome is the exit status of a task, if an answer tells one.
func outcome(data any) string {
	object, _ := data.(map[string]any)
	text, _ := object["exitstatus"].(string)
	return plain(dated.ReplaceAllString(text, "<time>"))
}

// dated is the time in the name of an archive.
var dated = regexp.MustCompile(`\d{4}_\d\d_\d\d-\d\d_\d\d_\d\d`)

// learn finds the identifiers of an answer and of the recorded one that stand in the
// same place: later requests need them.
func (r *recorder) learn(want, got any) {
	switch want := want.(type) {
	case string:
		text, ok := got.(string)
		if wants, gots := dated.FindAllString(want, -1), dated.FindAllString(text, -1); len(wants) == 1 && len(gots) == 1 {
			r.vars.learn(storyVar{Recorded: wants[0]}, gots[0])
		}
		if !ok || plain(want) != plain(text) {
			return
		}
		wants, gots := identify(want), identify(text)
		for i := range wants {
			recorded := want[wants[i].from:wants[i].to]
			if !r.known[recorded] {
				r.known[recorded] = true
				r.vars.learn(storyVar{Recorded: recorded}, text[gots[i].from:gots[i].to])
			}
		}
	case []any:
		list, _ := got.([]any)
		if len(want) == 1 && len(list) == 1 {
			r.learn(want[0], list[0])
		}
	case map[string]any:
		object, _ := got.(map[string]any)
		for name := range want {
			r.learn(want[name], object[name])
		}
		if number, ok := want["pid"].(json.Number); ok && len(want) == 1 {
			r.vars.learn(storyVar{Recorded: "pid=" + number.String()}, fmt.Sprint("pid=", object["pid"]))
		}
	}
}

// shapes compares names and JSON types. Of a list the elements of one sort (by type,
// status and the like) count together.
func shapes(path string, want, got any) []string {
	if kind(want) != kind(got) {
		return []string{fmt.Sprintf("%s: want %s, got %s", path, show(want), show(got))}
	}
	var found []string
	switch want := want.(type) {
	case map[string]any:
		object, _ := got.(map[string]any)
		for name, member := range want {
			other, ok := object[name]
			switch {
			case !ok:
				found = append(found, path+"."+name+": missing, want "+show(member))
			case !slices.Contains(opaque, name):
				found = append(found, shapes(path+"."+name, member, other)...)
			}
		}
	case []any:
		list, _ := got.([]any)
		sorts := elementsBySort(list)
		for name, all := range elementsBySort(want) {
			if other, ok := sorts[name]; ok {
				found = append(found, shapes(path+"["+name+"]", merged(all), merged(other))...)
			} else if len(list) == 0 {
				found = append(found, path+": empty, want "+show(want))
			}
		}
	}
	slices.Sort(found)
	return found
}

func elementsBySort(list []any) map[string][]any {
	sorts := map[string][]any{}
	for _, element := range list {
		label := kind(element)
		if object, ok := element.(map[string]any); ok {
			for _, name := range []string{"type", "status", "content", "iface", "key", "subdir"} {
				if text, ok := object[name].(string); ok && !strings.Contains(text, ",") && (name != "status" || object["type"] != nil) {
					label += " " + text
				}
			}
		}
		sorts[label] = append(sorts[label], element)
	}
	return sorts
}

// merged are all elements of one sort: of objects the names that all of them have.
func merged(all []any) any {
	first, ok := all[0].(map[string]any)
	if !ok {
		return all[0]
	}
	common := map[string]any{}
	for name, value := range first {
		if !slices.ContainsFunc(all, func(element any) bool {
			object, _ := element.(map[string]any)
			other, has := object[name]
			return !has || kind(other) != kind(value)
		}) {
			common[name] = value
		}
	}
	return common
}
