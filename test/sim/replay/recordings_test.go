package replay_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
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
	"github.com/homestak/homestak-gitops/sim/pve"
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

// TestRecordings replays the recordings that do not stand alone on one host, and
// compares as [TestReplay] does: values, identifiers, lists by what identifies their
// entries, the ends of logs. What cannot be compared stands in [unlike], value by
// value, each with its reason; a reason that nothing needs any more fails.
func TestRecordings(t *testing.T) {
	first := readRecording(t, chain[0])
	_, token, _ := strings.Cut(first.Exchanges[0].Request.Headers["Authorization"], "=")
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{vars: &substitutions{}, ids: newIdentifiers(), known: map[string]bool{}, deviations: map[string]int{}, recorded: map[string]int{}}
		before(t, first.Exchanges[0])
		c := recordedMachine()
		c.Node, c.Token, c.TaskTime, c.Password, c.Storages = "pve1", token, 300*time.Millisecond, "Lab-throwaway-1", []pve.Storage{}
		c.Web = labWeb
		c.Promise = func(deviation string) { r.deviations[deviation]++ }
		r.host = pve.New(c)
		equal, all, differ, apart, beyond, used := 0, 0, 0, map[string]int{}, map[string]int{}, excuses{}
		for _, name := range chain {
			s := readRecording(t, name)
			s.partial = true
			r.arrange(t, name)
			same := 0
			for i, e := range s.Exchanges {
				all++
				found, notes := r.play(t, s, e)
				for _, note := range notes {
					beyond[name+" "+s.title(i)+": "+entries.ReplaceAllString(note, "[…]")]++
				}
				if len(found) > 0 {
					differ++
				}
				found = slices.DeleteFunc(found, func(difference string) bool {
					why := used.reason(name, i, difference)
					if why != "" {
						apart[why]++
					}
					return why != ""
				})
				if len(found) > 0 {
					t.Errorf("%s %s: %s\n  %s", name, s.title(i), e.Note, strings.Join(found, "\n  "))
					continue
				}
				same++
			}
			equal += same
			t.Logf("%s: %d of %d exchanges agree", name, same, len(s.Exchanges))
		}
		t.Logf("%d of %d exchanges agree, %d of them but for values that cannot be compared", equal, all, differ)
		require.Empty(t, used.unneeded(), "reasons that nothing needs")
		require.Empty(t, r.deviations, "answers that are not what the API table promises")
		t.Logf("recorded answers that are not what the API table promises: %v", r.recorded)
		for _, note := range slices.Sorted(maps.Keys(beyond)) {
			t.Logf("%s (%d times)", note, beyond[note])
		}
		for why, n := range apart {
			t.Logf("not comparable: %d values: %s", n, why)
		}
	})
}

// entries are the places of entries in a list.
var entries = regexp.MustCompile(`\[\d{3,}\]`)

// recorder plays exchanges on a host.
type recorder struct {
	host  *pve.Host
	vars  *substitutions
	ids   *identifiers
	known map[string]bool // Recorded identifiers for which there is one at hand.

	deviations map[string]int // Of answers from what the API table promises.
	recorded   map[string]int // The same of the recorded answers.
}

// play sends a request at its time and returns in what the answer differs, and what
// it has beyond the recorded one.
func (r *recorder) play(t *testing.T, s *story, e storyExchange) (found, notes []string) {
	follow(t, e)
	r.introduce(t, e)
	r.ids.give(r.thoughtUp(e))
	wantStopped := strings.Contains(string(e.Response.Body), `"stopped"`) && strings.Contains(e.Request.Path, "/tasks/UPID")
	for range 1000 {
		request, err := s.request(t, e, r.vars)
		require.NoError(t, err)
		response, err := r.host.RoundTrip(request)
		if err != nil {
			return []string{err.Error()}, nil
		}
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		if wantStopped && running(body) {
			wait(t, 100*time.Millisecond)
			continue
		}
		_, reason, _ := strings.Cut(response.Status, " ")
		var wanted, got map[string]any
		if decodeJSON(e.Response.Body, &wanted) == nil && decodeJSON(body, &got) == nil {
			r.learn(wanted["data"], got["data"])
			r.promised(e, wanted["data"])
		}
		c := &comparison{story: s, ids: r.ids}
		c.answer(e, response.StatusCode, reason, body)
		if want, got := e.header("Connection"), response.Header.Values("Connection"); len(c.found) == 0 && !slices.Equal(want, got) {
			c.differ("Connection", "want %q, got %q", want, got)
		}
		return c.found, c.notes
	}
	return []string{"the task does not end"}, nil
}

// thoughtUp are the parameters of a request without what came from answers.
func (r *recorder) thoughtUp(e storyExchange) string {
	text := fmt.Sprint(e.Request.Form, e.Request.JSON)
	for _, v := range r.vars.values {
		text = strings.ReplaceAll(text, v.Recorded, "")
	}
	return text
}

// before waits until shortly before the recorded time: then the status daemon looks at
// the seconds of the recorded one, 1, 11, 21 and so on.
func before(t *testing.T, e storyExchange) {
	for _, text := range e.header("Date") {
		at, err := http.ParseTime(text)
		require.NoError(t, err)
		wait(t, time.Until(at.Add(-20*time.Second).Truncate(10*time.Second).Add(1500*time.Millisecond)))
	}
}

// follow waits until the recorded time. Recorded clocks tell seconds only, so a task
// that was still running then is asked for at once.
func follow(t *testing.T, e storyExchange) {
	if running(e.Response.Body) {
		return
	}
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

// promised notes where a recorded answer deviates from the API table.
func (r *recorder) promised(e storyExchange, data any) {
	path, _, _ := strings.Cut(strings.TrimPrefix(e.Request.Path, "/api2/json"), "?")
	if m, _, _ := pveapi.Lookup(e.Request.Method, path); m != nil && e.Response.Status == http.StatusOK {
		for _, deviation := range m.CheckReturn(data) {
			r.recorded[m.Verb+" "+m.Path+": "+deviation]++
		}
	}
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
