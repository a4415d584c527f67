package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// above is a parent with a program. Its versions are that of programOf: v1.0.2.
type above struct {
	*httptest.Server
	version string
	keep    string
	program []byte // nil: programOf(version)
	fetched int
}

func newAbove(t *testing.T) *above {
	t.Helper()
	p := &above{version: "v1.0.2"}
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := p.program
		if text == nil {
			text = programOf(p.version)
		}
		if r.Method == http.MethodGet {
			p.fetched++
		}
		if r.URL.Path != "/agent/linux-amd64" || wire.Token(r.Header) != "good" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set(wire.VersionHeader, p.version)
		w.Header().Set(wire.KeepHeader, p.keep)
		w.Header().Set("ETag", `"`+sumOf(text)+`"`)
		_, _ = w.Write(text)
	}))
	t.Cleanup(p.Close)
	return p
}

// spoke is a machine that joined with program v1.0.1. Its programs install themselves as ours do.
type spoke struct {
	*childMachine
	above *above
	works bool // its agent reports
	said  strings.Builder
}

func newSpoke(t *testing.T) *spoke {
	t.Helper()
	s := &spoke{childMachine: begin(t), above: newAbove(t), works: true}
	s.installs = func(program []byte) error {
		version := strings.Split(string(program), "\n")[1]
		return s.upgrade(version).Install(t.Context(), sumOf(program))
	}
	w := joinWant(s.parent(), Program{Sum: sumOf(programOf("v1.0.1")), System: "linux-amd64", Version: "v1.0.1"})
	require.NoError(t, s.install(w, programOf("v1.0.1"), "good"))
	return s
}

func (s *spoke) parent() wire.Parent {
	return wire.Parent{Identity: "branch-7", Server: s.above.URL, Pins: []wire.Pin{wire.PinOf(s.above.Certificate())}, Token: "good"}
}

// upgrade is that of the program in a version.
func (s *spoke) upgrade(version string) *Upgrade {
	return &Upgrade{
		Machine: s, Parent: s.parent(), OS: "linux", Arch: "amd64", Version: version, Within: time.Millisecond,
		Reported: func(context.Context) error {
			if !s.works && s.version() != "v1.0.1" {
				return errors.New("it did not report")
			}
			return nil
		},
		Say: func(format string, args ...any) { fmt.Fprintf(&s.said, format+"\n", args...) },
	}
}

// version is that of the program in its place.
func (s *spoke) version() string { return strings.Split(s.sh("cat "+programFile), "\n")[1] }

// run is what the unit does: an upgrade that is open is that of the program from before.
func (s *spoke) run() error {
	version := s.version()
	if s.sh("[ -e "+upgradeFile+" ] && [ -x "+oldFile+" ] && echo open || :") != "" {
		version = strings.Split(s.sh("cat "+oldFile), "\n")[1]
	}
	return s.upgrade(version).Do(s.t.Context())
}

func (s *spoke) programs() string { return s.sh("ls -A /usr/local/bin") }

// A host takes a later program of its parent, once, and never an older one.
func TestAHostTakesTheProgramOfItsParent(t *testing.T) {
	s := newSpoke(t)
	s.above.keep = "upgrades begin in the window 02:00-05:00"
	require.NoError(t, s.run())
	require.Equal(t, "the program stays: upgrades begin in the window 02:00-05:00\n", s.said.String())
	require.Zero(t, s.above.fetched)
	s.above.keep = ""
	require.NoError(t, s.run(), s.said.String())
	require.Equal(t, "v1.0.2", s.version())
	require.Equal(t, "homestak-gitops\n", s.programs())
	require.Contains(t, s.said.String(), "fetch version v1.0.2 of the program\ninstall it\nstart the agent, and wait for its report\nthe parent has its report")
	s.sh("systemctl is-active homestak-gitops")
	require.NoError(t, s.run())
	require.Equal(t, 1, s.above.fetched)

	for _, version := range []string{"v1.0.1", "v1.0.2-0.20260101000000-abcdefabcdef", "(devel)", ""} {
		s.above.version = version
		require.ErrorContains(t, s.run(), "an older one is not taken", version)
	}
	require.Equal(t, 1, s.above.fetched)
	require.Equal(t, "v1.0.2", s.version())
}

