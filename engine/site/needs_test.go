package site

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/model"
)

const needy = `
host "father" {
  api = "https://192.0.2.10:8006"
}
image "debian" {
  url      = "https://example.org/debian.qcow2"
  checksum = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
}
spec "db" {
  config {
    file "/etc/db" {
      content = upper(secret.passwords["db-1"])
      mode    = "0600"
    }
  }
}
spec "plain" {}
manifest "m" {
  pattern = "flat"
  host    = host.father
  node "db" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
    spec   = spec.db
  }
  node "web" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
    spec   = spec.plain
  }
}
`

// What a node needs is known whatever the value goes through, and nothing else is named.
func TestNeeds(t *testing.T) {
	tree := folder("a.hcl", needy)
	secrets := &model.Secrets{Values: map[string]map[string]string{"passwords": {"db-1": "canary", "other": "canary"}, "api_tokens": {"father": "a@b!c=d"}, "ssh_keys": {"ops": "ssh-ed25519 AAAA"}, "auth": {"site_token": "canary"}}}
	c := &Commits{Loader: NewLoader(proxmox.Kinds()), Files: func(string) (fs.FS, error) { return tree, nil }}
	needs, err := c.Needs("x", secrets)
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"db": {"passwords.db-1"}}, needs)
	require.Equal(t, "canary", secrets.Values["passwords"]["other"], "it is not changed")

	inFolder, err := open(t, FolderOptions{Dir: write(t, "a.hcl", needy, SecretsName, "passwords:\n  db-1: canary\n  other: canary\n")}).Needs()
	require.NoError(t, err)
	require.Equal(t, needs, inFolder)

	for reference, want := range map[string]string{
		"secret.passwords.x": "passwords.x", `secret.passwords["a b"]`: "passwords.a b", "secret.passwords": "passwords", "secret.auth.node_tokens.own": "auth.node_tokens.own",
	} {
		require.Equal(t, want, plainName(reference))
	}
}
