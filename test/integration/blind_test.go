package integration_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// ST-15: an incomplete view is never evidence of absence. While the host cannot be
// seen, what left the site is not destroyed and what came to it is not created;
// once it can be seen again, both happen.
func TestABlindSpotIsNoAbsence(t *testing.T) {
	t.Parallel()
	onlyOf := func(path, text string) func(string, string) string {
		return func(asked, answer string) string {
			if asked == path {
				return text
			}
			return answer
		}
	}
	const page = "<!DOCTYPE html><html><body>Please log in.</body></html>"
	for _, c := range []struct {
		name    string
		faults  []string
		lie     func(path, answer string) string
		edit    func(*pve.Edit)
		mend    func(*pve.Edit)
		because string
	}{
		{name: "no quorum", edit: func(e *pve.Edit) { e.Quorum(false) }, mend: func(e *pve.Edit) { e.Quorum(true) }, because: "quorum"},
		{name: "403 for the list", faults: []string{"GET /cluster/resources status=403"}, because: "403"},
		{name: "403 for everything", faults: []string{"* /** status=403"}, because: "403"},
		{name: "595 for everything", faults: []string{"* /** status=595"}, because: "595"},
		{name: "595 for the list of the node", faults: []string{"GET /nodes/*/qemu status=595"}, because: "595"},
		{name: "596 for every guest", faults: []string{"GET /nodes/*/qemu/** status=596"}, because: "596"},
		{name: "no answer at all", faults: []string{"* /** status=-1"}, because: "EOF"},
		{name: "list is null", lie: onlyOf("/cluster/resources", `{"data":null}`), because: "no node"},
		{name: "list is empty", lie: onlyOf("/cluster/resources", `{"data":[]}`), because: "no node"},
		{name: "list of another host", lie: func(path, answer string) string {
			if path == "/cluster/resources" {
				return strings.ReplaceAll(answer, "father", "uncle")
			}
			return answer
		}, because: "uncle"},
		{name: "the node's list is null", lie: onlyOf("/nodes/father/qemu", `{"data":null}`), because: "null"},
		{name: "list is HTML", lie: onlyOf("/cluster/resources", page), because: "JSON"},
		{name: "everything is HTML", lie: func(string, string) string { return page }, because: "JSON"},
		{name: "list is cut off", lie: onlyOf("/cluster/resources", `{"data":[{"type":"node","node":"father","sta`), because: "JSON"},
		{name: "status of the cluster is null", lie: onlyOf("/cluster/status", `{"data":null}`), because: "status"},
		{name: "no rights on guests", lie: onlyOf("/access/permissions", `{"data":{"/storage":{"Datastore.Audit":1}}}`), because: "VM.Audit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := begin(t, pve.Config{Nodes: []string{"mother"}})
			between := s.behindAFront()
			s.deploy("web", vm("leaves")+vm("stays"))
			s.apply()
			before := s.ours()
			s.deploy("web", vm("stays")+vm("comes"))

			s.breaks(c.faults...)
			if c.lie != nil {
				between.lies(c.lie)
			}
			if c.edit != nil {
				s.byHand(c.edit)
			}
			s.quietly(func() {
				r := s.try()
				require.NotEqual(t, engine.Done, r.Outcome, describe(r))
				require.NotNil(t, r.Plan)
				require.Empty(t, steps(r.Plan))
				require.NotEmpty(t, r.Plan.Unknown)
				require.Contains(t, describe(r), c.because)
			})
			require.Equal(t, before, s.ours())

			s.heals()
			between.tellsTheTruth()
			if c.mend != nil {
				s.byHand(c.mend)
			}
			s.apply()
			require.Equal(t, []string{"comes", "stays"}, s.names())
			s.inSync()
		})
	}
}

