package integration_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/ssh"
)

// The recipes of the example, each as a tree or flat, by one command of the program, with its report.
func TestRecipesOfTheExample(t *testing.T) {
	t.Parallel()
	_, public, err := ssh.NewKey("ops@laptop")
	require.NoError(t, err)
	site, err := filepath.Abs("../../examples/site")
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(site, "secrets.yaml.example"))
	require.NoError(t, err)
	const placeholder = "ssh-ed25519 PUT-THE-PUBLIC-KEY-HERE ops@laptop"
	require.Contains(t, string(text), placeholder)
	secrets := filepath.Join(t.TempDir(), "secrets.yaml")
	require.NoError(t, os.WriteFile(secrets, []byte(strings.Replace(string(text), placeholder, public, 1)), 0o600))
	for recipe, nodes := range map[string][]string{
		"n1-push": {"edge"}, "n1-pull": {"edge"}, "n2-push": {"root-pve", "edge"}, "n2-pull": {"root-pve", "edge"},
		"n3-deep": {"root-pve", "leaf-pve", "edge"}, "workers": {"worker-1", "worker-2", "worker-3"}, "mixed-mode": {"inner-pve", "edge"},
	} {
		t.Run(recipe, func(t *testing.T) {
			t.Parallel()
			r := run(t, t.TempDir(), "test", "-M", recipe, "--host", "father", "--sim", "--site", site, "--secrets", secrets, "--json")
			require.Zero(t, r.code, r.err)
			report := document[struct {
				Success bool
				Nodes   []struct{ Name, Status, Error string }
			}](t, r)
			require.True(t, report.Success)
			var names []string
			for _, n := range report.Nodes {
				require.Equal(t, "destroyed", n.Status, n.Error)
				names = append(names, n.Name)
			}
			require.ElementsMatch(t, nodes, names)
		})
	}
}
