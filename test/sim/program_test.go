package sim_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"path"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve/simtest"
	"github.com/homestak/homestak-gitops/test/released"
)

// TestReplayProgram sends each of the first stories to the verb sim of the program as it is
// released: a process of its own, started by flags alone, over TLS and by a clock that
// runs faster than the one on the wall. The stories run side by side, for each one mostly
// waits: for the status daemon, for refused logins.
func TestReplayProgram(t *testing.T) {
	binary, err := released.Path(t.Context(), t.TempDir())
	require.NoError(t, err)
	for _, name := range storyNames(t) {
		if path.Dir(name) != storySets[0] {
			continue // The others are replayed in process and served, by TestReplay.
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := readStory(t, name)
			results := make([]*comparison, len(s.Exchanges))
			for _, speed := range speeds {
				p := newPlayer(s, s.start(t, binary, speed))
				for i := range s.Exchanges {
					results[i] = p.play(t, i)
				}
				if agree(results, excused[name]) {
					break
				}
				t.Logf("not as recorded while the clock was %d times as fast", speed)
			}
			equal := s.count(t, results, excused[name])
			t.Logf("%d of %d exchanges agree, %d are excused", equal, len(s.Exchanges), len(excused[name]))
		})
	}
}

// speeds are how many times as fast the clock of the program runs. What the machine takes for a request counts as often:
// on a busy one, what a story does right after a look of the status daemon comes after the next one. So a story that is not as
// recorded is played again by a slower clock. What is wrong is wrong at any speed.
var speeds = []time.Duration{20, 4, 1}

// agree says whether all is as recorded, but for what is excused.
func agree(results []*comparison, excuses map[int]string) bool {
	for i, result := range results {
		if _, excused := excuses[i]; !excused && len(result.found) > 0 {
			return false
		}
	}
	return true
}

// process is the verb sim as a process.
type process struct {
	t         *testing.T
	speed     time.Duration // One of speeds.
	began     time.Time     // When it said where it listens, a moment after its clock began.
	address   *url.URL
	transport *http.Transport
}

// start starts the program as the host that the story began with, and stops it when
// the test is over.
func (s *story) start(t *testing.T, binary string, speed time.Duration) process {
	t.Helper()
	args := []string{
		"sim", "--json", "--listen", "127.0.0.1:0", "--node", s.Start.Node, "--pve-version", s.version(),
		"--speed", fmt.Sprint(int(speed)), "--token", s.Start.RootToken, "--bridge", strings.Join(s.Start.Bridges, ","),
	}
	for _, st := range s.Start.Storages {
		args = append(args, "--storage", strings.Join([]string{st.Storage, st.Type, strings.Join(st.Content, ","), st.Path}, ":"))
	}
	command := exec.Command(binary, args...) // Not the test's context: that ends before it can be stopped well.
	var text bytes.Buffer
	command.Stderr = &text
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(t, err, "%s", &text)
	var at struct{ API, Fingerprint string }
	require.NoError(t, json.Unmarshal(line, &at))
	address, err := url.Parse(at.API)
	require.NoError(t, err)
	p := process{t: t, speed: speed, began: time.Now(), address: address, transport: &http.Transport{
		DisableCompression: true, IdleConnTimeout: 4 * time.Second, TLSClientConfig: simtest.Pinned(at.Fingerprint),
	}}
	t.Cleanup(func() {
		p.transport.CloseIdleConnections()
		require.NoError(t, command.Process.Signal(syscall.SIGTERM))
		require.NoError(t, command.Wait(), "%s", &text)
	})
	return p
}

// RoundTrip sends to the process what was meant for the host of the story.
func (p process) RoundTrip(r *http.Request) (*http.Response, error) {
	r.URL.Host = p.address.Host
	return p.transport.RoundTrip(r)
}

// sampled waits for the next check of the status daemon: it looks every ten seconds since
// the host began.
func (p process) sampled(t *testing.T) {
	const period = 10 * time.Second
	p.pause(t, period-time.Since(p.began)*p.speed%period)
}

// pause lets time of the program's clock pass.
func (p process) pause(t *testing.T, d time.Duration) { wait(t, d/p.speed) }
