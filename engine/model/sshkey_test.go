package model_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
)

const sshKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA a@laptop"

func TestSSHKeyID(t *testing.T) {
	require.NotEmpty(t, model.SSHKeyID(sshKey))
	require.Equal(t, model.SSHKeyID(sshKey), model.SSHKeyID(`no-pty,command="echo hi" `+sshKey))
	for _, line := range []string{"", "# " + sshKey, "ssh-ed25519", "ssh-rsa " + model.SSHKeyID(sshKey), "ssh-ed25519 not-base64 x"} {
		require.Empty(t, model.SSHKeyID(line), line)
	}
}

func TestKeysOf(t *testing.T) {
	private := "-----BEGIN OPENSSH PRIVATE KEY-----\n"
	secrets := &model.Secrets{
		Values:  map[string]map[string]string{"ssh_keys": {"ops": "# two\n\n" + sshKey + "\n", "away": "", "host": private, "above": ""}},
		Private: []string{"above"},
	}
	ops, away := model.SSHKey{Secret: "ops", Text: secrets.Values["ssh_keys"]["ops"]}, model.SSHKey{Secret: "away"}
	for name, c := range map[string]struct {
		secrets *model.Secrets
		named   *[]string
		want    []model.SSHKey
	}{
		"all of the site, but those that are private": {secrets, nil, []model.SSHKey{away, ops}},
		"none":                               {secrets, &[]string{}, nil},
		"by name in their order, or in full": {secrets, &[]string{"ops", sshKey, "away"}, []model.SSHKey{ops, {Text: sshKey}, away}},
		"a private key that is named":        {secrets, &[]string{"host"}, []model.SSHKey{{Secret: "host", Text: private}}},
		"without secrets":                    {nil, nil, nil},
		"a name without secrets":             {nil, &[]string{"ops"}, []model.SSHKey{{Text: "ops"}}},
	} {
		require.Equal(t, c.want, c.secrets.KeysOf(c.named), name)
	}
	require.Equal(t, []string{sshKey}, ops.Lines(), "without comments and empty lines")
	require.Empty(t, away.Lines())
}
