package hcl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
	"github.com/homestak/homestak-gitops/hcl/sops"
)

// ParseSecrets reads secrets: YAML with the sections of model.SecretSections, each a map from names
// to texts, and in auth one level more under node_tokens, whose keys become node_tokens.NAME. A
// name without a value is known, its value is not. A file encrypted by SOPS is decrypted with keys;
// if keys is nil, or cannot decrypt it, it has no values. No finding repeats a value or a line of
// the file.
func ParseSecrets(name string, data []byte, keys *sops.Keys) (*model.Secrets, diag.List) {
	p := secretParser{name: name, out: &model.Secrets{Values: map[string]map[string]string{}, Source: name, Lines: map[string]int{}}}
	for _, section := range model.SecretSections() {
		p.out.Values[section] = map[string]string{}
	}
	if len(data) > lang.MaxOther {
		p.errorf(1, "secrets file too large", "The limit is %d MiB.", lang.MaxOther>>20)
		return p.out, p.found
	}
	var doc, next yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	err := d.Decode(&doc)
	if err == nil {
		err = d.Decode(&next)
	}
	switch {
	case errors.Is(err, io.EOF): // the end of the file
	case err != nil:
		// The text of the error may quote the file.
		line := 1
		if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
			line, _ = strconv.Atoi(m[1])
		}
		p.errorf(max(line, 1), "secrets file is not valid YAML", "The error is near this line. Indent the lines of a section with spaces, not tabs, and quote values with special characters.")
		return p.out, p.found
	default:
		p.errorf(next.Line, "secrets file has several documents", "A line of three dashes begins another YAML document. Put all secrets into one.")
	}
	switch {
	case len(doc.Content) == 0:
	case sops.IsEncrypted(&doc):
		p.encrypted(&doc, keys)
	default:
		p.document(doc.Content[0])
	}
	return p.out, p.found.Sorted()
}

// IsEncrypted reports whether a file of secrets is one that SOPS encrypted.
func IsEncrypted(data []byte) bool {
	var doc yaml.Node
	return len(data) <= lang.MaxOther && yaml.Unmarshal(data, &doc) == nil && sops.IsEncrypted(&doc)
}

var yamlLine = regexp.MustCompile(`line (\d+)`)

// The keys of section auth that are neither tokens of nodes nor for ownership.
const (
	siteToken  = "site_token"
	signingKey = "signing_key"
)

// named is something in the secrets file, for the reference.
type named struct{ name, doc string }

// secretSections describes model.SecretSections.
func secretSections() []named {
	return []named{
		{"api_tokens", "API tokens by host, `user@realm!name=SECRET`. A host uses the one of its name unless it has `api_token`."},
		{"passwords", "Any other secrets."},
		{"ssh_keys", "Public keys, usually by `USER@MACHINE`: the line of the `.pub` file. They log in to every guest, unless a user of a spec names others. Also private keys, such as for `key` in `ssh` of a host, which are given to no guest."},
		{"auth", "Tokens of nodes, and the keys that prove which guests are the site's, by fixed names:"},
	}
}

// authKeys are the names that section auth may have.
func authKeys() []named {
	return []named{
		{siteToken, "Token of all nodes, for postures with the method `site_token`."},
		{lang.NodeTokens, "Tokens by node, for the method `node_token`."},
		{signingKey, "Key of the predecessor, whose tokens are then accepted."},
		{model.OwnershipKey, "Key that signs the ownership tags of guests: 64 hexadecimal digits, which `init` makes. No file of the site can use it."},
		{model.PreviousOwnershipKey, "The one before, while it is replaced."},
		{model.OwnershipKeys, "Derived keys by host, in place of the site's: `token ownership HOST` prints them."},
		{model.PreviousOwnershipKeys, "The same, derived from the one before."},
	}
}

func authKeyNames() []string {
	names := []string{}
	for _, key := range authKeys() {
		names = append(names, key.name)
	}
	return names
}

type secretParser struct {
	name  string
	out   *model.Secrets
	found diag.List
	file  *sops.File // nil: the file is not encrypted
}

// encrypted reads a file that SOPS encrypted.
func (p *secretParser) encrypted(doc *yaml.Node, keys *sops.Keys) {
	var found diag.List
	p.file, found = sops.Parse(p.name, doc)
	p.found = append(p.found, found...)
	if keys != nil && !p.found.HasErrors() {
		p.found = append(p.found, p.file.Decrypt(keys)...)
	}
	p.document(p.file.Root)
}

func (p *secretParser) errorf(line int, summary, detail string, args ...any) {
	at := diag.Pos{Line: line, Column: 1}
	p.found = append(p.found, diag.Errorf(diag.Range{File: p.name, Start: at, End: at}, summary, detail, args...))
}

func (p *secretParser) document(n *yaml.Node) {
	known := model.SecretSections()
	for section, value := range p.entries(n, "the secrets file") {
		if keys, ok := p.out.Values[section]; ok {
			p.section(keys, section, value)
		} else {
			p.errorf(value.Line, "unknown section "+lang.Quote(section)+" of secrets", "%s", diag.DidYouMean(lang.Clip(section, lang.MaxQuoted), known))
		}
	}
}

