package hcl_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/hcl/sops"
	"github.com/homestak/homestak-gitops/hcl/sops/sopstest"
)

// Each archive of testdata/agent is an agent.hcl, with its findings in "want".
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
			found.Write(&text)
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
serve_images = true
images_max   = 5
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
web {
  listen           = ":44480"
  certificate_file = "page.pem"
  private_key_file = "page.key"
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
	require.Equal(t, "agent.hcl:20:5", got.At("repository.auth.ca_file").String())
	require.True(t, got.At("repository.auth.nothing").IsZero())
	got.Ranges = nil
	require.Equal(t, &model.AgentFile{
		Identity: "father", DataDir: "data", Listen: ":44443", SecretsFile: "secrets.yaml", DriftEvery: 10 * time.Minute, Concurrency: 4, ServeImages: true, ImagesMax: 5,
		Repository: &model.AgentRepository{
			URL: "ssh://git@git.example/site.git", Branch: "live", Path: "sites/home", Poll: 90 * time.Second, MaxSize: 512,
			Auth: &model.AgentAuth{TokenFile: "token", Username: "bot", KeyFile: "key", KnownHostsFile: "known_hosts", CAFile: "ca.pem"},
		},
		Parent: &model.AgentParent{URL: "https://mother:44443", Pins: []string{"sha256:" + sixtyFour}, TokenFile: "parent", ReportEvery: 2 * time.Minute},
		API:    &model.AgentAPI{TokenFile: "api-token", CAFile: "pve.pem", Fingerprint: "sha256:" + strings.Repeat("0a", 32)},
		Access: &model.AgentAccess{ReadKeyFile: "read", OperatorKeyFile: "operator", RepositoryKeyFile: "repository", HookKeyFile: "hook"},
		Web:    &model.AgentWeb{Listen: ":44480", CertificateFile: "page.pem", PrivateKeyFile: "page.key"},
		Log:    &model.AgentLog{Level: "debug", Format: "json"},
	}, got)
}

