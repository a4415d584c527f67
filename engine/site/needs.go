package site

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// Needs says which secrets each node of a commit needs, such as passwords.admin, or passwords where it
// needs a section as a whole; under "" are those of what is made or searched on every host. The site is
// loaded as if no value were known: then the language names what each part lacks, whatever functions it
// puts a value through.
func (c *Commits) Needs(commit string, secrets *model.Secrets) (map[string][]string, error) {
	tree, err := c.Files(commit)
	if err != nil {
		return nil, err
	}
	return needs(hcl.Load, tree, hcl.Options{Kinds: c.Loader.kinds, Secrets: secrets})
}

// Needs says which secrets each node of the folder needs; see Commits.Needs.
func (f *Folder) Needs() (map[string][]string, error) {
	return needs(hcl.Load, f.Files(), hcl.Options{Kinds: f.loader.kinds, Secrets: f.input.Secrets, Vars: f.input.Vars})
}

// needs loads a site for Needs; of the secrets only the names count.
func needs(load func(fs.FS, hcl.Options) (*model.Site, diag.List), tree fs.FS, o hcl.Options) (map[string][]string, error) {
	unknown := &model.Secrets{Values: map[string]map[string]string{}}
	if o.Secrets != nil {
		for section, values := range o.Secrets.Values {
			unknown.Values[section] = map[string]string{}
			for name := range values {
				unknown.Values[section][name] = ""
			}
		}
	}
	o.Secrets = unknown
	s, _ := load(tree, o)
	if s == nil {
		return nil, errors.New("which secrets the nodes need cannot be found out: the site does not load without their values")
	}
	out := map[string][]string{}
	add := func(node string, missing []string) {
		for _, name := range missing {
			if name = plainName(name); !slices.Contains(out[node], name) {
				out[node] = append(out[node], name)
			}
		}
	}
	if s.References != nil {
		add("", s.References.Missing)
	}
	for _, r := range s.Objects {
		add("", r.Missing)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Manifests)) {
		for _, n := range s.Manifests[name].Nodes {
			add(n.Name, n.Resource.Missing)
			if declared := s.Specs[n.Spec]; declared != nil {
				add(n.Name, declared.Missing)
			}
		}
	}
	return out, nil
}

// plainName is SECTION.NAME of a reference such as secret.SECTION.NAME or secret.SECTION["NAME"].
func plainName(reference string) string {
	name := strings.TrimPrefix(reference, "secret.")
	if section, quoted, ok := strings.Cut(name, "["); ok {
		if key, err := strconv.Unquote(strings.TrimSuffix(quoted, "]")); err == nil {
			return section + "." + key
		}
	}
	return name
}
