package bench_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source"
	sitehcl "github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

// validate is P13: a site of 1,000 nodes is read and held against its policies, by
// the program and, for the second time, by its parts in this process. The floor is a
// program that parses the files and makes nothing of them.
func (m *meter) validate() {
	for _, files := range []int{1, 1000} {
		f := fleet.Fleet{Guests: 1000, Nodes: names(4), Files: files}
		text := f.Site(access{API: "https://pve.example:8006", Token: "root@pam!t=s", Fingerprint: "sha256:" + strings.Repeat("0", 64)})
		dir := m.site(text)
		var ours, bare []run
		for range 5 {
			ours = append(ours, m.ours(true, "validate", "--site", dir))
			bare = append(bare, m.role("parse", dir, true))
		}
		what, peer := "validate 1,000 nodes in 1 file", "5.2 s"
		if files > 1 {
			what, peer = "the same in 1,000 files", "–"
		}
		m.add(row{"P13", what, "0.35 s", sec(wall(ours)), sec(wall(bare)), seconds, met(wall(ours) <= 350*time.Millisecond), peer})
		m.notef("P13, %d file(s): CPU %s, peak memory %s; the floor, which only parses: CPU %s, %s.", files,
			seconds(sec(cpu(ours))), mebibytes(float64(rss(ours))), seconds(sec(cpu(bare))), mebibytes(float64(rss(bare))))
		m.again(f, files)
	}
}

// again is the second half of P13: what an agent does with a commit that it has read
// before, by the same parts in the same order. These are the local copy of the
// repository, the loader, and the policies.
func (m *meter) again(f fleet.Fleet, files int) {
	const repeat = 21
	if !m.hasGit("P13, second cycle") {
		return
	}
	p := m.publish(f, access{API: "https://pve.example:8006", Token: "root@pam!t=s", Fingerprint: "sha256:" + strings.Repeat("0", 64)})
	local, err := source.OpenRepository(source.Options{Dir: filepath.Join(m.b.TempDir(), "clone"), URL: p.repo.URL()})
	require.NoError(m.b, err)
	r := &rereader{m: m, local: local, kinds: proxmox.Kinds()}
	commit := func() model.Commit {
		c, err := local.Head(m.ctx)
		require.NoError(m.b, err)
		return c
	}
	c := commit()
	first := took(func() { r.read(c) })
	var same, changed []time.Duration
	for range repeat {
		same = append(same, took(func() { r.read(c) }))
	}
	for i := range 5 {
		p.retag(f.Name(1+i*37), fmt.Sprint("again", i))
		p.push("Another tag")
		c := commit()
		changed = append(changed, took(func() { r.read(c) }))
	}
	m.add(row{"", fmt.Sprintf("second cycle, nothing changed, %d file(s)", files), "5 ms", sec(median(same)), 0, seconds, met(median(same) <= 5*time.Millisecond), "–"})
	m.notef("P13, %d file(s): in one process the first read of the commit takes %s, the second %s, and %s after a commit that changes one node.",
		files, seconds(sec(first)), seconds(sec(median(same))), seconds(sec(median(changed))))
}

// rereader reads commits as an agent does, and keeps what it keeps.
type rereader struct {
	m     *meter
	local *source.Repository
	kinds model.Kinds

	done  string // the commit that was read last: a tree is known by its name
	files sitehcl.Loader
	set   *policy.Set
	asked *model.Site // that the policies were asked about last
}

func (r *rereader) read(c model.Commit) {
	require := require.New(r.m.b)
	tree, err := r.local.Files(c.ID)
	require.NoError(err)
	if c.ID == r.done {
		return
	}
	r.done = c.ID
	require.Empty(r.local.Notes(c.ID))
	before := r.set
	compiled := make(chan diag.List, 1)
	go func() {
		var found diag.List
		r.set, found = policy.Compile(r.m.ctx, policy.Options{Site: tree, Kinds: r.kinds, Last: before})
		compiled <- found
	}()
	site, found := r.files.Load(tree, sitehcl.Options{Kinds: r.kinds})
	require.Empty(<-compiled)
	require.Empty(found)
	if site != r.asked || r.set != before || !r.set.Constant() {
		verdict, _ := r.set.Site(r.m.ctx, site, policy.Request{Now: time.Now(), Unattended: true})
		require.Empty(verdict)
	}
	r.asked = site
}

// parse is the floor of reading a site.
func parse(dir string) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(name) != ".hcl" {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if _, problems := hclsyntax.ParseConfig(text, name, hcl.InitialPos); problems.HasErrors() {
			return errors.New(problems.Error())
		}
		return nil
	})
}

// judge is P14. The benchmark of package policy measures it, beside a prepared query
// that OPA alone answers: the rules are asked about the same 1,000 nodes and a plan.
func (m *meter) judge() {
	r, err := measure(m.ctx, command{name: "go", args: []string{
		"test", "github.com/homestak/homestak-gitops/policy", "-run", "^$", "-bench", "^BenchmarkJudge$/^(site|plan)$/^1000$", "-benchtime", "20x", "-count", "5",
	}})
	require.NoError(m.b, err)
	require.Zero(m.b, r.code, "%s\n%s", r.stdout, r.stderr)
	m.notef("P14: both begin with the site and the plan as values; the bare query is given all of them as a document, ours no more than rules may ask for.")
	figures := map[string][]float64{}
	for _, hit := range regexp.MustCompile(`BenchmarkJudge/(\w+/1000/\w+)\S*\s+\d+\s+([\d.]+) ns/op`).FindAllStringSubmatch(r.stdout, -1) {
		ns, err := strconv.ParseFloat(hit[2], 64)
		require.NoError(m.b, err)
		figures[hit[1]] = append(figures[hit[1]], ns/1e9)
	}
	for _, about := range []string{"site", "plan"} {
		ours, bare := figures[about+"/1000/ours"], figures[about+"/1000/bare"]
		require.Len(m.b, ours, 5, r.stdout)
		require.Len(m.b, bare, 5, r.stdout)
		m.add(row{"P14", fmt.Sprintf("policies over the %s, 1,000 nodes", about), "1.5 × bare query", median(ours), median(bare), seconds, met(median(ours) <= 1.5*median(bare)), "–"})
	}
}
