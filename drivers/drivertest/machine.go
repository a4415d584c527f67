// Package drivertest has the conformance suites for implementations of the engine's interfaces. So far there is
// Machine, for access to a guest. Only tests may import it.
package drivertest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
)

// Machine tests that a way into a machine keeps the contract of guest.Machine. Open opens one
// with a POSIX userland; each test opens its own. The tests leave nothing behind.
func Machine(t *testing.T, open func(t *testing.T) guest.Machine) {
	t.Helper()
	for _, test := range []struct {
		name string
		run  func(*testing.T, *machine)
	}{
		{"Ping", ping},
		{"ExitCodes", exitCodes},
		{"Signals", signals},
		{"OutputsAreApart", outputs},
		{"OutputOfAnyBytes", anyBytes},
		{"OutputIsLimited", limited},
		{"StdinOfAnyBytes", stdin},
		{"StdinIsEmpty", noStdin},
		{"LongStdin", longStdin},
		{"StdinNobodyReads", unreadStdin},
		{"ScriptOnStdin", script},
		{"HostileArguments", arguments},
		{"UnknownProgram", unknown},
		{"RunsOnce", once},
		{"Concurrent", concurrent},
		{"Cancel", cancel},
		{"Deadline", deadline},
		{"EndedBefore", ended},
		{"Hopeless", hopeless},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, end := context.WithTimeout(t.Context(), longest)
			defer end()
			test.run(t, &machine{t, ctx, open(t)})
		})
	}
}

// longest is the time limit of one test, so that one that hangs says which it is.
const longest = 2 * time.Minute

// machine is one under test.
type machine struct {
	t   *testing.T
	ctx context.Context // that of the test
	guest.Machine
}

// run runs a command that can be run.
func (m *machine) run(stdin []byte, args ...string) guest.Output {
	m.t.Helper()
	out, err := m.Run(m.ctx, guest.Command{Args: args, Stdin: stdin})
	require.NoError(m.t, err)
	return out
}

// sh runs a script that succeeds, and gives what it wrote.
func (m *machine) sh(script string, args ...string) string {
	m.t.Helper()
	out := m.run(nil, append([]string{"/bin/sh", "-c", script, "sh"}, args...)...)
	require.Equal(m.t, guest.Output{Out: out.Out}, out)
	return out.Out
}

// dir is a folder of the machine for one test.
func (m *machine) dir() string {
	m.t.Helper()
	dir := strings.TrimSpace(m.sh("mktemp -d"))
	m.t.Cleanup(func() {
		ctx, end := context.WithTimeout(context.WithoutCancel(m.ctx), longest)
		defer end()
		_, err := m.Run(ctx, guest.Command{Args: []string{"rm", "-rf", "--", dir}})
		require.NoError(m.t, err)
	})
	return dir
}

func ping(t *testing.T, m *machine) { require.NoError(t, m.Ping(m.ctx)) }

func exitCodes(t *testing.T, m *machine) {
	for _, code := range []int{0, 1, 2, 100, 255} {
		require.Equal(t, guest.Output{Code: code}, m.run(nil, "/bin/sh", "-c", fmt.Sprintf("exit %d", code)))
	}
	require.Equal(t, guest.Output{}, m.run(nil, "true"), "found in PATH")
}

// signals: where a shell is in between, it gives 128 and the number (POSIX, XCU 2.8.2).
func signals(t *testing.T, m *machine) {
	for _, n := range []int{9, 15, 10} {
		out := m.run(nil, "/bin/sh", "-c", fmt.Sprintf("echo begun; kill -%d $$", n))
		require.Equal(t, "begun\n", out.Out)
		require.Contains(t, []guest.Output{{Signal: n}, {Code: 128 + n}}, guest.Output{Signal: out.Signal, Code: out.Code})
	}
}

func outputs(t *testing.T, m *machine) {
	require.Equal(t, guest.Output{Code: 3, Out: "to out\n", Err: "to err"},
		m.run(nil, "/bin/sh", "-c", "echo to out; printf 'to err' >&2; exit 3"))
}

