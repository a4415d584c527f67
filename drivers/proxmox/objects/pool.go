package objects

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Pool is a resource pool. Guests join the pool that their host names; rights on
// it are rights on all of them.
type Pool struct {
	Host    string `hcl:"host" ref:"host" plan:"-" doc:"Its host or cluster."`
	Comment string `hcl:"comment,optional" doc:"Comment, to which the ownership tag is added."`
	Drift   string `hcl:"drift,optional" plan:"-" doc:"revert (default), or report: an existing one is only watched, and stays when the block goes."`
}

// PoolKind is the kind pool.
var PoolKind = kind.Of[Pool]{
	Model: model.Kind{
		Name: "pool", Block: "pool", Doc: "A resource pool.",
		New: func() any { return &Pool{} },
		Resolve: func(r *model.Resource, _ model.Scope) []model.Problem {
			p := r.Spec.(*Pool)
			p.Comment, r.Report = trimmed(p.Comment), p.Drift == "report"
			return nil
		},
		Brief: func(want *model.Resource) string { return want.Spec.(*Pool).Comment },
	},
	List:       listPools,
	Privileges: poolNeeds,
	Create: func(ctx context.Context, h *kind.Host, s plan.Step, want *Pool) error {
		_, err := h.API.Post(ctx, "/pools", api.Params{"poolid": s.Address.Name, "comment": poolComment(h, s, want)})
		if c := api.ClassOf(err); c == api.Exists || c == api.OutcomeUnknown {
			var ours bool
			if _, ours, _ = pool(ctx, h, s.Address.Name); ours {
				return nil // an earlier attempt succeeded
			}
		}
		return attempt("creating pool "+s.Address.Name, err)
	},
	Update: func(ctx context.Context, h *kind.Host, s plan.Step, want, _ *Pool) error {
		if _, ours, err := pool(ctx, h, s.Address.Name); err != nil || !ours {
			return fmt.Errorf("changing pool %s: %w", s.Address.Name, cmp.Or(err, errors.New("it is not managed any more (no ownership tag in its comment): not changed")))
		}
		_, err := h.API.Put(ctx, "/pools/"+url.PathEscape(s.Address.Name), api.Params{"comment": poolComment(h, s, want)})
		return attempt("changing pool "+s.Address.Name, err)
	},
	Remove: func(ctx context.Context, h *kind.Host, s plan.Step) error {
		there, ours, err := pool(ctx, h, s.Address.Name)
		switch {
		case err != nil:
			return attempt("reading pool "+s.Address.Name, err)
		case !there:
			return nil
		case !ours:
			return fmt.Errorf("pool %s is not managed any more (no ownership tag in its comment): not changed", s.Address.Name)
		}
		_, err = h.API.Delete(ctx, "/pools/"+url.PathEscape(s.Address.Name), nil)
		return attempt("removing pool "+s.Address.Name, err)
	},
}

// trimmed is a comment as it is compared.
func trimmed(comment string) string { return strings.TrimRight(comment, " \t\r\n") }

func poolComment(h *kind.Host, s plan.Step, want *Pool) string {
	return poolTag(h, s.Address.Name).Describe(want.Comment)
}

func poolTag(h *kind.Host, name string) owner.Tag {
	return owner.Tag{V: 1, Site: h.ID.Site, Type: "pool", Node: name, Owner: h.Model.Name}
}

func readPools(ctx context.Context, h *kind.Host) ([]map[string]json.RawMessage, error) {
	var list []map[string]json.RawMessage
	err := api.ReadList(ctx, h.API, "/pools", &list)
	return list, err
}

// isManaged classifies a pool by the ownership tag in its comment. A pool has no identity besides its name, so the
// tag must name it. Its owner is the host, independent of its creator: guests of a test join it too.
func isManaged(h *kind.Host, e map[string]json.RawMessage) (comment string, ok bool) {
	comment, m, found := owner.ParseDescription(api.Text(e["comment"]))
	return comment, found && m.Site == h.ID.Site && m.Owner == h.Model.Name && m.Type == "pool" && m.Node == api.Text(e["poolid"])
}

func pool(ctx context.Context, h *kind.Host, name string) (there, ours bool, err error) {
	list, err := readPools(ctx, h)
	for _, e := range list {
		if api.Text(e["poolid"]) == name {
			_, ours = isManaged(h, e)
			return true, ours, err
		}
	}
	return false, false, err
}

// listPools reads all pools; one that is not ours and whose name is wanted is in conflict with
// it. Nothing is asked where the list of the cluster shows no pool and none is wanted.
func listPools(ctx context.Context, obs *kind.Observation) (model.Observed, error) {
	h := obs.Host
	out := model.Observed{State: model.State{}}
	if !obs.View.HasPools && !obs.Wants("pool") {
		return out, nil
	}
	list, err := readPools(ctx, h)
	if err != nil {
		if api.EndsPass(ctx, err) {
			return out, err
		}
		out.Unknown = append(out.Unknown, model.Unknown{Scope: "pools", Why: err.Error(), Kind: "pool", Denied: api.IsDenied(err)})
		return out, nil
	}
	for _, e := range list {
		addr := model.Address{Kind: "pool", Name: api.Text(e["poolid"])}
		comment, ok := isManaged(h, e)
		switch {
		case ok || watched(obs, addr):
			out.State[addr] = &model.Resource{Addr: addr, Spec: &Pool{Comment: trimmed(comment)}}
		case obs.Want.State[addr] != nil:
			out.Unmanaged = append(out.Unmanaged, model.Unmanaged{
				Name: addr.Name, Kind: "pool", Why: "no ownership tag in its comment", Claims: addr,
				Fix: "name another in the files, or remove that pool; if it is this site's, and its comment was edited by hand, put its ownership tag back there as the last line:\n" +
					poolTag(h, addr.Name).Line(),
			})
		}
	}
	return out, nil
}

func poolNeeds(p *Pool, n *kind.Needs) {
	path := "/pool/" + n.From.Addr.Name
	if p.Drift != "report" {
		n.Add(kind.Need{Grant: kind.Grant{Path: path, Priv: "Pool.Allocate"}, Role: kind.RolePool, For: "creating, changing and removing it"}, "")
	}
	n.Add(kind.Need{Grant: kind.Grant{Path: path, Priv: "Pool.Audit"}, Role: kind.RolePool, For: "reading it"}, "")
}
