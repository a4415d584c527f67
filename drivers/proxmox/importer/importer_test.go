package importer_test

import (
	"encoding/json"
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
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/importer"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
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

	secrets *model.Secrets
}

// keys are those of ownership tags; see proxmox.Config.
func keys(string) [][]byte { return [][]byte{[]byte(strings.Repeat("k", 32))} }

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
	site, found := hcl.Load(w.files, hcl.Options{Kinds: proxmox.Kinds(), Secrets: w.secrets})
	require.False(w.t, found.HasErrors(), "%v\n%s", found, w.text())
	w.site = site
	driver, err := proxmox.Open(proxmox.Config{Host: site.Hosts["father"], Site: site.Name, Owner: "father", Token: w.host.Token(), Transport: w.host, Keys: keys})
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
	cfg := api.Config{Host: h, Token: w.host.Token(), Transport: w.host}
	if fresh {
		require.NoError(w.t, importer.Discover(w.t.Context(), cfg))
	}
	c, err := api.Open(cfg)
	require.NoError(w.t, err)
	seen, err := importer.Read(w.t.Context(), c, h, o, func(int) {})
	require.NoError(w.t, err)
	o.Program = "homestak-gitops v1"
	files, report := seen.Write(site, h, o, fresh, func(name string) bool { return w.files[name] != nil })
	if fresh {
		w.secrets = &model.Secrets{Values: map[string]map[string]string{"passwords": {}}}
		for _, name := range report.Secrets() {
			w.secrets.Values["passwords"][name] = ""
		}
	}
	for name, data := range files {
		w.files[name] = &fstest.MapFile{Data: data}
	}
	return files, report
}

// plan observes and plans.
func (w *world) plan() *plan.Plan {
	w.t.Helper()
	want, found := w.site.Want("father")
	require.False(w.t, found.HasErrors(), "%v", found)
	have, err := w.driver.Observe(w.t.Context(), want)
	require.NoError(w.t, err)
	return plan.Make(plan.Input{Site: w.site.Name, Host: "father", Kinds: w.site.Kinds, Want: want, Have: have})
}

// apply carries out the steps of a plan.
func (w *world) apply(p *plan.Plan) {
	w.t.Helper()
	for _, s := range p.Steps {
		require.NoError(w.t, w.driver.Apply(w.t.Context(), s), s.Address)
	}
}

// configs are the configurations of all guests, without the keys that are named. PVE sorts the tags of a guest, and may
// lower-case them, whenever it writes them, so their order and case do not count.
func (w *world) configs(without ...string) map[int]map[string]string {
	out := map[int]map[string]string{}
	for _, g := range w.host.Snapshot().Guests {
		c := maps.Clone(g.Config)
		if c["tags"] = strings.Join(api.NormalTags(c["tags"]), ";"); c["tags"] == "" {
			delete(c, "tags")
		}
		for _, key := range without {
			delete(c, key)
		}
		out[g.VMID] = c
	}
	return out
}

// others are the pools and IP sets, as the host shows them.
func (w *world) others() map[string]string {
	w.t.Helper()
	out := map[string]string{}
	read := func(path string) []map[string]any {
		var list []map[string]any
		require.NoError(w.t, w.driver.Client().Get(w.t.Context(), path, &list))
		text, err := json.Marshal(list)
		require.NoError(w.t, err)
		out[path] = string(text)
		return list
	}
	read("/pools")
	for _, set := range read("/cluster/firewall/ipset") {
		read("/cluster/firewall/ipset/" + fmt.Sprint(set["name"]))
	}
	return out
}

// roundTrip adopts the guests of an import, imports again, and gives all of them up.
func (w *world) roundTrip(report *importer.Report) {
	w.t.Helper()
	first, others := w.configs(), w.others()
	p := w.plan()
	require.False(w.t, p.Findings.HasErrors(), "%v\n%s", p.Findings, w.text())
	require.Len(w.t, p.Steps, len(report.Imported))
	for _, s := range p.Steps {
		require.Equal(w.t, plan.Adopt, s.Action, "%s: %v", s.Address, s.Changes)
		require.Equal(w.t, model.ClassNone, s.Class)
	}
	untouched := w.configs("description", "tags")
	w.apply(p)
	require.Equal(w.t, untouched, w.configs("description", "tags"))
	p = w.plan()
	require.Empty(w.t, p.Steps)
	require.False(w.t, p.Findings.HasErrors(), "%v", p.Findings)

	files, again := w.importing(importer.Options{By: "pool"})
	require.Empty(w.t, files)
	require.Empty(w.t, again.Imported)
	require.Equal(w.t, len(report.Imported), again.Managed)

	var removed strings.Builder
	for _, i := range report.Imported {
		fmt.Fprintf(&removed, "removed \"%s.%s\" {\n  destroy = false\n}\n", i.Type, i.Node)
	}
	maps.DeleteFunc(w.files, func(name string, _ *fstest.MapFile) bool {
		return strings.HasPrefix(name, "manifests/") || name == "pools.hcl" || name == "ipsets.hcl"
	})
	w.files["removed.hcl"] = &fstest.MapFile{Data: []byte(removed.String())}
	w.load()
	p = w.plan()
	require.Len(w.t, p.Steps, len(report.Imported), "%v", p)
	w.apply(p)
	require.Equal(w.t, first, w.configs())
	require.Equal(w.t, others, w.others())
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

// An imported site is valid, adopts the guests as they are, and can give them up again. A second import adds nothing.
func TestRoundTrip(t *testing.T) {
	set := map[string]int{}
	imported, objects, skipped := 0, 0, map[string]int{}
	for seed := range hostsOf(t) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, pve.New(pve.Config{Seed: int64(seed), Password: "secret99", Version: []string{"8.4", "9.2"}[seed%2]}))
			r := &hosts{rand.New(rand.NewPCG(uint64(seed), 1)), t, w.host, nil, set} //nolint:gosec // Drawn again by its seed.
			r.login("secret99")
			r.furnish(12)
			_, report := w.importing(importer.Options{By: importer.Ways()[seed%3]})
			require.NotContains(t, w.text(), "do-not-write-me")
			imported, objects = imported+len(report.Imported), objects+report.Objects
			for _, s := range report.Skipped {
				skipped[s.Why]++
			}
			if os.Getenv("HOMESTAK_IMPORT_SHOW") != "" {
				report.Text(os.Stdout)
				fmt.Println(w.text())
			}
			w.load()
			w.roundTrip(report)
		})
	}
	t.Logf("%d guests, and %d pools and IP sets were imported; not imported: %v", imported, objects, skipped)
	require.Positive(t, objects)
	t.Logf("keys: %v", set)
}
