package proxmox

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// sshKeys are the keys that the spec names for a user, else all public keys of the site, and that of the
// agent of a child, which enters its guests by it. Those whose value is not known here are missing.
func (r *resolver) sshKeys(user string) []string {
	var named *[]string
	if spec := r.spec(); spec != nil && spec.Access != nil {
		for _, u := range spec.Access.Users {
			if u.Name == user {
				named = u.SSHKeys
			}
		}
	}
	out := []string{}
	for _, k := range r.in.Site.Secrets.KeysOf(named) {
		if k.Secret != "" && k.Text == "" {
			r.missing = append(r.missing, "secret.ssh_keys."+k.Secret)
			continue
		}
		out = append(out, r.publicKeys(k)...)
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
func (r *resolver) publicKeys(k model.SSHKey) []string {
	wrong := func(summary, end string) {
		how := "use the line of the .pub file: ssh-ed25519 AAAA… COMMENT" + end
		if k.Secret != "" {
			how = "in the section ssh_keys of the secrets, " + how
			if s := r.in.Site.Secrets; s.Lines[k.Secret] > 0 {
				how = fmt.Sprintf("%s:%d: %s", s.Source, s.Lines[k.Secret], how)
			}
		}
		summary = fmt.Sprintf("ssh key %q is %s", cmp.Or(k.Secret, "ssh_keys"), summary)
		r.problems = append(r.problems, model.Problem{Severity: diag.Error, Site: k.Secret != "", Summary: summary, Detail: how})
	}
	if model.HasPrivateKey(k.Text) {
		wrong("a private key", "; the private key stays with its user")
		return nil
	}
	lines := k.Lines()
	if slices.ContainsFunc(lines, func(l string) bool { return model.SSHKeyID(l) == "" }) {
		wrong("not a public key", "")
		return nil
	}
	return lines
}
