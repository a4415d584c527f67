package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/hcl"
)

// runIn runs the program with an environment, to its end.
func runIn(t *testing.T, env map[string]string, args ...string) (code int, out, stderr string) {
	t.Helper()
	var o, e stream
	p := ui.Process{Stdin: strings.NewReader(""), Stdout: &o, Stderr: &e, Env: func(key string) string { return env[key] }}
	code = run(t.Context(), args, p)
	return code, o.String(), e.String()
}

// What is set last counts: flags before environment before file before the machine.
func TestAgentConfigPrecedence(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	state, credentials := filepath.Join(dir, "state"), filepath.Join(dir, "credentials")
	require.NoError(t, os.MkdirAll(credentials, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(credentials, "secrets.yaml"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(credentials, "age-keys.txt"), []byte("# created: …\n"), 0o600))
	file := filepath.Join(dir, "agent.hcl")
	require.NoError(t, os.WriteFile(file, []byte(`
identity    = "file"
drift_every = "7m"
repository {
  url    = "site.git"
  branch = "file"
  path   = "file"
  auth {
    token_file = "tokens/git"
  }
}
`), 0o600))
	here, err := os.Getwd()
	require.NoError(t, err)
	env := map[string]string{
		"HOMESTAK_CONFIG": file, "HOMESTAK_REPOSITORY_BRANCH": "environment", "HOMESTAK_REPOSITORY_PATH": "environment",
		"HOMESTAK_REPOSITORY_AUTH_KEY_FILE": "key", "HOMESTAK_LOG_LEVEL": "debug",
		"STATE_DIRECTORY": state + ":/elsewhere", "CREDENTIALS_DIRECTORY": credentials,
	}
	code, out, stderr := runIn(t, env, "agent", "--print-config", "--path", "flag")
	require.Zero(t, code, stderr)
	require.Equal(t, squeezed(fmt.Sprintf(`# what holds for the agent of this machine; file: %[1]s/agent.hcl
identity = "file" # %[1]s/agent.hcl:2:1
data_dir = "%[1]s/state" # STATE_DIRECTORY
listen   = ":44443" # default
repository {
  url    = "%[1]s/site.git" # %[1]s/agent.hcl:5:3
  branch = "environment" # HOMESTAK_REPOSITORY_BRANCH
  path   = "flag" # --path
  poll   = "1m" # default
  max_size = 512 # default
  auth {
    token_file = "%[1]s/tokens/git" # %[1]s/agent.hcl:9:5
    # username is not set
    key_file = "%[2]s/key" # HOMESTAK_REPOSITORY_AUTH_KEY_FILE
    # known_hosts_file is not set
    # ca_file is not set
  }
}
parent {
  # url is not set
  # pins is not set
  # token_file is not set
  report_every = "1m" # default
}
api {
  # token_file is not set
  # ca_file is not set
  # fingerprint is not set
}
secrets_file = "%[1]s/credentials/secrets.yaml" # CREDENTIALS_DIRECTORY
age_key_file = "%[1]s/credentials/age-keys.txt" # CREDENTIALS_DIRECTORY
access {
  # read_key_file is not set
  # operator_key_file is not set
  # repository_key_file is not set
  # hook_key_file is not set
}
drift_every = "7m" # %[1]s/agent.hcl:3:1
concurrency = 8 # default
log {
  level  = "debug" # HOMESTAK_LOG_LEVEL
  format = "text" # default
}
`, dir, here)), squeezed(out))

	// What is printed is an agent.hcl that says the same.
	again, found := hcl.ParseAgent("agent.hcl", []byte(out))
	require.Empty(t, found)
	require.Equal(t, "flag", again.Repository.Path)
	require.Equal(t, 7*time.Minute, again.DriftEvery)
	again2 := filepath.Join(dir, "again.hcl")
	require.NoError(t, os.WriteFile(again2, []byte(out), 0o600))
	code, printed, _ := runIn(t, nil, "agent", "--print-config", "--config", again2)
	require.Zero(t, code)
	require.Equal(t, values(out), values(printed))
}

// The unit has placeholders for files that the machine does not have: they hide nothing of the
// site.
func TestPlaceholdersOfTheUnit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unit, err := os.ReadFile(filepath.Join("..", "..", "systemd", "homestak-gitops.service"))
	require.NoError(t, err)
	found := 0
	for line := range strings.Lines(string(unit)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "SetCredential="); ok {
			name, text, _ := strings.Cut(value, ":")
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			found++
		}
	}
	require.Equal(t, 2, found)
	code, out, stderr := runIn(t, map[string]string{"CREDENTIALS_DIRECTORY": dir, "HOMESTAK_DATA_DIR": dir, "HOMESTAK_IDENTITY": "x"}, "agent", "--print-config")
	require.Zero(t, code, stderr)
	require.Contains(t, out, "# secrets_file is not set\n")
	require.Contains(t, out, "# age_key_file is not set\n")
}

// squeezed takes away the spaces that lay the text out.
func squeezed(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		fmt.Fprintln(&b, strings.Join(strings.Fields(line), " "))
	}
	return b.String()
}

// values takes away comments and alignment.
func values(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		value, _, _ := strings.Cut(line, "#")
		if value = strings.TrimSpace(value); value != "" {
			fmt.Fprintln(&b, strings.Join(strings.Fields(value), " "))
		}
	}
	return b.String()
}

// All that is wrong is reported at once, wherever it was said, and no secret with it.
func TestAgentConfigMistakes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "agent.hcl")
	require.NoError(t, os.WriteFile(file, []byte("identiti = \"father\"\nlisten = \":1\"\nparent {\n  url = \"https://mother:44443\"\n}\n"), 0o600))
	env := map[string]string{"HOMESTAK_CONCURRENCY": "lots", "HOME": "/nowhere", "HOMESTAK_REPOSITORY_URL": "https://x:hunter2@git.example/a.git"}
	code, out, stderr := runIn(t, env, "agent", "--config", file, "--log-level", "loud", "--identity", "father")
	require.Equal(t, ui.ExitFailed, code)
	require.Empty(t, out)
	for _, want := range []string{
		file + `:1:1: error: unknown attribute "identiti" in agent.hcl`, `did you mean "identity"?`,
		"error: HOMESTAK_CONCURRENCY: concurrency must be a whole number",
		`error: --log-level: level = "loud" is not valid`, "known: debug, error, info, warn",
		"error: HOMESTAK_REPOSITORY_URL: url = ", "name a file in auth { token_file = … }",
		file + ":4:3: error: parent.pins is missing", file + ":4:3: error: parent.token_file is missing",
		"error: the agent cannot start: 6 configuration errors",
	} {
		require.Contains(t, stderr, want)
	}
	require.NotContains(t, stderr, "hunter2")

	_, _, stderr = runIn(t, nil, "agent", "--config", "/nowhere/agent.hcl")
	require.Contains(t, stderr, "read the agent's configuration: open /nowhere/agent.hcl")
	_, _, stderr = runIn(t, map[string]string{"HOME": t.TempDir()}, "agent", "--identity", "father")
	require.Contains(t, stderr, "no repository is set")
	_, _, stderr = runIn(t, nil, "agent", "--json", "--identity", "father")
	require.Contains(t, stderr, "homestak-gitops status --json")
}
