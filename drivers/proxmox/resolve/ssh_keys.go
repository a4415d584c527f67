package resolve

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// sshKeys are the keys that the spec names for a user, else all public keys of the site, and that of the
// agent of a child, which enters its guests by it. Those whose value is not known here are missing.
func (r *resolver) sshKeys(user string) []string {
	all := map[string]string{}
	if r.in.Site.Secrets != nil {
		all = r.in.Site.Secrets.Values["ssh_keys"]
	}
	var named *[]string
	if spec := r.spec(); spec != nil && spec.Access != nil {
		for _, u := range spec.Access.Users {
			if u.Name == user {
				named = u.SSHKeys
			}
		}
	}
	out := []string{}
	if named == nil {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			switch {
			case r.in.Site.Secrets.IsPrivateKey(name):
			case all[name] == "":
				r.missing = append(r.missing, "secret.ssh_keys."+name)
			default:
				out = append(out, r.publicKeys(name, all[name])...)
			}
		}
	} else {
		for _, name := range *named {
			switch v, ok := all[name]; {
			case !ok:
				out = append(out, r.publicKeys("ssh_keys", name)...)
			case v == "":
				r.missing = append(r.missing, "secret.ssh_keys."+name)
			default:
				out = append(out, r.publicKeys(name, v)...)
			}
		}
	}
	if h := r.in.Host; h != nil && h.PublicKey != "" {
		out = append(out, h.PublicKey)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// publicKeys splits a text into public keys. PVE refuses a request if one line is not a key, and a
// private key must never get into a request. A wrong key of the secrets is a problem of the site:
// it is reported once, and not for each guest that gets all keys.
func (r *resolver) publicKeys(name, value string) []string {
	kept := false
	if r.in.Site.Secrets != nil {
		_, kept = r.in.Site.Secrets.Values["ssh_keys"][name]
	}
	wrong := func(summary, end string) {
		how := "use the line of the .pub file: ssh-ed25519 AAAA… COMMENT" + end
		if kept {
			how = "in the section ssh_keys of the secrets, " + how
		}
		r.problems = append(r.problems, model.Problem{Severity: diag.Error, Site: kept, Summary: summary, Detail: how})
	}
	if isPrivateKey(value) {
		wrong(fmt.Sprintf("ssh key %q is a private key", name), "; the private key stays with its user")
		return nil
	}
	lines := api.SSHKeyLines(value)
	for _, l := range lines {
		if !isPublicKey(l) {
			wrong(fmt.Sprintf("ssh key %q is not a public key", name), "")
			return nil
		}
	}
	return lines
}

func isPrivateKey(s string) bool { return strings.Contains(s, "PRIVATE KEY-----") }

// isPublicKey reports whether a line of authorized_keys has a type and the base64 of a key that
// begins with the same type (RFC 4253, section 6.6). Options may precede them.
func isPublicKey(line string) bool {
	fields := strings.Fields(line)
	for i := range max(len(fields)-1, 0) {
		blob, err := base64.StdEncoding.DecodeString(fields[i+1])
		if err == nil && len(blob) > 4+len(fields[i]) && string(blob[4:4+len(fields[i])]) == fields[i] {
			return true
		}
	}
	return false
}