// ST-15: a part of the cluster is down. What lives there is unknown; all else goes on.
func TestANodeThatIsDown(t *testing.T) {
	s := begin(t, pve.Config{Nodes: []string{"mother"}, TaskTime: 20 * time.Millisecond})
	s.edit("host.hcl", "node        =", "nodes       = [\"father\", \"mother\"]\n  node        =")
	s.deploy("web", vm("leaves")+vm("stays")+vm("here"))
	s.apply()
	moved := []pve.Guest{s.guest("leaves"), s.guest("stays")}
	s.byHand(func(e *pve.Edit) {
		for i := range moved {
			e.Delete(moved[i].VMID)
			moved[i].Node, moved[i].Running = "mother", moved[i].Name() == "stays"
			e.Add(moved[i])
		}
		e.Offline("mother", true)
	})
	before := s.host.Snapshot().Guests

	s.deploy("web", vm("stays")+vm("here", "onboot = true")+vm("comes"))
	r := s.try()

	// Whether vm.comes is one of the guests that cannot be seen is not known either.
	require.Equal(t, []string{"update vm.here: onboot"}, steps(r.Plan))
	require.Equal(t, "1", s.guest("here").Config["onboot"])
	require.NotEqual(t, engine.Done, r.Outcome, describe(r))
	require.Contains(t, describe(r), "mother")
	require.Contains(t, describe(r), "offline")
	for _, g := range before {
		if g.Node == "mother" {
			s.unchanged([]pve.Guest{g})
		}
	}

	s.byHand(func(e *pve.Edit) { e.Offline("mother", false) })
	s.apply()
	require.Equal(t, []string{"comes", "here", "stays"}, s.names())
	require.Equal(t, "mother", s.guest("stays").Node)
	s.inSync()
}

// ST-15: the node where new guests are made is down itself, and another one of its
// cluster answers.
func TestNothingIsMadeOnANodeThatIsDown(t *testing.T) {
	s := begin(t, pve.Config{Nodes: []string{"mother"}})
	template := s.template()
	s.edit("host.hcl", `node        = "father"`, `node        = "mother"`)
	s.deploy("web", vm("from-image")+clone("from-template"))
	s.byHand(func(e *pve.Edit) { e.Offline("mother", true) })

	s.quietly(func() {
		r := s.try()
		require.Empty(t, steps(r.Plan))
		require.NotEqual(t, engine.Done, r.Outcome, describe(r))
		require.Contains(t, describe(r), "mother")
	})
	require.Equal(t, []string{template}, s.names())
}

// ST-15: one guest cannot be read. It is not taken for gone, whatever it is.
func TestAGuestThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"403", "500", "595", "596", "-1"} {
		t.Run(status, func(t *testing.T) {
			s := begin(t, pve.Config{})
			s.deploy("web", vm("dark")+vm("bright"))
			s.apply()
			before := s.ours()
			s.breaks("GET /nodes/father/qemu/" + strconv.Itoa(before["dark"].VMID) + "/** status=" + status)

			s.quietly(func() {
				r := s.try()
				require.Empty(t, steps(r.Plan))
				require.NotEqual(t, engine.Done, r.Outcome, describe(r))
			})

			// Neither is it destroyed, nor made again, when it is not wanted any more.
			s.deploy("web", vm("bright", "onboot = true"))
			r := s.try()
			require.Equal(t, []string{"update vm.bright: onboot"}, steps(r.Plan))
			s.heals()
			require.Equal(t, before["dark"], s.guest("dark"))

			s.apply()
			require.Equal(t, []string{"bright"}, s.names())
		})
	}
}

// ST-15: the list of a cluster is short by one guest; its node still shows it.
func TestAShortListHidesNobody(t *testing.T) {
	s := begin(t, pve.Config{})
	between := s.behindAFront()
	s.deploy("web", vm("web", "count = 2"))
	s.apply()
	hidden := `"vmid":` + strconv.Itoa(s.vmidOf("web-2"))
	between.lies(func(path, answer string) string {
		if path != "/cluster/resources" {
			return answer
		}
		return withoutEntry(s.t, answer, hidden)
	})

	s.quietly(func() {
		require.Empty(t, steps(s.try().Plan))
	})
	require.Equal(t, []string{"web-1", "web-2"}, s.names())
}