// Versions of packages count, too.
func TestAHostTakesAReleasedProgram(t *testing.T) {
	s := newSpoke(t)
	for _, version := range []string{"1.0.2~202611270451.abcdef1", "1.0.2"} {
		s.above.version = version
		require.NoError(t, s.run(), s.said.String())
		require.Equal(t, version, s.version())
	}
	for _, version := range []string{"1.0.1", "v1.0.1", "1.0.2~202611280000.abcdef1"} {
		s.above.version = version
		require.ErrorContains(t, s.run(), "an older one is not taken", version)
	}
	require.Equal(t, "1.0.2", s.version())
}

// A program that does not report goes back, and is not fetched again at once. A later one is tried.
func TestAHostGoesBackToItsProgram(t *testing.T) {
	s := newSpoke(t)
	s.works = false
	// Its units may not be those that the next program comes with.
	s.sh("echo '# of v1.0.1' >>" + unitFile + "; rm /usr/local/lib/systemd/system/homestak-gitops-once.service")
	s.sh("grep -q 'of v1.0.1' " + unitFile)
	require.ErrorContains(t, s.run(), "version v1.0.2 of the program does not work here, so the previous one is restored: it did not report within")
	require.Equal(t, "v1.0.1", s.version())
	s.sh("systemctl is-active homestak-gitops && grep -q 'of v1.0.1' " + unitFile + " && [ ! -e /usr/local/lib/systemd/system/homestak-gitops-once.service ]")
	require.ErrorContains(t, s.run(), "did not report after its installation")
	require.Equal(t, 1, s.above.fetched)
	s.above.version, s.works = "v1.0.3", true
	require.NoError(t, s.run())
	require.Equal(t, "v1.0.3", s.version())
	require.Equal(t, "homestak-gitops\n", s.programs())

	// One that does not even start changes nothing.
	s.above.version, s.above.program = "v1.0.4", []byte("\x7fELF of another machine")
	require.ErrorContains(t, s.run(), "version v1.0.4 of the program does not install itself")
	require.Equal(t, "v1.0.3", s.version())
	s.sh("systemctl is-active homestak-gitops")
}

// upgradeStride is how far apart the places are where an upgrade is cut off, unless HOMESTAK_UPGRADE_STRIDE says otherwise.
const upgradeStride = 9

// Wherever it is cut off, also where the machine loses power, the next run ends it, with the new program or the one before.
func TestAnUpgradeOfAHostIsCutOff(t *testing.T) {
	stride := upgradeStride
	if text := os.Getenv("HOMESTAK_UPGRADE_STRIDE"); text != "" {
		var err error
		stride, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	for _, works := range []bool{true, false} {
		t.Run(fmt.Sprintf("it works: %v", works), func(t *testing.T) {
			t.Parallel()
			n := 1
			for ; ; n += stride {
				s := newSpoke(t)
				s.works = works
				s.cutAt(n)
				err := s.run()
				done := works && err == nil || !works && err != nil && strings.Contains(err.Error(), "is restored: it did not report") && !strings.Contains(err.Error(), "exit code 99")
				s.instead = nil
				want := map[bool]string{true: "v1.0.2", false: "v1.0.1"}[works]
				for range 2 { // where the one before had come back, the next run tries the new one again
					if err = s.run(); works {
						require.NoError(t, err, "cut %d", n)
					} else {
						require.Error(t, err, "cut %d", n)
					}
				}
				require.Equal(t, want, s.version(), "cut %d", n)
				require.Empty(t, s.sh("ls -A /usr/local/bin | grep -v -e '^homestak-gitops$' -e refused -e 'gitops.new$' || :"), "cut %d", n)
				s.sh("systemctl is-active homestak-gitops")
				s.Halt()
				if done {
					break
				}
			}
			require.Greater(t, n, 25, "places where it is cut off")
			t.Logf("%d places", n)
		})
	}
}

// Between two commands the agent may be stopped. systemd starts it again: the fallback is set before each stop.
func TestStopsOfAnUpgradeHaveAFallback(t *testing.T) {
	s := newSpoke(t)
	s.works = false
	require.Error(t, s.run())
	for _, part := range strings.Split(s.seen.String(), "systemctl stop homestak-gitops.service")[:2] {
		require.True(t, bytes.Contains([]byte(part), []byte("--unit="+resume)))
	}
}
