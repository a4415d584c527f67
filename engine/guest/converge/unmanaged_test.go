package converge_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
)

// What the site itself put into a machine is not reported as unmanaged, and what is reported names the machine.
func TestN13R5R11UnmanagedThings(t *testing.T) {
	m := machine(t)
	m.rows["users"] = []string{"passwd|=root:0:0:/root:/bin/bash\nops:1000:1000:/home/ops:/bin/bash\nbob:1001:1001:/home/bob:/bin/sh\n", "group|=root:0:\n", "shadow|=ops:0:\nbob:0:\n"}
	m.rows["sudo"] = []string{"sudo", "other|=/etc/sudoers.d/90-cloud-init-users", "other|=/etc/sudoers.d/README", "other|=/etc/sudoers.d/bob"}
	site := &model.Site{VMUser: "ops", Specs: map[string]*model.Spec{"base": {Name: "base"}}}
	for nodeType, says := range map[string][]string{
		"vm": {"user bob on web-1 is unmanaged", "sudoers file /etc/sudoers.d/bob on web-1 is unmanaged"},
		"ct": { // nobody but root is created in a container
			"user bob on web-1 is unmanaged", "user ops on web-1 is unmanaged",
			"sudoers file /etc/sudoers.d/90-cloud-init-users on web-1 is unmanaged", "sudoers file /etc/sudoers.d/bob on web-1 is unmanaged",
		},
	} {
		s, found := spec.Resolve(site, &model.Node{Name: "web-1", Spec: "base", Type: nodeType})
		require.Empty(t, found)
		require.Equal(t, says, unmanaged(t, m, s), nodeType)
	}
	s, _ := spec.Resolve(site, &model.Node{Name: "web-1", Spec: "base", Type: "vm"})
	s.Access.FirstUser = "admin" // vm_user was changed later: who entered as ops still does
	m.login = "ops"
	require.NotContains(t, unmanaged(t, m, s), "user ops on web-1 is unmanaged")
}

func unmanaged(t *testing.T, m converge.Machine, s *spec.Spec) []string {
	t.Helper()
	state, err := converge.Observe(t.Context(), m, s)
	require.NoError(t, err)
	var out []string
	for _, f := range state.Observed().Findings {
		require.Equal(t, diag.Warning, f.Severity)
		require.Equal(t, "guest.web-1", f.Address)
		out = append(out, f.Summary)
	}
	return out
}
