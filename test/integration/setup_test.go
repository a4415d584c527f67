package integration_test

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/setup"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// setupNode is a PVE node in a folder: its API is that of the simulator, systemd is not there, and the rest is this machine's.
type setupNode struct{ *story }

// Run runs the programs of the host, for setup.Setup.
func (n setupNode) Run(ctx context.Context, argv []string) (string, error) {
	switch argv[0] {
	case "pvesh", "pveum", "pvesm":
		return sim.Command(n.host, n.host.Token(), argv)
	case "systemctl", "systemd-sysusers", "usermod", "userdel", "getent":
		return "", nil
	}
	return setup.Programs{}.Run(ctx, argv)
}

// After setup the first pass of the agent has nothing to do, the doctor nothing to say, and a plan from a clone is empty.
// The site is one that fmt and validate accept, and a push of its example creates guests with the privileges that setup gave.
func TestSetupGivesAnAgentThatConverges(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"git", "ssh-keygen", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	for _, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			s := begin(t, pve.Config{Version: version})
			root := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
			scaffold := map[string][]byte{}
			require.NoError(t, fs.WalkDir(os.DirFS("../../cmd/homestak-gitops/site"), ".", func(name string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					scaffold[strings.Replace(name, "dot.", ".", 1)], err = os.ReadFile("../../cmd/homestak-gitops/site/" + name)
				}
				return err
			}))
			set := &setup.Setup{Run: setupNode{s}, Root: root, Program: program(t), Files: scaffold, API: s.api, Say: t.Logf}
			p, err := set.Read(t.Context())
			require.NoError(t, err)
			require.NoError(t, set.Do(t.Context(), p))

			t.Log("an empty pass")
			s.dir = filepath.Join(t.TempDir(), "site")
			git := func(args ...string) {
				out, err := sourcetest.Git(t.Context(), "", args...).CombinedOutput()
				require.NoError(t, err, "git %v: %s", args, out)
			}
			git("clone", "-q", filepath.Join(root, "srv/homestak-gitops.git"), s.dir)
			secrets, agent := filepath.Join(root, "etc/homestak-gitops/secrets.yaml"), filepath.Join(root, "etc/homestak-gitops/agent.hcl")
			once := []string{"agent", "--once", "--config", agent, "--secrets", secrets}
			before := s.writes()
			s.says(0, once...)
			require.Equal(t, before, s.writes())
			s.says(0, "fmt", "--check")
			s.says(0, "validate")
			text, err := os.ReadFile(secrets)
			require.NoError(t, err)
			s.write("secrets.yaml", string(text))
			s.says(0, "plan", "--detailed-exitcode")
			require.NotRegexp(t, "(?m)^(FAIL|warning)", s.says(0, "doctor").out)

			t.Log("an import of the guests that were there")
			s.says(0, "import", "--site", ".", "--host", "father")
			s.says(0, "validate")
			git("-C", s.dir, "clean", "-qfd")
			git("-C", s.dir, "checkout", "-q", ".")

			t.Log("a push")
			s.edit("manifests/web.hcl", "# An example. Without the leading # of each line it creates two VMs.\n\n", "")
			example, err := os.ReadFile(filepath.Join(s.dir, "manifests/web.hcl"))
			require.NoError(t, err)
			s.write("manifests/web.hcl", strings.ReplaceAll("\n"+string(example), "\n# ", "\n"))
			s.says(0, "fmt", "--check")
			git("-C", s.dir, "commit", "-qam", "two servers")
			git("-C", s.dir, "push", "-q")
			s.says(0, once...)
			require.Equal(t, []string{"web-1", "web-2"}, s.names())
		})
	}
}
