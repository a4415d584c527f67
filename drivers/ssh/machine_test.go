package ssh_test

import (
	"testing"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	"github.com/homestak/homestak-gitops/engine/guest"
)

func TestMachine(t *testing.T) {
	drivertest.Machine(t, func(t *testing.T) guest.Machine {
		t.Helper()
		_, cfg := newServer(t)
		return open(t, cfg)
	})
}

// A machine behind another one, which knows nothing of what passes.
func TestMachineBehindAnother(t *testing.T) {
	drivertest.Machine(t, func(t *testing.T) guest.Machine {
		t.Helper()
		parent, above := newServer(t)
		child, cfg := newServer(t)
		parent.forward = child
		cfg.Dial, cfg.Via = nil, open(t, above)
		return open(t, cfg)
	})
}
