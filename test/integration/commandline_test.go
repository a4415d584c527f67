package integration_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// The documents of the command line. A field that is missing here would be missing
// for every script that reads them.
type (
	planDoc struct {
		FormatVersion *string            `json:"format_version"`
		Site          *string            `json:"site"`
		Commit        *string            `json:"commit"`
		Host          *string            `json:"host"`
		ObservedAt    *time.Time         `json:"observed_at"`
		ID            *string            `json:"id"`
		Steps         *[]stepDoc         `json:"steps"`
		Foreign       *[]foreignDoc      `json:"unmanaged"`
		Pending       *[]json.RawMessage `json:"pending"`
		Unknown       *[]json.RawMessage `json:"unknown"`
		Findings      *[]findingDoc      `json:"findings"`
		Summary       *summaryDoc        `json:"summary"`
	}
	stepDoc struct {
		Address  *string      `json:"address"`
		Node     *string      `json:"node"`
		Manifest *string      `json:"manifest"`
		VMID     any          `json:"vmid"`
		Action   *string      `json:"action"`
		Class    *string      `json:"class"`
		Reason   *string      `json:"reason"`
		Changes  *[]changeDoc `json:"changes"`
		After    *[]string    `json:"after"`
		At       *atDoc       `json:"at"`
	}
	changeDoc struct {
		Path      *string `json:"path"`
		Before    any     `json:"before"`
		After     any     `json:"after"`
		Sensitive *bool   `json:"sensitive"`
		Class     *string `json:"class"`
	}
	foreignDoc struct {
		VMID *int    `json:"vmid"`
		Name *string `json:"name"`
		Kind *string `json:"kind"`
		Why  *string `json:"why"`
	}
	atDoc struct {
		File   string `json:"file"`
		Line   int    `json:"line"`
		Column int    `json:"column"`
	}
	findingDoc struct {
		Severity *string `json:"severity"`
		Summary  *string `json:"summary"`
		Detail   *string `json:"detail"`
		Source   *string `json:"source"`
		At       *atDoc  `json:"at"`
	}
	summaryDoc struct {
		Create    *int `json:"create"`
		Update    *int `json:"update"`
		Replace   *int `json:"replace"`
		Delete    *int `json:"delete"`
		Unchanged *int `json:"unchanged"`
		Foreign   *int `json:"unmanaged"`
	}
	reportDoc struct {
		Verb     *string       `json:"verb"`
		Success  *bool         `json:"success"`
		Commit   *string       `json:"commit"`
		Duration *float64      `json:"duration_seconds"`
		Nodes    *[]nodeDoc    `json:"nodes"`
		Findings *[]findingDoc `json:"findings"`
	}
	nodeDoc struct {
		Name     *string  `json:"name"`
		Status   *string  `json:"status"`
		VMID     any      `json:"vmid"`
		IP       *string  `json:"ip"`
		Duration *float64 `json:"duration_seconds"`
	}
	verdictDoc struct {
		Valid    *bool         `json:"valid"`
		Findings *[]findingDoc `json:"findings"`
	}
)

