package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// ipSet is a set of addresses in the cluster's firewall. Rules name it as +dc/NAME. It has no
// comment of its own: PVE keeps one line of it, which is the ownership tag.
type ipSet struct {
	Host    string   `hcl:"host" ref:"host" plan:"-" doc:"Its host or cluster."`
	Entries []string `hcl:"entries,optional" doc:"Addresses, networks and aliases of the cluster (dc/NAME); ! excludes one."`
	Drift   string   `hcl:"drift,optional" plan:"-" doc:"revert (default), or report: an existing one is only watched, and stays when the block goes."`
}

// IPSetKind is the kind ipset.
var IPSetKind = kind.Of[ipSet]{
	Model: model.Kind{
		Name: "ipset", Block: "ipset", Doc: "A set of addresses in the firewall of the cluster, for its rules.",
		New:     func() any { return &ipSet{} },
		Resolve: resolveIPSet,
		Brief:   func(r *model.Resource) string { return strings.Join(r.Spec.(*ipSet).Entries, " ") },
	},
	List: listIPSets,
	Privileges: func(s *ipSet, n *kind.Needs) {
		n.Add(kind.Need{Grant: kind.Grant{Path: "/", Priv: "Sys.Audit"}, Role: kind.RoleCluster, For: "reading the sets of the firewall"}, "")
		if s.Drift != "report" {
			n.Add(kind.Need{Grant: kind.Grant{Path: "/", Priv: "Sys.Modify"}, Role: kind.RoleStartup, For: "creating, changing and removing them"}, "")
		}
	},
	Create: func(ctx context.Context, h *kind.Host, s plan.Step, want *ipSet) error {
		_, err := h.API.Post(ctx, ipsetsPath, api.Params{"name": s.Address.Name, "comment": ipsetTag(h, s.Address.Name).Line()})
		if c := api.ClassOf(err); err != nil && c != api.Exists && c != api.OutcomeUnknown {
			return attempt("creating ipset "+s.Address.Name, err)
		}
		return setEntries(ctx, h, s.Address.Name, want.Entries) // verifies that the set is managed
	},
	Update: func(ctx context.Context, h *kind.Host, s plan.Step, want, _ *ipSet) error {
		return setEntries(ctx, h, s.Address.Name, want.Entries)
	},
	Remove: func(ctx context.Context, h *kind.Host, s plan.Step) error {
		sets, err := readIPSets(ctx, h)
		if err != nil {
			return attempt("reading the sets of the firewall", err)
		}
		set, there := sets[s.Address.Name]
		switch {
		case !there:
			return nil
		case !set.ours:
			return fmt.Errorf("ipset %s: %w", s.Address.Name, errUnmanagedSet)
		}
		_, err = h.API.Delete(ctx, ipsetsPath+"/"+url.PathEscape(s.Address.Name), url.Values{"force": {"1"}}) // with its entries
		return attempt("removing ipset "+s.Address.Name, err)
	},
}

const ipsetsPath = "/cluster/firewall/ipset"

var errUnmanagedSet = errors.New("it is not managed any more (no ownership tag in its comment): not changed")

