package specserve

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// needs are the secrets that each node needs, such as passwords.admin, or passwords for all of that section; those of "" are needed on every
// host.
type needs map[string][]string

// Config is the document for a child, a wire.Config, and its tag.
func (c *Catalog) Config(n *Node, own Own) (document []byte, tag string, err error) {
	config := n.config
	if n.Removed {
		keys := map[string]map[string]*string{}
		addOwnershipKeys(c.in, n.Name, keys)
		config, err = json.Marshal(configHead{Version: wire.ConfigVersion, Identity: n.Name, Commit: c.Commit, Parent: c.in.Agent, Way: c.way, Removed: true, Secrets: keys})
		if err != nil {
			return nil, "", err
		}
	}
	return own.join(config)
}

// configHead is a wire.Config without the members of Own.
type configHead struct {
	Version  int                           `json:"version"`
	Identity string                        `json:"identity"`
	Commit   string                        `json:"commit"`
	Parent   string                        `json:"parent,omitempty"`
	Way      string                        `json:"way,omitempty"`
	Removed  bool                          `json:"leaving"`
	Defaults *wire.Defaults                `json:"defaults,omitempty"`
	Secrets  map[string]map[string]*string `json:"secrets,omitempty"`
	Private  []string                      `json:"private_keys,omitempty"`
}

// makeConfig makes what a child needs for its subtree.
func makeConfig(in CatalogInput, child string) ([]byte, diag.List) {
	s, way := in.Site, in.Way
	if s.Hosts[child] != nil {
		way = "" // it is where it is
	}
	head := configHead{
		Version: wire.ConfigVersion, Identity: child, Commit: in.Commit, Parent: in.Agent, Way: way,
		Defaults: &wire.Defaults{
			Site: s.Name, Domain: s.Domain, Timezone: s.Timezone, DNS: s.DNS, Gateway: s.Gateway, Packages: s.Packages,
			Bridge: s.Bridge, VMUser: s.VMUser, ServerURL: s.ServerURL,
		},
		Secrets: secretsFor(in, child),
	}
	if s.Secrets != nil {
		for name := range s.Secrets.Values["ssh_keys"] {
			if s.Secrets.IsPrivateKey(name) {
				head.Private = append(head.Private, name)
			}
		}
		slices.Sort(head.Private)
	}
	document, err := json.Marshal(head)
	if err != nil {
		return nil, diag.List{diag.FromError(fmt.Errorf("write the configuration of %s: %w", child, err))}
	}
	if most := wire.MaxSpec - room; len(document) > most {
		return nil, diag.List{diag.Errorf(s.At, fmt.Sprintf("the configuration of %s is too large to be fetched", child), "It has %d KiB, %d KiB are the most.", len(document)>>10, most>>10)}
	}
	return document, nil
}

// secretsFor are all names of secrets, with the values that the subtree of a child needs.
func secretsFor(in CatalogInput, child string) map[string]map[string]*string {
	out := map[string]map[string]*string{}
	addOwnershipKeys(in, child, out)
	if in.Site.Secrets == nil {
		return out
	}
	needed := map[string]bool{}
	add := func(names []string) {
		for _, name := range names {
			needed[name] = true
		}
	}
	add(in.Needs[""])
	below := in.Site.Below(child)
	for _, n := range below {
		add(in.Needs[n.Name])
		needed[section+"."+nodeTokens+n.Name] = true
		resolved, _ := spec.Resolve(in.Site, n) // the node that it is served to gets the findings
		if p := in.Site.Postures[resolved.Posture.Name]; p != nil && p.Auth != nil && p.Auth.Method == siteToken {
			needed[section+"."+siteToken] = true
		}
	}
	var own []string // of its own host and those below: how they are opened
	for _, name := range in.Site.OwnersFrom(child) {
		if h := in.Site.Hosts[name]; h != nil {
			own = append(own, h.APIToken)
			if h.SSH != nil {
				own = append(own, h.SSH.Key)
			}
		}
	}
	for group, values := range in.Site.Secrets.Values {
		if out[group] == nil {
			out[group] = map[string]*string{}
		}
		for name, value := range values {
			if group == section && model.IsOwnershipSecret(name) {
				continue
			}
			out[group][name] = nil
			public := len(below) > 0 && group == "ssh_keys" && !in.Site.Secrets.IsPrivateKey(name) // who logs in to its nodes
			if value != "" && (public || needed[group] || needed[group+"."+name] || slices.Contains(own, value)) && (group != section || name != signingKey) {
				out[group][name] = &value
			}
		}
	}
	return out
}

// addOwnershipKeys adds the keys that are derived for a child and for the owners below it, and no others: so it can
// prove its own guests, and forge neither for its siblings nor for its parent. The name of the site's key says that the
// site has one. The name of an owner's key without a value says that the owner has none. An agent that knows the name of the site's
// key from its own parent says that only if the parent did: its secrets may be of a later commit than its site.
func addOwnershipKeys(in CatalogInput, child string, out map[string]map[string]*string) {
	s := in.Site
	awaits := s.Secrets == nil && in.Agent != "" && in.Way == "" // its own parent has still to say what there is: the child is not to take that for none
	if !awaits && !s.Secrets.HasOwnershipKey() {
		return
	}
	out[section] = map[string]*string{model.OwnershipKey: nil}
	names := s.Secrets.OwnershipSecrets()
	_, named := names[model.OwnershipKey]
	for _, owner := range s.OwnersFrom(child) {
		name := model.OwnershipKeys + "." + owner
		if _, known := names[name]; known || !awaits && !named {
			out[section][name] = nil
		}
		for name, key := range s.Secrets.DerivedOwnershipKeys(s.Name, owner) {
			out[section][name] = &key
		}
	}
}
