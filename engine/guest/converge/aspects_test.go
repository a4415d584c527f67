package converge

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Every attribute of a spec belongs to one aspect, and every path of an aspect is one.
func TestEveryAttributeHasAnAspect(t *testing.T) {
	full := spec.Empty("edge")
	full.Access.Users = []spec.User{{Name: "ann"}}
	full.Network = &spec.Network{}
	full.Posture.SSH, full.Posture.Fail2ban = &spec.SSH{}, &spec.Fail2ban{}
	full.Platform.Services = map[string]string{"nginx": spec.Enabled}
	full.Config.Sysctl = map[string]string{"vm.swappiness": "1"}
	full.Config.Files = []spec.File{{Path: "/etc/motd"}}
	full.Run = &spec.Run{Trigger: "manual"}
	full.Config.Repositories, full.Config.Commands = []spec.Repository{{Name: "r"}}, []spec.Command{{Name: "c"}}
	full.Config.Mounts, full.Config.SwapFile = []spec.Mount{{Path: "/srv"}}, "64"
	full.Config.PVE = &spec.PVE{NoSubscription: true}
	used := map[string]bool{}
	for _, attr := range model.Attrs(full) {
		var owners []string
		for _, a := range aspects() {
			if a.Owns(attr.Path) {
				owners = append(owners, a.Name)
				used[a.Name] = true
			}
		}
		require.Len(t, owners, 1, attr.Path)
	}
	for _, a := range aspects() {
		require.True(t, used[a.Name], "aspect %s owns no attribute", a.Name)
		require.NotEmpty(t, a.Doc)
	}
}
