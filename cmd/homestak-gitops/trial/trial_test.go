package trial_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/trial"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/view"
	simhosts "github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
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
		Progress: view.Terminal{W: &strings.Builder{}}.Watch(),
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

// deep is a VM on a PVE node on a PVE node on the host.
const deep = `
site "home" {
  domain = "home.example"
}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "pve-9" {
  url      = "https://example.org/pve-9.qcow2"
  checksum = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
}
image "debian-13" {
  url      = "https://example.org/debian-13.qcow2"
  checksum = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
}
preset "small" {
  cores  = 1
  memory = 512
}
spec "base" {
  platform {
    packages = ["htop"]
  }
}
variable "package" {
  type    = string
  default = "jq"
}
spec "app" {
  platform {
    packages = [var.package]
  }
}
manifest "deep" {
  pattern = "tiered"
  node "outer" {
    type   = "pve"
    preset = preset.small
    image  = image.pve-9
    spec   = spec.base
  }
  node "inner" {
    type   = "pve"
    parent = node.outer
    preset = preset.small
    image  = image.pve-9
    spec   = spec.base
  }
  node "app" {
    type   = "vm"
    parent = node.inner
    preset = preset.small
    image  = image.debian-13
    spec   = spec.app
  }
}
`

// tried is a trial of a tree, and what is left of it.
type tried struct {
	*trial.Trial
	err   error
	world *sim.World
	notes []string
	took  time.Duration
}

// stall is how long nothing may change in a tree that is to fail: each of them takes as long.
const stall = 20 * time.Second

// tryTree makes a trial of the recipe deep of a site on simulated hosts. Change completes what it works with.
func tryTree(t *testing.T, text string, change func(w *sim.World, o *trial.Options, tree *trial.Tree)) tried {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "site.hcl"), []byte(text), 0o600))
	world, err := sim.NewWorld(sim.WorldOptions{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Version: "1.2.3"})
	require.NoError(t, err)
	f, err := site.Open(t.Context(), site.FolderOptions{Kinds: drivers.Kinds(), Dir: dir})
	require.NoError(t, err)
	defer f.Close()
	m, err := f.Manifest("deep")
	require.NoError(t, err)
	h, err := f.Host("father", m)
	require.NoError(t, err)
	out := tried{world: world}
	o := trial.Options{
		Site: "home", Host: h, Manifest: m, Stop: make(chan struct{}), Progress: view.Terminal{W: &strings.Builder{}}.Watch(),
		Note: func(format string, args ...any) {
			if format != "%s" { // that is the tree
				out.notes = append(out.notes, args[0].(string)+" "+args[1].(string))
			}
		},
	}
	defer o.Progress.Close()
	tree := trial.Tree{Agent: world.Agent, Running: world.Running, Address: world.Address, Files: os.DirFS(dir), Patience: stall}
	if change != nil {
		change(world, &o, &tree)
	}
	began := time.Now()
	out.Trial, out.err = tree.Run(t.Context(), o)
	out.took = time.Since(began)
	t.Cleanup(func() { require.NoError(t, world.Close()) })
	return out
}

// nodes are those of the report, with how they ended.
func (r tried) nodes() map[string]string {
	out := map[string]string{}
	for _, n := range r.Report.Nodes {
		out[n.Name] = string(n.Status)
	}
	return out
}

