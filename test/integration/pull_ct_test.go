package integration_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// pct is the simulated node as a machine: its pct enters the simulated containers.
type pct struct {
	guest.Machine
	t      *testing.T
	guests *sim.Guests
	node   string
	calls  []string
	broken func(call string) bool // the call fails before it did anything; may be nil
}

// Run is that of guest.Machine.
func (p *pct) Run(_ context.Context, c guest.Command) (guest.Output, error) {
	at := slices.Index(c.Args, "/usr/sbin/pct")
	require.GreaterOrEqual(p.t, at, 0, "%v", c.Args)
	if at == len(c.Args)-1 && strings.HasPrefix(c.Args[2], "id -u") {
		return guest.Output{Out: "0\n"}, nil
	}
	verb, id, rest := c.Args[at+1], c.Args[at+2], c.Args[at+3:]
	p.calls = append(p.calls, verb)
	if p.broken != nil && p.broken(verb) {
		return guest.Output{Code: 255, Err: "killed\n"}, nil
	}
	m := p.guests.Machine(id)
	if m == nil {
		return guest.Output{Code: 255, Err: "container '" + id + "' not running!\n"}, nil
	}
	switch verb {
	case "config":
		name, _ := m.Shell("hostname")
		return guest.Output{Out: p.node + "\nhostname: " + name}, nil
	case "push":
		text, err := os.ReadFile(rest[0])
		require.NoError(p.t, err)
		require.Equal(p.t, []string{"--perms", "0755"}, rest[2:])
		return guest.Output{}, m.K.FS.WriteFile(rest[1], string(text), 0o755, 0, 0)
	default:
		require.Equal(p.t, "exec", verb)
		var out, errs bytes.Buffer
		s := m.Root(rest[slices.Index(rest, "/bin/sh"):]...) // env comes first, which is not simulated
		s.In, s.Out, s.Err = bytes.NewReader(c.Stdin), &out, &errs
		process, err := m.K.Start(s)
		if err != nil {
			return guest.Output{}, err
		}
		code, signal := process.Ended()
		if signal != 0 {
			code = 128 + int(signal)
		}
		return guest.Output{Code: code, Out: out.String(), Err: errs.String()}, nil
	}
}

// notInContainers are the fields that a container has otherwise, or needs a host for.
const notInContainers = "posture, mount, swap, reminder of PVE, repository of PVE"

// beginPullingCT sets the scene with a container box-1 in mode pull, on the node of the agent.
func beginPullingCT(t *testing.T) (*pulling, *pct) {
	t.Helper()
	s := beginPulling(t, specOf(notInContainers))
	debian := strings.NewReplacer("debian-ct", "debian-12-ct") // by whose name a system is simulated
	s.write("template.hcl", debian.Replace(ctTemplate))
	s.deploy("web", debian.Replace(ct("box-1", `spec = spec.base`, inPull, `nic "lan" {`, `  ip = "192.0.2.60/24"`, `}`)))
	at := &pct{t: t, guests: s.guests, node: "father"}
	s.program = filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(s.program, []byte("#!/usr/lib/simulated/homestak-gitops\n"), 0o755))
	s.here = at
	return s, at
}

// A container in mode pull has no cloud-init: it gets to know its parent by pct, applies its spec, and reports.
func TestST01SimulatedPullOfAContainer(t *testing.T) {
	s, at := beginPullingCT(t)
	r := s.pass("plan")
	require.Contains(t, strings.Join(actions(r.Plan), ", "), "create ct.box-1, create guest.box-1")
	require.Empty(t, r.Findings)
	r = s.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Equal(t, "report", r.Nodes[0].Checks[0].Name)
	for _, f := range simulatedFields {
		if !strings.Contains(notInContainers, f.name) {
			s.holds(f.effect, f.name)
		}
	}
	s.holds("[ -x /usr/local/bin/homestak-gitops ] && ! ls -A /usr/local/bin | grep new && systemctl is-active homestak-gitops-pull.timer", "the program and its timer")
	nspawn.Await(t, "the first run is over", func() bool {
		_, code := s.inside("[ ! -e /etc/systemd/system/homestak-gitops-firstboot.service ]")
		return code == 0
	})
	out, _ := s.inside("stat -c '%a %U' " + wire.ParentFile)
	require.Equal(t, "600 root\n", out)
	at.calls = nil
	r = s.pass("plan")
	require.True(t, r.Plan.InSync(), describe(r))
	require.Empty(t, at.calls, "what has reported is not entered")
}

// Wherever a delivery is cut off, a later pass goes on.
func TestST14SimulatedPullOfAContainerThatIsInterrupted(t *testing.T) {
	for nth, verb := range []string{"exec", "config", "exec", "push", "exec"} { // to log in, first
		t.Run(fmt.Sprintf("call %d", nth+1), func(t *testing.T) {
			s, at := beginPullingCT(t)
			at.broken = func(call string) bool {
				if len(at.calls) != nth+1 {
					return false
				}
				require.Equal(t, verb, call)
				return true
			}
			for range 3 {
				if s.pass("apply").Outcome == engine.Done {
					break
				}
			}
			_, err := s.parent.Reported("box-1")
			require.NoError(t, err)
			s.holds("[ -x /usr/local/bin/homestak-gitops ] && id ann", "its spec")
		})
	}
}

// On another machine than its node a container is neither created nor entered.
func TestST01SimulatedPullOfAContainerElsewhere(t *testing.T) {
	s, at := beginPullingCT(t)
	s.here = nil
	r := s.pass("plan")
	require.Equal(t, []string{"create template.debian-12-ct"}, actions(r.Plan))
	require.Contains(t, r.Findings[0].Summary, "ct.box-1 is not created: containers cannot be created in mode pull from another machine")
	require.Contains(t, r.Findings[0].Detail, "let the agent run on the node of the container, as root")
	s.here, at.node = at, "mother"
	r = s.pass("apply")
	require.Equal(t, engine.Partly, r.Outcome)
	require.ErrorContains(t, r.Err, "container 10000 (box-1) of node father is not on this machine, which is mother")
}
