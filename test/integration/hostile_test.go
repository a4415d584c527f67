package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// bomb is a file of a site that takes more than there is.
type bomb struct{ name, file, text string }

// representative are the bombs that the tests push: each kind of work without end, or without bounds.
var representative = []string{"nested-for", "join-huge", "format-width", "deep-brackets", "urlquery-shared", "object-union-shared"}

// bombs are those of the corpus of engine/site that the tests push; with HOMESTAK_FULL_LIMITS all of them.
func bombs(t *testing.T) (out []bomb) {
	t.Helper()
	heading := regexp.MustCompile(`(?m)^-- (.+) --\n`)
	repeated := regexp.MustCompile(`(?s)@\{(\d+):(.*?)\}@`)
	for _, of := range []struct{ corpus, file, begin string }{
		{"hcl-bombs.txtar", "bomb.hcl", ""},
		{"rego-bombs.txtar", "policy/bomb.rego", "package homestak.site\n"},
	} {
		data, err := os.ReadFile("../../engine/site/testdata/" + of.corpus)
		require.NoError(t, err)
		names, texts := heading.FindAllStringSubmatch(string(data), -1), heading.Split(string(data), -1)
		for i, name := range names {
			if os.Getenv("HOMESTAK_FULL_LIMITS") == "" && !slices.Contains(representative, name[1]) {
				continue
			}
			text := repeated.ReplaceAllStringFunc(texts[i+1], func(s string) string {
				m := repeated.FindStringSubmatch(s)
				n, err := strconv.Atoi(m[1])
				require.NoError(t, err)
				return strings.Repeat(m[2], n)
			})
			out = append(out, bomb{name[1], of.file, of.begin + text})
		}
	}
	require.GreaterOrEqual(t, len(out), len(representative))
	return out
}

// memory is what a process has beside the pages of its files, in bytes; 0 if it has ended.
func memory(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "RssAnon:")
	kib, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, _ := strconv.ParseInt(kib, 10, 64)
	return n << 10
}

// highest watches the memory of a process until it is asked for the most that it had.
func highest(pid int) (most func() int64) {
	var peak atomic.Int64
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			peak.Store(max(peak.Load(), memory(pid)))
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	return func() int64 {
		close(stop)
		<-ended
		return peak.Load()
	}
}

// children are the processes of a process.
func children(t *testing.T, pid int) (out []string) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	for _, name := range tasks {
		text, _ := os.ReadFile(name) // a thread may have ended
		out = append(out, strings.Fields(string(text))...)
	}
	return out
}

// Whatever is pushed, the agent goes on: it refuses the commit, keeps its memory, converges the next good one, and ends when it is
// asked to in the middle of it. Times are printed; make hostile pushes the whole corpus.
func TestS2S3TheAgentOutlivesHostileCommits(t *testing.T) {
	f := follow(t, pve.Config{TaskTime: time.Millisecond}, byFile())
	f.deploy("web", vm("web-1"))
	good := f.push("A web server")
	f.begins()
	f.converged(good)
	base := memory(f.agent.Process.Pid)
	for _, b := range bombs(t) {
		most := highest(f.agent.Process.Pid)
		f.write(b.file, b.text)
		bad := f.push(b.name)
		began := time.Now()
		st := f.until(b.name+" is refused, or does no harm", func(s agent.Status) bool {
			return s.State == agent.Idle && (s.Refused != nil && s.Refused.Commit == bad || s.Converged != nil && s.Converged.ID == bad)
		})
		refused := time.Since(began)
		if slices.Contains(representative, b.name) {
			require.NotNil(t, st.Refused, b.name)
		}
		if st.Refused != nil {
			require.Equal(t, good, st.InForce.ID)
			require.False(t, st.Healthy)
		}
		f.remove(b.file)
		good = f.push("Without " + b.name)
		began = time.Now()
		st = f.converged(good)
		require.Nil(t, st.Refused)
		grown := most() - base
		require.Less(t, grown, int64(64<<20), "%s: how far the memory of the agent grew", b.name)
		t.Logf("%-22s refused after %5.2f s; the next in force after %5.2f s; memory grew by %d MiB", b.name, refused.Seconds(), time.Since(began).Seconds(), grown>>20)
	}
	require.Eventually(t, func() bool { return memory(f.agent.Process.Pid) < base+32<<20 }, 5*time.Minute, 10*time.Millisecond, "its memory falls back")

	f.write("bomb.hcl", "locals { a = [for i in range(1000): [for j in range(1000): [for k in range(1000): i == j && j == k]]] }\n")
	f.push("One more")
	var working []string
	require.Eventually(t, func() bool { working = children(t, f.agent.Process.Pid); return len(working) > 0 }, 5*time.Minute, time.Millisecond, "it is evaluated")
	began := time.Now()
	f.ends()
	t.Logf("ended %.2f s after SIGTERM", time.Since(began).Seconds())
	for _, pid := range working {
		n, err := strconv.Atoi(pid)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return memory(n) == 0 }, 5*time.Minute, 10*time.Millisecond, "no child is left; the kernel ends it with the agent")
	}
	require.Equal(t, []string{"web-1"}, f.names())
}

// The server of a folder goes on serving what was good.
func TestS2S3TheServerOutlivesHostileCommits(t *testing.T) {
	t.Parallel()
	p := beginParent(t)
	asks := p.child("127.0.0.2")
	served := func(commit string) bool { return strings.Contains(asks.get("/health", "").body, commit) }
	good := p.git("rev-parse", "HEAD")
	require.True(t, served(good))
	base := memory(p.cmd.Process.Pid)
	for _, b := range bombs(t) {
		if b.name != "nested-for" && b.name != "object-union-shared" { // they take long, so what is served meanwhile can be seen
			continue
		}
		most := highest(p.cmd.Process.Pid)
		p.write(b.file, b.text)
		p.commit(b.name)
		require.Eventually(t, func() bool { return len(children(t, p.cmd.Process.Pid)) > 0 }, 5*time.Minute, time.Millisecond, b.name)
		require.Equal(t, "200", asks.get("/spec/alpha", alphaToken).code(), "while %s is evaluated", b.name)
		require.True(t, served(good), "while %s is evaluated", b.name)
		require.NoError(t, os.Remove(filepath.Join(p.dir, b.file)))
		began := time.Now()
		good = p.commit("Without " + b.name)
		require.Eventually(t, func() bool { return served(good) }, 10*time.Minute, 10*time.Millisecond, "after %s", b.name)
		grown := most() - base
		require.Less(t, grown, int64(64<<20), "%s: how far the memory of the server grew", b.name)
		t.Logf("%-22s the next served after %5.2f s; memory grew by %d MiB", b.name, time.Since(began).Seconds(), grown>>20)
	}
	p.write("bomb.hcl", "locals { a = [for i in range(1000): [for j in range(1000): [for k in range(1000): i == j && j == k]]] }\n")
	require.Eventually(t, func() bool { return len(children(t, p.cmd.Process.Pid)) > 0 }, 5*time.Minute, time.Millisecond, "it is evaluated")
	began := time.Now()
	p.stop()
	t.Logf("ended %.2f s after SIGTERM", time.Since(began).Seconds())
}
