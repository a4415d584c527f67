package importer

import (
	"io/fs"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// secrets are the files of secrets. A file that SOPS encrypted stays as it is: the sections are the same.
func (c *converter) secrets(key string) map[string][]byte {
	out, from := map[string][]byte{}, plainSecrets
	t := &comments{c: c, file: &yamlFile{name: from, root: &yaml.Node{}}}
	if _, err := fs.Stat(c.dir, from); err != nil {
		from = encryptedSecrets
	}
	values := map[string]any{}
	if info, err := fs.Lstat(c.dir, from); err == nil && !info.Mode().IsRegular() {
		c.mistake(lineOf(from, 1), from+" is not a file", "Copy what it points to into the folder.")
		return nil
	} else if err == nil {
		data, ok := c.read(from)
		if !ok {
			return nil
		}
		known, found := hcl.ParseSecrets(from, data, nil)
		t.file.name = from
		switch encrypted := hcl.IsEncrypted(data); {
		case encrypted && !found.HasErrors():
			out[sopsSecrets] = data
			t.review("auth", "the file stays encrypted and has no ownership key: add one with sops edit %s, as docs/howto/ownership-key.md says", sopsSecrets)
			return out
		case encrypted:
			t.left("", "it cannot be read: decrypt it, and copy the values of %s", strings.Join(namesOf(known), ", "))
		case found.HasErrors():
			c.found = append(c.found, found...)
			return nil
		default:
			values = sections(known)
		}
		if known.Values["passwords"]["vm_root"] != "" {
			t.left("passwords.vm_root", "guests get keys, and no password of root; it is in the secrets, for user_data of a node")
		}
	} else {
		t.review("", "there was no file of secrets: put API tokens and keys of people into secrets.yaml")
	}
	auth, _ := values["auth"].(map[string]any)
	if auth == nil {
		auth = map[string]any{}
	}
	auth[model.OwnershipKey] = key
	values["auth"] = auth
	text, err := yaml.Marshal(values)
	if err != nil {
		c.mistake(lineOf(from, 1), "the secrets cannot be written", "%v.", err)
	}
	out[plainSecrets] = append([]byte("# The secrets of this site. Git ignores this file: keep a copy elsewhere. auth.ownership_key is new; it signs\n# the tags that prove which guests on the hosts are the ones of this site.\n"), text...)
	return out
}

// sections are the secrets that have a value, as the file has them.
func sections(s *model.Secrets) map[string]any {
	out := map[string]any{}
	for section, values := range s.Values {
		names := map[string]any{}
		for name, value := range values {
			node, isNode := strings.CutPrefix(name, lang.NodeTokens+".")
			switch {
			case value == "":
			case isNode && section == "auth":
				tokens, _ := names[lang.NodeTokens].(map[string]string)
				if tokens == nil {
					tokens = map[string]string{}
				}
				tokens[node] = value
				names[lang.NodeTokens] = tokens
			default:
				names[name] = value
			}
		}
		if len(names) > 0 {
			out[section] = names
		}
	}
	return out
}

// namesOf lists the names of secrets as SECTION.NAME.
func namesOf(s *model.Secrets) []string {
	var out []string
	for section, values := range s.Values {
		for name := range values {
			out = append(out, section+"."+name)
		}
	}
	slices.Sort(out)
	return out
}
