package sim_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
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

// thoughtUp are the parameters of a request, without those that were taken from answers.
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

// labWeb is the web server of the recordings.
func labWeb(address string) pve.Page {
	switch address {
	case "http://127.0.0.1:18099/tiny.qcow2":
		return pve.Page{Size: 15676928, Disk: 64 << 20, Sums: map[string]string{"sha256": "d12aeb0f99e964a33b537843c8530866c7be8008a581a7266850edc9b717a7b7"}}
	case "http://127.0.0.1:18099/small.iso":
		return pve.Page{Size: 5}
	default:
		return pve.Page{Missing: "404 File not found"}
	}
}

// arrange makes what a recording needs and no recording made.
func (r *recorder) arrange(t *testing.T, name string) {
	t.Helper()
	switch name {
	case "cluster-nextid":
		r.upload(t, "import", "tiny.qcow2", image(64<<20, 15676928))
		r.upload(t, "vztmpl", "alpine-3.20-tiny_1_amd64.tar.gz", template(1032754))
		r.ok(t, "POST", "/nodes/pve1/lxc", url.Values{
			"vmid": {"200"}, "ostemplate": {"vmstore:vztmpl/alpine-3.20-tiny_1_amd64.tar.gz"}, "rootfs": {"vmstore:3"}, "mp0": {"vmstore:1,mp=/data"},
			"storage": {"vmstore"}, "hostname": {"ct01"}, "cores": {"1"}, "memory": {"160"}, "unprivileged": {"1"}, "pool": {"homelab"}, "tags": {"gitops;web"},
		})
		r.ok(t, "POST", "/nodes/pve1/lxc/200/template", nil)
	case "errors-permission":
		for _, id := range []string{"513", "520", "524"} {
			r.ok(t, "DELETE", "/nodes/pve1/qemu/"+id, nil)
		}
		r.ok(t, "PUT", "/nodes/pve1/qemu/100/config", url.Values{"onboot": {"0"}})
	case "download-url":
		r.upload(t, "iso", "small.iso", make([]byte, 5))
		r.upload(t, "iso", "up.iso", make([]byte, 9))
		r.ok(t, "POST", "/nodes/pve1/storage/vmstore/content", url.Values{"vmid": {"100"}, "filename": {"vm-100-disk-9.qcow2"}, "size": {"1G"}, "format": {"qcow2"}})
	case "lxc":
		r.ok(t, "DELETE", "/nodes/pve1/lxc/200", nil)
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
	if recorded := strings.Join(parts[1:4], ":"); !r.known[recorded] && recorded != noTask && e.Response.Status == http.StatusOK {
		r.repeat(t, e, parts[4], parts[5])
		for _, task := range r.host.Snapshot().Tasks {
			atHand := strings.Join(strings.Split(task.UPID, ":")[2:5], ":")
			if task.Type == parts[4] && task.ID == parts[5] && task.User == parts[6] && r.ids.recorded[strings.ToLower(atHand)] == "" {
				r.meet(recorded, atHand)
			}
		}
	}
}

// noTask stands in the recordings where a task was asked for that never was.
const noTask = "00000001:00000001:00000001"

// leftOut are calls that started tasks and were left out of the recordings.
var leftOut = map[string][2]string{
	"qmstart": {"POST", "/nodes/pve1/qemu/%s/status/start"}, "qmstop": {"POST", "/nodes/pve1/qemu/%s/status/stop"},
	"qmdestroy": {"DELETE", "/nodes/pve1/qemu/%s?purge=1"}, "vzdestroy": {"DELETE", "/nodes/pve1/lxc/%s?purge=1"},
}

// repeat makes the call that must have started a task, as the one who asks for it.
func (r *recorder) repeat(t *testing.T, e storyExchange, kind, id string) {
	t.Helper()
	call, ok := leftOut[kind]
	if !ok || strings.HasSuffix(e.Request.Path, "/log") {
		return
	}
	request, err := http.NewRequest(call[0], "https://pve1/api2/json"+fmt.Sprintf(call[1], id), nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", r.vars.in(e.Request.Headers["Authorization"]))
	response, err := r.host.RoundTrip(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
}

// meet notes which identifier stands for a recorded one.
func (r *recorder) meet(recorded, atHand string) {
	r.known[recorded] = true
	if ids := identify("UPID:n:" + recorded + ":"); len(ids) == 1 {
		r.ids.actual[ids[0].value] = strings.ToLower(atHand)
		r.ids.recorded[strings.ToLower(atHand)] = ids[0].value
	}
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

// template is the archive of a container of Alpine; what makes it as large as the recorded
// one stands behind its end.
func template(size int) []byte {
	archive := simtest.RootArchive(map[string]string{"bin/sh": simtest.ELF("\x3e"), "etc/alpine-release": "3.20.0", "etc/os-release": "ID=alpine\n"})
	return append(archive, make([]byte, size-len(archive))...)
}

// image is a disk image, of which the head tells how large the disk is.
func image(size uint64, length int) []byte {
	content := make([]byte, length)
	copy(content, "QFI\xfb\x00\x00\x00\x03")
	binary.BigEndian.PutUint64(content[24:], size)
	return content
}

// upload puts a file on the storage vmstore.
func (r *recorder) upload(t *testing.T, kind, name string, content []byte) {
	t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	require.NoError(t, w.WriteField("content", kind))
	part, err := w.CreateFormFile("filename", name)
	require.NoError(t, err)
	_, err = part.Write(content)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	request, err := http.NewRequest(http.MethodPost, "https://pve1/api2/json/nodes/pve1/storage/vmstore/upload", &body)
	require.NoError(t, err)
	r.send(t, request, w.FormDataContentType())
}

// recordedMachine is the host that was recorded, as far as it can be simulated: its
// processors, memory and disk, that it has no KVM, and what its guests ran.
func recordedMachine() pve.Config {
	return pve.Config{
		Version: "8.4", NoManager: true, Address: "10.99.0.1/24", Bridges: []string{"vmbr0"},
		CPUs: 2, Memory: 25276510208, RootDisk: 270553174016, StorageSize: 270553174016, NoKVM: true, BootTime: 8 * time.Second,
		Resolver: map[string]string{"dns1": "10.255.255.53"},
		System: pve.System{
			Release: "NAME=\"Tiny Lab Guest\"\nID=tinylab\nPRETTY_NAME=\"Tiny Lab Guest 1\"\nVERSION=\"1\"\nVERSION_ID=\"1\"\n",
			Kernel:  "6.1.0-56-cloud-amd64", KernelVersion: "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-2 (2026-11-16)",
		},
	}
}

// The reasons why values cannot be compared.
const (
	itsHardware = "processor, kernel, load and figures over time are those of the recorded machine"
	itsKey      = "keys and certificates are made by each host"
	itsQEMU     = "the recorded QEMU is newer than that of PVE 8.4"
	itsGuest    = "what the recorded guest mounts, sends and reads on its clock"
	itsInit     = "the init of the recorded container configures no network"
	itsTools    = "messages of tools that only the recorded machine lacks or forbids"
	itsArchive  = "how well a disk is packed"
	itsFilling  = "how an image is filled shows in the progress of its copy, of which the recorded page of the log shows a part"
	itsFailure  = "why this VM did not start on the recorded machine was not recorded"
	before100   = "the VM 100 that was there before was running when the status daemon looked last"
	callsApart  = "it shows guests, disks and archives of calls that were left out of the recordings"
)

// unlike are the values that cannot be compared: in which exchanges (file and number),
// which of them, and why.
var unlike = []struct{ where, what, why string }{
	{`(nodes [34]|errors-permission 22)`, `body\.data\.(cpuinfo\.(flags|mhz|model)|kversion|current-kernel\.release|loadavg\[\d\]|memory\.free|rootfs\.free|wait):`, itsHardware},
	{`nodes 11`, `body\.data\[\d+\]\.(cpu|iowait|loadavg|maxcpu|mem(total|used)|net(in|out)|root(total|used)|swap(total|used)):`, itsHardware},
	{`qemu-misc 17`, `body\.data\[\d+\]\.(cpu|disk|maxcpu|maxdisk|maxmem|mem|netin|netout|diskread|diskwrite):`, itsHardware},
	{`nodes 9`, `body\.data\.serverid:`, itsKey},
	{`nodes 14`, `body\.data\[pve-(ssl|root-ca)\.pem\]`, itsKey},
	{`nodes 10`, `body\.data\[pc-(q35|i440fx)-10\.0\]: missing`, itsQEMU},
	{`qemu-agent 3`, `body\.data\.result\[eth0\]\.statistics\.`, itsGuest},
	{`qemu-agent 7`, `body\.data\.result`, itsGuest},
	{`qemu-agent 9`, `body\.data\.result:`, itsGuest},
	{`lxc-lifecycle 6`, `body\.data\[(lo|eth0)\]\.ip-addresses: too much`, itsInit},
	{`lxc 37|lxc-lifecycle 60`, `log, last line: want "Cannot stat file`, itsTools},
	{`qemu-misc 11`, `log, first line: want "Can't exec"`, itsTools},
	{`vzdump (12|13|15)`, `body\.data(\[vmstore:backup/vzdump-qemu-110-2026_11_20-23_55_18\.vma\.zst\]|\[110\])?\.size:`, itsArchive},
	{`lxc-lifecycle 4[01]`, `body\.data\[200\]\.size:`, itsArchive},
	{`(qemu-create|qemu-template-clone) 3`, `log, last line: want "transferred`, itsFilling},
	{`vzdump (25|31)`, `log, last line: want "progress 41%`, itsFilling},
	{`qemu-create-errors 36`, `body\.data\.(cpu|mem|netin|netout|qmpstatus|status|uptime):`, itsFailure},
	{`qemu-status-stopped 3`, `body\.data\[qemu/100\]\.`, before100},
	{`storage-content 5`, `body\.data(\[vmstore:200/(base-200-disk-2|vm-200-disk-1)\.raw\]|: too much: .*base-200-disk-1\.raw)`, callsApart},
	{`errors-permission 20`, `body\.data\[qemu/110\]: missing`, callsApart},
	{`cluster (2|19|21)`, `body\.data\.allowed-tags: `, callsApart},
	{`tasks 10`, `body\.total: missing`, callsApart},
	{`cluster 17`, `body\.data(\[(204|110)\]: missing|: too much: .*ct01)`, callsApart},
	{`qemu-template-clone 11`, `body\.data\[(9000|200)\]\.`, callsApart},
	{`vzdump (12|36)`, `body\.data\[vmstore:backup/vzdump-lxc-200-`, callsApart},
	{`lxc 40`, `body\.data(\[9000\]: missing|: too much: .*full01)`, callsApart},
}

// excuses finds the reasons of differences, and lists the unused ones.
type excuses map[int]int

func (used excuses) reason(name string, i int, difference string) string {
	where := fmt.Sprintf("%s %d", name, i)
	for n, u := range unlike {
		if regexp.MustCompile("^(?:"+u.where+")$").MatchString(where) && regexp.MustCompile("^(?:"+u.what+")").MatchString(difference) {
			used[n]++
			return u.why
		}
	}
	return ""
}

func (used excuses) unneeded() []string {
	var list []string
	for n, u := range unlike {
		if used[n] == 0 {
			list = append(list, u.where+" "+u.what+": "+u.why)
		}
	}
	slices.Sort(list)
	return list
}

// mirror answers with what was recorded, but for invented values, in which the
// hexadecimal digits are others (behind the prefix of a MAC).
type mirror struct {
	t     *testing.T
	story *story
	next  int
}

func (*mirror) sampled(*testing.T)              {}
func (*mirror) pause(*testing.T, time.Duration) {}

func (m *mirror) RoundTrip(r *http.Request) (*http.Response, error) {
	want := m.story.Exchanges[m.next]
	m.next++
	require.Equal(m.t, want.Request.Method, r.Method)
	body := []byte(want.Response.Body)
	if len(body) == 0 && want.Response.BodyRaw != nil {
		body = []byte(*want.Response.BodyRaw)
	}
	return &http.Response{
		StatusCode: want.Response.Status,
		Status:     strconv.Itoa(want.Response.Status) + " " + m.disguise(want.Response.Reason),
		Body:       io.NopCloser(bytes.NewReader([]byte(m.disguise(string(body))))),
	}, nil
}

// disguise changes the invented values that no request brought.
func (m *mirror) disguise(text string) string {
	var b strings.Builder
	last := 0
	for _, id := range identify(text) {
		b.WriteString(text[last:id.from])
		b.WriteString(m.other(text[id.from:id.to]))
		last = id.to
	}
	return b.String() + text[last:]
}

func (m *mirror) other(id string) string {
	if m.given(id) {
		return id
	}
	for _, prefix := range []string{"BC:24:11", "fe80::be24:11ff:fe", "pveupload-"} { // What is not invented of it.
		if len(id) > len(prefix) && strings.EqualFold(id[:len(prefix)], prefix) {
			return id[:len(prefix)] + strings.Map(nextDigit, id[len(prefix):])
		}
	}
	if i := strings.LastIndex(id, ":"); strings.HasPrefix(strings.ToLower(id), "fe80::") {
		return id[:i] + strings.Map(nextDigit, id[i:]) // Else it is no address of a link.
	}
	return strings.Map(nextDigit, id)
}

func nextDigit(r rune) rune {
	switch {
	case r >= '0' && r < '9', r >= 'A' && r < 'F', r >= 'a' && r < 'f':
		return r + 1
	case r == '9':
		return '0'
	case r == 'F':
		return 'A'
	case r == 'f':
		return 'a'
	default:
		return r
	}
}

// given says whether a request had the identifier before any answer.
func (m *mirror) given(id string) bool {
	for _, e := range m.story.Exchanges[:m.next] {
		sent, err := json.Marshal(e.Request)
		require.NoError(m.t, err)
		if bytes.Contains(bytes.ToLower(sent), []byte(strings.ToLower(id))) {
			return true
		}
		if bytes.Contains(bytes.ToLower(e.Response.Body), []byte(strings.ToLower(id))) {
			return false
		}
	}
	return false
}

// TestReplayOfTheRecordings: the harness finds nothing in answers that are the
// recorded ones with other invented values, in any story.
func TestReplayOfTheRecordings(t *testing.T) {
	for _, name := range storyNames(t) {
		t.Run(name, func(t *testing.T) {
			s := readStory(t, name)
			synctest.Test(t, func(t *testing.T) {
				p := newPlayer(s, &mirror{t: t, story: s})
				for i := range s.Exchanges {
					result := p.play(t, i)
					require.Empty(t, result.found, s.title(i))
					require.Empty(t, result.notes, s.title(i))
				}
			})
		})
	}
}

// TestReplayNoticesChanges: nothing recorded can change unnoticed, go missing or
// be of another type.
func TestReplayNoticesChanges(t *testing.T) {
	for _, name := range storyNames(t) {
		t.Run(name, func(t *testing.T) {
			s := readStory(t, name)
			changes, seen := 0, map[string]bool{}
			for i, e := range s.Exchanges {
				found := func(status int, reason string, body []byte) []string {
					c := &comparison{story: s, ids: newIdentifiers()}
					c.answer(e, status, reason, body)
					return c.found
				}
				want := e.Response
				body := []byte(want.Body)
				if len(body) == 0 && want.BodyRaw != nil {
					body = []byte(*want.BodyRaw)
				}
				require.Empty(t, found(want.Status, want.Reason, body), s.title(i))
				require.NotEmpty(t, found(want.Status+1, want.Reason, body), s.title(i))
				if !slices.Contains(e.Loose, "reason") {
					require.NotEmpty(t, found(want.Status, want.Reason+" not", body), s.title(i))
				}
				path, _, _ := strings.Cut(e.Request.Path, "?")
				if len(want.Body) == 0 || len(e.Loose) > 0 || strings.HasSuffix(path, "/log") {
					continue
				}
				kindOfAnswer := fmt.Sprint(want.Status)
				if m, _, _ := pveapi.Lookup(e.Request.Method, strings.TrimPrefix(path, "/api2/json")); m != nil {
					kindOfAnswer += m.Verb + m.Path
				}
				var answer any
				require.NoError(t, decodeJSON(want.Body, &answer))
				eachChange(answer, "", func(what string) {
					key := kindOfAnswer + " " + what
					if seen[key] {
						return // Once for each kind of answer is enough.
					}
					seen[key] = true
					changed, err := json.Marshal(answer)
					require.NoError(t, err)
					require.NotEmpty(t, found(want.Status, want.Reason, changed), "%s: %s", s.title(i), what)
					changes++
				})
			}
			require.Greater(t, changes, 100)
		})
	}
}

// eachChange calls noticed with the value changed in one place after the other, and
// with what was changed.
func eachChange(value any, path string, noticed func(what string)) {
	switch value := value.(type) {
	case map[string]any:
		for name, member := range value {
			delete(value, name)
			noticed("without" + path + " " + name)
			value[name] = []any{map[string]any{}, true}
			noticed("another type of" + path + " " + name)
			value[name] = member
			if slices.Contains(opaque, name) {
				continue
			}
			eachChange(member, path+" "+name, noticed)
			if slices.Contains(alwaysFree, name) || slices.Contains(freeWhileRunning, name) && value["status"] != "stopped" {
				continue
			}
			switch member := member.(type) {
			case string:
				value[name] = member + "!"
				noticed("another" + path + " " + name)
			case json.Number:
				value[name] = "1" + member
				noticed("another" + path + " " + name)
			}
			value[name] = member
		}
	case []any:
		for i, element := range value {
			value[i] = true
			noticed("another element of" + path)
			value[i] = element
			eachChange(element, path, noticed)
		}
	}
}

// TestReplayRules: what counts as another answer, and what does not.
func TestReplayRules(t *testing.T) {
	const (
		upid1 = "UPID:pve1:00001F12:000A047E:6B00E77F:qmstart:70001:root@pam!lab:"
		upid2 = "UPID:pve1:0000FFFF:000AFFFF:6B00FFFF:qmstart:70001:root@pam!lab:"
		upid3 = "UPID:pve1:0000FFFF:000AFFFF:6B00FFFF:qmstop:70001:root@pam!lab:"
		sum1  = "7d27f2552c9948a91bc437d4eee7af54e7596074"
		sum2  = "59eff60cb842101ce7993c1949dd691f2f794f19"
	)
	tests := map[string]struct {
		want, got string // JSON values, one or several in the order of time.
		found     string // Part of what is found; empty: nothing.
	}{
		"the same":                       {`{"a":1,"b":[1,"x",null]}`, `{"b":[1,"x",null],"a":1}`, ""},
		"more members":                   {`{"a":1}`, `{"a":1,"b":2}`, ""},
		"a member missing":               {`{"a":1,"b":2}`, `{"a":1}`, ".b: missing"},
		"another type":                   {`{"a":1}`, `{"a":"1"}`, `want 1, got "1"`},
		"another number":                 {`{"a":1}`, `{"a":2}`, "want 1, got 2"},
		"null is a type":                 {`{"a":null}`, `{"a":""}`, "want null"},
		"another text":                   {`{"a":"x"}`, `{"a":"y"}`, `want "x", got "y"`},
		"always free":                    {`{"pid":1,"ctime":2,"avail":3}`, `{"pid":2,"ctime":3,"avail":4}`, ""},
		"free, but of a type":            {`{"pid":1}`, `{"pid":"1"}`, `want 1, got "1"`},
		"free, but there":                {`{"pid":1}`, `{}`, ".pid: missing"},
		"free while running":             {`{"status":"running","uptime":5}`, `{"status":"running","uptime":9}`, ""},
		"not free when stopped":          {`{"status":"stopped","uptime":0}`, `{"status":"stopped","uptime":9}`, ".uptime: want 0"},
		"opaque":                         {`{"nics":{"a":1}}`, `{"nics":{}}`, ""},
		"opaque, but of a type":          {`{"nics":{"a":1}}`, `{"nics":[]}`, "want {"},
		"order of content":               {`{"content":"iso,images"}`, `{"content":"images,iso"}`, ""},
		"other content":                  {`{"content":"iso,images"}`, `{"content":"images,import"}`, ".content: want"},
		"setup in texts":                 {`"creation-qemu=10.0.2,ctime=1"`, `"creation-qemu=9.2.0,ctime=2"`, ""},
		"a machine type":                 {`"pc-i440fx-10.0+pve0"`, `"pc-i440fx-9.2+pve1"`, ""},
		"another task":                   {`"` + upid1 + `"`, `"` + upid2 + `"`, ""},
		"a task of another type":         {`"` + upid1 + `"`, `"` + upid3 + `"`, "qmstop"},
		"a digest stays":                 {`["` + sum1 + `","` + sum1 + `"]`, `["` + sum2 + `","` + sum2 + `"]`, ""},
		"a digest should stay":           {`["` + sum1 + `","` + sum1 + `"]`, `["` + sum1 + `","` + sum2 + `"]`, "should still be " + sum1},
		"a digest should change":         {`["` + sum1 + `","` + sum2 + `"]`, `["` + sum1 + `","` + sum1 + `"]`, "should have changed"},
		"MACs have no case":              {`["BC:24:11:00:00:0A","bc:24:11:00:00:0a"]`, `["BC:24:11:00:00:0B","bc:24:11:00:00:0b"]`, ""},
		"a given MAC":                    {`"virtio=02:00:00:00:00:01"`, `"virtio=02:00:00:00:00:02"`, "a request brought 02:00:00:00:00:01"},
		"lists of objects have no order": {`[{"vmid":70001,"a":1},{"vmid":70002,"a":2}]`, `[{"vmid":70002,"a":2},{"vmid":70001,"a":1}]`, ""},
		"an entry differs":               {`[{"vmid":70001,"a":1},{"vmid":70002,"a":2}]`, `[{"vmid":70002,"a":1},{"vmid":70001,"a":1}]`, "[70002].a: want 2, got 1"},
		"an entry missing":               {`[{"vmid":70001},{"vmid":70002}]`, `[{"vmid":70002}]`, "[70001]: missing"},
		"an entry too much":              {`[{"vmid":70001}]`, `[{"vmid":70001},{"vmid":70002}]`, "too much"},
		"an entry from elsewhere":        {`[{"vmid":70001}]`, `[{"vmid":100},{"vmid":70001}]`, ""},
		"files from elsewhere":           {`[]`, `[{"volid":"vmstore:iso/debian.iso"},{"storage":"other"},{"userid":"root@pam"},{"roleid":"Administrator"}]`, ""},
		"a file of the story":            {`[]`, `[{"volid":"vmstore:iso/st-debian.iso"}]`, "too much"},
		"entries by what is invented":    {`[{"upid":"` + upid1 + `","status":"OK"}]`, `[{"upid":"` + upid2 + `","status":"OK"}]`, ""},
		"more of an index":               {`[{"subdir":"a"}]`, `[{"subdir":"a"},{"subdir":"b"}]`, ""},
		"plain lists have an order":      {`["a","b"]`, `["b","a"]`, "[0]: want"},
		"plain lists have a length":      {`["a"]`, `["a","b"]`, "want [\"a\"]"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var want, got any
			require.NoError(t, decodeJSON([]byte(test.want), &want))
			require.NoError(t, decodeJSON([]byte(test.got), &got))
			s := &story{}
			s.Start.Storage, s.Start.GuestRange = "vmstore", [2]int{70000, 70999}
			c := &comparison{story: s, ids: newIdentifiers()}
			c.ids.give("net0=virtio=02:00:00:00:00:01")
			c.value("", want, got)
			if test.found == "" {
				require.Empty(t, c.found)
				return
			}
			require.Contains(t, strings.Join(c.found, "\n"), test.found)
		})
	}
}

// TestReplayLogs: of a log the last line and the first words count.
func TestReplayLogs(t *testing.T) {
	lines := func(texts ...string) []any {
		all := make([]any, len(texts))
		for i := range texts {
			all[i] = map[string]any{"n": json.Number(strconv.Itoa(i + 1)), "t": texts[i]}
		}
		return all
	}
	for _, test := range []struct {
		want, got []any
		found     int
	}{
		{lines("TASK OK"), lines("TASK OK"), 0},
		{lines("TASK OK"), lines("anything", "TASK OK"), 0},
		{lines("create full clone of x", "TASK OK"), lines("create full clone of y", "done", "TASK OK"), 0},
		{lines("create full clone of x", "TASK OK"), lines("copy x", "TASK OK"), 1},
		{lines("TASK OK"), lines("TASK ERROR: x"), 1},
		{lines("trying to acquire lock...", " OK", "purging VM 1", "TASK OK"), lines("purging VM 1", "TASK OK"), 0},
		{lines("TASK OK"), nil, 1},
		{nil, nil, 0},
	} {
		c := &comparison{story: &story{}, ids: newIdentifiers()}
		c.log(test.want, test.got)
		require.Len(t, c.found, test.found)
	}
}

// TestReplayVars: values of answers go into later requests, encoded as there.
func TestReplayVars(t *testing.T) {
	var answer any
	require.NoError(t, decodeJSON([]byte(`{"data":{"net0":"virtio=BC:24:11:00:00:02,bridge=vmbr0","a/b":5}}`), &answer))
	v := storyVar{Name: "mac", Recorded: "BC:24:11:00:00:01", At: "/data/net0", Match: "BC(:[0-9A-F]{2}){5}"}
	value, err := v.pick(answer)
	require.NoError(t, err)
	require.Equal(t, "BC:24:11:00:00:02", value)

	vars := &substitutions{}
	vars.learn(v, value)
	vars.learn(storyVar{Recorded: "BC:24:11:00:00:01!x"}, "longer")
	require.Equal(t, "a=BC:24:11:00:00:02 b=BC%3A24%3A11%3A00%3A00%3A02 longer", vars.in("a=BC:24:11:00:00:01 b=BC%3A24%3A11%3A00%3A00%3A01 BC:24:11:00:00:01!x"))
	require.Equal(t, map[string]any{"a": []any{"longer"}}, vars.deep(map[string]any{"a": []any{"BC:24:11:00:00:01!x"}}))

	for _, wrong := range []storyVar{{At: "/data/nosuch"}, {At: "/data/a~1b"}, {At: "/data/net0/x"}, {At: "/data/net0", Match: "nosuch"}} {
		_, err := wrong.pick(answer)
		require.Error(t, err, wrong.At)
	}
}

// TestReplayFindsFurtherRecordings: a folder that is named brings its own stories, which
// are replayed like the others, and none of those that are kept here.
func TestReplayFindsFurtherRecordings(t *testing.T) {
	kept, err := filepath.Glob(filepath.Join("testdata", "stories", "*.json.gz"))
	require.NoError(t, err)
	text, err := readPacked(kept[0])
	require.NoError(t, err)
	for _, under := range []string{"", "stories"} {
		folder := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(folder, under), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(folder, under, "further.json"), text, 0o600))
		t.Setenv("HOMESTAK_RECORDINGS", folder)
		name := path.Join(under, "further")
		require.Equal(t, []string{name}, storyNames(t))
		s := readStory(t, name)
		for i, result := range replay(t, s, func(_ *testing.T, h *pve.Host) replayed { return inProcess{Host: h} }) {
			require.Empty(t, result.found, s.title(i))
		}
	}
}
