package push

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Observe observes the host, and then the inside of each guest that is there and for which the
// files want something. A guest that cannot be entered is unknown, and nothing but what is inside
// of it; one that was just started is not ready yet.
func (d *Driver) Observe(ctx context.Context, w *model.Want) (model.Observed, error) {
	d.Enter(w)
	if err := carryKeys(d.cfg.HostKeys, d.moved, d.alias); err != nil {
		return model.Observed{}, err
	}
	host := *w
	host.State = maps.Clone(w.State)
	maps.DeleteFunc(host.State, func(_ model.Address, r *model.Resource) bool { return r.Inside != (model.Address{}) })
	have, err := d.Driver.Observe(ctx, &host)
	if have, err = (ownMachine{d: d}).add(ctx, w, have, err); err != nil || have.NothingSeen() || have.Only {
		return have, err
	}
	if some, enough := startsFirst(w, have); enough {
		some.Rest = func(ctx context.Context) (model.Observed, error) { return d.enter(ctx, w, have) }
		return some, nil
	}
	return d.enter(ctx, w, have)
}

// enter adds the inside of guests to the observation of a host.
func (d *Driver) enter(ctx context.Context, w *model.Want, have model.Observed) (model.Observed, error) {
	barred := d.barred(ctx, w)
	var wanted []*model.Resource
	for _, addr := range w.State.Find(func(r *model.Resource) bool { return isInside(r.Addr) }) {
		r := w.State[addr]
		if slices.ContainsFunc(barred, func(u model.Unknown) bool { return slices.Contains(u.Only, addr) }) {
			continue
		}
		if at := have.State[r.Inside]; at != nil && at.Guest != nil {
			wanted = append(wanted, r)
		}
	}
	declared := len(wanted)
	for _, r := range d.reconnects(w, have.State) {
		wanted = append(wanted, r)
		d.mu.Lock()
		d.ways[r.Addr] = wayOf(r)
		d.mu.Unlock()
	}
	seen := make([]model.Observed, len(wanted))
	slots := make(chan struct{}, d.cfg.Width)
	var all sync.WaitGroup
	for i, r := range wanted {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			seen[i] = d.observeInside(ctx, r, *have.State[r.Inside].Guest)
		})
	}
	all.Wait()
	have.State, have.Unknown, have.Findings = maps.Clone(have.State), slices.Concat(have.Unknown, barred), slices.Clone(have.Findings)
	for i, o := range seen {
		if i >= declared {
			addReconnect(&have, wanted[i], o)
			continue
		}
		maps.Copy(have.State, o.State)
		for _, u := range o.Unknown {
			have.Unknown = addUnknown(have.Unknown, u)
		}
		have.Findings = append(have.Findings, o.Findings...)
	}
	stays, err := d.stay(w, have.State)
	have.Findings = append(append(have.Findings, stays...), delivery{d}.stillPull(w, have.State)...)
	return have, err
}

// startsFirst narrows the observation of a host to the guests that changed, if one of them is off and shall run, or to all that
// are, where that is asked for: entering all others takes longer than to start it, and the next full check does that.
func startsFirst(w *model.Want, have model.Observed) (model.Observed, bool) {
	some := model.Observed{At: have.At, State: model.State{}, Taken: have.Taken, Preflight: have.Preflight, ReadEdits: have.ReadEdits, Only: true}
	off := func(addr model.Address) bool {
		want, is, node := w.State[addr], have.State[addr], w.Nodes[addr]
		return want != nil && is != nil && is.Guest != nil && !is.Guest.Running && model.TextOf(want.Spec, "power") == "running" &&
			(node == nil || node.Drift != "report") // then it is left off
	}
	starts := false
	for addr := range w.Changed {
		if w.State[addr] == nil || have.State[addr] == nil || have.State[addr].Guest == nil {
			return have, false
		}
		starts = starts || off(addr)
		some.State[addr] = have.State[addr]
	}
	for addr := range w.State {
		if w.StartFirst && off(addr) {
			starts, some.State[addr] = true, have.State[addr]
		}
	}
	if !starts || len(have.Unknown) > 0 || have.Findings.HasErrors() {
		return have, false
	}
	for _, f := range have.Findings {
		if addr, err := model.ParseAddress(f.Address); err == nil && some.State[addr] != nil {
			some.Findings = append(some.Findings, f)
		}
	}
	return some, true
}

