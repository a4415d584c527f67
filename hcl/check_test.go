package hcl_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/hcl"
)

const checkSite = `
site "home" {
}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "debian-12" {
  url      = "https://images.example/debian.qcow2"
  checksum = "sha256:ab"
}
spec "base" {
  check "inside" {
    command = "systemctl is-system-running"
  }
  check "port" {
    tcp     = 22
    timeout = "1m"
  }
}
`

// A container has no guest agent: what needs one is refused where it stands, also when
// it comes from the spec.
func TestChecksThatAContainerCannotPass(t *testing.T) {
	_, found := hcl.Load(files("site.hcl", checkSite+`
manifest "m" {
  pattern = "flat"
  host    = "father"
  node "cache" {
    type     = "ct"
    spec     = "base"
    template = template.debian
    check "up" {
      agent = true
    }
  }
}
template "debian" {
  volume = "local:vztmpl/debian.tar.zst"
}
`), hcl.Options{Kinds: testKinds()})
	require.Equal(t, []string{
		`site.hcl:12:3: error: check "inside" cannot run on node "cache"`,
		`site.hcl:28:5: error: check "up" cannot run on node "cache"`,
	}, summaries(found))
}

// Where one block declares several nodes, what only one of them can have has one finding, which names no other line.
func TestN16SeveralNodesOfABlockWithOneVMID(t *testing.T) {
	_, found := hcl.Load(files("site.hcl", checkSite+`
manifest "m" {
  pattern = "flat"
  host    = "father"
  node "web" {
    type   = "vm"
    count  = 4
    vmid   = 1001
    cores  = 1
    memory = 512
    image  = image.debian-12
    nic "lan" {
      ip = "192.0.2.10/24"
    }
  }
}
`), hcl.Options{Kinds: testKinds()})
	require.Equal(t, []string{
		"site.hcl:27:5: error: several nodes have vmid 1001",
		`site.hcl:32:7: error: several nodes have static address "192.0.2.10/24"`,
	}, summaries(found))
	require.Equal(t, `This block declares node "web-1" and others. Use count.index, each.key or each.value, so that each node has its own, on the same PVE host.`, found[0].Detail)
}

// A container has no guest agent: it is not advised to check one.
func TestN16AgentOfAContainer(t *testing.T) {
	_, found := hcl.Load(files("site.hcl", `
site "home" {
}
host "father" {
  api = "https://192.0.2.10:8006"
}
manifest "m" {
  pattern = "flat"
  host    = host.father
  node "cache" {
    type  = "ct"
    agent = true
    cores = 1
  }
}
`), hcl.Options{Kinds: proxmox.Kinds()})
	i := slices.IndexFunc(found, func(f diag.Finding) bool { return f.At.Start.Line == 12 })
	require.GreaterOrEqual(t, i, 0, "%v", found)
	require.Equal(t, "agent is an attribute of vm and pve nodes", found[i].Summary)
	require.Equal(t, `It is not allowed in node "cache": the guest agent is a program for VMs, and a container needs none. Leave it out.`, found[i].Detail)
}

// A node's check stands in place of the one that its spec has under the same name, and
// each knows where it is declared.
func TestChecksOfANode(t *testing.T) {
	site, found := hcl.Load(files("site.hcl", checkSite+`
manifest "m" {
  pattern = "flat"
  host    = "father"
  node "web" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian-12
    spec   = spec.base
    check "port" {
      http = ":8080/health"
    }
  }
}
`), hcl.Options{Kinds: testKinds()})
	require.Empty(t, summaries(found))
	checks := site.Checks(site.Manifests["m"].Nodes[0])
	require.Len(t, checks, 2)
	require.Equal(t, "inside", checks[0].Name)
	require.Equal(t, "site.hcl:12:3", checks[0].At.String())
	require.Equal(t, ":8080/health", checks[1].HTTP)
	require.Equal(t, "site.hcl:30:5", checks[1].At.String())
	require.Equal(t, 5*time.Minute, checks[1].Timeout, "nothing of the spec's is left")
}

// What a check was made from is remembered, so that what it sees is not shown.
func TestChecksMadeFromSecrets(t *testing.T) {
	secrets, found := hcl.ParseSecrets("secrets.yaml", []byte("passwords:\n  probe: correct-horse\n"), nil)
	require.Empty(t, found)
	text := siteFile + `
spec "base" {
  check "open" {
    command = "true"
  }
  check "closed" {
    command = "curl -u probe:${secret.passwords.probe} localhost"
  }
}
`
	site, found := hcl.Load(files("site.hcl", text), hcl.Options{Kinds: testKinds(), Secrets: secrets})
	require.Empty(t, summaries(found))
	require.False(t, site.Specs["base"].Checks[0].Sensitive)
	require.True(t, site.Specs["base"].Checks[1].Sensitive)

	site, found = hcl.Load(files("site.hcl", text), hcl.Options{Kinds: testKinds()})
	require.Empty(t, summaries(found), "a value that is not known here is no mistake of the files")
	require.Empty(t, site.Specs["base"].Checks[1].Command)
}
