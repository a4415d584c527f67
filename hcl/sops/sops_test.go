package sops_test

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/hcl/sops"
	"github.com/homestak/homestak-gitops/hcl/sops/sopstest"
)

// read parses a file of testdata and decrypts it with its keys.
func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return data
}

func parse(t *testing.T, data []byte) (*sops.File, diag.List) {
	t.Helper()
	var doc yaml.Node
	require.NoError(t, yaml.Unmarshal(data, &doc))
	require.True(t, sops.IsEncrypted(&doc))
	return sops.Parse("s.yaml", &doc)
}

// keys are the identities in a file of testdata.
func keys(t *testing.T, name string) *sops.Keys {
	t.Helper()
	file := filepath.Join("testdata", name)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	private := filepath.Join(t.TempDir(), "key") // git keeps no mode
	require.NoError(t, os.WriteFile(private, data, 0o600))
	k, found := sops.Sources{File: private}.FindKeys()
	require.Empty(t, found)
	return k
}

// open decrypts all of a file.
func open(t *testing.T, data []byte, k *sops.Keys) any {
	t.Helper()
	f, found := parse(t, data)
	require.Empty(t, found)
	require.Empty(t, f.Decrypt(k))
	var v any
	require.NoError(t, f.Root.Decode(&v))
	return v
}

// values reads plain YAML.
func values(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	require.NoError(t, yaml.Unmarshal(data, &v))
	return v
}

// variants are the ways in which files of testdata were encrypted by the real sops: the name of
// the file, the rules in .sops.yaml, and the file of an identity.
var variants = []struct{ name, rule, key string }{
	{"plain", "", "key.txt"},
	{"unencrypted_suffix", "unencrypted_suffix: _keys", "key.txt"},
	{"encrypted_suffix", "encrypted_suffix: s", "key.txt"},
	{"unencrypted_regex", "unencrypted_regex: ^(ssh_keys|number|list|when|float|yes)$", "key.txt"},
	{"encrypted_regex", "encrypted_regex: ^(passwords|auth)$", "key.txt"},
	{"mac_only_encrypted", "encrypted_regex: ^(passwords|auth)$\n    mac_only_encrypted: true", "key.txt"},
	{"unencrypted_comment_regex", "unencrypted_comment_regex: public", "key.txt"},
	{"encrypted_comment_regex", "encrypted_comment_regex: secret", "key.txt"},
	{"several", "", "other.txt"},
	{"groups", "", "two.txt"},
	{"hybrid", "", "hybrid.txt"},
	{"ed25519", "", "ssh_ed25519"},
	{"rsa", "", "ssh_rsa"},
}

// Files that the real sops encrypted have the values that the real sops decrypts.
func TestFilesOfSops(t *testing.T) {
	want := values(t, read(t, "source.yaml"))
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			data := read(t, v.name+".sops.yaml")
			if v.rule == "" {
				require.NotContains(t, string(data), "correct horse")
			}
			require.Equal(t, want, open(t, data, keys(t, v.key)))
		})
	}
}

// Every byte of every encrypted value, of the MAC and of its time matters.
func TestTampered(t *testing.T) {
	data := read(t, "plain.sops.yaml")
	k := keys(t, "key.txt")
	changed := 0
	lines := bytes.SplitAfter(data, []byte("\n"))
	for n, line := range lines {
		text := string(line)
		from, to := strings.Index(text, "data:"), strings.Index(text, ",type:")
		switch {
		case strings.HasPrefix(strings.TrimSpace(text), "#"):
			continue // comments are not covered
		case strings.Contains(text, "lastmodified:"):
			from, to = strings.Index(text, "20"), len(text)-3
		case from < 0 || to < 0:
			continue
		}
		for i := from; i < to; i += 3 {
			other := bytes.Clone(line)
			if other[i]++; other[i] == 'Z'+1 || other[i] == 'z'+1 || other[i] == '9'+1 {
				other[i] -= 2
			}
			if bytes.Equal(other, line) {
				continue
			}
			changed++
			var b bytes.Buffer
			for j, l := range lines {
				if j == n {
					l = other
				}
				b.Write(l)
			}
			refused(t, b.Bytes(), k)
		}
	}
	require.Greater(t, changed, 300)
}

// refused checks that a file has an error, and that none of its values is used.
func refused(t *testing.T, data []byte, k *sops.Keys) diag.List {
	t.Helper()
	f, found := parse(t, data)
	if !found.HasErrors() {
		found = append(found, f.Decrypt(k)...)
	}
	require.True(t, found.HasErrors(), "nothing was noticed in:\n%s", data)
	var look func(n *yaml.Node)
	look = func(n *yaml.Node) {
		for _, c := range n.Content {
			look(c)
		}
		require.NotContains(t, n.Value, "correct horse")
	}
	look(f.Root)
	for _, x := range found {
		require.NotContains(t, x.Summary+x.Detail, "correct horse")
		require.Empty(t, x.Code)
		require.Equal(t, "s.yaml", x.At.File)
	}
	return found
}

