package integration_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/test/released"
)

// built is where the binary under test stands. Unless there is one it is built by the
// first test that runs it, and removed by TestMain.
var built struct {
	once sync.Once
	dir  string // removed at the end
	path string
	err  error
}

func TestMain(m *testing.M) {
	flag.Parse()
	if !flagGiven("test.parallel") {
		_ = flag.Set("test.parallel", "12") // they wait more than they work
	}
	m.Run()
	_ = os.RemoveAll(built.dir)
}

func flagGiven(name string) bool {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// program builds the binary as it is released, and gives its path.
func program(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "homestak-"); built.err == nil {
			built.path, built.err = released.Path(t.Context(), built.dir)
		}
	})
	require.NoError(t, built.err)
	return built.path
}

// ran is a run of the binary.
type ran struct {
	code     int
	out, err string
}

// run starts the binary in a folder, with nobody at the terminal, and waits for its
// end.
func run(t *testing.T, dir string, args ...string) ran {
	t.Helper()
	var out, text bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program(t), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &text
	cmd.Env = append(os.Environ(), "HOMESTAK_LISTEN=none", "HOMESTAK_DATA_DIR="+filepath.Join(filepath.Dir(dir), "data"))
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return ran{cmd.ProcessState.ExitCode(), out.String(), text.String()}
}

// says runs a verb in the folder of the site, and requires its exit code.
func (s *story) says(code int, args ...string) ran {
	s.t.Helper()
	r := run(s.t, s.dir, args...)
	require.Equal(s.t, code, r.code, "homestak-gitops %v\n%s\n%s", args, r.out, r.err)
	require.NotContains(s.t, r.out+r.err, "goroutine ", "it panicked")
	return r
}

// document reads what a run printed as one JSON document, and nothing else.
func document[T any](t *testing.T, r ran) T {
	t.Helper()
	var doc T
	d := json.NewDecoder(bytes.NewReader([]byte(r.out)))
	require.NoError(t, d.Decode(&doc), "%s\n%s", r.out, r.err)
	require.False(t, d.More(), "more than one document:\n%s", r.out)
	return doc
}

// simulator is the verb sim, running as a process.
type simulator struct {
	API, Node, Token, Fingerprint string
}

// simulate starts the verb sim, and stops it as a user does when the test is over.
func simulate(t *testing.T, args ...string) simulator {
	t.Helper()
	cmd := exec.Command(program(t), append([]string{"sim", "--listen", "127.0.0.1:0", "--json"}, args...)...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var text bytes.Buffer
	cmd.Stderr = &text
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		_ = cmd.Process.Kill()
		require.NoError(t, cmd.Wait(), "sim said nothing: %s", &text)
	}
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		for lines.Scan() {
			t.Errorf("sim printed more than its one line: %s", lines.Text())
		}
		require.NoError(t, cmd.Wait(), "%s", &text)
	})
	var s simulator
	require.NoError(t, json.Unmarshal(lines.Bytes(), &s), lines.Text())
	require.NotEmpty(t, s.API)
	require.NotEmpty(t, s.Node)
	require.NotEmpty(t, s.Token)
	require.Regexp(t, `^sha256:[0-9a-f]{64}$`, s.Fingerprint)
	return s
}