// A tree that does not get complete is removed, and the report says what failed, where, and why. Nothing of that is waited
// for longer than it takes to see that nothing changes any more.
func TestATreeThatFailsIsRemoved(t *testing.T) {
	t.Parallel()
	const unit = "/etc/systemd/system/homestak-gitops.service"
	neverReports := strings.Replace(deep, `    packages = ["htop"]
  }
`, `    packages = ["htop"]
  }
  config {
    file "`+unit+`" {
      content = "[Service]\nExecStart=/bin/sleep 1000000\n"
    }
  }
`, 1)
	for name, c := range map[string]struct {
		site    string
		change  func(w *sim.World, o *trial.Options, tree *trial.Tree)
		code    ui.Exit
		nodes   map[string]string // nil: what is there depends on how fast it was
		address string
		says    string
	}{
		"the spec of a node on a child of a child": {
			site: strings.Replace(deep, `default = "jq"`, `default = "no-such-package"`, 1), code: ui.ExitFailed,
			nodes: map[string]string{"outer": "failed", "inner": "failed", "app": "failed"}, address: "vm.app",
			says: "app on inner is not ready, in phase run: app: install no-such-package: no repository of this machine has a package of this name",
		},
		"a child that is no Proxmox VE": {
			site: strings.Replace(deep, "parent = node.outer\n    preset = preset.small\n    image  = image.pve-9", "parent = node.outer\n    preset = preset.small\n    image  = image.debian-13", 1), code: ui.ExitFailed,
			nodes: map[string]string{"outer": "failed", "inner": "failed", "app": "skipped"}, address: "pve.inner",
			says: "inner on outer is not ready, in phase run: Proxmox VE is not installed on the machine",
		},
		"a child that never reports": {
			site: neverReports, code: ui.ExitFailed,
			nodes: map[string]string{"outer": "failed", "inner": "skipped", "app": "skipped"}, address: "pve.outer",
			says: "outer on father is not ready",
		},
		"Ctrl-C": {
			site: deep, code: ui.ExitInterrupted,
			change: func(w *sim.World, o *trial.Options, _ *trial.Tree) {
				stop := make(chan struct{})
				o.Stop = stop
				go func() {
					every := time.NewTicker(time.Millisecond)
					defer every.Stop()
					for w.Running("outer") == nil {
						<-every.C
					}
					close(stop)
				}()
			},
		},
		"--timeout": {
			site: neverReports, code: ui.ExitFailed, // a fast machine completes another one in time
			change: func(_ *sim.World, o *trial.Options, tree *trial.Tree) {
				o.Timeout, tree.Patience = stall, 10*time.Minute
			},
		},
		"a variable of the command line": {
			site: deep, code: ui.ExitFailed,
			change: func(_ *sim.World, _ *trial.Options, tree *trial.Tree) {
				tree.Vars = map[string]string{"package": "another-package"}
			},
			nodes: map[string]string{"outer": "failed", "inner": "failed", "app": "failed"}, address: "vm.app", says: "install another-package",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := tryTree(t, c.site, c.change)
			require.Equal(t, c.code, ui.ExitCode(r.err), r.err)
			require.Equal(t, []string{"create failed", "destroy passed"}, r.notes)
			require.Empty(t, r.world.Hosts["father"].Snapshot().Guests, "nothing is left")
			require.Less(t, r.took, 10*time.Minute, "it does not hang")
			require.False(t, r.Report.Success)
			if c.nodes != nil {
				require.Equal(t, c.nodes, r.nodes())
			}
			for _, n := range r.Report.Nodes {
				require.Equal(t, n.Status == engine.NodeFailed, n.Error != "", "%s: %s", n.Name, n.Error)
			}
			if c.address == "" {
				require.Empty(t, r.Report.Findings)
				return
			}
			require.Len(t, r.Report.Findings, 1)
			f := r.Report.Findings[0]
			require.Equal(t, c.address, f.Address)
			require.Equal(t, "site.hcl", f.At.File)
			require.Contains(t, f.Summary, "nothing has changed for "+stall.String()+": ")
			require.Contains(t, f.Summary, c.says)
			require.Contains(t, r.Markdown(), c.says[:20])
		})
	}
}

// A tree that is complete leaves by the agents of its own, and with a mode of this run it has that one, at any depth.
func TestATreeInTheOtherMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"push", "pull"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			entered := false
			r := tryTree(t, deep, func(w *sim.World, o *trial.Options, tree *trial.Tree) {
				tree.Patience = 10 * time.Minute
				tree.Mode = mode
				note := o.Note
				o.Note = func(format string, args ...any) {
					note(format, args...)
					if format == "%s" { // the tree is complete
						all, err := w.Running("inner").Ledger.Last(0, nil)
						require.NoError(t, err)
						for _, receipt := range all {
							for _, s := range receipt.Steps {
								entered = entered || s.Address == "guest.app"
							}
						}
					}
				}
			})
			require.NoError(t, r.err)
			require.Equal(t, []string{"create passed", "verify passed", "destroy passed"}, r.notes)
			require.Equal(t, map[string]string{"outer": "destroyed", "inner": "destroyed", "app": "destroyed"}, r.nodes())
			require.Empty(t, r.Report.Findings)
			require.Equal(t, mode == "push", entered, "its parent applies the spec, or the node itself")
		})
	}
}

// The block that sim prints for its host is for real ways in. In a trial the world is another one, in which guests are entered
// directly and no machine is at the loopback of another.
func TestN1N2ATreeOfAHostAtLoopback(t *testing.T) {
	t.Parallel()
	r := tryTree(t, strings.Replace(deep, `  api = "https://192.0.2.10:8006"`, `  api = "https://127.0.0.1:18006"
  ssh {
    address  = "127.0.0.1"
    port     = 18122
    host_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
    jump     = true
  }`, 1), func(_ *sim.World, _ *trial.Options, tree *trial.Tree) { tree.Patience = 10 * time.Minute })
	require.NoError(t, r.err)
	require.Equal(t, []string{"create passed", "verify passed", "destroy passed"}, r.notes)
	require.Equal(t, map[string]string{"outer": "destroyed", "inner": "destroyed", "app": "destroyed"}, r.nodes())
}

// While a step waits to log in, no node has reported yet. What the login saw last is the cause, and it is at its node.
func TestN1AStuckTreeNamesTheCause(t *testing.T) {
	t.Parallel()
	r := tryTree(t, deep, func(w *sim.World, _ *trial.Options, _ *trial.Tree) {
		fault, err := pve.ParseFault("GET /nodes/*/qemu/*/agent/network-get-interfaces status=500")
		require.NoError(t, err)
		w.Hosts["father"] = pve.New(pve.Config{Node: "father", Systems: w.Guests(), BootTime: time.Millisecond, Fault: pve.Faults(fault)})
	})
	require.Equal(t, ui.ExitFailed, ui.ExitCode(r.err))
	require.Equal(t, map[string]string{"outer": "failed", "inner": "skipped", "app": "skipped"}, r.nodes())
	require.NotEmpty(t, r.Report.Findings)
	f := r.Report.Findings[0]
	require.Equal(t, "pve.outer", f.Address)
	require.Contains(t, f.Summary, ": waiting for check login of pve.outer: GET /nodes/father/qemu/100/agent/network-get-interfaces: 500")
	require.Contains(t, r.Report.Nodes[0].Error, "check login of pve.outer: ")
}
