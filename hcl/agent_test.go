package hcl_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// Each archive of testdata/agent is an agent.hcl, with what is said of it in "want".
func TestAgentFindings(t *testing.T) {
	archives, err := filepath.Glob("testdata/agent/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, archives)
	for _, name := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			require.NoError(t, err)
			require.Len(t, archive.Files, 2)
			_, found := hcl.ParseAgent("/etc/homestak-gitops/agent.hcl", archive.Files[0].Data)
			var text strings.Builder
			diag.Text(&text, found)
			if *update {
				archive.Files[1].Data = []byte(text.String())
				require.NoError(t, os.WriteFile(name, txtar.Format(archive), 0o600))
			}
			require.Equal(t, string(archive.Files[1].Data), text.String())
			require.True(t, found.HasErrors())
		})
	}
}

const wholeAgent = `
identity     = "father"
data_dir     = "data"
listen       = ":44443"
secrets_file = "secrets.yaml"
drift_every  = "10m"
concurrency  = 4
repository {
  url    = "ssh://git@git.example/site.git"
  branch = "live"
  path   = "sites/home"
  poll   = "90s"
  auth {
    token_file       = "token"
    username         = "bot"
    key_file         = "key"
    known_hosts_file = "known_hosts"
    ca_file          = "ca.pem"
  }
}
parent {
  url        = "https://mother:44443"
  pins       = ["sha256:` + sixtyFour + `"]
  token_file = "parent"
  report_every = "2m"
}
api {
  token_file  = "api-token"
  ca_file     = "pve.pem"
  fingerprint = "sha256:0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
}
access {
  read_key_file     = "read"
  operator_key_file = "operator"
  repository_key_file = "repository"
  hook_key_file       = "hook"
}
log {
  level  = "debug"
  format = "json"
}
`

const sixtyFour = "0000000000000000000000000000000000000000000000000000000000000000"

func TestAgentFile(t *testing.T) {
	got, found := hcl.ParseAgent("agent.hcl", []byte(wholeAgent))
	require.Empty(t, found)
	require.Equal(t, "agent.hcl:18:5", got.At("repository.auth.ca_file").String())
	require.True(t, got.At("repository.auth.nothing").IsZero())
	got.Ranges = nil
	require.Equal(t, &model.AgentFile{
		Identity: "father", DataDir: "data", Listen: ":44443", SecretsFile: "secrets.yaml", DriftEvery: 10 * time.Minute, Concurrency: 4,
		Repository: &model.AgentRepository{
			URL: "ssh://git@git.example/site.git", Branch: "live", Path: "sites/home", Poll: 90 * time.Second, MaxSize: 512,
			Auth: &model.AgentAuth{TokenFile: "token", Username: "bot", KeyFile: "key", KnownHostsFile: "known_hosts", CAFile: "ca.pem"},
		},
		Parent: &model.AgentParent{URL: "https://mother:44443", Pins: []string{"sha256:" + sixtyFour}, TokenFile: "parent", ReportEvery: 2 * time.Minute},
		API:    &model.AgentAPI{TokenFile: "api-token", CAFile: "pve.pem", Fingerprint: "sha256:" + strings.Repeat("0a", 32)},
		Access: &model.AgentAccess{ReadKeyFile: "read", OperatorKeyFile: "operator", RepositoryKeyFile: "repository", HookKeyFile: "hook"},
		Log:    &model.AgentLog{Level: "debug", Format: "json"},
	}, got)
}

// What is not declared has what holds on every machine, also where nothing is right.
func TestAgentDefaults(t *testing.T) {
	want := &model.AgentFile{
		DriftEvery: 5 * time.Minute, Concurrency: 8,
		Repository: &model.AgentRepository{Branch: "main", Poll: time.Minute, MaxSize: 512, Auth: &model.AgentAuth{}},
		Parent:     &model.AgentParent{ReportEvery: time.Minute}, API: &model.AgentAPI{}, Access: &model.AgentAccess{}, Log: &model.AgentLog{Level: "info", Format: "text"},
	}
	for _, text := range []string{"", "\xff", "# nothing\n"} {
		got, _ := hcl.ParseAgent("agent.hcl", []byte(text))
		require.Equal(t, want, got, text)
	}
}

func TestSetAgent(t *testing.T) {
	file, _ := hcl.ParseAgent("", nil)
	for path, text := range map[string]string{
		"identity": "father", "concurrency": "3", "repository.poll": "2m", "repository.auth.token_file": "/t",
		"parent.pins": "sha256:" + sixtyFour + ", " + sixtyFour, "repository.url": "git@git.example:site.git",
	} {
		require.Empty(t, hcl.SetAgent(file, path, text), path)
	}
	require.Equal(t, "father", file.Identity)
	require.Equal(t, 3, file.Concurrency)
	require.Equal(t, 2*time.Minute, file.Repository.Poll)
	require.Equal(t, "/t", file.Repository.Auth.TokenFile)
	require.Equal(t, []string{"sha256:" + sixtyFour, sixtyFour}, file.Parent.Pins)

	for path, c := range map[string][2]string{
		"concurrency":    {"many", "concurrency must be a whole number"},
		"drift_every":    {"soon", `drift_every must be a duration such as "90s" or "10m"`},
		"log.level":      {"loud", `level = "loud" is not valid`},
		"repository.url": {"https://user:hunter2@x/y", `url = "https://(sensitive)@x/y" is not valid`},
	} {
		found := hcl.SetAgent(file, path, c[0])
		require.Len(t, found, 1, path)
		require.Equal(t, c[1], found[0].Summary)
		require.True(t, found[0].At.IsZero())
	}
}

func FuzzParseAgent(f *testing.F) {
	f.Add([]byte(wholeAgent))
	f.Add([]byte("repository { auth { auth { } } }\nrepository = 1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, found := hcl.ParseAgent("agent.hcl", data)
		require.NotNil(t, file.Repository.Auth)
		require.NotNil(t, file.Log)
		for _, d := range found {
			require.Equal(t, "agent.hcl", d.At.File, "%v", d)
			require.NotContains(t, d.Summary, "internal error")
		}
	})
}
