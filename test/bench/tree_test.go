package bench_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/test/bench/fleet"
	"github.com/homestak/homestak-gitops/test/forest"
	"github.com/homestak/homestak-gitops/test/released"
)

// The tree that is measured: the father, its children, and the children of each, with one VM on each leaf.
const (
	branches = 20
	twigs    = 20
	agents   = 1 + branches + branches*twigs

	// starting is how many agents begin at once. Machines of their own would not share a processor.
	starting = 16
)

// counting counts what agents log of requests to their servers, and of what they ask their hosts.
type counting struct{ served, asked *atomic.Int64 }

func (counting) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (c counting) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "request" {
		c.served.Add(1)
	}
	return nil
}

func (c counting) WithAttrs([]slog.Attr) slog.Handler { return c }
func (c counting) WithGroup(string) slog.Handler      { return c }

// tree measures agents in a tree, all in this process, with links in memory and real time.
func (m *meter) tree() {
	var served, asked atomic.Int64
	repo := sourcetest.New(m.b)
	repo.Commit(treeFiles(1), "begin")
	var secrets strings.Builder
	secrets.WriteString(released.Auth + "api_tokens:\n  father: \"a@pve!b=1\"\n")
	for b := range branches {
		fmt.Fprintf(&secrets, "  b%d: \"a@pve!b=1\"\n", b)
		for t := range twigs {
			fmt.Fprintf(&secrets, "  b%d-t%d: \"a@pve!b=1\"\n", b, t)
		}
	}
	f, err := forest.New(m.ctx, "father", forest.Options{
		Dir: sourcetest.TempDir(m.b), Repository: repo.URL(), Secrets: secrets.String(),
		Log:   func(string) *slog.Logger { return slog.New(counting{&served, &asked}) },
		Fault: func(string, *http.Request) (int, bool) { asked.Add(1); return 0, false },
	})
	require.NoError(m.b, err)
	defer f.End()
	began := time.Now()
	m.grow(f, repo.Head())
	grown := time.Since(began)
	m.pause(time.Minute) // reports fold upward, and the first polls spread

	const rest = 2 * time.Minute
	served.Store(0)
	asked.Store(0)
	cpu := usedHere(m)
	m.pause(rest)
	cpu = usedHere(m) - cpu
	perMinute := func(n int64) float64 { return float64(n) / agents / rest.Minutes() }
	servedAtRest, askedAtRest := perMinute(served.Load()), perMinute(asked.Load())

	commit := repo.Commit(treeFiles(2), "push")
	pushed := time.Now()
	f.Machine("father").Agent().Agent.CheckNow()
	took := m.leavesAt(f, commit, pushed)

	with := heap()
	f.End()
	own := (with - heap()) / agents
	m.add(
		row{"tree", fmt.Sprintf("a push until it is converged at %d leaves, p95", len(took)), "–", sec(at95(took)), 0, seconds, open, "–"},
		row{"", "until the last of them", "–", sec(slices.Max(took)), 0, seconds, open, "–"},
		row{"", "requests to agents at rest, per agent and minute", "–", servedAtRest, 0, tenths, open, "–"},
		row{"", "requests to hosts at rest, per agent and minute", "–", askedAtRest, 0, tenths, open, "–"},
		row{"", "memory of an agent, without its host", "–", float64(own), 0, mebibytes, open, "–"},
	)
	m.notef("tree: 1 + %d + %d agents in one process, with real TLS over links in memory. It came up from nothing in %s. At rest all of them use %s CPU a minute, their simulated hosts included.",
		branches, branches*twigs, seconds(sec(grown)), seconds(sec(cpu)/rest.Minutes()))
}

// grow starts agents as soon as their machines are there, a few at once, and waits until all have converged to a commit.
func (m *meter) grow(f *forest.Forest, commit string) {
	limit := time.Now().Add(20 * time.Minute)
	converged := map[string]bool{}
	for len(converged) < agents {
		require.NoError(m.b, f.Step())
		begun := 0
		for _, x := range f.Machines() {
			if converged[x.Name] || begun == starting {
				continue
			}
			if x.Agent() == nil && x.Start() != nil {
				continue // its parent does not serve yet
			}
			if s := x.Agent().Status(); s.Converged != nil && s.Converged.ID == commit && len(s.Nodes) > 0 {
				converged[x.Name] = true
			} else {
				begun++
			}
		}
		require.True(m.b, time.Now().Before(limit), "%d of %d agents converge", len(converged), agents)
		m.pause(500 * time.Millisecond)
	}
}

