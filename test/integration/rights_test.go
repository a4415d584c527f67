package integration_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// The least rights that do, as an administrator grants them: a role on one pool, on
// the storages and the bridge, and what only shows how the host is.
func (s *story) leastRights(pool string) {
	s.t.Helper()
	s.call(http.MethodPost, "/pools", map[string]string{"poolid": pool})
	s.call(http.MethodPost, "/access/users", map[string]string{"userid": "gitops@pve"})
	var token struct{ Value string }
	require.NoError(s.t, json.Unmarshal(s.call(http.MethodPost, "/access/users/gitops@pve/token/agent", map[string]string{"privsep": "0"}), &token))
	for path, privs := range map[string]string{
		"/pool/" + pool: "VM.Allocate,VM.Audit,VM.Clone,VM.Config.CPU,VM.Config.Memory,VM.Config.Disk,VM.Config.Network,VM.Config.HWType," +
			"VM.Config.Options,VM.Config.Cloudinit,VM.Config.CDROM,VM.PowerMgmt,Pool.Audit",
		"/storage/local-lvm":            "Datastore.AllocateSpace,Datastore.Audit",
		"/storage/local":                "Datastore.AllocateTemplate,Datastore.AllocateSpace,Datastore.Audit",
		"/sdn/zones/localnetwork/vmbr0": "SDN.Use",
		"/nodes/" + s.host.Node():       "Sys.Audit,Sys.AccessNetwork",
	} {
		role := "R" + strconv.Itoa(len(path)) // each path has a length of its own
		s.call(http.MethodPost, "/access/roles", map[string]string{"roleid": role, "privs": privs})
		s.call(http.MethodPut, "/access/acl", map[string]string{"path": path, "roles": role, "users": "gitops@pve"})
	}
	s.edit("secrets.yaml", s.host.Token(), "gitops@pve!agent="+token.Value)
	s.edit("host.hcl", "node        =", "pool        = \""+pool+"\"\n  node        =")
}

// With the documented role on its pool alone the program does all of its work, and
// sees no guest but its own.
func TestTheDocumentedRightsAreEnough(t *testing.T) {
	s := begin(t, pve.Config{})
	s.leastRights("ours")
	s.deploy("web", vm("web", "count = 2", "restart = \"allowed\""))
	require.Empty(t, s.apply().Unmanaged)
	s.inSync()
	for _, g := range s.ours() {
		require.Equal(t, "ours", g.Pool)
	}

	first := s.vmidOf("web-1")
	s.byHand(func(e *pve.Edit) { e.Set(first, "cores", "1") })
	s.deploy("web", vm("web", "count = 2", "restart = \"allowed\"", "memory = 4096", "onboot = true", "disk \"data\" {", "  size = 5", "}"))
	s.apply()
	s.inSync()
	s.destroy("web")
	require.Empty(t, s.names())
}

// A guest of ours was taken out of the pool by hand, so our token does not see it
// any more. No second one is made in its place, wherever a VMID is free.
func TestAGuestThatOurTokenMayNotSee(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		free bool // a VMID below that of the hidden guest is free
	}{{"its VMID is the next", false}, {"another VMID is the next", true}} {
		t.Run(c.name, func(t *testing.T) {
			s := begin(t, pve.Config{})
			s.leastRights("ours")
			s.deploy("early", vm("early"))
			s.deploy("web", vm("web", "count = 3"))
			s.apply()
			if c.free {
				s.remove("manifests/early.hcl")
				s.apply()
			}
			before := s.names()
			hidden := s.guest("web-2")
			s.call(http.MethodPut, "/pools/ours", map[string]string{"vms": strconv.Itoa(hidden.VMID), "delete": "1"})

			r := s.try()
			require.False(t, r.Success, describe(r))
			require.Equal(t, before, s.names())

			s.call(http.MethodPut, "/pools/ours", map[string]string{"vms": strconv.Itoa(hidden.VMID)})
			s.apply()
			require.Equal(t, hidden, s.guest("web-2"))
			s.inSync()
		})
	}
}

// Before a VM with a guest agent is entered by SSH, the agent confirms its host key. Doctor reports the privilege for that, and
// a plan without it says so once, in a sentence that can be acted on.
func TestR1R2ThePrivilegeForHostKeys(t *testing.T) {
	s := beginSimulated(t, "spec \"base\" {\n  access {\n    via = \"ssh\"\n  }\n  config {\n    timezone = \"Europe/Berlin\"\n  }\n}\n", "agent = true")
	s.leastRights("ours")
	require.Contains(t, ill(s.examine()), "fail privileges: VM.GuestAgent.Unrestricted missing on /pool/ours")
	r := s.pass("apply")
	require.NotEqual(t, engine.Done, r.Outcome)
	r = s.pass("plan")
	const why = "observing web-1: its guest agent may not be asked for the host key: POST /nodes/father/qemu/10000/agent/exec: 403 Permission check failed (/vms/10000, VM.GuestAgent.Unrestricted)" +
		" (`homestak-gitops doctor` prints the commands that grant the missing privilege to gitops@pve!agent)"
	require.Len(t, r.Have.Unknown, 1)
	require.Equal(t, why, r.Have.Unknown[0].Why)
	require.True(t, r.Have.Unknown[0].Denied)
	require.False(t, r.Have.Unknown[0].Starting, "no waiting helps")
	var text strings.Builder
	r.Plan.Text(&text, plan.TextOptions{})
	require.Equal(t, 1, strings.Count(text.String(), "agent/exec"), text.String())
	require.Contains(t, text.String(), why+"; holds back guest.web-1")
}
