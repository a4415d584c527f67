package machines_test

import (
	"fmt"
	"os"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// Every node of the example has a spec that can be applied.
func TestTheSpecsOfTheExampleResolve(t *testing.T) {
	site, found := hcl.Load(os.DirFS("../../examples/site"), hcl.Options{Kinds: proxmox.Kinds()})
	require.Empty(t, problems(found))
	n := 0
	for _, m := range site.Manifests {
		for _, node := range m.Nodes {
			s, found := spec.Resolve(site, node)
			require.Empty(t, found)
			if node.Spec != "" {
				n++
				require.Contains(t, s.Platform.Packages, "htop")
				require.Equal(t, "nopasswd", s.User("homestak").Sudo)
			}
		}
	}
	require.Greater(t, n, 5)
}

func problems(found diag.List) (errors []string) {
	for _, f := range found {
		if f.Severity == diag.Error {
			errors = append(errors, f.Summary)
		}
	}
	return errors
}

// What the files say of every attribute reaches the resolved spec, and what is made from a
// secret is marked there by the path that a change has.
func TestTheLanguageReachesTheSpec(t *testing.T) {
	site, found := hcl.Load(fstest.MapFS{
		"site.hcl": {Data: []byte(`site "home" { domain = "home.example" }
manifest "m" {
  pattern = "flat"
  node "edge" {
    type = "vm"
    cores = 1
    memory = 512
    image = image.debian
    spec = spec.base
    disk "data" {
      size = 8
    }
  }
}
image "debian" {
  url      = "https://images.example/debian.qcow2"
  checksum = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
}
spec "base" {
  access {
    former_users = "remove"
    user "ann" {
      sudo = true
      ssh_keys = []
    }
  }
  config {
    unattended_upgrades = true
    sysctl = { "net.ipv4.ip_forward" = "1" }
    swap = 512
    mount "/srv/data" {
      disk    = "data"
      fstype  = "xfs"
      options = ["noatime"]
    }
    pve {
      no_subscription = true
      bridge          = "vmbr0"
    }
    file "/etc/app.conf" {
      content = "password = ${secret.passwords.app}"
      mode    = "0600"
      group   = "video"
      restart = ["app"]
    }
    repository "docker" {
      url        = "https://download.example.org/debian"
      suites     = ["bookworm"]
      components = ["stable"]
      key        = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
    }
    command "once" {
      run    = "echo once"
      unless = "false"
    }
  }
}
`)},
	}, hcl.Options{Kinds: proxmox.Kinds(), Secrets: &model.Secrets{Values: map[string]map[string]string{"passwords": {"app": "s3cret"}}}})
	require.Empty(t, problems(found))
	s, found := spec.Resolve(site, site.Manifests["m"].Nodes[0])
	require.Empty(t, found)
	require.Equal(t, "password = s3cret", s.File("/etc/app.conf").Content)
	require.Equal(t, "root video", s.File("/etc/app.conf").Owner+" "+s.File("/etc/app.conf").Group)
	require.Equal(t, []string{"stable"}, s.Repository("docker").Components)
	require.Equal(t, "echo once", s.Command("once").Run)
	require.Equal(t, "remove", s.Access.FormerUsers)
	require.Equal(t, []string{"LABEL=data", "/srv/data", "xfs", "nofail,noatime", "0", "0"}, s.Mount("/srv/data").Line())
	require.Equal(t, "512", s.Config.SwapFile)
	require.Equal(t, &spec.PVE{NoSubscription: true, Bridge: "vmbr0"}, s.Config.PVE)
	require.Subset(t, s.Platform.Packages, []string{"xfsprogs", "ifupdown2"})
	require.Contains(t, s.Platform.Packages, "unattended-upgrades")
	sensitive := []string{}
	for _, c := range plan.Differences(s, spec.Empty("edge")) {
		if s.IsSensitive(c.Path) {
			sensitive = append(sensitive, c.Path)
		}
	}
	require.Equal(t, []string{"config.file./etc/app.conf.content"}, sensitive)
}

// What the language has beside the fields of a resolved spec takes effect as well.
func TestST11UnattendedUpgrades(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	resolved := func(c *model.Config) *spec.Spec {
		site := &model.Site{Name: "home", Specs: map[string]*model.Spec{"base": {Name: "base", Config: c}}}
		s, found := spec.Resolve(site, &model.Node{Name: "edge", Spec: "base"})
		require.Empty(t, found)
		return s
	}
	yes, no := true, false
	const periodic = "apt-config dump | grep -q 'APT::Periodic::Unattended-Upgrade \"%s\"' && apt-config dump | grep -q 'APT::Periodic::Update-Package-Lists \"%s\"'"
	for _, c := range []struct {
		on         *bool
		days, dpkg string
	}{{&yes, "1", "installed"}, {&no, "0", ""}, {nil, "", ""}} {
		s := resolved(&model.Config{UnattendedUpgrades: c.on})
		w.apply(s)
		w.unchanged(s)
		if c.days == "" {
			require.Empty(t, w.Run0("apt-config dump | grep APT::Periodic::Unattended || :"))
		} else {
			w.Run0(fmt.Sprintf(periodic, c.days, c.days))
		}
		require.Equal(t, c.dpkg, w.Run0("dpkg-query -W -f='${db:Status-Status}' unattended-upgrades 2>/dev/null || :"))
	}
}
