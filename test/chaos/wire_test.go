package chaos_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
)

// wire is between the agent and the host. Every request passes by its laws; then it may
// fail, be answered wrongly, or be the last that the agent sends.
type wire struct {
	w  *world
	mu sync.Mutex // requests come from many goroutines

	life     int            // of the agent; requests of an older one reach nobody
	faults   faultPlan      // of the round
	seen     map[string]int // requests of the round by method and path
	requests int            // of the round
	stats    stats
	blind    bool        // in this round the agent was not told of the quorum that is lost
	twice    atomic.Bool // a defect on purpose: every guest that is ordered is ordered again
}

// faultPlan is how a round goes wrong.
type faultPlan struct {
	key     uint64  // what the faults are drawn from
	chance  float64 // of a request to fail
	short   string  // end of the path whose lists may be short
	crashes []crash // when the agent dies
	dark    string  // node that is offline
	lost    bool    // quorum
}

type crash struct {
	at    int  // request of the round
	after bool // it has its effect
	data  bool // the data folder is lost with it
}

// stats count what happened.
type stats struct{ rounds, requests, faults, crashes, secrets int }

var errGone = errors.New("the process that asked is gone")

// agentWire is the way of one life of the agent.
type agentWire struct {
	*wire
	life int
}

// RoundTrip is one request of the agent.
func (a agentWire) RoundTrip(r *http.Request) (*http.Response, error) {
	t := a.wire
	body := readBody(r)
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/api2/json")
	if !queue(r, path, body) {
		return nil, errGone
	}
	t.mu.Lock()
	if a.life != t.life {
		t.mu.Unlock()
		return nil, errGone
	}
	t.requests++
	t.stats.requests++
	n := t.requests
	key := named(r.Method, path)
	t.seen[key]++
	draw := t.draw(fmt.Sprintf("%s %d", key, t.seen[key]))
	fault := t.kind(draw, r.Method, path)
	var end *crash
	for i, c := range t.faults.crashes {
		if c.at == n {
			end = &t.faults.crashes[i]
		}
	}
	if fault != "" {
		t.stats.faults++
	}
	if strings.HasSuffix(path, "/upload") && bytes.Contains(body, []byte(password)) {
		t.stats.secrets++
	}
	t.mu.Unlock()

	upload := strings.HasSuffix(path, "/upload")
	if t.w.secret("the URL of a request", r.URL.String()); !upload {
		t.w.secret("the body of "+r.Method+" "+path, string(body))
	}
	switch {
	case upload:
		t.w.tell("  %4d %s %s (%d bytes)%s", n, r.Method, path, len(body), fault)
	case r.Method != http.MethodGet:
		t.w.tell("  %4d %s %s %s%s", n, r.Method, path, brief(body), fault)
	case fault != "":
		t.w.tell("  %4d %s %s%s", n, r.Method, path, fault)
	}
	if err := proxmoxtest.ValidateRequest(r); err != nil {
		t.w.violation('f', "%v", err)
	}
	if r.Method != http.MethodGet {
		t.w.mayWrite(r.Method, path, fields(r, body))
	}
	if end != nil && !end.after {
		t.w.die(n, *end)
		return nil, errGone
	}
	res, err := t.answer(r, body, fault, draw)
	if t.twice.Load() && r.Method == http.MethodPost && strings.HasSuffix(path, "/qemu") {
		t.again(r, body)
	}
	if end != nil {
		t.w.die(n, *end)
		return nil, errGone
	}
	return res, err
}

// atOnce is more than a pass asks at once: requests that wait for each other would come
// in any order.
const atOnce = 500

