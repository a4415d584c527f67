package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
)

// token has the token's privileges on the host. PVE is asked once for each path, so that pools,
// inheritance and privilege separation are evaluated by PVE.
type token struct {
	*subject
	rights map[string]map[string]bool // by path: privilege, and whether it is inherited below
}

// read asks for the rights on a path, once.
func (t *token) read(ctx context.Context, path string) error {
	if t.rights[path] != nil {
		return nil
	}
	var doc map[string]map[string]json.RawMessage
	if err := t.client().Get(ctx, "/access/permissions?path="+url.QueryEscape(path), &doc); err != nil {
		return err
	}
	t.rights[path] = map[string]bool{}
	for priv, inherited := range doc[path] {
		t.rights[path][priv] = api.Text(inherited) == "1"
	}
	return nil
}

// readAll asks for the token's rights on every path that the needs name.
func (t *token) readAll(ctx context.Context, all []kind.Need) error {
	paths := map[string]bool{"/": true}
	for _, n := range all {
		paths[n.Path] = true
		for _, set := range n.Or {
			for _, g := range set {
				paths[g.Path] = true
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		if err := t.read(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// has reports whether the token has a privilege, as far as the path was asked about.
// On /vms it must reach the guests below.
func (t *token) has(g kind.Grant) bool {
	inherited, there := t.rights[g.Path][g.Priv]
	return there && (g.Path != "/vms" || inherited)
}

// meets reports whether the token has what is needed, in one way or another.
func (t *token) meets(n kind.Need) bool {
	if t.has(n.Grant) {
		return true
	}
	return slices.ContainsFunc(n.Or, func(set []kind.Grant) bool {
		return !slices.ContainsFunc(set, func(g kind.Grant) bool { return !t.has(g) })
	})
}

// may asks for the rights on the paths, and reports whether the token has any of them.
func (t *token) may(ctx context.Context, grants ...kind.Grant) (bool, error) {
	for _, g := range grants {
		if err := t.read(ctx, g.Path); err != nil {
			return false, err
		}
	}
	return slices.ContainsFunc(grants, t.has), nil
}

// roles are those that the host knows; none where they cannot be read.
func (t *token) roles(ctx context.Context) map[string][]string {
	list, err := t.list(ctx, "/access/roles")
	out := map[string][]string{}
	if err != nil {
		return out
	}
	for _, r := range list {
		out[api.Text(r["roleid"])] = strings.Split(api.Text(r["privs"]), ",")
	}
	return out
}

// grantCommands returns the commands for all that is needed on one path. All of it and not
// what is missing only: an entry of the access list replaces what a user inherits
// there from above (AccessControl.pm, roles). User and token both get it: a token
// with privilege separation needs it twice, one without has only its user's.
func (t *token) grantCommands(group []kind.Need, roles map[string][]string) []string {
	role, path := string(group[0].Role), group[0].Path
	have, exists := roles[role]
	var all, add []string
	for _, n := range group {
		all = append(all, n.Priv)
		if !slices.Contains(have, n.Priv) {
			add = append(add, n.Priv)
		}
	}
	var out []string
	switch {
	case !exists:
		roles[role] = all // by the line below, when the next path is reported
		out = append(out, fmt.Sprintf("pveum role add %s --privs %q", role, strings.Join(all, ",")))
	case len(add) > 0:
		roles[role] = append(have, add...)
		out = append(out, fmt.Sprintf("pveum role modify %s --append 1 --privs %q", role, strings.Join(add, ",")))
	}
	id := t.client().User()
	user, _, _ := strings.Cut(id, "!")
	who := fmt.Sprintf("--users %s --tokens '%s'", user, id)
	if user == "root@pam" {
		who = fmt.Sprintf("--tokens '%s'", id)
	}
	line := fmt.Sprintf("pveum acl modify %s %s --roles %s", path, who, role)
	if path == "/" {
		line += " --propagate 0"
	}
	return append(out, line)
}
