package proxmox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestOnlyPublicKeysGoToGuests: what is not a public key is told when the site is read,
// and a private one that stands among the site's keys is given to nobody.
func TestOnlyPublicKeysGoToGuests(t *testing.T) {
	const public = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHN0b3J5c3RvcnlzdG9yeXN0b3J5c3RvcnlzdG9yeXN0 ops@home"
	const private = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----\n"
	for name, c := range map[string]struct {
		keys  map[string]string
		named []string
		says  string
	}{
		"public":                  {keys: map[string]string{"ops": public}},
		"with options":            {keys: map[string]string{"ops": `from="192.0.2.1" ` + public}},
		"private, kept for hosts": {keys: map[string]string{"ops": public, "root@father": private}},
		"private, given to guest": {keys: map[string]string{"ops": public, "root@father": private}, named: []string{"root@father"}, says: `ssh key "root@father" is a private key`},
		"placeholder":             {keys: map[string]string{"ops@laptop": "ssh-ed25519 PUT-THE-PUBLIC-KEY-HERE ops@laptop"}, says: `ssh key "ops@laptop" is not a public key`},
		"cut off":                 {keys: map[string]string{"ops": public[:39]}, says: `ssh key "ops" is not a public key`},
		"written out":             {named: []string{"hunter2"}, says: `ssh key "ssh_keys" is not a public key`},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				w.Site.Secrets = &model.Secrets{Values: map[string]map[string]string{"ssh_keys": c.keys}}
				n := w.Node("web", nil)
				if c.named == nil {
					w.Node("web-2", nil)
				}
				if c.named != nil {
					w.Site.Specs = map[string]*model.Spec{"s": {Name: "s", Access: &model.Access{Users: []model.User{{Name: "homestak", SSHKeys: &c.named}}}}}
					n.Spec = "s"
				}
				_, found := w.Site.Want("father")
				if c.says == "" {
					require.False(t, found.HasErrors(), "%v", found)
					w.Apply()
					require.NotContains(t, w.Guest(10000).Config["sshkeys"], "PRIVATE")
					return
				}
				found = found.Sorted()
				require.Len(t, found, 1, "once for all who would get it")
				require.Equal(t, c.says, found[0].Summary)
				require.NotContains(t, found[0].Detail, "hunter2")
			})
		})
	}
}