// Edits by people and merges, each with its error.
func TestFindings(t *testing.T) {
	plain := string(read(t, "plain.sops.yaml"))
	line := func(of string) string {
		for l := range strings.Lines(plain) {
			if strings.HasPrefix(strings.TrimSpace(l), of+":") {
				return l
			}
		}
		t.Fatal("no line of " + of)
		return ""
	}
	replace := func(old, with string) string {
		require.Equal(t, 1, strings.Count(plain, old), old)
		return strings.Replace(plain, old, with, 1)
	}
	cut := func(from, to string) string {
		a, rest, ok := strings.Cut(plain, from)
		require.True(t, ok)
		_, b, ok := strings.Cut(rest, to)
		require.True(t, ok)
		return a + to + b
	}
	at := func(text, of string) int {
		before, _, ok := strings.Cut(text, of)
		require.True(t, ok)
		return strings.Count(before, "\n") + 1
	}
	content, _, _ := strings.Cut(plain, "sops:")
	groups := func(oldnew ...string) string {
		return strings.NewReplacer(oldnew...).Replace(string(read(t, "groups.sops.yaml")))
	}
	for name, c := range map[string]struct {
		text, at, want string
	}{
		"value in the clear":  {replace(line("site_token"), "    site_token: correct horse\n"), "site_token", "auth.site_token is not encrypted"},
		"number in the clear": {replace(line("site_token"), "    site_token: 42\n"), "site_token", "auth.site_token is not encrypted"},
		"truncated value":     {replace(line("site_token"), line("site_token")[:60]+"\n"), "site_token", "auth.site_token is damaged"},
		"no base64":           {replace(line("site_token"), "    site_token: ENC[AES256_GCM,data:*,iv:QQ==,tag:QQ==,type:str]\n"), "site_token", "auth.site_token is damaged"},
		"moved value":         {replace(line("site_token"), strings.Replace(line("father"), "father", "site_token", 1)), "site_token", "auth.site_token cannot be decrypted"},
		"other type":          {replace(line("father"), strings.Replace(line("father"), "type:str", "type:int", 1)), "father", "api_tokens.father cannot be decrypted"},
		"unknown type":        {replace(line("father"), strings.Replace(line("father"), "type:str", "type:strange", 1)), "father", "api_tokens.father cannot be decrypted"},
		"removed value":       {replace(line("site_token"), ""), "mac:", "the MAC of s.yaml does not match"},
		"added value":         {replace(line("site_token"), line("site_token")+"    more_unencrypted: 1\n"), "mac:", "the MAC of s.yaml does not match"},
		"other clear value":   {replace("in the clear", "in the Clear"), "mac:", "the MAC of s.yaml does not match"},
		"no MAC":              {replace(line("mac"), ""), "age:", "s.yaml has no MAC"},
		"empty MAC":           {replace(line("mac"), "    mac: \"\"\n"), "age:", "s.yaml has no MAC"},
		"truncated MAC":       {replace(line("mac"), line("mac")[:80]+"\n"), "mac:", "the MAC of s.yaml is damaged"},
		"no time":             {replace(line("lastmodified"), ""), "age:", "s.yaml has no lastmodified"},
		"no such time":        {replace(line("lastmodified"), "    lastmodified: now\n"), "lastmodified", "lastmodified is not a time"},
		"two rules":           {replace("    unencrypted_suffix: _unencrypted\n", "    unencrypted_suffix: _x\n    encrypted_regex: y\n"), "age:", "s.yaml has several rules for what is encrypted"},
		"rule changed":        {replace("    unencrypted_suffix: _unencrypted\n", "    unencrypted_suffix: _token\n"), "site_token", "auth.site_token is encrypted against the rules of the file"},
		"no regexp":           {replace("    unencrypted_suffix: _unencrypted\n", "    encrypted_regex: (\n"), "encrypted_regex", "encrypted_regex is not a regular expression"},
		"MAC only perhaps":    {replace("    unencrypted_suffix: _unencrypted\n", "    unencrypted_suffix: _unencrypted\n    mac_only_encrypted: perhaps\n"), "mac_only", "mac_only_encrypted is neither true nor false"},
		"MAC only":            {replace("    unencrypted_suffix: _unencrypted\n", "    unencrypted_suffix: _unencrypted\n    mac_only_encrypted: true\n"), "mac:", "the MAC of s.yaml does not match"},
		"only PGP":            {cut("    age:\n", "    lastmodified") + "    pgp:\n        - fp: \"0123\"\n          enc: x\n          created_at: \"2026-01-02T03:04:05Z\"\n    kms:\n        - arn: x\n          created_at: \"2026-01-02T03:04:05Z\"\n", "    lastmodified", "s.yaml has no age recipient"},
		"no recipient":        {cut("    age:\n", "    lastmodified"), "    lastmodified", "s.yaml has no recipient"},
		"half a recipient":    {replace("          recipient: ", "          receiver: "), "        - enc", "a recipient of s.yaml is damaged"},
		"damaged key":         {replace("-----BEGIN AGE ENCRYPTED FILE-----", "-----BEGIN AGE FILE-----"), "        - enc", "the data key of s.yaml is damaged"},
		"no map":              {content + "sops: true\n", "sops:", "the entry sops is not a map"},
		"empty key groups":    {cut("    age:\n", "    lastmodified") + "    key_groups:\n        - age: []\n        - age: []\n", "    lastmodified", "s.yaml has no recipient"},
		"too few with age":    {groups("key_groups:", "key_groups:"+strings.Repeat("\n        - pgp:\n            - fp: x\n              enc: x\n              created_at: \"2026-01-02T03:04:05Z\"", 2), "shamir_threshold: 2", "shamir_threshold: 4"), "    key_groups", "s.yaml has too few key groups with age recipients"},
		"no such threshold":   {groups("shamir_threshold: 2", "shamir_threshold: 4"), "    shamir_threshold", "shamir_threshold is not a number of groups"},
		"threshold of one":    {groups("shamir_threshold: 2", "shamir_threshold: 1"), "    shamir_threshold", "shamir_threshold is not a number of groups"},
		"key as a share":      {groups("-----BEGIN AGE", "-----BEGIN BAGE"), "            - enc", "the data key of s.yaml is damaged"},
		"alias":               {replace(line("site_token"), "    site_token: &x ENC[AES256_GCM,data:QQ==,iv:QQ==,tag:QQ==,type:str]\n    y: *x\n"), "    y: *x", "auth.y is an alias"},
		"name of another":     {replace("    site_token:", "    12:"), "    12:", "a name in s.yaml is not a string"},
		"deep":                {replace(line("site_token"), "    site_token: "+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+"\n"), "site_token", "s.yaml is nested too deeply"},
		"name renamed":        {replace("    site_token:", "    other_token:"), "other_token", "auth.other_token cannot be decrypted"},
	} {
		t.Run(name, func(t *testing.T) {
			found := refused(t, []byte(c.text), keys(t, "key.txt"))
			var all []string
			for _, f := range found {
				all = append(all, f.String())
			}
			require.Contains(t, all, fmt.Sprintf("s.yaml:%d:1: error: %s", at(c.text, c.at), c.want))
		})
	}
}

