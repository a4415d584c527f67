package machines_test

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	sim "github.com/homestak/homestak-gitops/drivers/simworld/debian"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/pull"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// simulated is a simulated Debian with the packages that real machines find here.
type simulated struct {
	*sim.Machine
	t    *testing.T
	runs int
}

// simulatedKey stands for the key of the repository extra.
const simulatedKey = `"-----BEGIN PGP PUBLIC KEY BLOCK-----\nsimulated\n-----END PGP PUBLIC KEY BLOCK-----\n"`

func beginSimulated(t *testing.T) *simulated {
	t.Helper()
	var more []sim.Package
	for _, name := range slices.Sorted(maps.Keys(archive)) {
		p := sim.Package{Name: name, Files: map[string]string{}, Scripts: map[string]string{}}
		for line := range strings.Lines(archive[name].fields) {
			if needs, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok {
				p.Depends = strings.Split(needs, ", ")
			}
		}
		for file, text := range archive[name].files {
			switch script, isScript := strings.CutPrefix(file, "DEBIAN/"); {
			case file == "DEBIAN/conffiles":
				p.Conffiles = strings.Fields(text)
			case isScript:
				p.Scripts[script] = text
			default:
				p.Files["/"+file] = text
			}
		}
		more = append(more, p)
	}
	more = append(more, sim.Package{Name: "hs-extra", Source: "file:/srv/apt/extra", Files: map[string]string{"/usr/bin/hs-extra": "#!/bin/sh\necho extra\n"}})
	more = append(more, sim.Package{Name: "hs-part", Source: "file:/srv/apt/parts", Component: "main", Files: map[string]string{"/usr/bin/hs-part": "#!/bin/sh\necho part\n"}})
	m := &simulated{Machine: sim.NewDisk(sim.Options{Packages: more}).Begin(sim.Birth{Instance: "1", Hostname: "vm"}), t: t}
	t.Cleanup(m.Halt)
	m.sh("apt-get update && apt-get -y install fail2ban ")
	return m
}

// Run is that of guest.Machine.
func (m *simulated) Run(_ context.Context, c guest.Command) (guest.Output, error) {
	m.runs++
	var out, errs bytes.Buffer
	s := m.Root(c.Args...)
	s.In, s.Out, s.Err = bytes.NewReader(c.Stdin), &out, &errs
	p, err := m.K.Start(s)
	if err != nil {
		return guest.Output{}, err
	}
	code, signal := p.Ended()
	if signal != 0 {
		code = 0
	}
	return guest.Output{Code: code, Signal: int(signal), Out: out.String(), Err: errs.String()}, nil
}

func (m *simulated) sh(line string) string {
	m.t.Helper()
	out, err := m.Run(m.t.Context(), guest.Command{Args: []string{"sh", "-c", line}})
	require.NoError(m.t, err)
	require.Zero(m.t, out.Code, "%s\n%s%s", line, out.Out, out.Err)
	return out.Out
}

func (m *simulated) apply(s *spec.Spec) {
	m.t.Helper()
	state, err := converge.Apply(m.t.Context(), m, s, converge.Options{})
	require.NoError(m.t, err)
	require.Empty(m.t, changes(state))
}

// unchanged requires that an apply costs one command, and writes nothing at all.
func (m *simulated) unchanged(s *spec.Spec) {
	m.t.Helper()
	m.sh("touch /run/since")
	m.runs = 0
	m.apply(s)
	require.Equal(m.t, 1, m.runs, "an unchanged machine costs one command")
	require.Empty(m.t, m.sh("find / -xdev -newer /run/since -not -path '/run*' -not -path '/tmp*'"))
}

// What holds of every field on a real machine holds on a simulated one.
func TestSimulatedMachineTakesEveryField(t *testing.T) {
	for _, f := range fields {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			m := beginSimulated(t)
			if f.before != "" {
				m.sh(f.before)
			}
			with, without := parse(t, strings.Replace(f.with, `"KEY"`, simulatedKey, 1)), parse(t, strings.Replace(f.without, `"KEY"`, simulatedKey, 1))
			m.apply(with)
			m.sh(f.effect)
			m.unchanged(with)
			m.apply(without)
			m.sh(f.absent)
			m.unchanged(without)
			m.apply(with)
			m.sh(f.effect)
		})
	}
}

// A spec that reports drift is applied once by the machine itself; what somebody changes then stays,
// and is counted. An edited spec is applied.
func TestST10SimulatedPullOnlyReportsDrift(t *testing.T) {
	t.Parallel()
	m, left := beginSimulated(t), 0
	f := pull.Folder{Path: t.TempDir()}
	n := pull.Node{Folder: f, Machine: m, Left: func(differ int) { left = differ }}
	run := func(zone string) int {
		left = 0
		_, changed, err := n.Run(t.Context(), func(context.Context) error {
			_, err := f.Store([]byte(`{"version": 1, "node": "edge", "spec": "test", "config": {"timezone": "` + zone + `", "drift": "report"}}`))
			return err
		})
		require.NoError(t, err)
		return changed
	}
	zone := func() string { return strings.TrimSpace(m.sh("readlink /etc/localtime")) }
	require.Equal(t, 1, run("Europe/Berlin"))
	require.Zero(t, left, "it was applied")
	require.Equal(t, "/usr/share/zoneinfo/Europe/Berlin", zone())

	m.sh("ln -sfT /usr/share/zoneinfo/UTC /etc/localtime")
	require.Equal(t, 1, run("Europe/Berlin"))
	require.Equal(t, 1, left)
	require.Equal(t, "/usr/share/zoneinfo/UTC", zone())

	require.Equal(t, 1, run("Europe/Paris"))
	require.Zero(t, left)
	require.Equal(t, "/usr/share/zoneinfo/Europe/Paris", zone())
}
