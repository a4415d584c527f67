package sops_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/hcl/sops"
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
	k, found := sops.FindKeys(sops.Sources{File: private})
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

// What people and merges do to a file, each with what is said about it.
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
		"nobody":              {cut("    age:\n", "    lastmodified"), "    lastmodified", "s.yaml has no recipient"},
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