// Without an identity of its own a file gives its names, and a warning says what was tried.
func TestNoIdentity(t *testing.T) {
	for name, c := range map[string]struct {
		keys *sops.Keys
		want string
	}{
		"none":  {nil, "No identity was searched for."},
		"other": {keys(t, "other.txt"), "Tried age1"},
	} {
		t.Run(name, func(t *testing.T) {
			f, found := parse(t, read(t, "plain.sops.yaml"))
			require.Empty(t, found)
			found = f.Decrypt(c.keys)
			require.Len(t, found, 1)
			require.Equal(t, diag.Warning, found[0].Severity)
			require.Equal(t, "s.yaml cannot be decrypted here", found[0].Summary)
			require.Contains(t, found[0].Detail, c.want)
			require.Contains(t, found[0].Detail, "It is encrypted for "+f.Recipients()[0])
			require.NotContains(t, found[0].Detail, "SECRET")
			var v map[string]any
			require.NoError(t, f.Root.Decode(&v))
			require.Contains(t, v["passwords"], "vm_root")
		})
	}
}

// Of several groups as many are needed as the file says: with one identity too few it has no values, and
// with the same share twice it is damaged.
func TestKeyGroups(t *testing.T) {
	data := read(t, "groups.sops.yaml")
	for _, name := range []string{"key.txt", "other.txt", "hybrid.txt"} {
		f, found := parse(t, data)
		require.Empty(t, found)
		require.Len(t, f.Recipients(), 3)
		found = f.Decrypt(keys(t, name))
		require.Len(t, found, 1)
		require.Equal(t, diag.Warning, found[0].Severity)
		require.Contains(t, found[0].Detail, "They form 3 groups; 2 of them must each have an identity here.")
	}
	// The same share twice: the last group has what is encrypted in the first.
	parts := strings.Split(string(data), "\n        - age:\n")
	require.Len(t, parts, 4)
	_, end, _ := strings.Cut(parts[3], "    lastmodified")
	twice := strings.Join([]string{parts[0], parts[1], parts[2], parts[1]}, "\n        - age:\n") + "\n    lastmodified" + end
	found := refused(t, []byte(twice), keys(t, "two.txt"))
	require.Equal(t, "the data key of s.yaml is damaged", found[0].Summary)
	require.Contains(t, found[0].Detail, "same share")
}

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
			k, found := sops.Sources{File: whole(c.named), Env: func(name string) string {
				if v, ok := c.env[name]; ok || name != "HOME" {
					return whole(v)
				}
				return home
			}}.FindKeys()
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

// FuzzFile feeds any document to a reader that has the key: no finding shows what was encrypted,
// and what was decrypted is there only without an error.
func FuzzFile(f *testing.F) {
	for _, v := range variants {
		data, err := os.ReadFile(filepath.Join("testdata", v.name+".sops.yaml"))
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte("a: &x [*x]\nsops: *x\n"))
	f.Add([]byte("sops: {age: [{recipient: x, enc: y}], mac: 'ENC[AES256_GCM,data:QQ==,iv:QQ==,tag:QQ==,type:str]', lastmodified: 2026-01-02T03:04:05Z}\n? [a]\n: b\n<<: {c: d}\n"))
	var all []*sops.Keys
	for _, name := range []string{"key.txt", "other.txt", "hybrid.txt", "ssh_ed25519", "ssh_rsa"} {
		k, _ := sops.Sources{File: filepath.Join("testdata", name)}.FindKeys()
		all = append(all, k)
	}
	const secret = "correct horse"
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, k := range append(all, nil) {
			var doc yaml.Node
			if yaml.Unmarshal(data, &doc) != nil || !sops.IsEncrypted(&doc) {
				return
			}
			f, found := sops.Parse("s.yaml", &doc)
			if !found.HasErrors() {
				found = append(found, f.Decrypt(k)...)
			}
			if len(found) > 0 && !strings.Contains(string(data), secret) {
				out, _ := yaml.Marshal(f.Root)
				require.NotContains(t, string(out), secret)
			}
			for _, x := range found {
				require.Equal(t, "s.yaml", x.At.File)
				require.Positive(t, x.At.Start.Line)
				require.Empty(t, x.Code)
				if !strings.Contains(string(data), secret) {
					require.NotContains(t, x.Summary+x.Detail, secret)
				}
				require.Less(t, len(x.Summary+x.Detail), 4000)
			}
		}
	})
}

var update = flag.Bool("update", false, "write the files of testdata again, with the real sops")