// What is not declared has what holds on every machine, also where nothing is right.
func TestAgentDefaults(t *testing.T) {
	want := &model.AgentFile{
		DriftEvery: 5 * time.Minute, Concurrency: 8, ImagesMax: 20,
		Repository: &model.AgentRepository{Branch: "main", Poll: time.Minute, MaxSize: 512, Auth: &model.AgentAuth{}},
		Parent:     &model.AgentParent{ReportEvery: time.Minute}, API: &model.AgentAPI{}, Access: &model.AgentAccess{}, Web: &model.AgentWeb{}, Log: &model.AgentLog{Level: "info", Format: "text"},
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
		"drift_every":    {"soon", `drift_every must be a duration such as "90s", "10m" or "7d"`},
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
	out, err := hcl.Deployment{Manifest: "two", Host: "inner-1"}.Rewrite([]byte(site), "site.hcl")
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
	gone, err := hcl.Deployment{}.Rewrite(out, "site.hcl")
	require.NoError(t, err)
	require.NotContains(t, string(gone), "two")
	require.Contains(t, string(gone), `manifest "other"`)

	moved, err := hcl.Deployment{Manifest: "web", Host: "uncle"}.Rewrite([]byte(site), "site.hcl")
	require.NoError(t, err)
	require.Contains(t, string(moved), "host = host.uncle")
	same, err := hcl.Deployment{Manifest: "two", Host: "father"}.Rewrite([]byte("site \"home\" {  }\n"), "site.hcl")
	require.NoError(t, err)
	require.Equal(t, "site \"home\" {  }\n", string(same))
	_, err = hcl.Deployment{Manifest: "two", Host: "father"}.Rewrite([]byte("site {"), "site.hcl")
	require.ErrorContains(t, err, "deploy two: site.hcl:1")
}

// The mode and the variables of one run are in the files, as flags mean them.
func TestDeployWithFlags(t *testing.T) {
	const site = `variable "cores" {
  default = 2
}
variable "image" {
  type    = string
  default = "a"
}
variable "packages" {
  type = list(string)
}
variable "other" {
  default = true
}
manifest "two" {
  pattern = "tiered"
  node "inner" {
    type = "pve"
    execution {
      mode = "push"
    }
  }
  node "app" {
    type   = "vm"
    parent = node.inner
    execution {
      mode = "push"
    }
  }
  node "db" {
    type = "vm"
  }
}
`
	d := hcl.Deployment{Manifest: "two", Host: "father", Mode: "pull", Vars: map[string]string{"cores": "4", "image": "12", "packages": `["jq", "git"]`}}
	out, err := d.Rewrite([]byte(site), "site.hcl")
	require.NoError(t, err)
	require.Equal(t, `variable "cores" {
  default = 4
}
variable "image" {
  type    = string
  default = "12"
}
variable "packages" {
  type    = list(string)
  default = ["jq", "git"]
}
variable "other" {
  default = true
}
manifest "two" {
  pattern = "tiered"
  node "inner" {
    type = "pve"
  }
  node "app" {
    type   = "vm"
    parent = node.inner
  }
  node "db" {
    type = "vm"
  }
  host = host.father
  execution {
    default_mode = "pull"
  }
}
`, string(out))
	again, err := hcl.Deployment{Manifest: "two", Host: "father", Mode: "push"}.Rewrite(out, "site.hcl")
	require.NoError(t, err)
	require.Contains(t, string(again), `default_mode = "push"`)
	require.NotContains(t, string(again), "pull")
}

func TestParseSecrets(t *testing.T) {
	s, found := hcl.ParseSecrets("secrets.yaml", []byte(`
api_tokens:
  father: root@pam!ci=0000
passwords:
  vm_root:
  other: ""
ssh_keys:
  root@father: &key ssh-ed25519 AAAA root
  same: *key
auth:
  site_token: abc
  signing_key: "0123"
  node_tokens:
    web: def
`), nil)
	require.Empty(t, found)
	require.Equal(t, "secrets.yaml", s.Source)
	require.Equal(t, map[string]map[string]string{
		"api_tokens": {"father": "root@pam!ci=0000"},
		"passwords":  {"vm_root": "", "other": ""},
		"ssh_keys":   {"root@father": "ssh-ed25519 AAAA root", "same": "ssh-ed25519 AAAA root"},
		"auth":       {"site_token": "abc", "signing_key": "0123", "node_tokens.web": "def"},
	}, s.Values)
}

func TestParseSecretsFindings(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"empty":           {"", []string{}},
		"only a comment":  {"# nothing\n", []string{}},
		"empty section":   {"passwords:\n", []string{}},
		"unknown section": {"pasword:\n  a: hunter2\n", []string{`s.yaml:2:1: error: unknown section "pasword" of secrets`}},
		"number":          {"passwords:\n  a: 12345678\n", []string{`s.yaml:2:1: error: "a" in section passwords is not a string`}},
		"bool":            {"passwords:\n  a: yes\n  b: true\n", []string{`s.yaml:3:1: error: "b" in section passwords is not a string`}},
		"list":            {"ssh_keys:\n  - hunter2\n", []string{`s.yaml:2:1: error: section ssh_keys is not a map`}},
		"token":           {"api_tokens:\n  father: hunter2\n  mother: a@pve!b=c\n", []string{`s.yaml:2:1: warning: "father" in section api_tokens is not an API token`}},
		"map":             {"passwords:\n  a:\n    b: hunter2\n", []string{`s.yaml:3:1: error: "a" in section passwords is not a string`}},
		"text":            {"hunter2\n", []string{`s.yaml:1:1: error: the secrets file is not a map`}},
		"no key":          {"ssh_keys:\n  a:\n  b: ''\n", []string{`s.yaml:2:1: error: "a" in section ssh_keys has no value`, `s.yaml:3:1: error: "b" in section ssh_keys has no value`}},
		"unknown auth":    {"auth:\n  site_tokn: hunter2\n", []string{`s.yaml:2:1: error: unknown key "site_tokn" in section auth`}},
		"node tokens":     {"auth:\n  node_tokens: hunter2\n", []string{`s.yaml:2:1: error: auth.node_tokens is not a map`}},
		"twice":           {"passwords:\n  a: hunter2\n  a: hunter3\n", []string{`s.yaml:3:1: error: "a" is twice in section passwords`}},
		"documents":       {"passwords:\n  a: hunter2\n---\npasswords:\n  b: hunter2\n", []string{`s.yaml:3:1: error: secrets file has several documents`}},
		"no YAML":         {"passwords:\n  a: 'hunter2\n", []string{`s.yaml:2:1: error: secrets file is not valid YAML`}},
		"unknown anchor":  {"passwords:\n  a: *hunter2\n", []string{`s.yaml:1:1: error: secrets file is not valid YAML`}},
		"cyclic":          {"passwords: &p\n  a: *p\n", []string{`s.yaml:1:1: error: "a" in section passwords is not a string`}},
		"large":           {strings.Repeat("# hunter2\n", 200_000), []string{`s.yaml:1:1: error: secrets file too large`}},
	} {
		t.Run(name, func(t *testing.T) {
			s, found := hcl.ParseSecrets("s.yaml", []byte(c.text), nil)
			require.NotNil(t, s)
			require.Equal(t, c.want, summaries(found))
			for _, f := range found {
				require.NotContains(t, f.Summary+f.Detail+f.Code, "hunter")
			}
		})
	}
}

