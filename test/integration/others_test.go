package integration_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// While a colleague's clone works for an hour, a pass does all of its own work and ends as done, and the next plan is in
// sync. A create in our range holds back what it may become, and the pass says so.
func TestAColleaguesHourLongTask(t *testing.T) {
	s := begin(t, pve.Config{TaskTimes: map[string]time.Duration{"qmclone": time.Hour, "qmrestore": time.Hour}})
	var token struct{ Value string }
	require.NoError(t, json.Unmarshal(s.call(http.MethodPost, "/access/users/root@pam/token/agent", map[string]string{"privsep": "0"}), &token))
	s.edit("secrets.yaml", s.host.Token(), "root@pam!agent="+token.Value)
	s.deploy("web", vm("leaves")+vm("stays"))
	s.apply()
	node := "/nodes/" + s.host.Node()
	s.call(http.MethodPost, node+"/qemu", map[string]string{"vmid": "60000", "name": "hers", "scsi0": "local-lvm:1"})
	s.call(http.MethodPost, node+"/vzdump", map[string]string{"vmid": "60000", "storage": "local"})
	require.Eventually(t, func() bool { return guestIn(s.host.Snapshot(), 60000).Lock == "" && backupOf(s) != "" }, 5*time.Minute, 5*time.Millisecond)
	s.call(http.MethodPost, node+"/qemu/60000/clone", map[string]string{"newid": "69997", "full": "1"})
	require.Eventually(t, func() bool { return guestIn(s.host.Snapshot(), 69997) != nil }, 5*time.Minute, 5*time.Millisecond, "its worker has begun")
	s.strangers = nil // one of them is under way

	s.deploy("web", vm("stays", "onboot = true")+vm("comes"))
	p := s.apply()
	require.ElementsMatch(t, []string{"delete vm.leaves", "update vm.stays: onboot", "create vm.comes"}, steps(p))
	require.Contains(t, why(p, 69997), "is being created by task qmclone of root@pam!sim")
	p = s.plan()
	require.True(t, p.InSync())
	require.Empty(t, p.Unknown)

	s.call(http.MethodPost, node+"/qemu", map[string]string{"vmid": "10050", "archive": backupOf(s), "storage": "local-lvm"})
	require.Eventually(t, func() bool { g := guestIn(s.host.Snapshot(), 10050); return g != nil && g.Lock == "create" }, 5*time.Minute, 5*time.Millisecond)
	require.Equal(t, engine.Done, s.try().Outcome, "nothing of ours is still to be created")
	s.deploy("web", vm("stays", "onboot = true", "memory = 4096")+vm("comes")+vm("more"))
	r := s.try()
	require.Equal(t, engine.Partly, r.Outcome, describe(r))
	require.ErrorContains(t, r.Err, "vm 10050: is being created by task qmrestore of root@pam!sim (holds back vm.more)")
	require.Equal(t, []string{"update vm.stays: memory"}, steps(r.Plan))
}

func backupOf(s *story) string {
	for _, v := range s.host.Snapshot().Volumes["local"] {
		if v.Content == "backup" {
			return v.ID
		}
	}
	return ""
}