// queue puts requests that come at one moment in an order that does not depend on which
// goroutine came first: each waits for less than a millisecond of its own. It is false
// where the one that asks has ended meanwhile.
func queue(r *http.Request, path string, body []byte) bool {
	if strings.HasSuffix(path, "/upload") { // its parts have borders that are drawn
		body = seedName.Find(body)
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %s %s", time.Now().UnixNano(), named(r.Method, path), r.URL.RawQuery, drawn.ReplaceAll(body, nil))
	wait := time.NewTimer(time.Duration(mixed(h.Sum64()) % uint64(time.Millisecond))) //nolint:gosec // below a millisecond
	defer wait.Stop()
	select {
	case <-wait.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

var (
	// drawn is what the program draws for each run of its own, and the digests that come of it.
	drawn    = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|BC(:[0-9A-F]{2}){5}|"digest":"[0-9a-f]+"`)
	seedName = regexp.MustCompile(`homestak-seed\.home\.[^.]+`)
)

// named is a request without what is drawn.
func named(method, path string) string { return method + " " + drawn.ReplaceAllString(path, "") }

// again orders a guest once more, under another VMID.
func (t *wire) again(r *http.Request, body []byte) {
	other := regexp.MustCompile(`"vmid":\d+`).ReplaceAll(body, []byte(`"vmid":45000`))
	c := r.Clone(t.w.ctx)
	c.Body, c.ContentLength = io.NopCloser(bytes.NewReader(other)), int64(len(other))
	if res, err := t.w.sim.RoundTrip(c); err == nil {
		_ = res.Body.Close()
	}
}

// sightless reports whether the agent was not told that the quorum is lost.
func (t *wire) sightless() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.blind
}

// draw makes a number of what is asked, so that it does not depend on the order in
// which requests that are under way together arrive.
func (t *wire) draw(key string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", t.faults.key, key)
	return mixed(h.Sum64())
}

// mixed makes other numbers of similar ones: FNV alone gives those of similar texts.
func mixed(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// kind chooses a fault; "" for none.
func (t *wire) kind(draw uint64, method, path string) string {
	if float64(draw%10000)/10000 >= t.faults.chance {
		return ""
	}
	kinds := []string{"595", "596", "500", "403", "dropped"}
	if method == http.MethodGet {
		kinds = append(kinds, "null", "page", "cut")
		if t.faults.short != "" && strings.HasSuffix(path, t.faults.short) {
			kinds = append(kinds, "short", "short", "short", "empty")
		}
	} else {
		kinds = append(kinds, "400")
	}
	kind := kinds[draw/10000%uint64(len(kinds))]
	if kind == "403" && t.faults.lost && strings.HasSuffix(path, "/cluster/status") {
		t.blind = true // who may not ask about the quorum leaves it to PVE to refuse writes
	}
	if method != http.MethodGet && draw>>40&1 == 1 {
		kind += " with effect"
	}
	return " ← " + kind
}

// answer forwards a request, and spoils its answer.
func (t *wire) answer(r *http.Request, body []byte, fault string, draw uint64) (*http.Response, error) {
	r.Body = io.NopCloser(bytes.NewReader(body))
	kind, effect := strings.CutSuffix(strings.TrimPrefix(fault, " ← "), " with effect")
	if kind == "" {
		return t.w.sim.RoundTrip(r)
	}
	var res *http.Response
	if effect || r.Method == http.MethodGet {
		var err error
		if res, err = t.w.sim.RoundTrip(r); err != nil {
			return nil, err
		}
	}
	switch kind {
	case "595", "596":
		return spoiled(r, kind+" Connection refused", ""), nil
	case "500":
		return spoiled(r, "500 got timeout", `{"data":null,"message":"got timeout\n"}`), nil
	case "400": // as PVE does, it repeats what it does not like
		said, _ := json.Marshal(map[string]any{"data": nil, "message": "Parameter verification failed.\n", "errors": fields(r, body)})
		return spoiled(r, "400 Parameter verification failed.", string(said)), nil
	case "403":
		return spoiled(r, "403 Permission check failed", `{"data":null,"message":"Permission check failed\n"}`), nil
	case "dropped":
		return nil, io.ErrUnexpectedEOF
	case "null":
		return spoiled(r, "200 OK", `{"data":null}`), nil
	case "page":
		return spoiled(r, "200 OK", "<html><body>Please log in to the network</body></html>"), nil
	}
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return spoiled(r, res.Status, string(text)), err
	}
	switch kind {
	case "cut":
		text = text[:len(text)/2]
	case "empty":
		text = []byte(`{"data":[]}`)
	default:
		text = shorter(text, draw)
	}
	return spoiled(r, "200 OK", string(text)), nil
}

// shorter leaves out some of a list.
func shorter(text []byte, draw uint64) []byte {
	var doc struct {
		Data []json.RawMessage `json:"data"`
	}
	if json.Unmarshal(text, &doc) != nil {
		return text
	}
	kept := []json.RawMessage{}
	for i, e := range doc.Data {
		if draw>>(i%48)&1 == 0 {
			kept = append(kept, e)
		}
	}
	out, err := json.Marshal(map[string]any{"data": kept})
	if err != nil {
		return text
	}
	return out
}

func spoiled(r *http.Request, status, body string) *http.Response {
	var code int
	_, _ = fmt.Sscan(status, &code)
	return &http.Response{
		StatusCode: code, Status: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
}

func readBody(r *http.Request) []byte {
	if r.Body == nil {
		return nil
	}
	body, _ := io.ReadAll(r.Body) // of a request in memory
	_ = r.Body.Close()
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

// fields are the parameters of a request.
func fields(r *http.Request, body []byte) map[string]string {
	out := map[string]string{}
	for k, v := range r.URL.Query() {
		out[k] = v[0]
	}
	var doc map[string]any
	if json.Unmarshal(body, &doc) == nil {
		for k, v := range doc {
			out[k] = fmt.Sprint(v)
		}
		return out
	}
	if form, err := url.ParseQuery(string(body)); err == nil {
		for k, v := range form {
			out[k] = v[0]
		}
	}
	return out
}

var hidden = regexp.MustCompile(`("?(?:sshkeys|cipassword|description)"?[:=])("(?:[^"\\]|\\.)*"|[^&]*)`)

// brief is a body as the story tells it.
func brief(body []byte) string {
	text := hidden.ReplaceAllString(string(body), "$1…")
	if len(text) > 600 {
		text = text[:600] + "…"
	}
	return text
}
