package proxmox_test

import (
	"testing"

	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// world is a site in memory, with what only the tests here do to it.
type world struct {
	*proxmoxtest.World

	run *storyRun // nil: no request is meant to go wrong
}

func newWorld(t *testing.T, c pve.Config) *world {
	t.Helper()
	return &world{World: proxmoxtest.New(t, c)}
}