// A file that SOPS encrypted has the names without a key, and the values with one.
func TestParseEncryptedSecrets(t *testing.T) {
	secret, recipient, err := sopstest.NewKey()
	require.NoError(t, err)
	const plain = "passwords:\n  a: hunter2\n  none:\nssh_keys:\n  ops: ssh-ed25519 AAAA\nauth:\n  site_token: hunter3\n  node_tokens:\n    web: hunter4\n"
	data, err := sopstest.Encrypt(plain, sopstest.Options{Recipients: []string{recipient}})
	require.NoError(t, err)
	require.True(t, hcl.IsEncrypted(data))
	require.False(t, hcl.IsEncrypted([]byte(plain)))
	require.False(t, hcl.IsEncrypted([]byte(":")))
	keys, found := sops.Sources{Env: func(name string) string { return map[string]string{"SOPS_AGE_KEY": secret}[name] }}.FindKeys()
	require.Empty(t, found)

	s, found := hcl.ParseSecrets("s.yaml", data, keys)
	require.Empty(t, found)
	want, found := hcl.ParseSecrets("s.yaml", []byte(plain), nil)
	require.Empty(t, found)
	require.Equal(t, want, s)

	names := map[string]map[string]string{
		"api_tokens": {}, "passwords": {"a": "", "none": ""}, "ssh_keys": {"ops": ""}, "auth": {"site_token": "", "node_tokens.web": ""},
	}
	s, found = hcl.ParseSecrets("s.yaml", data, nil)
	require.Empty(t, found)
	require.Equal(t, names, s.Values)
	s, found = hcl.ParseSecrets("s.yaml", data, &sops.Keys{})
	require.Equal(t, []string{"s.yaml:12:1: warning: s.yaml cannot be decrypted here"}, summaries(found))
	require.Equal(t, names, s.Values)
	s, found = hcl.ParseSecrets("s.yaml", bytes.Replace(data, []byte("site_token:"), []byte("signing_key:"), 1), keys)
	require.Equal(t, []string{"s.yaml:7:1: error: auth.signing_key cannot be decrypted"}, summaries(found))
	require.Equal(t, map[string]string{"a": "", "none": ""}, s.Values["passwords"])
}

// Keys of ownership are 64 digits in hex each, and no finding shows one.
func TestS1OwnershipKeysInSecrets(t *testing.T) {
	key := strings.Repeat("0a", 32)
	s, found := hcl.ParseSecrets("s.yaml", []byte("auth:\n  ownership_key: "+key+"\n  ownership_key_previous: "+key+"\n  ownership_keys:\n    father: "+key+"\n  ownership_keys_previous:\n    father: "+key+"\n"), nil)
	require.Empty(t, found)
	require.Equal(t, map[string]string{"ownership_key": key, "ownership_key_previous": key, "ownership_keys.father": key, "ownership_keys_previous.father": key}, s.Values["auth"])
	for text, want := range map[string]string{
		"ownership_key: canary":                             `s.yaml:2:1: error: auth.ownership_key is not an ownership key`,
		"ownership_key: \"" + strings.Repeat("z", 64) + `"`: `s.yaml:2:1: error: auth.ownership_key is not an ownership key`,
		"ownership_key_previous: canary":                    `s.yaml:2:1: error: auth.ownership_key_previous is not an ownership key`,
		"ownership_keys: canary":                            `s.yaml:2:1: error: auth.ownership_keys is not a map`,
		"ownership_keys: {father: canary}":                  `s.yaml:2:1: error: auth.ownership_keys.father is not an ownership key`,
		"ownership_key: 12":                                 `s.yaml:2:1: error: "ownership_key" in section auth is not a string`,
		"ownership_kye: canary":                             `s.yaml:2:1: error: unknown key "ownership_kye" in section auth`,
	} {
		s, found := hcl.ParseSecrets("s.yaml", []byte("auth:\n  "+text+"\n"), nil)
		require.Equal(t, []string{want}, summaries(found), text)
		require.NotContains(t, found[0].Detail, "canary")
		require.False(t, s.HasOwnershipKey(), "a bad key is not one that is missing: the finding says what to do")
	}
}