// addUnknown adds a resource that could not be read. Those with one common reason outside of the guest are merged.
func addUnknown(list []model.Unknown, u model.Unknown) []model.Unknown {
	i := slices.IndexFunc(list, func(o model.Unknown) bool {
		return o.Scope == u.Scope && o.Why == u.Why && o.Kind != "" && o.Only != nil
	})
	if i < 0 {
		return append(list, u)
	}
	list[i].Only = append(slices.Clone(list[i].Only), u.Only...)
	return list
}

// Enter stores how the guests of this pass are entered. Several resources inside one guest share its connection:
// each knows all addresses of its sshd, including those of a spec that the node no longer has.
func (d *Driver) Enter(w *model.Want) {
	ways := map[model.Address]*way{}
	shared := map[model.Address]*way{} // by SSH, of each guest
	for _, addr := range w.State.Find(func(r *model.Resource) bool { return wayOf(r) != nil }) {
		own := *wayOf(w.State[addr])
		ways[addr] = &own
		if own.via == model.ViaSSH {
			if first := shared[own.guest]; first != nil {
				first.join(&own)
			} else {
				first := own
				shared[own.guest] = &first
			}
		}
	}
	for _, of := range ways {
		if all := shared[of.guest]; all != nil && of.via == model.ViaSSH {
			of.ports, of.near, of.ip = all.ports, all.near, all.ip
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ways = ways
}

// barred lists the resources inside of containers for pct exec if this program may not run that. It is known before
// there is a container.
func (d *Driver) barred(ctx context.Context, w *model.Want) []model.Unknown {
	d.mu.Lock()
	all := w.State.Find(func(r *model.Resource) bool {
		return d.ways[r.Addr] != nil && d.ways[r.Addr].via == model.ViaExec && !d.ways[r.Addr].delivers
	})
	d.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	why := mayEnter(ctx, d.cfg.Locally)
	if why == nil {
		return nil
	}
	var out []model.Unknown
	for _, addr := range all {
		u := hidden(w.State[addr])
		u.Why = why.Error()
		out = append(out, u)
	}
	return out
}

// hidden returns what could not be read inside a guest.
func hidden(want *model.Resource) model.Unknown {
	return model.Unknown{Scope: "inside of " + want.Inside.String(), Kind: want.Addr.Kind, Only: []model.Address{want.Addr}}
}

// observeInside looks into one guest.
func (d *Driver) observeInside(ctx context.Context, want *model.Resource, at model.Guest) model.Observed {
	hidden := hidden(want)
	unknown := func(why string) model.Observed {
		hidden.Why = why
		return model.Observed{Unknown: []model.Unknown{hidden}}
	}
	if at.Adoptable {
		return model.Observed{} // it is entered once it is adopted
	}
	if at.Unproven.Why != "" && !at.Unproven.MayChange { // it may be an unmanaged guest, which would get secrets
		return unknown(at.Unproven.Why)
	}
	delivers := d.wayOf(want.Addr) != nil && d.wayOf(want.Addr).delivers
	if !at.Running && !delivers {
		return model.Observed{} // the plan decides whether it starts, and is entered then
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.cfg.Observe, fmt.Errorf("not finished after %s", d.cfg.Observe))
	defer cancel()
	var out model.Observed
	var err error
	if delivers {
		out, err = delivery{d}.observe(ctx, want, at)
	} else {
		m := d.Machine(want.Addr, at, nil)
		if m == nil {
			return unknown("no access to the guests of this host is configured")
		}
		out, err = d.observeIt(ctx, m, want, at)
	}
	hidden.Denied = denied(err)
	if via, is := errors.AsType[*ssh.ViaError](err); is { // nothing is known of the guest
		hidden.Scope = "inside of guests of host " + d.host.Name
		return unknown(fmt.Sprintf("they are entered through the host (jump), and it cannot be entered: %v", via))
	}
	switch hidden.Starting = err != nil && at.Starting && !otherGuest(err) && !hidden.Denied && !guest.Hopeless(err); {
	case hidden.Starting:
		return unknown("not ready yet, since it was just started: " + err.Error())
	case err != nil:
		return unknown(err.Error())
	}
	return out
}

// observeIt reads what is wanted inside a guest.
func (d *Driver) observeIt(ctx context.Context, m guest.Machine, want *model.Resource, at model.Guest) (model.Observed, error) {
	if want.Addr.Kind == kindName {
		return d.observeAgent(ctx, m, want)
	}
	s, err := d.cfg.Inside.Observe(ctx, m, want.Spec.(*spec.Spec))
	if err != nil {
		return model.Observed{}, err
	}
	if _, more := s.Unplanned(nil); !more {
		if err := d.left(want.Addr); err != nil {
			return model.Observed{}, err
		}
	}
	out := s.Observed()
	if r := out.State[want.Addr]; r != nil {
		err = delivery{d}.adjust(ctx, m, want, at, r.Spec.(*spec.Spec))
	}
	return out, err
}

// join adds where another way to the same guest may lead. The port that every machine begins with stays the last one.
func (w *way) join(other *way) {
	w.ports = slices.DeleteFunc(union(w.ports, other.ports), func(p int) bool { return p == sshPort })
	w.ports = append(w.ports, sshPort)
	w.near = union(w.near, other.near)
	if !w.ip.IsValid() {
		w.ip = other.ip
	}
}

// union lists what is in a or in b, each once, in this order.
func union[T comparable](a, b []T) []T {
	out := slices.Clone(a)
	for _, v := range b {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// wayOf returns how a guest is entered for what is inside of it, as in the last observation; nil if that is not known.
func (d *Driver) wayOf(addr model.Address) *way {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ways[addr]
}

// denied reports whether an error says that the token of the host lacks a privilege, which no waiting gives it.
func denied(err error) bool {
	var d interface{ Denied() bool }
	return errors.As(err, &d) && d.Denied()
}

// left forgets the host keys of a node without a spec, once nothing of it is left inside and the guest is not
// entered for another reason. Any other is kept.
func (d *Driver) left(addr model.Address) error {
	d.mu.Lock()
	w := d.ways[addr]
	last := w != nil && w.gone
	for _, other := range d.ways {
		last = last && (other.guest != w.guest || other.gone)
	}
	d.mu.Unlock()
	if !last {
		return nil
	}
	return d.forget(w.guest)
}

// stay warns of guests that exist and are not entered any more: what a spec put inside of them stays.
func (d *Driver) stay(w *model.Want, have model.State) (diag.List, error) {
	var found diag.List
	for _, addr := range w.State.Addresses() {
		n, at := w.Nodes[addr], have[addr]
		if n == nil || at == nil || at.Guest == nil || n.Spec != "" || n.Mode != model.ModePush {
			continue
		}
		if w.State[converge.Address(n.Name)] != nil || w.State[model.Address{Kind: kindName, Name: n.Name}] != nil {
			continue
		}
		known, err := d.cfg.HostKeys.Of(d.alias(addr))
		if err != nil {
			return nil, err
		}
		if len(known.Keys) > 0 {
			found = append(found, addr.StaysInside("It was set up before and may not be empty: only an agent knows the previous commit."))
		}
	}
	return found, nil
}
