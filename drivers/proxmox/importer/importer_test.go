package importer_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/importer"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// world is a host, and the site that was imported from it.
type world struct {
	t      *testing.T
	host   *pve.Host
	driver *proxmox.Driver
	files  fstest.MapFS
	site   *model.Site
}

func newWorld(t *testing.T, h *pve.Host) *world {
	t.Helper()
	return &world{t: t, host: h, files: fstest.MapFS{}}
}

// load loads the files, which must be valid and in the canonical layout.
func (w *world) load() {
	w.t.Helper()
	for name, f := range w.files {
		out, found := hcl.Format(f.Data, name)
		require.Empty(w.t, found, "%s\n%s", name, f.Data)
		require.Equal(w.t, string(f.Data), string(out), "fmt changes %s", name)
	}
	site, found := hcl.Load(w.files, hcl.Options{Kinds: proxmox.Kinds()})
	require.False(w.t, found.HasErrors(), "%v\n%s", found, w.text())
	w.site = site
	driver, err := proxmox.Open(proxmox.Config{Host: site.Hosts["father"], Site: site.Name, Owner: "father", Token: w.host.Token(), Transport: w.host})
	require.NoError(w.t, err)
	w.driver = driver
}

func (w *world) text() string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(w.files)) {
		fmt.Fprintf(&out, "== %s\n%s\n", name, w.files[name].Data)
	}
	return out.String()
}

// importing imports the host into the site, and returns the new files.
func (w *world) importing(o importer.Options) (map[string][]byte, *importer.Report) {
	w.t.Helper()
	site, fresh := w.site, w.site == nil
	if fresh {
		site = &model.Site{Name: "home", Kinds: proxmox.Kinds(), Hosts: map[string]*model.Host{}}
		site.Hosts["father"] = &model.Host{Name: "father", API: "https://pve.test:8006"}
	}
	h := site.Hosts["father"]
	d, err := proxmox.Open(proxmox.Config{Host: h, Site: "home", Owner: "father", Token: w.host.Token(), Transport: w.host})
	require.NoError(w.t, err)
	if fresh {
		require.NoError(w.t, importer.Discover(w.t.Context(), d.Client(), h))
	}
	seen, err := importer.Read(w.t.Context(), d.Client(), h, o, func(int) {})
	require.NoError(w.t, err)
	o.Program = "homestak-gitops v1"
	files, report := importer.Write(seen, site, h, o, fresh, func(name string) bool { return w.files[name] != nil })
	for name, data := range files {
		w.files[name] = &fstest.MapFile{Data: data}
	}
	return files, report
}

// hostsOf is how many random hosts the round trip is tried with.
func hostsOf(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("HOMESTAK_IMPORT_HOSTS"))
	if err != nil {
		return 30
	}
	return n
}

// What is imported is valid, adopts the guests as they are, and can be given up again. A second import has nothing to add.
func TestRoundTrip(t *testing.T) {
	set := map[string]int{}
	imported, skipped := 0, map[string]int{}
	for seed := range hostsOf(t) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, pve.New(pve.Config{Seed: int64(seed), Password: "secret99", Version: []string{"8.4", "9.2"}[seed%2]}))
			r := &hosts{rand.New(rand.NewPCG(uint64(seed), 1)), t, w.host, nil, set} //nolint:gosec // Drawn again by its seed.
			r.login("secret99")
			r.furnish(12)
			_, report := w.importing(importer.Options{By: importer.Ways()[seed%3]})
			require.NotContains(t, w.text(), "do-not-write-me")
			imported += len(report.Imported)
			for _, s := range report.Skipped {
				skipped[s.Why]++
			}
			if os.Getenv("HOMESTAK_IMPORT_SHOW") != "" {
				report.Text(os.Stdout)
				fmt.Println(w.text())
			}
			w.load()
		})
	}
	t.Logf("%d guests were imported; not imported: %v", imported, skipped)
	t.Logf("keys: %v", set)
}
