package hcl_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/hcl"
)

// One manifest is deployed, and no other; comments and other blocks stay.
func TestDeploy(t *testing.T) {
	const site = `# What runs where.
site "home" {}

manifest "web" {
  host = host.father
}

# A recipe.
manifest "two" {
  pattern = "tiered" # levels
}

manifest "other" {
  pattern = "flat"
}
`
	out, err := hcl.Deployment{Manifest: "two", Host: "inner-1"}.Rewrite([]byte(site), "site.hcl")
	require.NoError(t, err)
	require.Equal(t, `# What runs where.
site "home" {}


# A recipe.
manifest "two" {
  pattern = "tiered" # levels
  host    = host.inner-1
}

manifest "other" {
  pattern = "flat"
}
`, string(out))
	gone, err := hcl.Deployment{}.Rewrite(out, "site.hcl")
	require.NoError(t, err)
	require.NotContains(t, string(gone), "two")
	require.Contains(t, string(gone), `manifest "other"`)

	moved, err := hcl.Deployment{Manifest: "web", Host: "uncle"}.Rewrite([]byte(site), "site.hcl")
	require.NoError(t, err)
	require.Contains(t, string(moved), "host = host.uncle")
	same, err := hcl.Deployment{Manifest: "two", Host: "father"}.Rewrite([]byte("site \"home\" {  }\n"), "site.hcl")
	require.NoError(t, err)
	require.Equal(t, "site \"home\" {  }\n", string(same))
	_, err = hcl.Deployment{Manifest: "two", Host: "father"}.Rewrite([]byte("site {"), "site.hcl")
	require.ErrorContains(t, err, "deploy two: site.hcl:1")
}

// The mode and the variables of one run are in the files, as flags mean them.
func TestDeployWithFlags(t *testing.T) {
	const site = `variable "cores" {
  default = 2
}
variable "image" {
  type    = string
  default = "a"
}
variable "packages" {
  type = list(string)
}
variable "other" {
  default = true
}
manifest "two" {
  pattern = "tiered"
  node "inner" {
    type = "pve"
    execution {
      mode = "push"
    }
  }
  node "app" {
    type   = "vm"
    parent = node.inner
    execution {
      mode = "push"
    }
  }
  node "db" {
    type = "vm"
  }
}
`
	d := hcl.Deployment{Manifest: "two", Host: "father", Mode: "pull", Vars: map[string]string{"cores": "4", "image": "12", "packages": `["jq", "git"]`}}
	out, err := d.Rewrite([]byte(site), "site.hcl")
	require.NoError(t, err)
	require.Equal(t, `variable "cores" {
  default = 4
}
variable "image" {
  type    = string
  default = "12"
}
variable "packages" {
  type    = list(string)
  default = ["jq", "git"]
}
variable "other" {
  default = true
}
manifest "two" {
  pattern = "tiered"
  node "inner" {
    type = "pve"
    execution {
      mode = "push"
    }
  }
  node "app" {
    type   = "vm"
    parent = node.inner
    execution {
      mode = "pull"
    }
  }
  node "db" {
    type = "vm"
  }
  host = host.father
  execution {
    default_mode = "pull"
  }
}
`, string(out))
	again, err := hcl.Deployment{Manifest: "two", Host: "father", Mode: "push"}.Rewrite(out, "site.hcl")
	require.NoError(t, err)
	require.Contains(t, string(again), `default_mode = "push"`)
	require.NotContains(t, string(again), "pull")
}