// The real sops and this package read what the other wrote. make sops-test installs sops.
func TestRealSops(t *testing.T) {
	command, err := exec.LookPath("sops")
	if err != nil {
		t.Skip("there is no sops: make sops-test installs it")
	}
	source := read(t, "source.yaml")
	dir := t.TempDir()
	run := func(t *testing.T, key string, args ...string) []byte {
		t.Helper()
		c := exec.Command(command, args...)
		variable := "SOPS_AGE_KEY_FILE="
		if strings.HasPrefix(key, "ssh_") {
			variable = "SOPS_AGE_SSH_PRIVATE_KEY_FILE="
		}
		at, err := filepath.Abs(filepath.Join("testdata", key))
		require.NoError(t, err)
		c.Dir, c.Env = dir, []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), variable + at}
		out, err := c.Output()
		if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Output returns it as it is
			t.Fatalf("sops %s: %s", strings.Join(args, " "), exit.Stderr)
		}
		require.NoError(t, err)
		return out
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			public := func(name string) string { return strings.TrimSpace(string(read(t, name+".pub"))) }
			var rules string
			switch v.name {
			case "several":
				rules = "creation_rules:\n  - age: " + public("key.txt") + "," + public(v.key) + "\n"
			case "groups":
				rules = "creation_rules:\n  - shamir_threshold: 2\n    key_groups:\n      - age: [" + public("key.txt") + "]\n      - age: [" + public("hybrid.txt") + "]\n      - age: [" + public("other.txt") + "]\n"
			default:
				rules = "creation_rules:\n  - age: " + public(v.key) + "\n"
			}
			if v.rule != "" {
				rules += "    " + v.rule + "\n"
			}
			require.NoError(t, os.WriteFile(filepath.Join(dir, ".sops.yaml"), []byte(rules), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "x.yaml"), source, 0o600))
			data := run(t, v.key, "encrypt", "x.yaml")
			require.NoError(t, os.WriteFile(filepath.Join(dir, "e.yaml"), data, 0o600))
			theirs := values(t, run(t, v.key, "decrypt", "e.yaml"))
			require.Equal(t, theirs, open(t, data, keys(t, v.key)))
			if *update {
				require.NoError(t, os.WriteFile(filepath.Join("testdata", v.name+".sops.yaml"), data, 0o644))
			}
		})
	}
	t.Run("what tests encrypt", func(t *testing.T) {
		secret, recipient, err := sopstest.NewKey()
		require.NoError(t, err)
		data, err := sopstest.Encrypt(string(source), sopstest.Options{Recipients: []string{recipient, strings.TrimSpace(string(read(t, "key.txt.pub")))}, Clear: "^ssh_keys$"})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "ours.yaml"), data, 0o600))
		require.Equal(t, values(t, source), values(t, run(t, "key.txt", "decrypt", "ours.yaml")))
		k, found := sops.Sources{Env: func(name string) string { return map[string]string{"SOPS_AGE_KEY": secret}[name] }}.FindKeys()
		require.Empty(t, found)
		require.Equal(t, values(t, source), open(t, data, k))
	})
}

// TestRealSopsMutants: what of changed files this package opens, the real sops opens too, with the same values.
// HOMESTAK_SOPS_MUTANTS is the number of changed files, HOMESTAK_SOPS_SEED the first seed.
func TestRealSopsMutants(t *testing.T) {
	command, err := exec.LookPath("sops")
	if err != nil {
		t.Skip("there is no sops: make sops-test installs it")
	}
	count := number(t, "HOMESTAK_SOPS_MUTANTS", 2_000)
	first := number(t, "HOMESTAK_SOPS_SEED", 1)
	dir := t.TempDir()
	opened := 0
	var g errgroup.Group
	g.SetLimit(4)
	for seed := first; seed < first+count; seed++ {
		v := variants[seed%len(variants)]
		data := string(read(t, v.name+".sops.yaml"))
		text, name := mutant(rand.New(rand.NewPCG(uint64(seed), 0)), data) //nolint:gosec // a seed is not negative
		ours, err := tryOpen([]byte(text), keys(t, v.key))
		if err != nil || text == data {
			continue
		}
		opened++
		identity, err := filepath.Abs(filepath.Join("testdata", v.key))
		require.NoError(t, err)
		variable := "SOPS_AGE_KEY_FILE="
		if strings.HasPrefix(v.key, "ssh_") {
			variable = "SOPS_AGE_SSH_PRIVATE_KEY_FILE="
		}
		g.Go(func() error {
			file := filepath.Join(dir, fmt.Sprintf("%d.yaml", seed))
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				return err
			}
			c := exec.Command(command, "decrypt", file)
			c.Dir, c.Env = dir, []string{"HOME=" + dir, variable + identity}
			out, err := c.Output()
			if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Output returns it as it is
				t.Errorf("seed %d, %s, %s: sops refuses it: %s", seed, v.name, name, exit.Stderr)
				return nil
			}
			if theirs := fmt.Sprint(values(t, out)); err == nil && theirs != fmt.Sprint(ours) {
				t.Errorf("seed %d, %s, %s: sops reads %s, we read %s", seed, v.name, name, theirs, ours)
			}
			return err
		})
	}
	require.NoError(t, g.Wait())
	t.Logf("%d changed files, %d of them opened", count, opened)
}

