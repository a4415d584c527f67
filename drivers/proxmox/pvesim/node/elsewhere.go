package node

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/migrate"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/storage"
)

// Calls that reach out of the host. What the host fetches (images, keys) is there, as
// for download-url; another installation or a backup server is not, and the call fails
// as it does where nobody answers.

// apiPullImage is POST …/oci-registry-pull (PVE/API2/Storage/Status.pm).
func apiPullImage(w *core.World, c *core.Call) (any, error) {
	s, err := w.Store(c.In["storage"])
	if err != nil {
		return nil, err
	}
	if !s.Files() {
		return nil, perl.Fail("can't upload to storage type '%s', not a file based storage!", s.Type)
	}
	if err := storage.CheckContent(s, "vztmpl"); err != nil {
		return nil, err
	}
	node, reference := c.In["node"], c.In["reference"]
	name := storage.NormalName(cmp.Or(c.In["filename"], reference)) + ".tar" // Even where it is called so already.
	volname := "vztmpl/" + name
	if s.Find(node, volname) != nil {
		return nil, perl.Fail("refusing to override existing file '%s'", name)
	}
	size := storage.Page(w, "https://"+reference).Size
	return w.Fork(c, node, core.Job{Kind: "ociregistrypull", ID: name, Begin: func(*core.Task) error {
		return s.Room(node, size)
	}, End: func(*core.Task) error {
		s.Put(node, &core.Volume{Name: volname, Content: "vztmpl", Format: "tar", Size: size, Length: size, Used: size, Ctime: w.Now.Unix(), URL: reference})
		return nil
	}}), nil
}

// apiImageTags is GET /nodes/{node}/query-oci-repo-tags.
func apiImageTags(*core.World, *core.Call) (any, error) { return []string{"latest"}, nil }

// noRoute is what Perl's client of HTTP says of a host that is not there.
func noRoute(host string) error { return perl.Fail("500 Can't connect to %s (No route to host)", host) }

// apiScanServer is GET /nodes/{node}/scan/pbs.
func apiScanServer(_ *core.World, c *core.Call) (any, error) {
	return nil, perl.Fail("error fetching datastores - %s", noRoute(fmt.Sprint(c.In["server"], ":", c.Num("port", 8007))))
}

// apiMigrateAway is POST …/remote_migrate (PVE/API2/Qemu.pm, PVE/API2/LXC.pm): what the
// guest allows is looked at before the other cluster is asked.
func apiMigrateAway(w *core.World, c *core.Call) (any, error) {
	kind := perl.Segments(c.M.Path)[2]
	g := w.Guest(c.In["node"], kind, c.Vmid())
	if g == nil {
		return nil, core.Missing(c.In["node"], kind, c.Vmid())
	}
	if err := w.NeedQuorum(); err != nil {
		return nil, err
	}
	if err := g.CheckLock(); err != nil {
		return nil, err
	}
	switch running := g.Run != nil; {
	case running && kind == "qemu" && !c.Flag("online"):
		return nil, perl.Fail("can't migrate running VM without --online")
	case running && kind == "lxc" && !c.Flag("online") && !c.Flag("restart"):
		return nil, perl.Fail("can't migrate running container without --online or --restart")
	case w.HA.State(g) != "":
		return nil, perl.Fail("Currently not supported for HA managed guests.")
	}
	port := perl.OptionOf(c.In["target-endpoint"], "port")
	if port == "" {
		port = "8006"
	}
	return nil, noRoute(perl.OptionOf(c.In["target-endpoint"], "host") + ":" + port)
}

// Subscriptions (PVE/API2/Subscription.pm): a key is kept, and stays as new as it is,
// for the shop that knows it is not asked.

func serverID(w *core.World) string { return strings.ToUpper(w.Fingerprint[:32]) }

// apiSubscription is GET /nodes/{node}/subscription.
func apiSubscription(w *core.World, c *core.Call) (any, error) {
	entry := map[string]any{"status": "new", "url": "https://www.proxmox.com/en/proxmox-virtual-environment/pricing"}
	key := settings(c).subscription
	if key == "" {
		entry["status"], entry["message"] = "notfound", "There is no subscription key"
	}
	if !c.Can("/nodes/"+c.In["node"], "Sys.Audit") {
		return entry, nil
	}
	if entry["serverid"] = serverID(w); key != "" { // Its level shows once the shop knew it.
		entry["key"], entry["sockets"] = key, 1
	}
	return entry, nil
}

// apiSetSubscription is PUT of a key.
func apiSetSubscription(_ *core.World, c *core.Call) (any, error) {
	settings(c).subscription = strings.TrimSpace(c.In["key"])
	return nil, perl.Fail("Subscription check failed: %s", noRoute("shop.proxmox.com:443"))
}

