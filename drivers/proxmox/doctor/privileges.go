package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
)

// privileges compares the token's rights with what the site needs.
type privileges struct {
	*subject
	session *session
	token   *token
}

// check compares the token's effective rights with what the site needs, path by path.
func (p *privileges) check(ctx context.Context) {
	all := proxmox.Needs(p.site, p.want, p.session.major())
	all = p.withoutVNets(ctx, all)
	if err := p.token.readAll(ctx, all); err != nil {
		p.unread("privileges", err)
		return
	}
	roles := p.token.roles(ctx)
	missing, groups := 0, map[string][]kind.Need{}
	for _, n := range all {
		key := n.Path + " " + string(n.Role)
		groups[key] = append(groups[key], n)
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		group := groups[key]
		lacks := slices.DeleteFunc(slices.Clone(group), p.token.meets)
		missing += len(lacks)
		p.missing(lacks, group, roles)
	}
	if missing == 0 {
		p.ok("privileges", "all %d that the site needs", len(all))
	}
}

// missing reports privileges that are missing on one path, with the commands that
// grant them.
func (p *privileges) missing(lacks, group []kind.Need, roles map[string][]string) {
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
	c := Check{Name: "privileges", Result: Failed, Denied: true, Fix: p.token.grantCommands(group, roles)}
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
	p.add(c)
}

// asked names the resources that need a privilege; "" if the host itself does.
func asked(n kind.Need) string {
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

// withoutVNets drops the needs on bridges that are networks of SDN: their zone is
// not known, and that the token sees them shows that it may use them.
func (p *privileges) withoutVNets(ctx context.Context, all []kind.Need) []kind.Need {
	bridges, err := p.bridgesOf(ctx, p.host.PVENode())
	if err != nil {
		return all
	}
	return slices.DeleteFunc(all, func(n kind.Need) bool {
		rest, ok := strings.CutPrefix(n.Path, "/sdn/zones/localnetwork/")
		name, _, _ := strings.Cut(rest, "/")
		return ok && bridges[name].vnet
	})
}
