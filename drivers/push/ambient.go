package push

import (
	"os"
	"path/filepath"

	"github.com/homestak/homestak-gitops/drivers/ssh"
)

// WithKeysOf adds the private keys that ssh(1) would offer for the current user: those in the folder .ssh of HOME
// that need no passphrase, and the ssh-agent at SSH_AUTH_SOCK.
func (c Config) WithKeysOf(env func(string) string) Config {
	c.AgentSocket = env("SSH_AUTH_SOCK")
	if home := env("HOME"); home != "" {
		for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
			if text, err := os.ReadFile(filepath.Join(home, ".ssh", name)); err == nil && ssh.IsKey(string(text)) {
				c.PrivateKeys = append(c.PrivateKeys, string(text))
			}
		}
	}
	return c
}