func (p *secretParser) section(out map[string]string, section string, n *yaml.Node) {
	for key, value := range p.entries(n, "section "+section) {
		switch {
		case section != "auth":
			p.value(out, section, key, value)
		case key == lang.NodeTokens:
			for node, token := range p.entries(value, "auth.node_tokens") {
				p.value(out, section, lang.NodeTokens+"."+node, token)
			}
		case key == siteToken || key == signingKey:
			p.value(out, section, key, value)
		case key == model.OwnershipKeys || key == model.PreviousOwnershipKeys:
			for owner, derived := range p.entries(value, "auth."+key) {
				p.ownershipKey(out, key+"."+owner, derived)
			}
		case model.IsOwnershipSecret(key):
			p.ownershipKey(out, key, value)
		default:
			p.errorf(value.Line, "unknown key "+lang.Quote(key)+" in section auth", "%s", diag.DidYouMean(lang.Clip(key, lang.MaxQuoted), authKeyNames()))
		}
	}
}

// ownershipKey reads a key that proves which guests are the site's, or one that is derived from it.
func (p *secretParser) ownershipKey(out map[string]string, key string, n *yaml.Node) {
	p.value(out, "auth", key, n)
	if out[key] == "" {
		return // it is not known here, or reported
	}
	if _, err := model.ParseOwnershipKey(out[key]); err != nil {
		p.errorf(n.Line, "auth."+lang.Clip(key, lang.MaxQuoted)+" is not an ownership key", "%s.", ownershipKeyAdvice(key, err))
		delete(out, key)
	}
}

func ownershipKeyAdvice(key string, err error) string {
	if strings.Contains(key, ".") {
		return fmt.Sprintf("%v. Where the key of the site is, homestak-gitops token ownership OWNER prints the one of an owner", err)
	}
	return fmt.Sprintf("%v. A new one is 32 random bytes: openssl rand -hex 32. If guests have tags by the old key, restore that instead", err)
}

func (p *secretParser) value(out map[string]string, section, key string, n *yaml.Node) {
	n = target(n)
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == sops.Unknown && p.file != nil:
		out[key] = ""
	case p.file != nil && p.file.InClear(n) && (section != "ssh_keys" || model.HasPrivateKey(n.Value)):
		p.errorf(n.Line, lang.PlaintextSecret+lang.Quote(key)+" in section "+section+" is not encrypted", "The rules of %s leave it unencrypted. Everyone who can read the repository has it: revoke it, fix the rules in .sops.yaml, and encrypt the file again.", p.name)
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null" && section == "ssh_keys":
		p.errorf(n.Line, lang.Quote(key)+" in section ssh_keys has no value", "Write the public key, or remove the line.")
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		out[key] = ""
	case n.Kind != yaml.ScalarNode:
		p.errorf(n.Line, lang.Quote(key)+" in section "+section+" is not a string", "A secret is one string: %s: \"…\".", lang.Clip(key, lang.MaxQuoted))
	case n.Tag != "!!str":
		p.errorf(n.Line, lang.Quote(key)+" in section "+section+" is not a string", "YAML reads it as a number, a date or a boolean: quote it.")
	case n.Value == "" && section == "ssh_keys":
		p.errorf(n.Line, lang.Quote(key)+" in section ssh_keys has no value", "Write the public key, or remove the line.")
	default:
		out[key] = n.Value
		if section == "api_tokens" && !tokenText.MatchString(n.Value) {
			at := diag.Pos{Line: n.Line, Column: 1}
			p.found = append(p.found, diag.Warnf(diag.Range{File: p.name, Start: at, End: at}, lang.Quote(key)+" in section api_tokens is not an API token",
				"Write user@realm!name=SECRET, as pveum user token add prints its two parts: full-tokenid and value."))
		}
		if section == "ssh_keys" {
			p.out.Lines[key] = n.Line
		}
	}
}

// tokenText is the form of an API token (pve-access-control, PVE/AccessControl.pm, verify_token).
var tokenText = regexp.MustCompile(`^[^\s@]\S*@[^\s!]+![^\s=]+=\S+$`)

// entries iterates over a map in file order; anything else is a finding.
func (p *secretParser) entries(n *yaml.Node, what string) func(yield func(string, *yaml.Node) bool) {
	n = target(n)
	return func(yield func(string, *yaml.Node) bool) {
		switch {
		case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
			return
		case n.Kind != yaml.MappingNode:
			p.errorf(n.Line, what+" is not a map", "Write name: value, one a line.")
			return
		}
		seen := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := target(n.Content[i]), n.Content[i+1]
			switch {
			case key.Kind != yaml.ScalarNode || key.Value == "" || len(key.Value) > 255:
				p.errorf(key.Line, "a name in "+what+" is not a short string", "Write name: value, one a line.")
				continue
			case seen[key.Value] > 0:
				p.errorf(key.Line, fmt.Sprintf("%s is twice in %s", lang.Quote(key.Value), what), "The first is on line %d: remove one of them.", seen[key.Value])
				continue
			}
			seen[key.Value] = key.Line
			if !yield(key.Value, value) {
				return
			}
		}
	}
}

// target resolves an alias.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}