// leavesAt waits until all leaves have converged to a commit, and says how long it took each.
func (m *meter) leavesAt(f *forest.Forest, commit string, since time.Time) []time.Duration {
	took := map[string]time.Duration{}
	limit := since.Add(10 * time.Minute)
	for len(took) < branches*twigs {
		for _, x := range f.Machines() {
			if _, has := took[x.Name]; has || !strings.Contains(x.Name, "-") {
				continue
			}
			if s := x.Agent().Status(); s.Converged != nil && s.Converged.ID == commit {
				took[x.Name] = s.Converged.Since.Sub(since)
			}
		}
		require.True(m.b, time.Now().Before(limit), "%d leaves have the commit", len(took))
		m.pause(50 * time.Millisecond)
	}
	out := make([]time.Duration, 0, len(took))
	for _, d := range took {
		out = append(out, d)
	}
	return out
}

// heap is what is in use after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapInuse + s.StackInuse) //nolint:gosec // far below the limit
}

// usedHere is the CPU that this process has used so far.
func usedHere(m *meter) time.Duration {
	d, err := cpuOf(os.Getpid())
	require.NoError(m.b, err)
	return d
}

func treeFiles(rev int) map[string]string {
	var b strings.Builder
	b.WriteString("manifest \"tree\" {\n  pattern = \"tiered\"\n  host = host.father\n")
	for i := range branches {
		fmt.Fprintf(&b, "  node \"b%d\" {\n    type = \"pve\"\n    cores = 2\n    memory = 2048\n    image = image.debian-12\n    spec = spec.plain\n  }\n", i)
		for j := range twigs {
			fmt.Fprintf(&b, "  node \"b%d-t%d\" {\n    type = \"pve\"\n    parent = node.b%d\n    cores = 2\n    memory = 2048\n    image = image.debian-12\n    spec = spec.plain\n  }\n", i, j, i)
			fmt.Fprintf(&b, "  node \"v%d-%d\" {\n    type = \"vm\"\n    parent = node.b%d-t%d\n    cores = 1\n    memory = 512\n    image = image.debian-12\n    tags = [\"rev-%d\"]\n  }\n", i, j, i, j, rev)
		}
	}
	return map[string]string{
		"site.hcl": "site \"home\" {}\nhost \"father\" {\n  api = \"https://192.0.2.10:8006\"\n}\nimage \"debian-12\" {\n  url = \"https://images.example/debian-12.qcow2\"\n  checksum = \"sha256:" + strings.Repeat("aa", 32) + "\"\n}\nspec \"plain\" {}\n",
		"tree.hcl": b.String() + "}\n",
	}
}

// tofuVar names the folder of tofu and terraform-provider-proxmox; make side-by-side
// builds them.
const tofuVar = "HOMESTAK_TOFU"

// BenchmarkSideBySide does the work of P1 and P8 by OpenTofu with the provider
// bpg/proxmox and by ours, one right after the other, against hosts of the same kind.
// Each is measured once: what counts are the ratios and the numbers of requests.
func BenchmarkSideBySide(b *testing.B) {
	bin := os.Getenv(tofuVar)
	if bin == "" {
		b.Skip("not asked for: make side-by-side")
	}
	m := &meter{b: b, ctx: b.Context(), dir: b.TempDir()}
	m.build()
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "goal\twhat\tOpenTofu + bpg\tours\tours / theirs\tat most")
	line := func(goal, what string, theirs, ours float64, u unit, most string) {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%.3f\t%s\n", goal, what, u(theirs), u(ours), ours/theirs, most)
	}
	if wanted("P1") {
		const guests, nodes = 500, 4
		theirs, asked := m.tofuPlan(bin, guests, names(nodes))
		ours, _, counted, _ := m.plans(fleet.Fleet{Guests: guests, Nodes: names(nodes), Files: 10}, 20*time.Millisecond, 1)
		line("P1", "no-change plan, 500 guests, 4 nodes, 20 ms", sec(theirs.wall), sec(wall(ours)), seconds, "1/15")
		line("", "CPU of it", sec(theirs.cpu), sec(cpu(ours)), seconds, "–")
		line("", "requests of it", float64(asked.Requests), float64(counted.Requests), pieces, "–")
		line("", "TLS connections of it", float64(asked.Connections), float64(counted.Connections), pieces, "–")
	}
	if wanted("P8") {
		h := hosting{Latency: 20 * time.Millisecond, Clones: 2200 * time.Millisecond}
		theirs, asked := m.tofuClones(bin, h)
		ours, requests, _, _ := m.clones(h)
		line("P8", "50 VMs by clone of 2.2 s, 20 ms, 10 at once", sec(theirs.wall), sec(ours.wall), seconds, "0.65")
		line("", "CPU of it", sec(theirs.cpu), sec(ours.cpu), seconds, "–")
		line("", "requests for each of them", float64(asked.Requests)/cloned, requests, perVM, "–")
	}
	require.NoError(b, t.Flush())
}

