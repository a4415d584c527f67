package pve_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// agentRole is what an agent needs on its pool.
const agentRole = "VM.Allocate,VM.Audit,VM.Clone,VM.Config.CDROM,VM.Config.CPU,VM.Config.Cloudinit,VM.Config.Disk,VM.Config.HWType," +
	"VM.Config.Memory,VM.Config.Network,VM.Config.Options,VM.PowerMgmt,VM.GuestAgent.Audit,Pool.Audit"

// agent makes a pool, a user and a token with rights on that pool, one storage
// and one bridge alone.
func (c *client) agent() *client {
	c.t.Helper()
	c.ok("POST", "/pools", form{"poolid": "ours"})
	c.ok("POST", "/access/roles", form{"roleid": "Agent", "privs": agentRole})
	c.ok("POST", "/access/users", form{"userid": "agent@pve"})
	token, ok := c.ok("POST", "/access/users/agent@pve/token/tk", nil).(map[string]any)
	require.True(c.t, ok)
	for path, role := range map[string]string{
		"/pool/ours": "Agent", "/storage/local-lvm": "PVEDatastoreUser", "/storage/local": "PVEDatastoreUser", "/sdn/zones/localnetwork/vmbr0": "PVESDNUser",
	} {
		c.ok("PUT", "/access/acl", form{"path": path, "roles": role, "users": "agent@pve", "tokens": "agent@pve!tk"})
	}
	return c.as("agent@pve!tk=" + fmt.Sprint(token["value"]))
}

// TestLeastPrivilege: a token with rights on one pool can live there, sees
// nothing else, and what left its pool is forbidden, not missing.
func TestLeastPrivilege(t *testing.T) {
	c := newClient(t, pve.Config{Guests: 5})
	c.image()
	a := c.agent()
	require.Empty(t, a.list("/cluster/resources?type=vm"))
	require.Empty(t, a.list("/nodes/father/qemu"))
	require.Equal(t, "Permission check failed", a.ask("POST", "/nodes/father/qemu", form{"vmid": "200"}).reason)
	a.vm("200", form{"pool": "ours"})
	require.Len(t, a.list("/cluster/resources?type=vm"), 1)
	a.ok("PUT", vmURL("200", "/config"), form{"cores": "2", "memory": "2048", "tags": "x", "ciuser": "me", "delete": "agent"})
	a.done("PUT", vmURL("200", "/resize"), form{"disk": "scsi0", "size": "+1G"})
	a.done("POST", vmURL("200", "/status/start"), nil)
	a.done("POST", vmURL("200", "/status/stop"), nil)
	a.done("POST", vmURL("200", "/clone"), form{"newid": "201", "pool": "ours"})

	foreign := slices.IndexFunc(c.h.Snapshot().Guests, func(g pve.Guest) bool { return g.Kind == "qemu" })
	id := fmt.Sprint(c.h.Snapshot().Guests[foreign].VMID)
	for request, reason := range map[string]string{
		"GET " + vmURL(id, "/config"):                                            "Permission check failed (/vms/" + id + ", VM.Audit)",
		"DELETE " + vmURL(id, ""):                                                "Permission check failed (/vms/" + id + ", VM.Allocate)",
		"POST " + vmURL(id, "/status/stop"):                                      "Permission check failed (/vms/" + id + ", VM.PowerMgmt)",
		"GET " + vmURL("999", "/config"):                                         "Permission check failed (/vms/999, VM.Audit)",
		"GET /nodes/father/status":                                               "Permission check failed (/nodes/father, Sys.Audit)",
		"GET /cluster/status":                                                    "Permission check failed (/, Sys.Audit)",
		"PUT " + vmURL("200", "/config?args=-x"):                                 "only root can set 'args' config",
		"PUT " + vmURL("200", "/config?startup=order%3D1"):                       "Permission check failed (/, Sys.Modify)",
		"PUT " + vmURL("200", "/config?net0=virtio%2Cbridge%3Dvmbr1"):            "Permission check failed (/sdn/zones/localnetwork/vmbr1, SDN.Use)",
		"POST /nodes/father/storage/local/download-url?" + download:              "Permission check failed (/storage/local, Datastore.AllocateTemplate)",
		"POST " + vmURL("200", "/clone?newid=202"):                               "Permission check failed",
		"POST " + vmURL("200", "/clone?newid=202&pool=none"):                     "Permission check failed",
		"DELETE /nodes/father/storage/local/content/local:import%2Fdebian.qcow2": "Permission check failed (/storage/local, Datastore.Allocate)",
		"PUT /access/acl?path=%2F&roles=Administrator&tokens=agent%40pve%21tk":   "Permission check failed (/, Permissions.Modify)",
		"POST /pools?poolid=more":                                                "Permission check failed (/pool/more, Pool.Allocate)",
	} {
		verb, path, _ := strings.Cut(request, " ")
		got := a.ask(verb, path, nil)
		require.Equal(t, reason, got.reason, request)
	}

	a.done("DELETE", vmURL("200", ""), nil)
	gone := a.ask("GET", vmURL("200", "/config"), nil)
	require.Equal(t, 403, gone.status, "its rights went with its place in the pool")
	require.Equal(t, 500, c.ask("GET", vmURL("200", "/config"), nil).status)
	tasks := a.list("/nodes/father/tasks")
	require.NotEmpty(t, tasks)
	for _, task := range tasks {
		require.Equal(t, "tk", task["tokenid"], "only its own")
	}
}

