package machines_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// killAt replaces the script of one run by the same one that kills itself, and every
// program that it started, before its nth command.
func (w *world) killAt(run, command int) {
	seen := 0
	w.instead = func(c guest.Command) guest.Command {
		if seen++; seen != run {
			return c
		}
		head := fmt.Sprintf("_n=0; set -T; trap 'if [ $((_n += 1)) -eq %d ]; then kill -9 0; fi' DEBUG\n", command)
		return guest.Command{Args: []string{"bash", "-s"}, Stdin: append([]byte(head), c.Stdin...)}
	}
}

// killed applies a spec and is killed. It reports whether it was.
func (w *world) killed(s *spec.Spec, run, command int) bool {
	w.t.Helper()
	w.killAt(run, command)
	defer func() { w.instead = nil }()
	_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{})
	return err != nil
}

// However an apply is cut off, the next one ends in the same state, and withdrawing leaves
// the same machine behind.
func TestST14KilledAnywhereAppliedAgain(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	full, none := w.whole(), parse(t, `"config": {}`)
	w.apply(full)
	wanted := w.snapshot()
	w.apply(none)
	empty := w.snapshot() // with the locked users of the first time
	points := []int{2, 9, 17, 24, 31, 40, 55}
	runs := 21
	if n, err := strconv.Atoi(os.Getenv("HOMESTAK_MACHINES_KILLS")); err == nil {
		points = nil
		for k := 1; k <= n; k++ {
			points = append(points, k)
		}
	}
	killed := 0
	all := os.Getenv("HOMESTAK_MACHINES_KILLS") != ""
	for run := 2; run <= runs; run++ {
		if !all && run%2 == 1 {
			continue
		}
		// Each run of an apply is killed at one point, at another one of a withdrawal.
		for i, point := range points {
			if !all && i != run/2%len(points) {
				continue
			}
			name := fmt.Sprintf("run %d, command %d", run, point)
			if w.killed(full, run, point) {
				killed++
			}
			w.apply(full)
			same(t, wanted, w.snapshot(), "applied after being killed at "+name)
			if w.killed(none, run, point) {
				killed++
			}
			w.apply(none)
			same(t, empty, w.snapshot(), "withdrawn after being killed at "+name)
		}
	}
	t.Logf("killed %d times", killed)
	require.Greater(t, killed, 8)
}

// The same at every single command of the step that has most to lose: a file that was there
// before, and a service that reads it.
func TestST14KilledAtEveryCommand(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	w.Run0("apt-get update && apt-get -y install hs-daemon && chmod 640 /etc/hs-daemon.conf")
	full := parse(t, `"config": {"files": [{"path": "/etc/hs-daemon.conf", "content": "mine\n", "mode": "0644", "owner": "root", "group": "root", "restart": ["hs-daemon"]}]}`)
	none := parse(t, `"config": {}`)
	const state = "stat -c %a /etc/hs-daemon.conf; cat /etc/hs-daemon.conf; ls -A /var/lib/homestak-gitops/found /etc | grep -c 'homestak-new' || :; systemctl show -p MainPID hs-daemon"
	for command, more := 1, true; more; command++ {
		more = false
		for _, c := range []struct {
			spec *spec.Spec
			want string
		}{{full, "644\nmine\n0\n"}, {none, "640\nshipped\n0\n"}} {
			before := w.Run0("systemctl show -p MainPID hs-daemon")
			run := 2
			if c.spec == none {
				run = 3 // the record names what the spec does not, so it is read twice
			}
			more = w.killed(c.spec, run, command) || more
			w.apply(c.spec)
			got := w.Run0(state)
			require.True(t, strings.HasPrefix(got, c.want), "killed at command %d: %s", command, got)
			require.NotContains(t, got, before, "killed at command %d: the service was not restarted", command)
		}
		require.Less(t, command, 200)
		if !more {
			t.Logf("killed at each of %d commands", command-1)
		}
	}
	require.JSONEq(t, `{"version": 1, "entries": []}`, w.Run0("cat /var/lib/homestak-gitops/owned.json"))
}