// A site outside of the repository, whose host is a simulator in a process of its
// own, with nothing but the binary between them.
func TestFromTheCommandLine(t *testing.T) {
	t.Parallel()
	sim := simulate(t, "--node", "father", "--guests", "3", "--task-time", "20ms")
	dir := filepath.Join(t.TempDir(), "site")
	write := func(name, text string) {
		name = filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	write("site.hcl", frame)
	write("host.hcl", fmt.Sprintf("host \"father\" {\n  api = %q\n  fingerprint = %q\n}\n", sim.API, sim.Fingerprint))
	write("secrets.yaml", secretsWith(fmt.Sprintf("api_tokens:\n  father: %q\nssh_keys:\n  ops: %q\n", sim.Token, opsKey)))
	write(".gitignore", "secrets.yaml\n")
	web := func(lines ...string) {
		write("manifests/web.hcl", "manifest \"web\" {\n  pattern = \"flat\"\n  host = host.father\n"+vm("web", append([]string{"count = 2"}, lines...)...)+"}\n")
	}
	web()
	commit := commitOf(t, dir)
	theirs := sim.guests(t)
	require.Len(t, theirs, 3)
	expect := func(code int, args ...string) ran {
		t.Helper()
		r := run(t, dir, args...)
		require.Equal(t, code, r.code, "homestak-gitops %v\n%s\n%s", args, r.out, r.err)
		require.NotContains(t, r.out+r.err, sim.Token, "a secret was printed")
		return r
	}

	// validate
	v := document[verdictDoc](t, expect(0, "validate", "--json"))
	require.True(t, *v.Valid)
	require.Empty(t, *v.Findings)

	// plan
	first := document[planDoc](t, expect(0, "plan", "--json"))
	checkPlan(t, first)
	require.Equal(t, "home", *first.Site)
	require.Equal(t, "father", *first.Host)
	require.Equal(t, commit, *first.Commit)
	require.Equal(t, []string{"create image.debian-12", "create vm.web-1", "create vm.web-2"}, stepsOf(first))
	require.Equal(t, 3, *first.Summary.Create)
	require.Equal(t, 3, *first.Summary.Foreign)
	step := (*first.Steps)[1]
	require.Equal(t, atDoc{"manifests/web.hcl", 4, 3}, *step.At)
	require.Equal(t, []string{"image.debian-12"}, *step.After)
	require.InDelta(t, 10000, step.VMID, 0)
	require.Nil(t, (*first.Steps)[0].VMID)
	expect(2, "plan", "--detailed-exitcode")
	require.Equal(t, theirs, sim.guests(t), "a plan changed the host")

	// apply
	r := document[reportDoc](t, expect(0, "apply", "--yes", "--json"))
	checkReport(t, r)
	require.Equal(t, "apply", *r.Verb)
	require.True(t, *r.Success)
	require.Equal(t, commit, *r.Commit)
	require.Equal(t, map[string]string{"web-1": "completed", "web-2": "completed"}, statuses(r))
	require.Equal(t, map[string]string{"web-1": "running", "web-2": "running"}, minus(sim.guests(t), theirs))

	// nothing is left to do
	none := document[planDoc](t, expect(0, "plan", "--json", "--detailed-exitcode"))
	checkPlan(t, none)
	require.Empty(t, *none.Steps)
	again := document[reportDoc](t, expect(0, "apply", "--yes", "--json"))
	require.Equal(t, map[string]string{"web-1": "completed", "web-2": "completed"}, statuses(again))

	// an edit: exactly the edited keys
	web("memory = 4096", "tags = [\"prod\"]")
	edited := document[planDoc](t, expect(2, "plan", "--json", "--detailed-exitcode"))
	checkPlan(t, edited)
	require.Equal(t, commit+"-dirty", *edited.Commit)
	require.Equal(t, []string{"update vm.web-1", "update vm.web-2"}, stepsOf(edited))
	for _, step := range *edited.Steps {
		require.Len(t, *step.Changes, 2)
		memory, tags := (*step.Changes)[0], (*step.Changes)[1]
		require.Equal(t, "memory", *memory.Path)
		require.InDelta(t, 2048, memory.Before, 0)
		require.InDelta(t, 4096, memory.After, 0)
		require.Equal(t, "pending", *memory.Class, "restart = never")
		require.Equal(t, "tags", *tags.Path)
		require.Equal(t, "none", *tags.Class)
	}
	expect(0, "apply", "--yes", "--json")
	expect(0, "plan", "--detailed-exitcode")

	// destroy, twice
	gone := document[reportDoc](t, expect(0, "destroy", "-M", "web", "--yes", "--json"))
	checkReport(t, gone)
	require.Equal(t, "destroy", *gone.Verb)
	require.True(t, *gone.Success)
	require.Equal(t, map[string]string{"web-1": "destroyed", "web-2": "destroyed"}, statuses(gone))
	require.Equal(t, theirs, sim.guests(t))
	twice := document[reportDoc](t, expect(0, "destroy", "-M", "web", "--yes", "--json"))
	checkReport(t, twice)
	require.True(t, *twice.Success)
	require.Equal(t, theirs, sim.guests(t))
}

// A plan that was kept is applied as it was shown, or not at all.
func TestAKeptPlan(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("web", vm("web-1")+vm("web-2"))
	s.says(0, "plan", "--out", "plan.json")
	s.says(0, "apply", "plan.json", "--yes")
	require.Equal(t, []string{"web-1", "web-2"}, s.names())

	s.edit("manifests/web.hcl", "image  = image.debian-12", "image  = image.debian-12\n    onboot = true")
	s.says(0, "plan", "--out", "plan.json")
	s.edit("manifests/web.hcl", "onboot = true", "onboot = true\n    cores = 4")
	s.quietly(func() {
		r := s.says(4, "apply", "plan.json", "--yes")
		require.Contains(t, r.err, "plan")
	})

	// The site is as it was, the host is not.
	s.edit("manifests/web.hcl", "onboot = true\n    cores = 4", "onboot = true")
	first := s.vmidOf("web-1")
	s.byHand(func(e *pve.Edit) { e.Set(first, "memory", "1024") })
	s.quietly(func() { s.says(4, "apply", "plan.json", "--yes") })
	require.Equal(t, "1024", s.guest("web-1").Config["memory"])
}

// checkPlan requires every field of the plan document.
func checkPlan(t *testing.T, p planDoc) {
	t.Helper()
	requireFields(t, p.FormatVersion, p.Site, p.Commit, p.Host, p.ObservedAt, p.ID, p.Steps, p.Foreign, p.Pending, p.Unknown, p.Findings, p.Summary)
	requireFields(t, p.Summary.Create, p.Summary.Update, p.Summary.Replace, p.Summary.Delete, p.Summary.Unchanged, p.Summary.Foreign)
	require.Equal(t, "1.0", *p.FormatVersion)
	for _, s := range *p.Steps {
		requireFields(t, s.Address, s.Node, s.Manifest, s.Action, s.Class, s.Reason, s.Changes, s.After, s.At)
		require.Contains(t, []string{"create", "update", "replace", "delete", "adopt"}, *s.Action)
		require.Contains(t, []string{"none", "hot", "pending", "restart", "migrate", "replace", "data-loss"}, *s.Class)
		for _, c := range *s.Changes {
			requireFields(t, c.Path, c.Sensitive, c.Class)
		}
	}
	for _, f := range *p.Foreign {
		requireFields(t, f.VMID, f.Name, f.Kind, f.Why)
	}
}

// checkReport requires every field of the document of apply and destroy.
func checkReport(t *testing.T, r reportDoc) {
	t.Helper()
	requireFields(t, r.Verb, r.Success, r.Commit, r.Duration, r.Nodes, r.Findings)
	for _, n := range *r.Nodes {
		requireFields(t, n.Name, n.Status, n.IP, n.Duration)
	}
}

// requireFields requires that none of these pointers is nil.
func requireFields(t *testing.T, fields ...any) {
	t.Helper()
	for i, f := range fields {
		require.NotNil(t, f, "field %d is missing", i)
	}
}

func stepsOf(p planDoc) []string {
	var out []string
	for _, s := range *p.Steps {
		out = append(out, *s.Action+" "+*s.Address)
	}
	return out
}

func statuses(r reportDoc) map[string]string {
	out := map[string]string{}
	for _, n := range *r.Nodes {
		out[*n.Name] = *n.Status
	}
	return out
}

// guests asks the simulator, as anybody may, which guests it has: power by name.
func (s simulator) guests(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, kind := range []string{"qemu", "lxc"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.API+"/api2/json/nodes/"+s.Node+"/"+kind, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "PVEAPIToken="+s.Token)
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // A simulator on this machine.
			DisableKeepAlives: true,
		}}
		res, err := client.Do(req)
		require.NoError(t, err)
		var list struct {
			Data []struct{ Name, Status string }
		}
		err = json.NewDecoder(res.Body).Decode(&list)
		require.NoError(t, res.Body.Close())
		require.NoError(t, err)
		for _, g := range list.Data {
			out[g.Name] = g.Status
		}
	}
	return out
}

func minus(all, some map[string]string) map[string]string {
	out := map[string]string{}
	for name, status := range all {
		if _, there := some[name]; !there {
			out[name] = status
		}
	}
	return out
}

// commitOf makes a folder a git checkout with all its files in one commit, and
// gives the commit's id.
func commitOf(t *testing.T, dir string) string {
	t.Helper()
	repo, err := git.PlainInit(dir, false)
	require.NoError(t, err)
	tree, err := repo.Worktree()
	require.NoError(t, err)
	require.NoError(t, tree.AddWithOptions(&git.AddOptions{All: true}))
	files, err := tree.Status()
	require.NoError(t, err)
	require.NotContains(t, files, "secrets.yaml")
	id, err := tree.Commit("The site", &git.CommitOptions{Author: &object.Signature{Name: "Anna", Email: "anna@home.example", When: time.Unix(1, 0)}})
	require.NoError(t, err)
	return id.String()
}
