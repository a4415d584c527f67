package forest_test

import (
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// Each child signs with the key that is derived for it, which its parent gives it again after it lost its data. The key of the
// site is nowhere but in the secrets of the host, and the keys of a machine are neither on those below nor in a log or report.
func TestS1KeysInATree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		site, found := hcl.ParseSecrets("secrets.yaml", []byte(secrets), nil)
		require.Empty(t, found)
		w, _ := grown(t, nil)
		defer w.end()
		trust := func(machine, as string) (all []owner.Trust) {
			id := owner.Identity{Site: "home", Owner: machine, Host: machine, Keys: func(string) [][]byte { return site.OwnershipKeys("home", as) }}
			for _, g := range w.Machine(machine).Guests() {
				v := id.Check(api.GuestConfig{Now: g.Config}, api.GuestRef{Node: g.Node, VMID: g.VMID})
				require.True(t, v.Found)
				all = append(all, v.Tag.Trust)
			}
			require.NotEmpty(t, all)
			return all
		}
		proven := func() {
			for _, machine := range []string{"father", "inner", "leaf"} {
				for _, as := range []string{"father", "inner", "leaf"} {
					for _, is := range trust(machine, as) {
						require.Equal(t, machine == as, is == owner.Proven, "guests of %s by the key of %s", machine, as)
					}
				}
			}
		}
		proven()
		ofAll := func() []int { return []int{w.vmid("inner", "vm-2"), w.vmid("inner", "leaf"), w.vmid("leaf", "vm-3")} }
		ids := ofAll()
		w.loseData(w.Machine("inner"))
		w.until(20*time.Minute, "the tree is as before", w.converged)
		require.Equal(t, ids, ofAll())
		proven()

		key := func(owner string) string { return hex.EncodeToString(site.OwnershipKeys("home", owner)[0]) }
		canaries := map[string][]string{
			"father": {}, // it has the key of the site
			"inner":  {site.Values["auth"][model.OwnershipKey], key("father")},
			"leaf":   {site.Values["auth"][model.OwnershipKey], key("father"), key("inner")},
		}
		for machine, keys := range canaries {
			held := 0
			require.NoError(t, filepath.WalkDir(w.Machine(machine).Data, func(name string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() {
					return err
				}
				data, err := os.ReadFile(name)
				held++
				for _, canary := range keys {
					require.NotContains(t, string(data), canary, name)
				}
				return err
			}))
			require.NotZero(t, held)
			for _, canary := range append(keys, site.Values["auth"][model.OwnershipKey], key("father"), key("inner"), key("leaf")) {
				require.NotContains(t, w.says(machine), canary)
				require.NotContains(t, w.log.text(), canary)
			}
		}
		require.Empty(t, w.broken)
	})
}
