package pvesim_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
)

// stories are the recordings to replay. An exchange or a whole story that the
// simulator does not answer as recorded is excused with a reason; an excuse that
// is not needed any more fails the test.
var stories = map[string]struct {
	later   string // Why the whole story is left out.
	excused map[int]string
}{
	"vm-life":  {},
	"vm-clone": {},
	"vm-iso":   {},
	"rights":   {},
	"errors":   {},
	"ct-life":  {later: "containers cannot be created yet"},
}

// TestReplay sends the requests of each story to a simulated host, in a bubble
// whose clock jumps, and holds the answers against the recorded ones: one subtest
// per exchange.
func TestReplay(t *testing.T) {
	for name, plan := range stories {
		t.Run(name, func(t *testing.T) {
			s := readStory(t, name)
			results := replay(t, s)
			agreed, differing := 0, 0
			for i, result := range results {
				t.Run(s.title(i), func(t *testing.T) {
					for _, note := range result.notes {
						t.Log(note)
					}
					why, excused := plan.excused[i]
					switch {
					case len(result.found) == 0:
						agreed++
						require.False(t, excused, "the excuse %q is not needed", why)
					case excused:
						t.Skip(why)
					case plan.later != "":
						differing++
						t.Log(strings.Join(result.found, "\n"))
						t.Skip(plan.later)
					default:
						require.Fail(t, "not as recorded: "+s.Exchanges[i].Note, strings.Join(result.found, "\n"))
					}
				})
			}
			t.Logf("%d of %d exchanges agree, %d are excused", agreed, len(results), len(plan.excused))
			if plan.later != "" {
				require.NotZero(t, differing, "the excuse %q is not needed", plan.later)
				t.Skip(plan.later)
			}
		})
	}
}

// TestReplayCoversStories: every recorded story is in the table.
func TestReplayCoversStories(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(readStory(t, "vm-life").folder, "*.json"))
	require.NoError(t, err)
	var recorded []string
	for _, file := range files {
		recorded = append(recorded, strings.TrimSuffix(filepath.Base(file), ".json"))
	}
	require.ElementsMatch(t, recorded, slices.Collect(maps.Keys(stories)))
}

// replay plays a whole story on a new host.
func replay(t *testing.T, s *story) []*comparison {
	results := make([]*comparison, len(s.Exchanges))
	synctest.Test(t, func(t *testing.T) {
		p := newPlayer(s, pvesim.New(s.config()))
		for i := range s.Exchanges {
			results[i] = p.play(t, i)
		}
	})
	return results
}

// config is the host as it was when the recording began.
func (s *story) config() pvesim.Config {
	c := pvesim.Config{Node: s.Start.Node, Version: "8.4", Bridges: s.Start.Bridges, Token: s.Start.RootToken}
	for _, st := range s.Start.Storages {
		c.Storages = append(c.Storages, pvesim.Storage{Name: st.Storage, Type: st.Type, Path: st.Path, Content: st.Content})
	}
	return c
}

// replayed is what a story can be replayed on.
type replayed interface {
	http.RoundTripper
	Snapshot() pvesim.Snapshot
}

// player replays one story.
type player struct {
	story *story
	host  replayed
	ids   *identifiers
	vars  *substitutions
}

func newPlayer(s *story, host replayed) *player {
	return &player{story: s, host: host, ids: newIdentifiers(), vars: &substitutions{}}
}

// play sends the request of an exchange and compares the answer.
func (p *player) play(t *testing.T, i int) *comparison {
	e := p.story.Exchanges[i]
	c := &comparison{story: p.story, ids: p.ids}
	wait(t, time.Duration(e.PauseS*float64(time.Second)))
	if e.Sync == "stats" {
		p.awaitSample(t)
	}
	p.ids.give(p.thoughtUp(i))
	status, reason, body, err := p.send(t, e)
	if err != nil {
		c.differ("request", "%v", err)
		return c
	}
	c.answer(e, status, reason, body)
	p.learn(i, body, c)
	return c
}

// thoughtUp are the parameters of a request without what came from answers.
func (p *player) thoughtUp(i int) string {
	text := fmt.Sprint(p.story.Exchanges[i].Request.Form, p.story.Exchanges[i].Request.JSON)
	for _, v := range p.story.Vars {
		if v.Exchange < i {
			text = strings.ReplaceAll(text, v.Recorded, "")
		}
	}
	return text
}