// ipsetName is a name as PVE's parser keeps it, which is in lower case (PVE/Firewall.pm,
// $ipset_name_pattern and generic_fw_config_parser).
var ipsetName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9_-]{1,63}$`) })

func resolveIPSet(r *model.Resource, scope model.Scope) []model.Problem {
	var problems []model.Problem
	if !ipsetName().MatchString(scope.Name) {
		problems = append(problems, model.Problem{Summary: "invalid name of an ipset", Detail: "Use 2 to 64 lower-case letters, digits, - and _, with a letter first."})
	}
	s := r.Spec.(*ipSet)
	r.Report = s.Drift == "report"
	for i, entry := range s.Entries {
		e, err := parseEntry(entry)
		if err != nil {
			problems = append(problems, model.Problem{Path: "entries", Summary: fmt.Sprintf("invalid entry %q", entry), Detail: err.Error()})
			continue
		}
		s.Entries[i] = e
	}
	slices.Sort(s.Entries)
	s.Entries = slices.Compact(s.Entries)
	for _, e := range s.Entries {
		if what, except := strings.CutPrefix(e, "!"); except && slices.Contains(s.Entries, what) {
			problems = append(problems, model.Problem{Path: "entries", Summary: fmt.Sprintf("%s is both in the set and excluded from it", what), Detail: "PVE stores an address once: remove one of the two."})
		}
	}
	return problems
}

var aliasName = regexp.MustCompile(`^(dc/)?[A-Za-z][A-Za-z0-9_-]+$`)

// parseEntry gives an entry in the form in which entries are compared: a network without the
// bits of a host in it, an address without the length of its prefix, as PVE keeps them
// (PVE/Firewall.pm, clean_cidr and parse_ip_or_cidr).
func parseEntry(entry string) (string, error) {
	except, what := "", strings.TrimSpace(entry)
	if rest, ok := strings.CutPrefix(what, "!"); ok {
		except, what = "!", strings.TrimSpace(rest)
	}
	if aliasName.MatchString(what) {
		return except + what, nil
	}
	if addr, err := netip.ParseAddr(what); err == nil && addr.Zone() == "" {
		return except + addr.String(), nil
	}
	network, err := netip.ParsePrefix(what)
	switch {
	case err != nil:
		return "", errors.New("write an address (192.0.2.7), a network (192.0.2.0/24), or an alias of the cluster (dc/NAME)")
	case network.Bits() == 0:
		return "", errors.New("PVE accepts no network of all addresses (/0) in a set")
	case network.IsSingleIP():
		return except + network.Addr().String(), nil
	}
	return except + network.Masked().String(), nil
}

func ipsetTag(h *kind.Host, name string) owner.Tag {
	return owner.Tag{V: 1, Site: h.ID.Site, Type: "ipset", Node: name, Owner: h.Model.Name}
}

// tagged says whether a set has an ownership tag, and whether that says that it is ours.
type tagged struct{ found, ours bool }

// readIPSets reads the names of all sets, and of each what its tag says.
func readIPSets(ctx context.Context, h *kind.Host) (sets map[string]tagged, err error) {
	var list []struct{ Name, Comment string }
	if err := api.ReadList(ctx, h.API, ipsetsPath, &list); err != nil {
		return nil, err
	}
	sets = map[string]tagged{}
	for _, e := range list {
		_, tag, found := owner.ParseDescription(e.Comment)
		sets[e.Name] = tagged{found, found && tag.Site == h.ID.Site && tag.Owner == h.Model.Name && tag.Type == "ipset" && tag.Node == e.Name}
	}
	return sets, nil
}

// readEntries reads the entries of a set: what they mean, and what PVE calls each.
func readEntries(ctx context.Context, h *kind.Host, name string) (called map[string]string, err error) {
	var list []struct {
		CIDR    string          `json:"cidr"`
		NoMatch json.RawMessage `json:"nomatch"`
	}
	if err := api.ReadList(ctx, h.API, ipsetsPath+"/"+url.PathEscape(name), &list); err != nil {
		return nil, err
	}
	called = map[string]string{}
	for _, e := range list {
		entry := e.CIDR
		if api.Text(e.NoMatch) == "1" {
			entry = "!" + entry
		}
		if parsed, err := parseEntry(entry); err == nil {
			entry = parsed
		}
		called[entry] = e.CIDR
	}
	return called, nil
}

// setEntries changes the entries of a set to the wanted ones: it adds before it removes, so that access is never
// interrupted.
func setEntries(ctx context.Context, h *kind.Host, name string, want []string) error {
	sets, err := readIPSets(ctx, h)
	if err != nil {
		return attempt("reading the sets of the firewall", err)
	}
	if !sets[name].ours {
		return fmt.Errorf("ipset %s: %w", name, errUnmanagedSet)
	}
	have, err := readEntries(ctx, h, name)
	if err != nil {
		return attempt("reading the entries of ipset "+name, err)
	}
	at := ipsetsPath + "/" + url.PathEscape(name)
	keep := map[string]bool{} // PVE's names of the entries that stay
	for _, entry := range want {
		what, except := strings.CutPrefix(entry, "!")
		if called, ok := have[entry]; ok {
			keep[called] = true
			continue
		}
		opposite := "!" + entry
		if except {
			opposite = what
		}
		if called, ok := have[opposite]; ok { // PVE has an address once
			keep[called] = true
			_, err = h.API.Put(ctx, at+"/"+url.PathEscape(called), api.Params{"nomatch": except})
		} else {
			_, err = h.API.Post(ctx, at, api.Params{"cidr": what, "nomatch": except})
		}
		if err != nil {
			return attempt("adding "+entry+" to ipset "+name, err)
		}
	}
	for _, entry := range slices.Sorted(maps.Keys(have)) {
		if keep[have[entry]] {
			continue
		}
		if _, err := h.API.Delete(ctx, at+"/"+url.PathEscape(have[entry]), nil); err != nil {
			return attempt("removing "+entry+" from ipset "+name, err)
		}
	}
	return nil
}

// listIPSets reads the sets and the entries of those that are ours. A token without Sys.Audit on / sees none, and
// cannot have created one: sites without sets do not need that privilege.
func listIPSets(ctx context.Context, obs *kind.Observation) (model.Observed, error) {
	h := obs.Host
	out := model.Observed{State: model.State{}}
	if !obs.View.AuditsCluster && !obs.Wants("ipset") {
		return out, nil
	}
	unknown := func(scope string, err error) (model.Observed, error) {
		if api.EndsPass(ctx, err) {
			return out, err
		}
		out.Unknown = append(out.Unknown, model.Unknown{Scope: scope, Why: err.Error(), Kind: "ipset", Denied: api.IsDenied(err)})
		return out, nil
	}
	sets, err := readIPSets(ctx, h)
	if err != nil {
		return unknown("ipsets", err)
	}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		addr := model.Address{Kind: "ipset", Name: name}
		switch {
		case sets[name].ours || watched(obs, addr):
			entries, err := readEntries(ctx, h, name)
			if err != nil {
				return unknown(addr.String(), err)
			}
			out.State[addr] = &model.Resource{Addr: addr, Spec: &ipSet{Entries: slices.Sorted(maps.Keys(entries))}}
		case obs.Want.State[addr] != nil:
			out.Unmanaged = append(out.Unmanaged, model.Unmanaged{
				Name: name, Kind: "ipset", Why: "no ownership tag in its comment", Claims: addr,
				Fix: "name another in the files, or remove that set; if it is this site's, and its comment was edited by hand, make this line its comment:\n" + ipsetTag(h, name).Line(),
			})
		}
	}
	return out, nil
}
