package integration_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// The roles of the agent of a child are those of the page about permissions, and Proxmox VE of both versions takes them.
func TestTheRolesOfAChild(t *testing.T) {
	for _, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			s := begin(t, pve.Config{Version: version})
			page := map[string][]string{}
			for _, c := range commandsOf(t, permissionsPage, version) {
				if privs, at := privsOf(c); at > 0 {
					page[c[3]] = append(page[c[3]], privs...)
				}
			}
			s.pveum([]string{"pveum", "user", "add", "homestak@pve"})
			for _, r := range kind.ChildRoles() {
				all := slices.Clone(r.Privs)
				if len(r.Or) > 0 {
					all = append(all, r.Or[map[string]int{"9.2": 0, "8.4": 1}[version]]...)
				}
				for _, p := range page[r.Name] {
					if p != "VM.GuestAgent.Audit" { // the other one includes it
						require.Contains(t, all, p, r.Name)
					}
				}
				for _, p := range all {
					require.True(t, slices.Contains(page[r.Name], p) || p == "VM.Clone", "%s of %s is not on the page", p, r.Name)
				}
				s.pveum([]string{"pveum", "role", "add", r.Name, "--privs", strings.Join(all, ",")})
				s.pveum([]string{"pveum", "acl", "modify", r.Path, "--users", "homestak@pve", "--roles", r.Name})
			}
			require.Contains(t, s.pveum([]string{"pveum", "user", "token", "add", "homestak@pve", "agent", "--privsep", "0"}), "homestak@pve!agent=")
		})
	}
}
