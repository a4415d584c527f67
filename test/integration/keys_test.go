package integration_test

import (
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

const (
	annasOldKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE9sZG9sZG9sZG9sZG9sZG9sZG9sZG9sZG9sZG9sZG9s anna@laptop"
	annasNewKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE5ld25ld25ld25ld25ld25ld25ld25ld25ld25ld25l anna@laptop"
)

// ST-11 with ssh keys: one that changed takes the place of the old one, one that left
// the files leaves the machine, and nothing else of it is touched. Into a container
// PVE lets no key after its birth: that is said, of those it concerns.
func TestAnSSHKeyThatChangedTakesTheOldOnesPlace(t *testing.T) {
	s := containers(t, pve.Config{TaskTime: 10 * time.Millisecond})
	know := func(keys string) {
		s.write("secrets.yaml", secretsWith(fmt.Sprintf("api_tokens:\n  father: %q\nssh_keys:\n%s", s.host.Token(), keys)))
	}
	keysOf := func(name string) string {
		text, err := url.PathUnescape(s.guest(name).Config["sshkeys"])
		require.NoError(t, err)
		return text
	}
	know("  ops: \"" + opsKey + "\"\n  anna: \"" + annasOldKey + "\"\n")
	s.deploy("web", vm("web", `restart = "allowed"`)+vm("db")+ct("cache"))
	s.apply()
	require.Contains(t, keysOf("web"), annasOldKey)
	require.Empty(t, s.plan().Findings)
	before := s.ours()

	for _, change := range []struct {
		keys   string
		should []string
	}{
		{"  ops: \"" + opsKey + "\"\n  anna: \"" + annasNewKey + "\"\n", []string{annasNewKey, opsKey}},
		{"  ops: \"" + opsKey + "\"\n", []string{opsKey}},
	} {
		know(change.keys)
		p := s.plan()
		require.ElementsMatch(t, []string{"update vm.web: ssh_keys", "update vm.db: ssh_keys"}, steps(p))
		for _, step := range p.Steps {
			require.Contains(t, step.Reason, "cloud-init runs again at the next boot, as on a new machine")
		}
		requireFinding(t, p.Findings, "ct.cache", "the ssh keys for ct.cache changed since it was made", "takes none out", "/root/.ssh/authorized_keys")
		s.apply()
		for _, name := range []string{"web", "db"} {
			for _, key := range []string{opsKey, annasOldKey, annasNewKey} {
				if slices.Contains(change.should, key) {
					require.Contains(t, keysOf(name), key)
				} else {
					require.NotContains(t, keysOf(name), key, "%s keeps a key that left", name)
				}
			}
			was, is := before[name].Config, s.guest(name).Config
			for key := range was {
				if key != "sshkeys" && key != "description" { // the mark says when cloud-init was told
					require.Equal(t, was[key], is[key], "%s of %s", key, name)
				}
			}
			require.Len(t, is, len(was))
		}
		require.Equal(t, before["cache"], s.guest("cache"))
	}
	know("  ops: \"" + opsKey + "\"\n  anna: \"" + annasOldKey + "\"\n")
	s.apply()
	require.Empty(t, s.plan().Findings, "it is as when the container was made")
	require.Contains(t, keysOf("web"), annasOldKey)
}
