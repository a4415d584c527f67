package forest_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/test/forest"
)

// requests counts what agents ask their hosts.
type requests struct {
	mu   sync.Mutex
	seen []string
}

func (q *requests) note(_ string, r *http.Request) (int, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seen = append(q.seen, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/api2/json"))
	return 0, false
}

// take gives them, and begins again.
func (q *requests) take() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.seen
	q.seen = nil
	return out
}

// An agent on a node takes back within three seconds what somebody changes there by hand. A pass that finds nothing to do
// asks the API at most twice, however many guests there are. What cannot be said of the guest alone makes it a pass about
// the whole host, and full checks are made as before.
func TestAChangeByHandIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked requests
		w := newWorld(t, func(o *forest.Options) {
			o.Watch, o.Fault = true, asked.note
			o.Env = map[string]string{"HOMESTAK_DRIFT_EVERY": "1h", "HOMESTAK_REPOSITORY_POLL": "24h"}
		})
		defer w.end()
		const guests = 40
		s := newSite()
		s.inner = false
		for range guests {
			s.add("father")
		}
		w.push(s, "begin")
		w.until(10*time.Minute, "the guests are there", w.converged)
		w.live(5 * time.Minute)
		father := w.Machine("father")
		guest := func(n int) pve.Guest { return father.Guests()[fmt.Sprintf("vm-%d", n)] }
		byHand := func(n int, key, value string) {
			id := guest(n).VMID
			asked.take()
			father.Host.Edit(func(e *pve.Edit) { e.Set(id, key, value) })
		}
		within := func(most time.Duration, what string, holds func() bool) {
			t.Helper()
			began := time.Now()
			for !holds() {
				time.Sleep(100 * time.Millisecond)
				require.Less(t, time.Since(began), most+100*time.Millisecond, "%s\n%s", what, w.why())
			}
		}
		reads := func(list []string) (n int) {
			for _, line := range list {
				if strings.HasPrefix(line, "GET ") {
					n++
				}
			}
			return n
		}

		for n := 1; n <= guests; n += 3 { // one after the other: no pass keeps the next one from being made at once
			byHand(n, "tags", "homestak;mine")
			within(3*time.Second, "the change is taken back", func() bool { return strings.Contains(guest(n).Config["tags"], "rev-1") })
		}
		w.live(time.Minute)

		byHand(5, "tags", "homestak;mine")
		within(3*time.Second, "the change is taken back", func() bool { return strings.Contains(guest(5).Config["tags"], "rev-1") })
		w.live(time.Minute)
		list := asked.take()
		require.LessOrEqual(t, reads(list), 6, "two for the change, some for the write, two to see whether somebody changed it again:\n%s", strings.Join(list, "\n"))
		for _, line := range list {
			require.True(t, strings.Contains(line, fmt.Sprintf("/qemu/%d/", guest(5).VMID)) || line == "GET /nodes/father/tasks", "nothing is asked of other guests: %s", line)
		}
		t.Log(strings.Join(list, "\n"))

		// What the files leave open may be changed. Finding that out takes two requests.
		byHand(7, "vga", "qxl")
		w.live(time.Minute)
		require.Equal(t, []string{
			fmt.Sprintf("GET /nodes/father/qemu/%d/pending", guest(7).VMID), fmt.Sprintf("GET /nodes/father/qemu/%d/status/current", guest(7).VMID),
		}, asked.take())

		// A guest that was stopped is started, one that was locked or deleted is a matter of the whole host.
		id := guest(9).VMID
		father.Host.Edit(func(e *pve.Edit) { e.Stop(id) })
		within(5*time.Second, "it runs again", func() bool { return guest(9).Running })
		w.live(time.Minute)
		list = asked.take()
		require.Less(t, reads(list), 3*guests, "it is one pass about the whole host, since a start depends on more than the guest, and two requests after it")
		byHand(11, "lock", "backup")
		w.live(10 * time.Second)
		require.Greater(t, reads(asked.take()), guests)
		byHand(11, "lock", "")
		id = guest(13).VMID
		father.Host.Edit(func(e *pve.Edit) { e.Delete(id) })
		w.until(time.Minute, "it is made again", func() bool { return guest(13).Running })
		w.live(2 * time.Minute)

		// The next full check comes when it is due, and sees all of them.
		asked.take()
		w.live(time.Hour)
		list = asked.take()
		require.GreaterOrEqual(t, reads(list), guests)
		require.Less(t, reads(list), 2*guests+20, "one full check in an hour")
	})
}
