package trial_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/trial"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/view"
	simhosts "github.com/homestak/homestak-gitops/sim"
)

// try makes a trial of the recipe of a site on a simulated host, which it returns.
func try(t *testing.T, keep bool) (sim simhosts.Hosts, notes []string, made *trial.Trial, err error) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "site.hcl"), []byte(enginetest.TwoNodes), 0o600))
	f, err := site.Open(t.Context(), site.FolderOptions{Kinds: drivers.Kinds(), Dir: dir})
	require.NoError(t, err)
	defer f.Close()
	m, err := f.Manifest("recipe")
	require.NoError(t, err)
	h, err := f.Host("father", m)
	require.NoError(t, err)
	require.NoError(t, f.Bind(m, h))
	sim = simhosts.Hosts{}
	o := trial.Options{
		Site: "home", Host: h, Manifest: m, Keep: keep, Stop: make(chan struct{}),
		Pass: func() *engine.Pass {
			p := f.Pass(h, drivers.Access{Owner: "cli:me@here", Files: f.Files(), Transport: sim.Transport}.Open)
			p.Health.Simulated = sim.Reaches
			return p
		},
		Progress: view.Watch(view.Terminal{W: &strings.Builder{}}),
		Findings: func(diag.List) {}, Plan: func(*plan.Plan) {},
		Note: func(format string, a ...any) {
			phase, _, _ := strings.Cut(fmt.Sprintf(format, a...), " in ")
			notes = append(notes, phase)
		},
	}
	defer o.Progress.Close()
	made, err = trial.Run(t.Context(), o)
	return sim, notes, made, err
}

// A trial creates, verifies and destroys, and leaves nothing behind unless it is to.
func TestTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, notes, made, err := try(t, false)
		require.NoError(t, err)
		require.Equal(t, []string{"create: passed", "verify: passed", "destroy: passed"}, notes)
		require.Empty(t, sim["father"].Snapshot().Guests)
		require.True(t, made.Report.Success)
		require.Len(t, made.Report.Nodes, 1)

		dir := t.TempDir()
		doc, err := json.Marshal(made.Report)
		require.NoError(t, err)
		base, err := made.Write(dir, string(doc))
		require.NoError(t, err)
		require.Regexp(t, `/\d{8}-\d{6}\.recipe\.passed$`, base)
		text, err := os.ReadFile(base + ".md")
		require.NoError(t, err)
		require.Equal(t, made.Markdown(), string(text))
		require.Contains(t, string(text), "# Test of recipe on father: passed")
		require.FileExists(t, base+".json")

		sim, notes, made, err = try(t, true)
		require.NoError(t, err)
		require.Equal(t, []string{"create: passed", "verify: passed"}, notes)
		require.Len(t, sim["father"].Snapshot().Guests, 1)
		require.Contains(t, made.Markdown(), "homestak-gitops destroy -M recipe --host father")
	})
}
