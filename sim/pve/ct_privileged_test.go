package pve_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestPrivilegedContainers: since pve-container 6.0.6, which came with PVE 9.0, a
// container is unprivileged unless the order says otherwise, and whoever says so must be
// allowed to change the host (PVE/API2/LXC.pm, create_vm). A privileged one has no word
// of it in its configuration.
func TestPrivilegedContainers(t *testing.T) {
	for _, test := range []struct {
		version, said string
		status        int
		unprivileged  string
	}{
		{"8.4", "", 200, ""},
		{"8.4", "0", 200, ""},
		{"8.4", "1", 200, "1"},
		{"9.1", "", 200, "1"},
		{"9.1", "0", 403, ""},
		{"9.1", "1", 200, "1"},
	} {
		t.Run(test.version+" "+test.said, func(t *testing.T) {
			c := newClient(t, pve.Config{Version: test.version})
			c.done("POST", "/nodes/father/aplinfo", form{"storage": "local", "template": debianTemplate})
			c.ok("POST", "/access/roles", form{"roleid": "Maker", "privs": "VM.Allocate,VM.Audit,VM.Config.Options,VM.Config.Disk,Datastore.AllocateSpace,Datastore.Audit"})
			c.ok("POST", "/access/users", form{"userid": "ops@pve"})
			token, ok := c.ok("POST", "/access/users/ops@pve/token/tk", form{"privsep": "0"}).(map[string]any)
			require.True(t, ok)
			for _, path := range []string{"/vms", "/storage"} {
				c.ok("PUT", "/access/acl", form{"path": path, "roles": "Maker", "users": "ops@pve"})
			}
			c = c.as("ops@pve!tk=" + fmt.Sprint(token["value"]))
			order := form{"vmid": "100", "ostemplate": "local:vztmpl/" + debianTemplate, "rootfs": "local-lvm:2"}
			if test.said != "" {
				order["unprivileged"] = test.said
			}
			a := c.ask("POST", "/nodes/father/lxc", order)
			require.Equal(t, test.status, a.status, a.raw)
			if test.status != 200 {
				require.Equal(t, "Permission check failed (/, Sys.Modify)", a.reason)
				return
			}
			require.Equal(t, "OK", c.wait(fmt.Sprint(a.data)))
			require.Equal(t, test.unprivileged, c.h.Snapshot().Guests[0].Config["unprivileged"])
		})
	}
}

// TestNetworksOfSDNHaveTheirZone: who may plug into a network of SDN is asked in its zone,
// not where the bridges of the nodes are (check_vnet_access in PVE/GuestHelpers.pm).
func TestNetworksOfSDNHaveTheirZone(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.image()
	c.vm("100", nil)
	c.ok("POST", "/cluster/sdn/zones", form{"zone": "lab", "type": "simple"})
	c.ok("POST", "/cluster/sdn/vnets", form{"vnet": "blue", "zone": "lab"})
	c.ok("POST", "/access/roles", form{"roleid": "Maker", "privs": "VM.Config.Network,SDN.Use"})
	c.ok("POST", "/access/users", form{"userid": "ops@pve"})
	token, ok := c.ok("POST", "/access/users/ops@pve/token/tk", form{"privsep": "0"}).(map[string]any)
	require.True(t, ok)
	for _, path := range []string{"/vms", "/sdn/zones/localnetwork"} {
		c.ok("PUT", "/access/acl", form{"path": path, "roles": "Maker", "users": "ops@pve"})
	}
	ops := c.as("ops@pve!tk=" + fmt.Sprint(token["value"]))
	ops.ok("PUT", vmURL("100", "/config"), form{"net1": "virtio,bridge=vmbr0"})
	a := ops.ask("PUT", vmURL("100", "/config"), form{"net2": "virtio,bridge=blue"})
	require.Equal(t, "Permission check failed (/sdn/zones/lab/blue, SDN.Use)", a.reason)
	c.ok("PUT", "/access/acl", form{"path": "/sdn/zones/lab/blue", "roles": "Maker", "users": "ops@pve"})
	ops.ok("PUT", vmURL("100", "/config"), form{"net2": "virtio,bridge=blue"})
}
