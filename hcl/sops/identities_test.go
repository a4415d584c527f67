package sops_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/hcl/sops"
)

// Identities come from everywhere that sops takes them from. The named file is that of agent.hcl.
func TestFindKeys(t *testing.T) {
	key, other := string(read(t, "key.txt")), string(read(t, "other.txt"))
	secret := ""
	for line := range strings.Lines(key) {
		if strings.HasPrefix(line, "AGE-") {
			secret = strings.TrimSpace(line)
		}
	}
	for name, c := range map[string]struct {
		env    map[string]string // HOME is a folder of the test, and ~ stands for it
		files  map[string]string // below HOME
		named  string
		file   string // of testdata, to decrypt; plain.sops.yaml unless set
		warned string // a file that others can read
		says   string // nothing decrypts, and why
	}{
		"SOPS_AGE_KEY":                  {env: map[string]string{"SOPS_AGE_KEY": secret}},
		"several in SOPS_AGE_KEY":       {env: map[string]string{"SOPS_AGE_KEY": other + "\n#x\n" + secret + " " + secret}},
		"SOPS_AGE_KEY_FILE":             {env: map[string]string{"SOPS_AGE_KEY_FILE": "~/k"}, files: map[string]string{"k": key}},
		"lines of Windows":              {env: map[string]string{"SOPS_AGE_KEY_FILE": "~/k"}, files: map[string]string{"k": strings.ReplaceAll(key, "\n", "\r\n")}},
		"keys.txt":                      {files: map[string]string{".config/sops/age/keys.txt": other + key}},
		"XDG_CONFIG_HOME":               {env: map[string]string{"XDG_CONFIG_HOME": "~/etc"}, files: map[string]string{"etc/sops/age/keys.txt": key}},
		"XDG_CONFIG_HOME is relative":   {env: map[string]string{"XDG_CONFIG_HOME": "etc"}, files: map[string]string{".config/sops/age/keys.txt": key}},
		"SOPS_AGE_SSH_PRIVATE_KEY_FILE": {env: map[string]string{"SOPS_AGE_SSH_PRIVATE_KEY_FILE": "~/k"}, files: map[string]string{"k": string(read(t, "ssh_rsa"))}, file: "rsa.sops.yaml"},
		"id_ed25519":                    {files: map[string]string{".ssh/id_ed25519": string(read(t, "ssh_ed25519"))}, file: "ed25519.sops.yaml"},
		"id_rsa":                        {files: map[string]string{".ssh/id_rsa": string(read(t, "ssh_rsa"))}, file: "rsa.sops.yaml"},
		"hybrid":                        {files: map[string]string{"k": string(read(t, "hybrid.txt"))}, named: "~/k", file: "hybrid.sops.yaml"},
		"named":                         {files: map[string]string{"k": key}, named: "~/k"},
		"named SSH key":                 {files: map[string]string{"k": string(read(t, "ssh_ed25519"))}, named: "~/k", file: "ed25519.sops.yaml"},
		"others can read it":            {files: map[string]string{"open": key}, named: "~/open", warned: "~/open"},
		"one of them is broken":         {files: map[string]string{"k": "AGE-PLUGIN-YUBIKEY-1QQQ\nnonsense\n" + key}, named: "~/k"},

		"nothing":               {says: "No identity was found; SOPS_AGE_KEY is not set; SOPS_AGE_KEY_FILE is not set; ~/.config/sops/age/keys.txt does not exist; ~/.ssh/id_ed25519 does not exist"},
		"nonsense":              {env: map[string]string{"SOPS_AGE_KEY": "correct-horse"}, says: "SOPS_AGE_KEY: line 1 is not an age identity"},
		"half a key":            {env: map[string]string{"SOPS_AGE_KEY": secret[:40]}, says: "SOPS_AGE_KEY: line 1 is not an age identity"},
		"plugin":                {files: map[string]string{"k": "# mine\nAGE-PLUGIN-YUBIKEY-1QQQ\n"}, named: "~/k", says: "~/k: line 2 is a plugin identity"},
		"no such file":          {env: map[string]string{"SOPS_AGE_KEY_FILE": "~/k"}, says: "SOPS_AGE_KEY_FILE=~/k: no such file or directory"},
		"named file is absent":  {named: "~/k", says: "~/k: no such file or directory"},
		"folder":                {named: "~", says: "~: is a directory"},
		"empty":                 {files: map[string]string{"k": "# nothing\n"}, named: "~/k", says: "~/k has no identity"},
		"file with passphrase":  {files: map[string]string{"k": "-----BEGIN AGE ENCRYPTED FILE-----\nx"}, named: "~/k", says: "~/k: it has a passphrase"},
		"broken SSH key":        {files: map[string]string{"k": "-----BEGIN OPENSSH PRIVATE KEY-----\nx"}, named: "~/k", says: "~/k: it cannot be used"},
		"large":                 {files: map[string]string{"k": strings.Repeat("#\n", 1<<20)}, named: "~/k", says: "~/k: it is too large"},
		"SOPS_AGE_KEY_CMD":      {env: map[string]string{"SOPS_AGE_KEY_CMD": "cat ~/k"}, files: map[string]string{"k": key}, says: `SOPS_AGE_KEY_CMD: it is not run: set SOPS_AGE_KEY="$(…)" instead`},
		"another":               {env: map[string]string{"SOPS_AGE_KEY": other}, says: "(SOPS_AGE_KEY); SOPS_AGE_KEY_FILE is not set"},
		"no home":               {env: map[string]string{"HOME": ""}, says: "No identity was found; SOPS_AGE_KEY is not set; SOPS_AGE_KEY_FILE is not set."},
		"SSH key of the config": {files: map[string]string{".ssh/id_ed25519": string(read(t, "ssh_ed25519"))}, says: "Tried an SSH key (~/.ssh/id_ed25519)"},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			for file, text := range c.files {
				file = filepath.Join(home, file)
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
				require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
				if filepath.Base(file) == "open" {
					require.NoError(t, os.Chmod(file, 0o644))
				}
			}
			whole := func(s string) string { return strings.ReplaceAll(s, "~", home) }
			k, found := sops.FindKeys(sops.Sources{File: whole(c.named), Env: func(name string) string {
				if v, ok := c.env[name]; ok || name != "HOME" {
					return whole(v)
				}
				return home
			}})
			if c.warned != "" {
				require.Len(t, found, 1)
				require.Equal(t, "warning: "+whole(c.warned)+" can be read by others on this machine", found[0].String())
			} else {
				require.Empty(t, found)
			}
			file := c.file
			if file == "" {
				file = "plain.sops.yaml"
			}
			if c.says == "" {
				require.Equal(t, values(t, read(t, "source.yaml")), open(t, read(t, file), k))
				return
			}
			f, _ := parse(t, read(t, file))
			found = f.Decrypt(k)
			require.Len(t, found, 1)
			require.Contains(t, found[0].Detail, whole(c.says))
			require.NotContains(t, found[0].Detail, "correct-horse")
			require.NotContains(t, found[0].Detail, secret[20:])
		})
	}
}
