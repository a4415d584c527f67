package sops_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/hcl/sops"
)

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
			k, found := sops.FindKeys(sops.Sources{File: all})
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
