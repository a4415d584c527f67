package proxmox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Pool is a resource pool. Guests join the pool that their host names; rights on
// it are rights on all of them.
type Pool struct {
	Host    string `hcl:"host" ref:"host" plan:"-" doc:"Host or cluster it is on."`
	Comment string `hcl:"comment,optional" doc:"Comment; the ownership tag is added to it."`
}

var poolKind = kind.Of[Pool]{
	Model: model.Kind{
		Name: "pool", Block: "pool", Doc: "A resource pool.",
		New: func() any { return &Pool{} },
		Resolve: func(spec any, _ model.Scope) []model.Problem {
			p := spec.(*Pool)
			p.Comment = strings.TrimRight(p.Comment, " \t\r\n") // as it is read back
			return nil
		},
		Brief: func(spec any) string { return spec.(*Pool).Comment },
	},
	List:       listPools,
	Privileges: poolNeeds,
	Create: func(ctx context.Context, h *kind.Host, s plan.Step, want *Pool) error {
		_, err := h.API.Post(ctx, "/pools", api.Params{"poolid": s.Address.Name, "comment": poolComment(h, s, want)})
		if c := api.ClassOf(err); c == api.Exists || c == api.OutcomeUnknown {
			var ours bool
			if _, ours, _ = pool(ctx, h, s.Address.Name); ours {
				return nil // an earlier order got through
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
			return attempt("looking at pool "+s.Address.Name, err)
		case !there:
			return nil
		case !ours:
			return fmt.Errorf("pool %s is not managed any more (no ownership tag in its comment): not changed", s.Address.Name)
		}
		_, err = h.API.Delete(ctx, "/pools/"+url.PathEscape(s.Address.Name), nil)
		return attempt("removing pool "+s.Address.Name, err)
	},
}

func attempt(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func poolComment(h *kind.Host, s plan.Step, want *Pool) string {
	return owner.Describe(want.Comment, poolMark(h, s.Address.Name))
}

func poolMark(h *kind.Host, name string) owner.Tag {
	return owner.Tag{V: 1, Site: h.ID.Site, Type: "pool", Node: name, Owner: h.Model.Name}
}

func pools(ctx context.Context, h *kind.Host) ([]map[string]json.RawMessage, error) {
	var list []map[string]json.RawMessage
	err := api.ReadList(ctx, h.API, "/pools", &list)
	return list, err
}

// isOurs classifies a pool by the ownership tag in its comment. A pool has no identity beside its
// name, so the tag must name it. Its owner is the host, whoever made it: guests
// of a test join it too.
func isOurs(h *kind.Host, e map[string]json.RawMessage) (comment string, ok bool) {
	comment, m, found := owner.ParseDescription(api.Text(e["comment"]))
	return comment, found && m.Site == h.ID.Site && m.Owner == h.Model.Name && m.Type == "pool" && m.Node == api.Text(e["poolid"])
}

func pool(ctx context.Context, h *kind.Host, name string) (there, ours bool, err error) {
	list, err := pools(ctx, h)
	for _, e := range list {
		if api.Text(e["poolid"]) == name {
			_, ours = isOurs(h, e)
			return true, ours, err
		}
	}
	return false, false, err
}

// listPools reads all pools; a foreign one whose name is wanted stands in the way.
func listPools(ctx context.Context, obs *kind.Observation) (model.Observed, error) {
	h := obs.Host
	out := model.Observed{State: model.State{}}
	list, err := pools(ctx, h)
	if err != nil {
		if api.EndsPass(ctx, err) {
			return out, err
		}
		out.Unknown = append(out.Unknown, model.Unknown{Scope: "pools", Why: err.Error(), Kind: "pool", Denied: api.IsDenied(err)})
		return out, nil
	}
	for _, e := range list {
		addr := model.Address{Kind: "pool", Name: api.Text(e["poolid"])}
		comment, ok := isOurs(h, e)
		switch {
		case ok:
			out.State[addr] = &model.Resource{Addr: addr, Spec: &Pool{Comment: comment}}
		case obs.Want.State[addr] != nil:
			out.Unmanaged = append(out.Unmanaged, model.Unmanaged{
				Name: addr.Name, Kind: "pool", Why: "no ownership tag in its comment", Claims: addr,
				Fix: "name another in the files, or remove that pool; if it is this site's, and its comment was edited by hand, put its mark back there as the last line:\n" +
					poolMark(h, addr.Name).Line(),
			})
		}
	}
	return out, nil
}

// inTheirPool says which guests are in another pool than the host names: they joined
// theirs when they were made. To move them needs rights on both pools and the right to
// give rights on the guest (pve-access-control, API2/Pool.pm), so it is left to people.
func (j *judge) inTheirPool() {
	h := j.want.Host
	if h == nil || h.Pool == "" {
		return
	}
	var who, ids []string
	for _, addr := range slices.SortedFunc(maps.Keys(j.out.State), model.Address.Compare) {
		g := j.out.State[addr].Guest
		if w := j.want.State[addr]; g == nil || w == nil || slices.Contains([]string{"", h.Pool}, j.view.Guests[g.VMID].Pool) {
			continue
		}
		who = append(who, fmt.Sprintf("%s (%s)", addr, j.view.Guests[g.VMID].Pool))
		ids = append(ids, strconv.Itoa(g.VMID))
	}
	if len(who) == 0 {
		return
	}
	j.out.Findings = append(j.out.Findings, diag.Finding{
		Severity: diag.Warning, Source: diag.FromGuard, Address: "host." + h.Name, At: h.At,
		Summary: fmt.Sprintf("guests are not in pool %s, which host %s names, but in another: %s", h.Pool, h.Name, strings.Join(who, ", ")),
		Detail: fmt.Sprintf("a guest joins the pool when it is made. To move them, on a node, before the old pool goes: pvesh set /pools/%s --allow-move 1 --vms %s",
			h.Pool, strings.Join(ids, ",")),
	})
}