// number is a whole number in the environment.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text, ok := os.LookupEnv(name)
	if !ok {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// tryOpen decrypts a document as a site does: all of its values, or an error.
func tryOpen(data []byte, k *sops.Keys) (any, error) {
	d := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc, next yaml.Node
	if err := d.Decode(&doc); err != nil {
		return nil, err
	}
	if d.Decode(&next) == nil || !sops.IsEncrypted(&doc) {
		return nil, fmt.Errorf("it is not one encrypted document")
	}
	f, found := sops.Parse("s.yaml", &doc)
	if !found.HasErrors() {
		found = append(found, f.Decrypt(k)...)
	}
	if len(found) > 0 {
		return nil, fmt.Errorf("%s: %s", found[0].Summary, found[0].Detail)
	}
	var v any
	err := f.Root.Decode(&v)
	return v, err
}

// mutant changes a file of testdata in one to three ways, which its name lists.
func mutant(r *rand.Rand, data string) (text, name string) {
	var names []string
	for range 1 + r.IntN(3) {
		m := mutations[r.IntN(len(mutations))]
		names = append(names, m.name)
		lines := strings.Split(data, "\n")
		m.do(r, &lines)
		data = strings.Join(lines, "\n")
	}
	return data, strings.Join(names, ", ")
}

var (
	valueOf = regexp.MustCompile(`^((?:[ -]*)(?:[^ #"][^#]*?|"[^"]*"): |[ -]*- )(.*)$`)
	typeOf  = regexp.MustCompile(`,type:\w+\]`)
)

// scalars are ways to write a value in the clear, some of them the same value.
var scalars = []string{
	`""`, `''`, "", "null", "~", "NULL", "0", "1", "-7", "42", "042", "0x2A", "0b1", "+1", "1_000", "1e3", "1.0", "1.50", ".5", ".inf", "-.inf", ".nan", "true", "True", "yes", "no",
	"on", "false", `"true"`, "'True'", "'1.5'", "[]", "{}", "[a]", "{a: b}", "!!binary aGk=", "!!str 42", "!!int '42'", "!!float 1", "!!bool 'true'", "!!null ''", "!own x", "! 42", "18446744073709551615", "9223372036854775808",
	"99999999999999999999", "-9223372036854775809", "2026-01-02", "2026-01-02T03:04:05Z", "2026-01-02 03:04:05", "'2026-01-02T03:04:05Z'", "2026-11-23T05:51:37Z", "in the clear", "'in the clear'", "|-\n            in the clear", ">\n            in the clear",
	"&x in the clear", "*x", `"in the\u0020clear"`, "x: y", "<<", "=", "2", "'2'", "2.0", "3", "3.13.3", "'3.13.3'", "3.13", "v3.13.3", "3.6.0", "'3.2.0'", "1.0", "'x'", "_unencrypted", "'^nothing$'",
}

// entries are metadata that a file has, or does not have.
var entries = []string{
	"unencrypted_suffix: _unencrypted", "unencrypted_suffix:", "unencrypted_suffix: []", "unencrypted_suffix: {}", "unencrypted_suffix: false", "unencrypted_suffix: 2026-01-02", "encrypted_suffix: ''", "encrypted_suffix: []", "encrypted_suffix: [a]",
	"encrypted_suffix: x", "encrypted_regex: .", "encrypted_regex: ''", "encrypted_regex: {}", "Encrypted_Regex: x", "UNENCRYPTED_REGEX: x", "encrypted_comment_regex: ''", "mac_only_encrypted: false", "mac_only_encrypted: ''", "mac_only_encrypted: 0", "mac_only_encrypted: []", "mac_only_encrypted: 'false'", "mac_only_encrypted: F", "mac_only_encrypted:",
	"Mac_Only_Encrypted: true", "version: 3.13.3", "version: ''", "version: []", "Version: x", "MAC: x", "LastModified: x", "shamir_threshold: 2", "shamir_threshold: 0", "shamir_threshold: x", "shamir_threshold: 1.5", "shamir_threshold: []", "shamir_threshold: -1", "Shamir_Threshold: 1", "key_groups: []", "key_groups: x", "key_groups: [x]",
	"key_groups: {}", "key_groups: [{}]", "key_groups: [{age: []}]", "Key_Groups: [x]", "pgp: []", "pgp:", "pgp: x", "pgp: [{}]", "pgp: {}", "pgp: [x]", "pgp: [{fp: x, enc: x}]", "pgp: [{fp: x, enc: x, created_at: now}]", "pgp: [{fp: x, enc: x, created_at: '2026-01-02T03:04:05Z'}]", "pgp: [{fp: x, enc: x, created_at: 2026-01-02T03:04:05Z}]", "PGP: x",
	"kms: []", "kms: x", "kms: [{}]", "kms: [{arn: x, enc: x, created_at: '2026-01-02T03:04:05Z'}]", "kms: [{arn: x, enc: x, created_at: '2026-01-02T03:04:05Z', context: {a: b, c: d}}]", "kms: [{arn: x, enc: x, created_at: '2026-01-02T03:04:05Z', context: [x]}]", "kms: [{arn: x, enc: x, created_at: '2026-01-02T03:04:05Z', context: {1: b}}]", "gcp_kms: [{resource_id: x, enc: x, created_at: '2026-01-02T03:04:05Z'}]", "gcp_kms: [1]", "azure_kv: [{vault_url: x, name: x, version: x, enc: x, created_at: '2026-01-02T03:04:05Z'}]", "azure_kv: 5",
	"hc_vault: [{vault_address: x, engine_path: x, key_name: x, enc: x, created_at: '2026-01-02T03:04:05Z'}]", "hc_vault: true", "hckms: [{key_id: x, enc: x, created_at: '2026-01-02T03:04:05Z'}]", "hckms: [{key_id: 'a:b', enc: x, created_at: '2026-01-02T03:04:05Z'}]", "hckms: [x]", "age: []", "age: x", "age: {}", "Age: x", "new: x", "new: [1, {a: b}]", "new: {1: x}", "new: &x y", "1: x", "true: x", "? [a]\n    : x", "new: !!int x", "new: !own x", "new: 18446744073709551615", "'': x", "<<: {mac: x}", "<<: {new: x}",
}

// mutations change the lines of a file. Each does something that an editor, a merge or an attacker does.
var mutations = []struct {
	name string
	do   func(r *rand.Rand, lines *[]string)
}{
	{"other character", func(r *rand.Rand, lines *[]string) {
		l := one(r, lines)
		if len(*l) == 0 {
			return
		}
		const set = "ABab01+/= :,-#&*!|>[]{}'\"\\%@`\t\r\n"
		b := []byte(*l)
		b[r.IntN(len(b))] = set[r.IntN(len(set))]
		*l = string(b)
	}},
	{"character inserted", func(r *rand.Rand, lines *[]string) {
		l := one(r, lines)
		const set = "Aa0 =,-#\t\r"
		at := r.IntN(len(*l) + 1)
		*l = (*l)[:at] + string(set[r.IntN(len(set))]) + (*l)[at:]
	}},
	{"line deleted", func(r *rand.Rand, lines *[]string) {
		at := r.IntN(len(*lines))
		*lines = append((*lines)[:at:at], (*lines)[at+1:]...)
	}},
	{"line doubled", func(r *rand.Rand, lines *[]string) {
		at := r.IntN(len(*lines))
		*lines = append((*lines)[:at+1:at+1], (*lines)[at:]...)
	}},
	{"lines swapped", func(r *rand.Rand, lines *[]string) {
		a := r.IntN(len(*lines))
		b := min(len(*lines)-1, a+1+r.IntN(3))
		(*lines)[a], (*lines)[b] = (*lines)[b], (*lines)[a]
	}},
	{"line moved", func(r *rand.Rand, lines *[]string) {
		l := *one(r, lines)
		at := r.IntN(len(*lines))
		*lines = append((*lines)[:at:at], append([]string{l}, (*lines)[at:]...)...)
	}},
	{"values swapped", func(r *rand.Rand, lines *[]string) {
		a, b := one(r, lines), one(r, lines)
		x, y := valueOf.FindStringSubmatch(*a), valueOf.FindStringSubmatch(*b)
		if x != nil && y != nil {
			*a, *b = x[1]+y[2], y[1]+x[2]
		}
	}},
	{"other type", func(r *rand.Rand, lines *[]string) {
		kinds := []string{"str", "int", "float", "bool", "bytes", "time", "comment", "STR", "null", ""}
		l := oneWith(r, lines, func(s string) bool { return typeOf.MatchString(s) })
		*l = typeOf.ReplaceAllString(*l, ",type:"+kinds[r.IntN(len(kinds))]+"]")
	}},
	{"value in the clear", func(r *rand.Rand, lines *[]string) {
		l := one(r, lines)
		if m := valueOf.FindStringSubmatch(*l); m != nil {
			*l = m[1] + scalars[r.IntN(len(scalars))]
		}
	}},
	{"clear value written in another way", func(r *rand.Rand, lines *[]string) {
		l := oneWith(r, lines, func(s string) bool { return valueOf.MatchString(s) && !strings.Contains(s, "ENC[") })
		if m := valueOf.FindStringSubmatch(*l); m != nil {
			*l = m[1] + scalars[r.IntN(len(scalars))]
		}
	}},
	{"value decorated", func(r *rand.Rand, lines *[]string) {
		l := one(r, lines)
		m := valueOf.FindStringSubmatch(*l)
		if m == nil || m[2] == "" {
			return
		}
		forms := []string{"&x %s", "!!str %s", "!own %s", "! %s", "'%s'", "\"%s\"", "%s ", "%s # public", "%s # secret", "%s x", ">-\n            %s", "|-\n            %s", "|\n            %s", "[%s]", "{a: %s}", "\"\\n%s\"", "\"%s\\n\"", "!!binary %s", "!!int %s", "!!float %s", "&x\n            %s"}
		*l = m[1] + fmt.Sprintf(forms[r.IntN(len(forms))], m[2])
	}},
	{"encrypted value split", func(r *rand.Rand, lines *[]string) {
		l := oneWith(r, lines, func(s string) bool { return strings.Contains(s, ": ENC[") })
		m := valueOf.FindStringSubmatch(*l)
		if m == nil {
			return
		}
		at, by := r.IntN(len(m[2])+1), []string{`\n`, `\r`, `\t`, ` `, `\0`, `\u00e9`, `=`}
		*l = m[1] + `"` + m[2][:at] + by[r.IntN(len(by))] + m[2][at:] + `"`
	}},
	{"name written in another way", func(r *rand.Rand, lines *[]string) {
		l := one(r, lines)
		name, value, ok := strings.Cut(strings.TrimLeft(*l, " -"), ":")
		if !ok || name == "" || strings.HasPrefix(name, "#") {
			return
		}
		indent := (*l)[:len(*l)-len(name)-len(value)-1]
		forms := []string{"%s :", "'%s':", "\"%s\":", "!!str %s:", "&k %s:", "!own %s:", "!!binary %s:", "? %s\n" + indent + ":", "%s_unencrypted:", "'%s ':"}
		if r.IntN(3) == 0 {
			*l = indent + strings.ToUpper(name[:1]) + name[1:] + ":" + value
			return
		}
		*l = indent + fmt.Sprintf(forms[r.IntN(len(forms))], name) + value
	}},
	{"comment added", func(r *rand.Rand, lines *[]string) {
		texts := []string{"# public", "# secret", "#", "#x", "# public\n# secret"}
		at := r.IntN(len(*lines))
		l := (*lines)[at]
		indent := l[:len(l)-len(strings.TrimLeft(l, " "))]
		*lines = append((*lines)[:at:at], append([]string{indent + texts[r.IntN(len(texts))]}, (*lines)[at:]...)...)
	}},
	{"comment removed", func(r *rand.Rand, lines *[]string) {
		l := oneWith(r, lines, func(s string) bool { return strings.Contains(s, "#") })
		*l, _, _ = strings.Cut(*l, "#")
	}},
	{"comment changed", func(r *rand.Rand, lines *[]string) {
		l := oneWith(r, lines, func(s string) bool { return strings.Contains(s, "#") })
		before, _, _ := strings.Cut(*l, "#")
		texts := []string{"# public", "# secret", "#", "#ENC[AES256_GCM,data:x]"}
		*l = before + texts[r.IntN(len(texts))]
	}},
	{"empty line", func(r *rand.Rand, lines *[]string) {
		at := r.IntN(len(*lines))
		*lines = append((*lines)[:at:at], append([]string{""}, (*lines)[at:]...)...)
	}},
	{"entry added", func(r *rand.Rand, lines *[]string) {
		forms := []string{"a: %s", "a_unencrypted: %s", "- %s", "? %s", "'': %s", "<<: %s", "sops: %s", "public: %s", "12: %s"}
		at := r.IntN(len(*lines))
		l := (*lines)[at]
		indent := l[:len(l)-len(strings.TrimLeft(l, " "))]
		*lines = append((*lines)[:at:at], append([]string{indent + fmt.Sprintf(forms[r.IntN(len(forms))], scalars[r.IntN(len(scalars))])}, (*lines)[at:]...)...)
	}},
	{"metadata added", func(r *rand.Rand, lines *[]string) {
		for i, l := range *lines {
			if l == "sops:" {
				*lines = append((*lines)[:i+1:i+1], append([]string{"    " + entries[r.IntN(len(entries))]}, (*lines)[i+1:]...)...)
				return
			}
		}
	}},
	{"metadata replaced", func(r *rand.Rand, lines *[]string) {
		entry := entries[r.IntN(len(entries))]
		name, _, _ := strings.Cut(entry, ":")
		l := oneWith(r, lines, func(s string) bool { return strings.HasPrefix(strings.ToLower(s), "    "+strings.ToLower(name)+":") })
		if strings.HasPrefix(*l, "    ") {
			*l = "    " + entry
		}
	}},
	{"time written in another way", func(r *rand.Rand, lines *[]string) {
		l := oneWith(r, lines, func(s string) bool { return strings.Contains(s, "lastmodified: ") })
		forms := []string{"2026-11-23T05:51:37Z", "'2026-11-23T05:51:37Z'", "2026-11-23T05:51:37+00:00", "'2026-11-23T05:51:37+00:00'", "'2026-11-23T05:51:37.5Z'", "'2026-11-23T06:51:37+01:00'", "2026-11-23 05:51:37", "'2026-11-23t05:51:37z'"}
		if name, value, ok := strings.Cut(*l, ": "); ok {
			value = strings.Trim(value, `"`)
			*l = name + ": " + strings.ReplaceAll(forms[r.IntN(len(forms))], "2026-11-23T05:51:37", strings.TrimSuffix(value, "Z"))
		}
	}},
	{"document", func(r *rand.Rand, lines *[]string) {
		switch r.IntN(8) {
		case 0:
			*lines = append([]string{"---"}, *lines...)
		case 1:
			*lines = append([]string{"%YAML 1.1", "---"}, *lines...)
		case 2:
			*lines = append(*lines, "---", "a: b")
		case 3:
			*lines = append(*lines, "...")
		case 4:
			*lines = strings.Split(strings.Join(*lines, "\r\n"), "\n")
		case 5:
			(*lines)[0] = "\ufeff" + (*lines)[0]
		case 6:
			*lines = append(*lines, "---")
		case 7:
			*lines = append([]string{"--- !!map"}, *lines...)
		}
	}},
	{"recipient", func(r *rand.Rand, lines *[]string) {
		l := oneWith(r, lines, func(s string) bool { return strings.Contains(s, "recipient:") })
		texts := []string{"recipient: x", "recipient:", "recipient: 42", "recipient: [a]", "Recipient: x", "recipient: 2026-01-02", "recipient: ''", "recipient: x\n          new: y", "recipient: x\n          1: y", "recipient: x\n          Enc: y", "recipient: x\n          RECIPIENT: y"}
		before, _, ok := strings.Cut(*l, "recipient:")
		if ok {
			*l = before + strings.ReplaceAll(texts[r.IntN(len(texts))], "          ", strings.Repeat(" ", len(before)))
		}
	}},
}

// one is a line.
func one(r *rand.Rand, lines *[]string) *string { return &(*lines)[r.IntN(len(*lines))] }

// oneWith is a line with a property if one is found in a few tries, and else any line.
func oneWith(r *rand.Rand, lines *[]string, has func(string) bool) *string {
	for range 200 {
		if l := one(r, lines); has(*l) {
			return l
		}
	}
	return one(r, lines)
}

// Each of these was opened here and is refused by the real sops 3.13.3, or has other values there.
func TestS7SopsMutants(t *testing.T) {
	plain := string(read(t, "plain.sops.yaml"))
	groups := string(read(t, "groups.sops.yaml"))
	replace := func(text, old, with string) string {
		require.Equal(t, 1, strings.Count(text, old), old)
		return strings.Replace(text, old, with, 1)
	}
	with := func(entry string) string { return replace(plain, "\nsops:\n", "\nsops:\n    "+entry+"\n") }
	line := func(of string) string { return regexp.MustCompile(`(?m)^ *` + of + `: .*\n`).FindString(plain) }
	father, mac, changed := line("father"), line("mac"), line("lastmodified")
	_, share, _ := strings.Cut(plain, "-----BEGIN AGE")
	share, _, _ = strings.Cut(share, "-----END AGE")
	share = strings.ReplaceAll(share, "\n", "\n    ")
	_, first, _ := strings.Cut(groups, "-----BEGIN AGE")
	first, _, _ = strings.Cut(first, "-----END AGE")
	for name, c := range map[string]struct{ text, want string }{
		"number of 64 bits":         {replace(plain, "    plain_unencrypted:", "    more_unencrypted: 18446744073709551615\n    plain_unencrypted:"), "passwords.more_unencrypted cannot be decrypted"},
		"type bytes":                {replace(plain, father, strings.Replace(father, "type:str", "type:bytes", 1)), "api_tokens.father cannot be decrypted"},
		"comment for a value":       {replace(plain, father, strings.Replace(father, "type:str", "type:comment", 1)), "api_tokens.father cannot be decrypted"},
		"line feed in a value":      {replace(plain, father, strings.NewReplacer("ENC[AES256_GCM,data:Pl", `"ENC[AES256_GCM,data:Pl\n`, "type:str]", `type:str]"`).Replace(father)), "api_tokens.father is damaged"},
		"value for a comment":       {replace(plain, "data:0lzWmz3sAQBTsvAbVA==,iv:k7jNR6GMDSWdDAVLQ4//FFfjiqQaIZoKs3zIJFMND0g=,tag:CQsGa8S3TG+MJk6UONmV/A==,type:comment", "data:0lzWmz3sAQBTsvAbVA==,iv:k7jNR6GMDSWdDAVLQ4//FFfjiqQaIZoKs3zIJFMND0g=,tag:CQsGa8S3TG+MJk6UONmV/A==,type:bytes"), "a comment of s.yaml is damaged"},
		"first comment":             {replace(plain, "MXbBQLB0HmFBBsQQelLDxg==,type:comment", "MXbBQLB0HmFBBsQQelLDxg==,type:bytes"), "a comment of s.yaml is damaged"},
		"empty comment in a list":   {replace(plain, "    list:\n", "    list:\n        #\n"), "passwords.list has an empty comment"},
		"name twice in metadata":    {with("version: 3.13.3"), "s.yaml is not a document that sops reads"},
		"tag that does not fit":     {with("new: !!int x"), "s.yaml is not a document that sops reads"},
		"name that is a number":     {with("1: x"), "a name in the metadata of s.yaml is not one of SOPS"},
		"name within that is one":   {with("new: [{a: {2: x}}]"), "a name in the metadata of s.yaml is not one of SOPS"},
		"rule in capitals":          {with("Encrypted_Regex: x"), "a name in the metadata of s.yaml is not one of SOPS"},
		"rule in other letters":     {with("encrypted_\u017fuffix: x"), "a name in the metadata of s.yaml is not one of SOPS"},
		"alias in metadata":         {with("new: &x [a]\n    other: *x"), "the metadata of s.yaml has an alias"},
		"rule that is a list":       {with("encrypted_suffix: []"), "encrypted_suffix is not a string"},
		"rule that is a date":       {replace(plain, "unencrypted_suffix: _unencrypted", "unencrypted_suffix: 2026-01-02"), "unencrypted_suffix is not a string"},
		"version missing":           {replace(plain, "    version: 3.13.3\n", ""), "s.yaml has no version"},
		"version of two numbers":    {replace(plain, "version: 3.13.3", "version: \"3.13\""), "version is not a version of SOPS"},
		"version that is a number":  {replace(plain, "version: 3.13.3", "version: 3.13"), "version is not a version of SOPS"},
		"time that is not a string": {replace(plain, changed, strings.ReplaceAll(changed, `"`, "")), "lastmodified is not a time"},
		"MAC of another type":       {replace(plain, mac, strings.Replace(mac, "type:str", "type:comment", 1)), "the MAC of s.yaml is damaged"},
		"threshold of one group":    {with("shamir_threshold: x"), "shamir_threshold is not a number of groups"},
		"threshold as octal":        {replace(groups, "shamir_threshold: 2", "shamir_threshold: 02"), "shamir_threshold is not a number of groups"},
		"recipient that is a list":  {regexp.MustCompile(`recipient: .*`).ReplaceAllString(plain, "recipient: [x]"), "a recipient of s.yaml is damaged"},
		"groups that are none":      {with("key_groups: x"), "key_groups is not a list of keys"},
		"group beside the keys":     {with("key_groups: [{age: [{recipient: [x], enc: x}]}]"), "a recipient of s.yaml is damaged"},
		"keys of others":            {with("pgp: x"), "pgp is not a list of keys"},
		"key without a time":        {with("kms: [{arn: x, enc: x}]"), "a key of AWS KMS is damaged"},
		"key that is a list":        {with("pgp: [{fp: [x], enc: x, created_at: \"2026-01-02T03:04:05Z\"}]"), "a key of PGP is damaged"},
		"name of a key":             {with("hckms: [{key_id: x, enc: x, created_at: \"2026-01-02T03:04:05Z\"}]"), "a key of Huawei Cloud KMS is damaged"},
		"context of a key":          {with("kms: [{arn: x, enc: x, created_at: \"2026-01-02T03:04:05Z\", context: [x]}]"), "a context in s.yaml is not a map of strings"},
		"list of keys that is none": {replace(groups, "\nsops:\n", "\nsops:\n    age: x\n"), "age is not a list of keys"},
		"key in place of a share":   {replace(groups, first, share), "the data key of s.yaml is damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			all := filepath.Join(t.TempDir(), "all")
			text := slices.Concat(read(t, "key.txt"), read(t, "hybrid.txt"), read(t, "other.txt"))
			require.NoError(t, os.WriteFile(all, text, 0o600))
			k, found := sops.Sources{File: all}.FindKeys()
			require.Empty(t, found)
			var said []string
			for _, f := range refused(t, []byte(c.text), k) {
				said = append(said, f.Summary)
			}
			require.Contains(t, said, c.want)
		})
	}
}

// What older versions of sops wrote, and what a later one may add, is read.
func TestS7SopsMetadataOfOtherVersions(t *testing.T) {
	plain := string(read(t, "plain.sops.yaml"))
	for _, entry := range []string{
		"kms: []", "pgp: null", "mac_only_encrypted: false", "shamir_threshold: 0", "something_new: {a: [1, true, x]}",
		"pgp: [{fp: x, enc: x, created_at: \"2026-01-02T03:04:05Z\"}]", "kms: [{arn: x, enc: x, created_at: \"2026-01-02T03:04:05Z\", context: {App: x, b: null}, aws_profile: \"\"}]",
	} {
		text := strings.Replace(plain, "\nsops:\n", "\nsops:\n    "+entry+"\n", 1)
		require.Equal(t, values(t, read(t, "source.yaml")), open(t, []byte(text), keys(t, "key.txt")), entry)
	}
	for _, version := range []string{"3.2.9", "3.6.1", "3.7.0", "3.10.0-rc.1", "10.0.0"} {
		text := strings.Replace(plain, "version: 3.13.3", "version: "+version, 1)
		require.Equal(t, values(t, read(t, "source.yaml")), open(t, []byte(text), keys(t, "key.txt")), version)
	}
}