// tofuPlan measures a plan of as many guests as tofu made before, all in sync.
func (m *meter) tofuPlan(bin string, guests int, nodes []string) (run, traffic) {
	host := m.host(hosting{Fleet: fleet.Fleet{Nodes: nodes}, Latency: 20 * time.Millisecond})
	o := m.tofu(bin, host, fmt.Sprintf(tofuGuests, guests, strings.Join(nodes, `", "`)))
	o("apply", "-auto-approve", "-parallelism=50")
	before, err := host.traffic()
	require.NoError(m.b, err)
	require.Equal(m.b, guests, before.Guests)
	r := o("plan", "-detailed-exitcode", "-parallelism=10") // 2 if anything differs
	after, err := host.traffic()
	require.NoError(m.b, err)
	require.NoError(m.b, host.stop())
	return r, after.minus(before)
}

// tofuClones measures what clones does by us.
func (m *meter) tofuClones(bin string, h hosting) (run, traffic) {
	h.Fleet, h.Template, h.Ends = fleet.Fleet{Nodes: names(4)}, true, true
	host := m.host(h)
	o := m.tofu(bin, host, fmt.Sprintf(tofuCopies, cloned, h.Fleet.Nodes[0], fleet.TemplateVMID))
	before, err := host.traffic()
	require.NoError(m.b, err)
	r := o("apply", "-auto-approve", "-parallelism=10")
	after, err := host.traffic()
	require.NoError(m.b, err)
	require.NoError(m.b, host.stop())
	require.Equal(m.b, before.Guests+cloned, after.Guests)
	return r, after.minus(before)
}

// tofu gives a function that runs a command of tofu over one configuration; the command
// must end well.
func (m *meter) tofu(bin string, host *server, config string) func(command string, args ...string) run {
	bin, err := filepath.Abs(bin)
	require.NoError(m.b, err)
	dir := m.site(map[string]string{
		"main.tf": fmt.Sprintf(tofuProvider, host.access.API, host.access.Token) + config,
		"tofurc":  fmt.Sprintf("provider_installation {\n  dev_overrides {\n    \"bpg/proxmox\" = %q\n  }\n}\n", bin),
	})
	return func(verb string, args ...string) run {
		r, err := measure(m.ctx, command{
			name: filepath.Join(bin, "tofu"), args: append([]string{"-chdir=" + dir, verb, "-no-color", "-input=false", "-compact-warnings"}, args...),
			env: []string{"TF_CLI_CONFIG_FILE=" + filepath.Join(dir, "tofurc"), "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1"},
		})
		require.NoError(m.b, err)
		require.Zero(m.b, r.code, "tofu %s %v\n%s\n%s", verb, args, r.stdout, r.stderr)
		return r
	}
}

// tofuProvider takes URL and token.
const tofuProvider = `terraform {
  required_providers {
    proxmox = {
      source = "bpg/proxmox"
    }
  }
}

provider "proxmox" {
  endpoint  = %q
  api_token = %q
  insecure  = true
}
`

// tofuGuests takes how many there are, and the nodes that they are on in turns. Each is
// about what one of the fleet is.
const tofuGuests = `
resource "proxmox_virtual_environment_vm" "app" {
  count     = %d
  name      = format("app-%%05d", count.index + 1)
  node_name = element(["%s"], count.index)
  vm_id     = 10001 + count.index
  tags      = ["app", "fleet"]

  agent {
    enabled = false
  }

  cpu {
    cores = 2
    type  = "x86-64-v2-AES"
  }

  memory {
    dedicated = 4096
  }

  disk {
    datastore_id = "local-lvm"
    interface    = "scsi0"
    size         = 10
  }

  disk {
    datastore_id = "local-lvm"
    interface    = "scsi1"
    size         = 20
  }
` + tofuNetwork

// tofuNetwork ends a machine.
const tofuNetwork = `
  network_device {
    bridge = "vmbr0"
  }

  initialization {
    datastore_id = "local-lvm"
    ip_config {
      ipv4 {
        address = "dhcp"
      }
    }
  }
}
`

// tofuCopies takes how many there are, their node, and the template.
const tofuCopies = `
resource "proxmox_virtual_environment_vm" "clone" {
  count     = %d
  name      = "clone-${count.index + 1}"
  node_name = %q

  clone {
    vm_id = %d
  }

  agent {
    enabled = false
  }

  cpu {
    cores = 2
  }

  memory {
    dedicated = 2048
  }

  disk {
    datastore_id = "local-lvm"
    interface    = "scsi0"
    size         = 16
  }
` + tofuNetwork