func anyBytes(t *testing.T, m *machine) {
	require.Equal(t, guest.Output{Out: "a\xff\x00\x80\r\nä\n\n", Err: "\xfe"},
		m.run(nil, "/bin/sh", "-c", `printf 'a\377\000\200\r\n\303\244\n\n'; printf '\376' >&2`))
}

func limited(t *testing.T, m *machine) {
	const write = `head -c "$1" /dev/zero | tr '\0' x; head -c "$2" /dev/zero | tr '\0' y >&2; exit 4`
	for _, v := range []struct {
		out, err int
		cut      bool
	}{{guest.OutputLimit, 0, false}, {guest.OutputLimit + 1, 3, true}, {3, guest.OutputLimit + 1, true}, {5 * guest.OutputLimit, 5 * guest.OutputLimit, true}} {
		out := m.run(nil, "/bin/sh", "-c", write, "sh", fmt.Sprint(v.out), fmt.Sprint(v.err))
		require.Equal(t, v.cut, out.Cut, "%d and %d bytes", v.out, v.err)
		require.Equal(t, 4, out.Code, "the command writes on to its end")
		require.Equal(t, [2]int{min(v.out, guest.OutputLimit), min(v.err, guest.OutputLimit)}, [2]int{len(out.Out), len(out.Err)})
		require.Empty(t, strings.Trim(out.Out, "x")+strings.Trim(out.Err, "y"))
	}
}

func stdin(t *testing.T, m *machine) {
	every := make([]byte, 1024)
	for i := range every {
		every[i] = byte(i)
	}
	for _, in := range [][]byte{every, []byte("no newline at the end"), []byte("\r\n\x04\x1a\n"), []byte("–ä☃")} {
		require.Equal(t, guest.Output{Out: string(in)}, m.run(in, "cat"))
	}
}

func noStdin(t *testing.T, m *machine) {
	require.Equal(t, guest.Output{}, m.run(nil, "cat"))
	require.Equal(t, guest.Output{}, m.run([]byte{}, "cat"))
}

func longStdin(t *testing.T, m *machine) {
	for _, size := range []int{64<<10 - 1, 64 << 10, 64<<10 + 1, 5 << 20} {
		in := make([]byte, size)
		for i := range in {
			in[i] = byte(i >> 8 * 7 % 251 * i)
		}
		out := m.run(in, "/bin/sh", "-c", "sha256sum; echo $1", "sh", "an 'argument'")
		require.Equal(t, guest.Output{Out: fmt.Sprintf("%x  -\nan 'argument'\n", sha256.Sum256(in))}, out, "%d bytes", size)
	}
}

func unreadStdin(t *testing.T, m *machine) {
	for _, size := range []int{10, 5 << 20} {
		require.Equal(t, guest.Output{Code: 6, Out: "out\n"}, m.run(bytes.Repeat([]byte("x\n"), size/2), "/bin/sh", "-c", "exec <&-; echo out; exit 6"))
	}
}

// script writes files: the arguments say where, and stdin has the rest.
func script(t *testing.T, m *machine) {
	dir := m.dir()
	out := m.run([]byte("set -eu\ncd \"$1\"\ncat >a <<'END'\n$HOME `x` \\\nEND\nchmod 0600 a\nmv a b\ncat b\nexit 7\n"), "/bin/sh", "-s", "--", dir)
	require.Equal(t, guest.Output{Out: "$HOME `x` \\\n", Code: 7}, out)
	require.Equal(t, "-rw-------", m.sh(`ls -l "$1/b" | cut -c 1-10 | tr -d '\n'`, dir))
}

