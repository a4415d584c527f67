package importer_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/importer"
	"github.com/homestak/homestak-gitops/sim/pve"
)

var (
	configPath = regexp.MustCompile(`^/api2/json/nodes/[^/]+/(qemu|lxc)/\d+/config$`)
	identity   = regexp.MustCompile(`uuid=[^,]+|hwaddr=[^,]+`)
	static     = regexp.MustCompile(`ip6?=[0-9a-f.:]+/`)
)

// recorded are the configurations of guests in the recordings of a real PVE, each once.
func recorded(t *testing.T) []pve.Guest {
	t.Helper()
	folder := os.Getenv("HOMESTAK_RECORDINGS")
	if folder == "" {
		folder = filepath.Join("..", "..", "..", "..", "shared", "pve-recordings")
	}
	var files []string
	for _, pattern := range []string{"*.json", "*/*.json"} {
		found, err := filepath.Glob(filepath.Join(folder, pattern))
		require.NoError(t, err)
		files = append(files, found...)
	}
	if len(files) == 0 {
		t.Skip("needs the recordings of a real PVE: set HOMESTAK_RECORDINGS to their folder")
	}
	var out []pve.Guest
	seen := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var recording struct {
			Exchanges []struct {
				Request  struct{ Method, Path string }
				Response struct {
					Status int
					Body   struct{ Data json.RawMessage }
				}
			}
		}
		require.NoError(t, json.Unmarshal(text, &recording), file)
		for _, e := range recording.Exchanges {
			m := configPath.FindStringSubmatch(e.Request.Path)
			var data map[string]any
			if m == nil || e.Request.Method != http.MethodGet || e.Response.Status != http.StatusOK || json.Unmarshal(e.Response.Body.Data, &data) != nil {
				continue
			}
			config := map[string]string{}
			for key, value := range data {
				switch value := value.(type) {
				case string:
					config[key] = value
				case float64:
					config[key] = strconv.FormatFloat(value, 'f', -1, 64)
				}
			}
			delete(config, "digest")
			key, err := json.Marshal(config)
			require.NoError(t, err)
			if !seen[string(key)] {
				seen[string(key)] = true
				out = append(out, pve.Guest{Node: "father", Kind: m[1], Config: config})
			}
		}
	}
	return out
}

// Every recorded configuration makes the round trip, or the report says why not. Those with one identity are on hosts of
// their own.
func TestRecordedGuestsMakeTheRoundTrip(t *testing.T) {
	all := recorded(t)
	imported, skipped, hosts := 0, map[string]int{}, 0
	for len(all) > 0 {
		hosts++
		used := map[string]bool{}
		var rest, now []pve.Guest
		for _, g := range all {
			// Two guests of a host may have neither.
			id, ip := identity.FindString(g.Config["smbios1"]+","+g.Config["net0"]), static.FindString(g.Config["ipconfig0"]+","+g.Config["net0"])
			if id != "" && used[id] || ip != "" && used[ip] {
				rest = append(rest, g)
				continue
			}
			used[id], used[ip] = true, true
			now = append(now, g)
		}
		all = rest
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, pve.New(pve.Config{Seed: 1, Bridges: []string{"vmbr0", "vmbr1"}}))
			w.host.Edit(func(e *pve.Edit) {
				for i, g := range now {
					g.VMID = 100 + i
					e.Add(g)
				}
			})
			_, report := w.importing(importer.Options{By: "node"})
			imported += len(report.Imported)
			for _, s := range report.Skipped {
				skipped[s.Why]++
			}
			w.load()
			w.roundTrip(report)
		})
	}
	t.Logf("%d configurations were imported, on %d hosts; not imported: %v", imported, hosts, skipped)
	require.Greater(t, imported, 20, "are the recordings complete?")
}
