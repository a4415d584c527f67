package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// ST-8: what is done needs no doing. A second apply and a second destroy find
// nothing, and send nothing that writes.
func TestTwiceIsOnce(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.deploy("web", vm("web", "count = 2")+vm("db",
		"memory = 4096",
		`tags = ["db", "prod"]`,
		"onboot = true",
		`description = "Asks Anna first: 100 %; a=b"`,
		"disk \"data\" {\n      size = 20\n    }",
		"nic \"lan\" {\n      ip = \"192.0.2.10/24\"\n    }",
		"nic \"backup\" {\n      vlan = 20\n    }",
		"startup {\n      order = 2\n      down  = 60\n    }",
		"options = {\n      balloon = \"1024\"\n    }",
	))

	s.apply()
	once := s.ours()
	require.Len(t, once, 3)
	require.Equal(t, "Asks Anna first: 100 %; a=b", notes(once["db"]))

	s.quietly(func() {
		s.inSync()
		require.Empty(t, steps(s.apply()))
	})
	require.Equal(t, once, s.ours(), "the second apply changed something")

	s.destroy("web")
	require.Empty(t, s.names())
	s.quietly(func() {
		require.Empty(t, steps(s.destroy("web")))
	})
	require.Empty(t, s.names())

	// What was taken away by hand before a destroy is no trouble either.
	s.apply()
	gone := s.vmidOf("web-1")
	s.byHand(func(e *pve.Edit) { e.Delete(gone) })
	s.destroy("web")
	require.Empty(t, s.names())
}