const download = "url=https%3A%2F%2Fx.test%2Fy.iso&filename=y.iso&content=iso"

// TestInheritance: an entry further down replaces what comes from above, an own
// one counts before the group's, NoAccess takes all.
func TestInheritance(t *testing.T) {
	synctest.Test(t, inheritance) // For the delay of a 401.
}

func inheritance(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
	c.ok("POST", "/access/users", form{"userid": "u@pve"})
	token, ok := c.ok("POST", "/access/users/u@pve/token/full", form{"privsep": "0"}).(map[string]any)
	require.True(t, ok)
	u := c.as("u@pve!full=" + fmt.Sprint(token["value"]))
	grant := func(path, role string, more form) {
		params := form{"path": path, "roles": role, "users": "u@pve"}
		maps.Copy(params, more)
		c.ok("PUT", "/access/acl", params)
	}
	may := func(path string) bool { return u.ask("GET", path, nil).status == 200 }
	require.False(t, may(vmURL("100", "/config")))
	grant("/", "PVEAuditor", nil)
	require.True(t, may(vmURL("100", "/config")))
	require.True(t, may("/nodes/father/status"))
	grant("/vms", "NoAccess", nil)
	require.False(t, may(vmURL("100", "/config")))
	require.True(t, may("/nodes/father/status"))
	grant("/vms/100", "PVEVMUser", nil)
	require.True(t, may(vmURL("100", "/config")))
	grant("/vms/100", "PVEVMUser", form{"delete": "1"})
	grant("/vms", "NoAccess", form{"delete": "1"})
	grant("/nodes", "PVESysAdmin", form{"propagate": "0"})
	require.True(t, may("/nodes/father/status"), "what does not propagate replaces nothing below")
	c.ok("PUT", "/access/users/u@pve", form{"enable": "0"})
	require.False(t, may("/version"))
}

// TestRootToken: a token of root@pam may do all but what is for root@pam alone.
func TestRootToken(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
	for params, reason := range map[string]string{
		"args=-x": "only root can set 'args' config", "lock=backup": "only root can set 'lock' config",
		"hostpci0=0000%3A00%3A02.0": "only root can set 'hostpci0' config for non-mapped devices",
		"serial0=%2Fdev%2FttyS0":    "only root can modify 'serial0' config for real devices",
		"scsi0=%2Fdev%2Fsdz":        "Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651.",
	} {
		require.Equal(t, reason, c.ask("PUT", vmURL("100", "/config?"+params), nil).reason)
	}
	require.Equal(t, map[string]string{"skiplock": "Only root may use this option."}, c.ask("PUT", vmURL("100", "/config?skiplock=1&name=x"), nil).errors)
	c.ok("PUT", vmURL("100", "/config?serial0=socket"), nil)
}