func arguments(t *testing.T, m *machine) {
	hostile := []string{
		"", " ", "two words", "  ", "-n", "--", "-", "'", `"`, `it's "quoted"`, "'\\''", `\`, `\\`, `\n`, "a\nb", "\n", "a\tb", "\r", "$HOME", "$(id)", "`id`", "${x}",
		"$", "!", "!!", "*", "?", "[a-z]", "~", "~root", "#x", "a;b", "a&b", "a|b", ">x", "<x", "(x)", "{a,b}", "a=b", "%s", "ä–☃", "\x01\x7f", "", strings.Repeat("long ", 4000),
	}
	got := m.sh(`for a; do printf '%s\0' "$a"; done`, hostile...)
	require.Equal(t, hostile, strings.Split(strings.TrimSuffix(got, "\x00"), "\x00"))
}

func unknown(t *testing.T, m *machine) {
	for _, name := range []string{"/no/such/program", "no-such-program"} {
		out, err := m.Run(m.ctx, guest.Command{Args: []string{name, "argument"}})
		if err != nil {
			require.ErrorContains(t, err, name)
			continue
		}
		require.Equal(t, 127, out.Code)
		require.Contains(t, out.Err, name)
	}
	require.Equal(t, "still here\n", m.sh("echo still here"))
}

func once(t *testing.T, m *machine) {
	dir := m.dir()
	for range 3 {
		m.sh(`echo x >>"$1/times"`, dir)
	}
	require.Equal(t, "x\nx\nx\n", m.sh(`cat "$1/times"`, dir))
}

func concurrent(t *testing.T, m *machine) {
	const n = 25
	got := make([]guest.Output, n)
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			got[i], errs[i] = m.Run(m.ctx, guest.Command{Args: []string{"/bin/sh", "-c", `cat; echo "$1" >&2; exit "$1"`, "sh", fmt.Sprint(i)}, Stdin: []byte(fmt.Sprint("in ", i))})
		})
	}
	all.Wait()
	for i := range n {
		require.NoError(t, errs[i])
		require.Equal(t, guest.Output{Code: i, Out: fmt.Sprint("in ", i), Err: fmt.Sprintln(i)}, got[i])
	}
}

// cancel ends the wait for a command that has begun, and nothing else.
func cancel(t *testing.T, m *machine) {
	dir := m.dir()
	ctx, end := context.WithCancel(m.ctx)
	defer end()
	done := make(chan error, 1)
	go func() {
		_, err := m.Run(ctx, guest.Command{Args: []string{"/bin/sh", "-c", `echo $$ >"$1/pid"; exec sleep 60`, "sh", dir}})
		done <- err
	}()
	for m.run(nil, "test", "-s", dir+"/pid").Code != 0 {
		select {
		case err := <-done:
			require.NoError(t, err, "it has ended already")
			return
		default:
		}
	}
	end()
	err := <-done
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, guest.ErrOutcomeLost)
	require.Equal(t, "still here\n", m.sh("echo still here"))
	m.sh(`kill "$(cat "$1/pid")" 2>/dev/null || true`, dir)
}

func deadline(t *testing.T, m *machine) {
	ctx, end := context.WithTimeout(m.ctx, time.Second)
	defer end()
	_, err := m.Run(ctx, guest.Command{Args: []string{"sleep", "30"}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, "still here\n", m.sh("echo still here"))
}

// ended is a context that has ended before: nothing runs.
func ended(t *testing.T, m *machine) {
	dir := m.dir()
	ctx, end := context.WithCancel(m.ctx)
	end()
	_, err := m.Run(ctx, guest.Command{Args: []string{"touch", dir + "/ran"}})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, guest.ErrOutcomeLost)
	require.Error(t, m.Ping(ctx))
	require.Empty(t, m.sh(`ls "$1"`, dir))
}

func hopeless(t *testing.T, m *machine) {
	for _, args := range [][]string{nil, {}, {""}, {"echo", "a\x00b"}} {
		_, err := m.Run(m.ctx, guest.Command{Args: args})
		require.Error(t, err)
		Hopeless(t, err, true)
	}
}

// Hopeless tests whether an error says of itself that waiting resolves nothing.
func Hopeless(t testing.TB, err error, want bool) {
	t.Helper()
	var said interface{ Hopeless() bool }
	got := errors.As(err, &said) && said.Hopeless()
	require.Equal(t, want, got, "%v", err)
}
