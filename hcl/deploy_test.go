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
	out, err := hcl.Deploy([]byte(site), "site.hcl", "two", "inner-1")
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
	gone, err := hcl.Deploy(out, "site.hcl", "", "")
	require.NoError(t, err)
	require.NotContains(t, string(gone), "two")
	require.Contains(t, string(gone), `manifest "other"`)

	moved, err := hcl.Deploy([]byte(site), "site.hcl", "web", "uncle")
	require.NoError(t, err)
	require.Contains(t, string(moved), "host = host.uncle")
	same, err := hcl.Deploy([]byte("site \"home\" {  }\n"), "site.hcl", "two", "father")
	require.NoError(t, err)
	require.Equal(t, "site \"home\" {  }\n", string(same))
	_, err = hcl.Deploy([]byte("site {"), "site.hcl", "two", "father")
	require.ErrorContains(t, err, "deploy two: site.hcl:1")
}
