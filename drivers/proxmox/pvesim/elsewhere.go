package pvesim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Calls that reach out of the host. What the host fetches (images, keys) is there, as
// for download-url; another installation or a backup server is not, and the call fails
// as it does where nobody answers.

// apiPullImage is POST …/oci-registry-pull (PVE/API2/Storage/Status.pm).
func apiPullImage(w *world, c *call) (any, error) {
	s, err := w.store(c.in["storage"])
	if err != nil {
		return nil, err
	}
	if !s.files() {
		return nil, fail("can't upload to storage type '%s', not a file based storage!", s.Type)
	}
	if err := s.checkContent("vztmpl"); err != nil {
		return nil, err
	}
	node, reference := c.in["node"], c.in["reference"]
	name := normalName(cmp.Or(c.in["filename"], reference)) + ".tar" // Even where it is called so already.
	volname := "vztmpl/" + name
	if s.find(node, volname) != nil {
		return nil, fail("refusing to override existing file '%s'", name)
	}
	size := w.page("https://" + reference).Size
	return w.fork(c, node, job{kind: "ociregistrypull", id: name, begin: func(*task) error {
		return s.room(node, size)
	}, end: func(*task) error {
		s.put(node, &volume{name: volname, content: "vztmpl", format: "tar", size: size, length: size, used: size, ctime: w.now.Unix(), url: reference})
		return nil
	}}), nil
}

// apiImageTags is GET /nodes/{node}/query-oci-repo-tags.
func apiImageTags(*world, *call) (any, error) { return []string{"latest"}, nil }

// noRoute is what Perl's client of HTTP says of a host that is not there.
func noRoute(host string) error { return fail("500 Can't connect to %s (No route to host)", host) }

// apiScanServer is GET /nodes/{node}/scan/pbs.
func apiScanServer(_ *world, c *call) (any, error) {
	return nil, fail("error fetching datastores - %s", noRoute(fmt.Sprint(c.in["server"], ":", c.num("port", 8007))))
}

// apiMigrateAway is POST …/remote_migrate (PVE/API2/Qemu.pm, PVE/API2/LXC.pm): what the
// guest allows is looked at before the other cluster is asked.
func apiMigrateAway(w *world, c *call) (any, error) {
	kind := segments(c.m.Path)[2]
	g := w.guest(c.in["node"], kind, c.vmid())
	if g == nil {
		return nil, missing(c.in["node"], kind, c.vmid())
	}
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	if err := g.checkLock(); err != nil {
		return nil, err
	}
	switch running := g.run != nil; {
	case running && kind == "qemu" && !c.flag("online"):
		return nil, fail("can't migrate running VM without --online")
	case running && kind == "lxc" && !c.flag("online") && !c.flag("restart"):
		return nil, fail("can't migrate running container without --online or --restart")
	case w.ha.state(g) != "":
		return nil, fail("Currently not supported for HA managed guests.")
	}
	port := optionOf(c.in["target-endpoint"], "port")
	if port == "" {
		port = "8006"
	}
	return nil, noRoute(optionOf(c.in["target-endpoint"], "host") + ":" + port)
}

// Subscriptions (PVE/API2/Subscription.pm): a key is kept, and stays as new as it is,
// for the shop that knows it is not asked.

func (w *world) serverID() string { return strings.ToUpper(w.fingerprint[:32]) }

// apiSubscription is GET /nodes/{node}/subscription.
func apiSubscription(w *world, c *call) (any, error) {
	entry := map[string]any{"status": "new", "url": "https://www.proxmox.com/en/proxmox-virtual-environment/pricing"}
	key := c.settings().subscription
	if key == "" {
		entry["status"], entry["message"] = "notfound", "There is no subscription key"
	}
	if !c.can("/nodes/"+c.in["node"], "Sys.Audit") {
		return entry, nil
	}
	if entry["serverid"] = w.serverID(); key != "" { // Its level shows once the shop knew it.
		entry["key"], entry["sockets"] = key, 1
	}
	return entry, nil
}

// apiSetSubscription is PUT of a key.
func apiSetSubscription(_ *world, c *call) (any, error) {
	c.settings().subscription = strings.TrimSpace(c.in["key"])
	return nil, fail("Subscription check failed: %s", noRoute("shop.proxmox.com:443"))
}

