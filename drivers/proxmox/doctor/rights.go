package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/rights"
)

// messageOf is PVE's own text of an error, without the hint that the doctor's
// lines give better.
func messageOf(err error) string {
	if refused, ok := errors.AsType[*api.Error](err); ok {
		return strings.TrimSpace(refused.Message)
	}
	return err.Error()
}

// privileges holds the token's effective rights against what the site needs. PVE
// is asked about each path, so that pools, inheritance and privilege separation
// count as PVE counts them.
func (e *exam) privileges(ctx context.Context) {
	all := proxmox.Needs(e.Of, e.Want, cmp.Or(e.major, 9))
	all = e.withoutVNets(ctx, all)
	if err := e.readRights(ctx, all); err != nil {
		e.unread("privileges", err)
		return
	}
	roles := e.roles(ctx)
	missing, groups := 0, map[string][]rights.Need{}
	for _, n := range all {
		groups[n.Path+" "+n.Role] = append(groups[n.Path+" "+n.Role], n)
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		group := groups[key]
		lacks := slices.DeleteFunc(slices.Clone(group), e.met)
		missing += len(lacks)
		e.lacking(lacks, group, roles)
	}
	if missing == 0 {
		e.ok("privileges", "all %d that the site needs", len(all))
	}
}

// met reports whether the token has what is needed, in one way or another.
func (e *exam) met(n rights.Need) bool {
	if e.can(n.Grant) {
		return true
	}
	return slices.ContainsFunc(n.Or, func(set []rights.Grant) bool {
		return !slices.ContainsFunc(set, func(g rights.Grant) bool { return !e.can(g) })
	})
}

// lacking tells of privileges that are missing on one path, and gives the commands
// that grant them.
func (e *exam) lacking(lacks, group []rights.Need, roles map[string][]string) {
	var hard, soft, why []string
	for _, n := range lacks {
		if n.Soft {
			soft = append(soft, n.Priv)
		} else {
			hard = append(hard, n.Priv)
		}
		line := n.Priv + ": " + n.For
		if asked := asked(n); asked != "" {
			line += "; " + asked
		}
		why = append(why, line)
	}
	c := Check{Name: "privileges", Result: Failed, Denied: true, Fix: e.grant(group, roles)}
	switch {
	case len(hard) > 0:
		c.Seen = strings.Join(hard, ", ") + " missing on " + group[0].Path
	case len(soft) > 0:
		c.Result, c.Denied = Warning, false
		c.Seen = strings.Join(soft, ", ") + " missing on " + group[0].Path
		why = append(why, "the site converges without")
	default:
		return
	}
	c.Why = strings.Join(why, "\n")
	e.Add(c)
}

// asked says who asks for a privilege, and where; "" if the host as such does.
func asked(n rights.Need) string {
	if len(n.By) == 0 {
		return ""
	}
	text := n.By[0]
	if !n.At.IsZero() {
		text += fmt.Sprintf(" (%s:%d)", n.At.File, n.At.Start.Line)
	}
	if len(n.By) > 1 {
		text += fmt.Sprintf(" and %d more", len(n.By)-1)
	}
	return text
}

// grant gives the commands for all that is needed on one path. All of it and not
// what is missing only: an entry of the access list replaces what a user inherits
// there from above (AccessControl.pm, roles). User and token both get it: a token
// with privilege separation needs it twice, one without has only its user's.
func (e *exam) grant(group []rights.Need, roles map[string][]string) []string {
	role, path := group[0].Role, group[0].Path
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
		roles[role] = all // by the line below, when the next path is told
		out = append(out, fmt.Sprintf("pveum role add %s --privs %q", role, strings.Join(all, ",")))
	case len(add) > 0:
		roles[role] = append(have, add...)
		out = append(out, fmt.Sprintf("pveum role modify %s --append 1 --privs %q", role, strings.Join(add, ",")))
	}
	id := e.d.Client().User()
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

// readRights asks for the token's rights on every path that the needs name.
func (e *exam) readRights(ctx context.Context, all []rights.Need) error {
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
		if err := e.readRight(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (e *exam) readRight(ctx context.Context, path string) error {
	if e.rights[path] != nil {
		return nil
	}
	var doc map[string]map[string]json.RawMessage
	if err := e.d.Client().Get(ctx, "/access/permissions?path="+url.QueryEscape(path), &doc); err != nil {
		return err
	}
	e.rights[path] = map[string]bool{}
	for priv, inherited := range doc[path] {
		e.rights[path][priv] = api.Text(inherited) == "1"
	}
	return nil
}

// roles are those that the host knows; none where they cannot be read.
func (e *exam) roles(ctx context.Context) map[string][]string {
	list, err := e.list(ctx, "/access/roles")
	out := map[string][]string{}
	if err != nil {
		return out
	}
	for _, r := range list {
		out[api.Text(r["roleid"])] = strings.Split(api.Text(r["privs"]), ",")
	}
	return out
}

// withoutVNets drops the needs on bridges that are networks of SDN: their zone is
// not known, and that the token sees them shows that it may use them.
func (e *exam) withoutVNets(ctx context.Context, all []rights.Need) []rights.Need {
	bridges, err := e.readBridges(ctx, e.host.PVENode())
	if err != nil {
		return all
	}
	return slices.DeleteFunc(all, func(n rights.Need) bool {
		rest, ok := strings.CutPrefix(n.Path, "/sdn/zones/localnetwork/")
		name, _, _ := strings.Cut(rest, "/")
		return ok && bridges[name].vnet
	})
}