// No file of a site can name such a key, nor get at it through the section: it would reach specs and guests.
func TestS1OwnershipKeysAreNotValues(t *testing.T) {
	key := strings.Repeat("0a", 32)
	s, found := hcl.ParseSecrets("s.yaml", []byte("auth:\n  ownership_key: "+key+"\n  ownership_keys:\n    father: "+key+"\n"), nil)
	require.Empty(t, found)
	for _, secrets := range []*model.Secrets{s, nil} {
		for _, reference := range []string{"secret.auth.ownership_key", `secret.auth["ownership_keys"]["father"]`, "secret.auth.ownership_keys.father", "upper(secret.auth.ownership_key_previous)"} {
			_, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte("site \"home\" {\n}\nlocals {\n  a = " + reference + "\n}\n")}}, hcl.Options{Secrets: secrets})
			require.True(t, found.HasErrors(), reference)
			require.Contains(t, found[0].Summary, "cannot be used in the site's files", reference)
		}
	}
}

// The reference lists each section and each fixed name, and its example works: the file is read, and the host gets the
// private key, which no guest gets.
func TestN10R3TheReferenceListsTheSecrets(t *testing.T) {
	var page strings.Builder
	require.NoError(t, hcl.Reference(&page, testKinds()))
	_, section, found := strings.Cut(page.String(), "\n## Secrets\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n# agent.hcl")
	for _, name := range model.SecretSections() {
		require.Contains(t, section, "* `"+name+"`: ")
	}
	_, problems := hcl.ParseSecrets("s.yaml", []byte("auth:\n  x: \"\"\n"), nil)
	require.Len(t, problems, 1)
	key := strings.Repeat("ab", 32)
	for _, line := range regexp.MustCompile("(?m)^ *\\* `(\\w+)`: ").FindAllStringSubmatch(section, -1) {
		if name := line[1]; !slices.Contains(model.SecretSections(), name) {
			_, single := hcl.ParseSecrets("s.yaml", []byte("auth:\n  "+name+": \""+key+"\"\n"), nil)
			_, several := hcl.ParseSecrets("s.yaml", []byte("auth:\n  "+name+":\n    web: \""+key+"\"\n"), nil)
			require.True(t, len(single) == 0 || len(several) == 0, "%s: %v %v", name, single, several)
		}
	}
	for _, name := range []string{"site_token", "signing_key", "node_tokens", model.OwnershipKey, model.PreviousOwnershipKey, model.OwnershipKeys, model.PreviousOwnershipKeys} {
		require.Contains(t, section, "* `"+name+"`: ")
	}

	_, example, found := strings.Cut(section, "\n    api_tokens:")
	require.True(t, found)
	example = strings.ReplaceAll("\n    api_tokens:"+example, "\n    ", "\n")
	file, host, found := strings.Cut(example, "\nhost ")
	require.True(t, found)
	secrets, problems := hcl.ParseSecrets("secrets.yaml", []byte(strings.ReplaceAll(file, `key: "…"`, `key: "`+key+`"`)), nil)
	require.Empty(t, problems)
	require.True(t, secrets.IsPrivateKey("gitops-private"))
	require.False(t, secrets.IsPrivateKey("gitops"))
	site, problems := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte("site \"home\" {\n}\nhost " + host)}}, hcl.Options{Secrets: secrets, Kinds: testKinds()})
	require.False(t, problems.HasErrors(), "%v", problems)
	require.Contains(t, site.Hosts["father"].SSH.Key, "PRIVATE KEY")
}
