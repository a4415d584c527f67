// Package clients_test lets programs of other people work against the simulator, as
// they work against a real host: what they were written for is the best judge of
// how true it is.
package clients_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// requireVar asks for these tests, which take a minute and programs that few machines
// have.
const requireVar = "HOMESTAK_CLIENTS"

// TestAnsible plays the modules for Proxmox VE of Ansible's community.general, which
// speak through the Python library proxmoxer.
func TestAnsible(t *testing.T) {
	if os.Getenv(requireVar) != "require" {
		t.Skip("not asked for: make clients")
	}
	player, err := exec.LookPath("ansible-playbook")
	require.NoError(t, err, "install ansible and python3-proxmoxer")
	for _, play := range []string{"vm", "ct"} {
		t.Run(play, func(t *testing.T) {
			t.Parallel()
			sim := simulate(t)
			template := filepath.Join(t.TempDir(), "debian-12-standard_12.7-1_amd64.tar.gz")
			require.NoError(t, os.WriteFile(template, debianArchive(t), 0o600))
			user, secret, _ := strings.Cut(sim.Token, "=")
			_, tokenID, _ := strings.Cut(user, "!")
			vars, err := json.Marshal(map[string]string{
				"api_host": strings.TrimPrefix(sim.API, "https://"), "token_id": tokenID, "token_secret": secret,
				"node": sim.Node, "template": template, "ansible_python_interpreter": "/usr/bin/python3",
			})
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), player, "--extra-vars", string(vars), filepath.Join("testdata", play+".yml"))
			cmd.Env = append(os.Environ(), "ANSIBLE_NOCOLOR=1", "ANSIBLE_LOCALHOST_WARNING=false", "ANSIBLE_INVENTORY_UNPARSED_WARNING=false", "PYTHONWARNINGS=ignore")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Regexp(t, `failed=0 +skipped=0`, string(out))
		})
	}
}

// debianArchive is the least that PVE takes for the root file system of a Debian 12.
func debianArchive(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	files := tar.NewWriter(packed)
	for name, text := range map[string]string{"./etc/debian_version": "12.7\n", "./bin/sh": "#!\n"} {
		require.NoError(t, files.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))}))
		_, err := io.WriteString(files, text)
		require.NoError(t, err)
	}
	require.NoError(t, files.Close())
	require.NoError(t, packed.Close())
	return out.Bytes()
}

// simulator is the verb sim, running as a process.
type simulator struct{ API, Node, Token string }

func simulate(t *testing.T) simulator {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "homestak-gitops")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags", "-s -w", "-o", bin, "github.com/homestak/homestak-gitops/cmd/homestak-gitops")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	cmd := exec.Command(bin, "sim", "--listen", "127.0.0.1:0", "--json", "--task-time", "50ms")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	var s simulator
	require.NoError(t, json.Unmarshal([]byte(line), &s), line)
	return s
}
