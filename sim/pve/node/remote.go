package node

import (
	"cmp"
	"fmt"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Calls that reach another host. Neither another installation nor a backup server is there,
// and the call fails as it does where nobody answers.

// noRoute is what Perl's client of HTTP says of a host that is not there.
func noRoute(host string) error { return perl.Fail("500 Can't connect to %s (No route to host)", host) }

// apiScanServer is GET /nodes/{node}/scan/pbs.
func apiScanServer(_ *core.World, c *core.Call) (any, error) {
	return nil, perl.Fail("error fetching datastores - %s", noRoute(fmt.Sprint(c.In["server"], ":", c.Num("port", 8007))))
}

// apiMigrateAway is POST …/remote_migrate (PVE/API2/Qemu.pm, PVE/API2/LXC.pm): what the
// guest allows is looked at before the other cluster is asked.
func apiMigrateAway(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	if err := cmp.Or(w.NeedQuorum(), g.CheckLock()); err != nil {
		return nil, err
	}
	switch running := g.Run != nil; {
	case running && g.Kind == "qemu" && !c.Flag("online"):
		return nil, perl.Fail("can't migrate running VM without --online")
	case running && g.Kind == "lxc" && !c.Flag("online") && !c.Flag("restart"):
		return nil, perl.Fail("can't migrate running container without --online or --restart")
	case w.HA.State(g) != "":
		return nil, perl.Fail("Currently not supported for HA managed guests.")
	}
	endpoint := c.In["target-endpoint"]
	return nil, noRoute(perl.OptionOf(endpoint, "host") + ":" + cmp.Or(perl.OptionOf(endpoint, "port"), "8006"))
}