// apiCheckSubscription is POST: what is known is looked at again.
func apiCheckSubscription(_ *world, c *call) (any, error) {
	if c.settings().subscription == "" {
		return nil, nil
	}
	return nil, fail("Subscription check failed: %s", noRoute("shop.proxmox.com:443"))
}

func apiDropSubscription(_ *world, c *call) (any, error) {
	c.settings().subscription = ""
	return nil, nil
}

// apiPowerNode is POST /nodes/{node}/status: the node goes down with its guests, and
// after a reboot comes back and starts those that start with it.
func apiPowerNode(w *world, c *call) (any, error) {
	name := c.in["node"]
	down := w.now.Add(2 * time.Second) // What the call sleeps before it, so as to be answered.
	w.at(down, func() {
		for _, vmid := range w.vmids {
			if g := w.guests[vmid]; g.node == name && g.run != nil {
				w.powerOff(g, w.rootCall())
			}
		}
		if w.nodes[name] != nil { // It may have left the cluster meanwhile.
			w.setOffline(name, true)
		}
	})
	if c.in["command"] == "reboot" {
		w.at(down.Add(time.Minute), func() {
			if w.nodes[name] == nil {
				return
			}
			w.setOffline(name, false)
			boot := w.rootCall()
			boot.req.method, boot.m = "POST", method("POST /nodes/{node}/startall")
			boot.in["node"] = name
			if _, err := apiBulk(w, boot); err != nil {
				panic(fmt.Sprintf("pvesim: starting guests with their node: %v", err)) // Root may.
			}
		})
	}
	return nil, nil
}

// apiJoinCluster is POST /cluster/config/join: a task that finds what keeps this node
// from it (assert_joinable in PVE/Cluster/Setup.pm), or no cluster there.
func apiJoinCluster(w *world, c *call) (any, error) {
	host, force := c.in["hostname"], c.flag("force")
	return w.fork(c, w.cfg.Node, job{kind: "clusterjoin", end: func(t *task) error {
		var wrong []string
		if len(w.nodes) > 1 {
			wrong = append(wrong, "authentication key '/etc/corosync/authkey' already exists", "cluster config '/etc/pve/corosync.conf' already exists")
		}
		if len(w.guests) > 0 {
			wrong = append(wrong, "this host already contains virtual guests")
		}
		if len(w.nodes) > 1 {
			wrong = append(wrong, "corosync is already running, is this node already in a cluster?!")
		}
		if len(wrong) > 0 {
			t.logf("detected the following error(s):\n* %s", strings.Join(wrong, "\n* "))
			if !force {
				return fail("Check if node may join a cluster failed!")
			}
		}
		t.logf("Establishing API connection with host '%s'", host)
		return noRoute(host + ":8006")
	}}), nil
}

// apiCreateCluster is POST /cluster/config: a cluster that is there is not made again.
func apiCreateCluster(w *world, c *call) (any, error) {
	if len(w.nodes) == 1 {
		return nil, c.unimplemented("clusters are made by the configuration")
	}
	return nil, fail("cluster config '/etc/pve/corosync.conf' already exists")
}

// apiAddNode is POST /cluster/config/nodes/{node}, apiRemoveNode DELETE of it.
func apiAddNode(w *world, c *call) (any, error) {
	switch name := c.in["node"]; {
	case len(w.nodes) == 1:
		return nil, fail("no such cluster config '/etc/pve/corosync.conf'")
	case w.nodes[name] != nil:
		return nil, fail("can't add existing cluster node '%s'", name)
	}
	return nil, c.unimplemented("nodes are made by the configuration")
}

func apiRemoveNode(w *world, c *call) (any, error) {
	name := c.in["node"]
	switch {
	case name == w.cfg.Node:
		return nil, fail("Cannot delete myself from cluster!")
	case w.nodes[name] == nil:
		return nil, fail("Node/IP: %s is not a known host of the cluster.", name)
	case slices.ContainsFunc(w.vmids, func(vmid int) bool { return w.guests[vmid].node == name }):
		return nil, c.unimplemented("a node that goes and leaves guests behind")
	case slices.ContainsFunc(w.tasks.all, (*task).running):
		return nil, c.unimplemented("a node that goes while something is under way")
	}
	delete(w.nodes, name)
	return nil, nil
}