// apiCheckSubscription is POST: what is known is looked at again.
func apiCheckSubscription(_ *core.World, c *core.Call) (any, error) {
	if settings(c).subscription == "" {
		return nil, nil
	}
	return nil, perl.Fail("Subscription check failed: %s", noRoute("shop.proxmox.com:443"))
}

func apiDropSubscription(_ *core.World, c *core.Call) (any, error) {
	settings(c).subscription = ""
	return nil, nil
}

// apiPowerNode is POST /nodes/{node}/status: the node goes down with its guests, and
// after a reboot comes back and starts those that start with it.
func apiPowerNode(w *core.World, c *core.Call) (any, error) {
	name := c.In["node"]
	down := w.Now.Add(2 * time.Second) // What the call sleeps before it, so as to be answered.
	w.At(down, func() {
		for _, vmid := range w.Vmids {
			if g := w.Guests[vmid]; g.Node == name && g.Run != nil {
				guests.PowerOff(w, g, w.RootCall())
			}
		}
		if w.Nodes[name] != nil { // It may have left the cluster meanwhile.
			guests.SetOffline(w, name, true)
		}
	})
	if c.In["command"] == "reboot" {
		w.At(down.Add(time.Minute), func() {
			if w.Nodes[name] == nil {
				return
			}
			guests.SetOffline(w, name, false)
			boot := w.RootCall()
			boot.In["node"] = name
			if _, err := migrate.StartAll("startall")(w, boot); err != nil {
				panic(fmt.Sprintf("pvesim: starting guests with their node: %v", err)) // Root may.
			}
		})
	}
	return nil, nil
}

// apiJoinCluster is POST /cluster/config/join: a task that finds what keeps this node
// from it (assert_joinable in PVE/Cluster/Setup.pm), or no cluster there.
func apiJoinCluster(w *core.World, c *core.Call) (any, error) {
	host, force := c.In["hostname"], c.Flag("force")
	return w.Fork(c, w.Cfg.Node, core.Job{Kind: "clusterjoin", End: func(t *core.Task) error {
		var wrong []string
		if len(w.Nodes) > 1 {
			wrong = append(wrong, "authentication key '/etc/corosync/authkey' already exists", "cluster config '/etc/pve/corosync.conf' already exists")
		}
		if len(w.Guests) > 0 {
			wrong = append(wrong, "this host already contains virtual guests")
		}
		if len(w.Nodes) > 1 {
			wrong = append(wrong, "corosync is already running, is this node already in a cluster?!")
		}
		if len(wrong) > 0 {
			t.Logf("detected the following error(s):\n* %s", strings.Join(wrong, "\n* "))
			if !force {
				return perl.Fail("Check if node may join a cluster failed!")
			}
		}
		t.Logf("Establishing API connection with host '%s'", host)
		return noRoute(host + ":8006")
	}}), nil
}

// apiCreateCluster is POST /cluster/config: a cluster that is there is not made again.
func apiCreateCluster(w *core.World, c *core.Call) (any, error) {
	if len(w.Nodes) == 1 {
		return nil, c.Unimplemented("clusters are made by the configuration")
	}
	return nil, perl.Fail("cluster config '/etc/pve/corosync.conf' already exists")
}

// apiAddNode is POST /cluster/config/nodes/{node}, apiRemoveNode DELETE of it.
func apiAddNode(w *core.World, c *core.Call) (any, error) {
	switch name := c.In["node"]; {
	case len(w.Nodes) == 1:
		return nil, perl.Fail("no such cluster config '/etc/pve/corosync.conf'")
	case w.Nodes[name] != nil:
		return nil, perl.Fail("can't add existing cluster node '%s'", name)
	}
	return nil, c.Unimplemented("nodes are made by the configuration")
}

func apiRemoveNode(w *core.World, c *core.Call) (any, error) {
	name := c.In["node"]
	switch {
	case name == w.Cfg.Node:
		return nil, perl.Fail("Cannot delete myself from cluster!")
	case w.Nodes[name] == nil:
		return nil, perl.Fail("Node/IP: %s is not a known host of the cluster.", name)
	case slices.ContainsFunc(w.Vmids, func(vmid int) bool { return w.Guests[vmid].Node == name }):
		return nil, c.Unimplemented("a node that goes and leaves guests behind")
	case slices.ContainsFunc(w.Tasks.All, (*core.Task).Running):
		return nil, c.Unimplemented("a node that goes while something is under way")
	}
	delete(w.Nodes, name)
	return nil, nil
}
