package bench_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

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
