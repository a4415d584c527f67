package real_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/test/released"
)

// stories are run one after another: each begins with a range in which nothing is, and
// ends so.
var stories = []struct {
	name string
	tell func(*story)
}{
	{"create", create},
	{"edit a VM key by key", editVM},
	{"edit a container key by key", editContainer},
	{"drift", drift},
	{"templates", templates},
	{"decommission", decommission},
	{"kill", kill},
	{"agent", agent},
}

// TestReal runs the stories on the host that make real names.
func TestReal(t *testing.T) {
	s := fromEnvironment()
	if s.host == "" {
		t.Skip("needs a Proxmox VE host: make real HOST=… TOKEN=…")
	}
	runOn(t, s)
}

// TestOnTheSimulator runs the stories on a simulated host of each version.
func TestOnTheSimulator(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a minute")
	}
	for _, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			// So a pass of the story of kills takes half a second.
			h := pve.New(pve.Config{Version: version, BootTime: 200 * time.Millisecond, TaskTime: 50 * time.Millisecond, Guests: 4})
			before := h.Snapshot()
			s := settings{
				host: listen(t, h), token: h.Token(), fingerprint: h.Fingerprint(), vmids: "51000-51099", patience: time.Minute,
				again: 100 * time.Millisecond, kills: []time.Duration{0, 70 * time.Millisecond, 150 * time.Millisecond, 250 * time.Millisecond, 350 * time.Millisecond, 450 * time.Millisecond},
			}
			runOn(t, s)
			openLab(t, s) // which refuses a host where anything was left
			after := h.Snapshot()
			require.Equal(t, before.Guests, after.Guests, "guests of others were touched")
			require.Equal(t, before.Volumes, after.Volumes)
			require.Empty(t, after.Unimplemented)
		})
	}
}

// listen serves a simulated host until the test ends, and gives its address.
func listen(t *testing.T, h *pve.Host) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
	})
	return l.Addr().String()
}

// runOn runs all stories on one host.
func runOn(t *testing.T, s settings) {
	t.Helper()
	l := openLab(t, s)
	t.Cleanup(func() { l.cleanUp(t, "") })
	program, err := released.Path(t.Context(), t.TempDir())
	require.NoError(t, err)
	l.program = program
	name := prefix + "template.tar.gz"
	require.NoError(t, l.upload(t.Context(), l.node, l.files, "vztmpl", name, containerTemplate(t)))
	l.template = l.files + ":vztmpl/" + name
	for _, one := range stories {
		if !t.Run(one.name, func(t *testing.T) {
			one.tell(begin(t, l))
			l.requireNothingLeft(t, l.template)
		}) {
			l.cleanUp(t, l.template) // for the next one
		}
	}
	require.NoError(t, l.free(t.Context(), l.template))
	l.requireNothingLeft(t)
}