// send sends a request, again and again until its task is over if the story says
// so.
func (p *player) send(t *testing.T, e storyExchange) (status int, reason string, body []byte, err error) {
	const patience = 1000 // Times half a second of the bubble's clock.
	for range patience {
		r, err := p.story.request(t, e, p.vars)
		if err != nil {
			return 0, "", nil, err
		}
		response, err := p.host.RoundTrip(r)
		if err != nil {
			return 0, "", nil, err
		}
		body, err = io.ReadAll(response.Body)
		if err != nil {
			return 0, "", nil, err
		}
		if err := response.Body.Close(); err != nil {
			return 0, "", nil, err
		}
		_, reason, _ = strings.Cut(response.Status, " ")
		if e.Until != "stopped" || !running(body) {
			return response.StatusCode, reason, body, nil
		}
		wait(t, 500*time.Millisecond)
	}
	return 0, "", nil, fmt.Errorf("the task does not end")
}

// running says whether the answer to a task's status says so.
func running(body []byte) bool {
	var task struct{ Data struct{ Status string } }
	return json.Unmarshal(body, &task) == nil && task.Data.Status == "running"
}

// awaitSample waits until the status daemon of the host has looked.
func (p *player) awaitSample(t *testing.T) {
	before := p.host.Snapshot().Sampled
	for range 300 {
		wait(t, 100*time.Millisecond)
		if p.host.Snapshot().Sampled.After(before) {
			return
		}
	}
	require.Fail(t, "the status daemon does not look")
}

// wait lets the bubble's clock go on.
func wait(t *testing.T, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// answer compares an answer with the recorded one.
func (c *comparison) answer(e storyExchange, status int, reason string, body []byte) {
	want := e.Response
	if want.Status != status {
		c.differ("status", "want %d %s, got %d %s", want.Status, want.Reason, status, reason)
		if len(body) > 0 {
			c.notes = append(c.notes, "body: "+show(string(body)))
		}
		return
	}
	if !slices.Contains(e.Loose, "reason") {
		c.text("reason", want.Reason, reason)
	}
	hasBody := len(want.Body) > 0 || want.BodyRaw != nil && *want.BodyRaw != ""
	if hasBody != (len(body) > 0) {
		c.differ("body", "want one: %t, got %q", hasBody, body)
		return
	}
	if len(want.Body) == 0 {
		return // No JSON on either side, then; its text is the reason's.
	}
	var wanted, got map[string]any
	if err := decodeJSON(want.Body, &wanted); err != nil {
		c.differ("recorded body", "%v", err)
		return
	}
	if err := decodeJSON(body, &got); err != nil {
		c.differ("body", "%v: %q", err, body)
		return
	}
	c.schema(e, wanted["data"], got["data"])
	for _, name := range e.Loose {
		delete(wanted, name)
		delete(got, name)
	}
	wantLog, isLog := wanted["data"].([]any)
	gotLog, ok := got["data"].([]any)
	if path, _, _ := strings.Cut(e.Request.Path, "?"); strings.HasSuffix(path, "/log") && isLog && ok && status == http.StatusOK {
		c.log(wantLog, gotLog)
		delete(wanted, "data")
		delete(got, "data")
		delete(wanted, "total")
		delete(got, "total")
	}
	c.value("body", wanted, got)
}

// schema holds the data of an answer against what the API promises: it may not
// deviate where the real PVE did not.
func (c *comparison) schema(e storyExchange, want, got any) {
	path, _, _ := strings.Cut(strings.TrimPrefix(e.Request.Path, "/api2/json"), "?")
	m, _, _ := pveapi.Lookup(e.Request.Method, path)
	if m == nil || e.Response.Status != http.StatusOK {
		return
	}
	if len(m.CheckReturn(want)) == 0 {
		for _, deviation := range m.CheckReturn(got) {
			c.differ("schema", "%s", deviation)
		}
	}
	for _, extra := range m.Extra(got) {
		if !slices.Contains(m.Extra(want), extra) {
			c.notes = append(c.notes, "beyond the schema: "+extra)
		}
	}
}

// learn keeps the values that later requests need.
func (p *player) learn(i int, body []byte, c *comparison) {
	for _, v := range p.story.Vars {
		if v.Exchange != i {
			continue
		}
		var answer any
		if err := decodeJSON(body, &answer); err != nil {
			c.differ("var "+v.Name, "%v", err)
			continue
		}
		value, err := v.pick(answer)
		if err != nil {
			c.differ("var "+v.Name, "%v", err)
			continue
		}
		p.vars.learn(v, value)
	}
}
