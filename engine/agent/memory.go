package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// memory is the state that survives a restart. Its lists are replaced when they change, never written to, so a copy
// of State is immutable.
type memory struct {
	ledger.State
	ledger *ledger.Ledger
	log    *slog.Logger
	saved  ledger.State // as it is on disk
}

// remembered reads what the ledger has of the identity.
func remembered(o Options) memory {
	state, err := o.Ledger.State()
	switch {
	case err != nil:
		o.Log.Warn("state file unreadable, starting fresh: history, suspensions and the last good commit are lost", "error", err)
	case state.Identity != "" && state.Identity != o.Identity:
		o.Log.Warn("the state is of another identity, so it is ignored", "state_of", state.Identity, "identity", o.Identity)
		state = ledger.State{}
	}
	state.Identity = o.Identity
	return memory{State: state, ledger: o.Ledger, log: o.Log, saved: state}
}

// save writes the state to disk if it differs from the file.
func (m *memory) save() error {
	if reflect.DeepEqual(m.saved, m.State) {
		return nil
	}
	err := m.ledger.SetState(m.State)
	if err == nil {
		m.saved = m.State // else the next call tries again
	}
	return err
}

// persist is save for callers that ignore the error.
func (m *memory) persist() {
	if err := m.save(); err != nil {
		m.log.Warn("the state was not saved; it will be recomputed after a restart", "error", err)
	}
}

// expire drops the suspensions whose time is over, and reports whether there were any.
func (m *memory) expire(now time.Time) bool {
	var rest, gone []ledger.Suspension
	for _, s := range m.Suspended {
		if s.Until == nil || s.Until.After(now) {
			rest = append(rest, s)
		} else {
			gone = append(gone, s)
		}
	}
	if len(gone) > 0 {
		m.Suspended = rest
	}
	m.persist() // also what could not be saved before
	for _, s := range gone {
		m.log.Info("resumed, the time of the suspension is over", "manifest", everything(s.Manifest), "by", s.By)
	}
	return len(gone) > 0
}

// refs lists the commits that matter: head, the good one, the converged one, those that took a child out of
// the site that is there yet, and those whose specs are in guests.
func (m *memory) refs() []string {
	var out []string
	for _, ref := range []ledger.CommitRef{m.Head, m.Good, m.Converged} {
		if ref.ID != "" && !slices.Contains(out, ref.ID) {
			out = append(out, ref.ID)
		}
	}
	left := []string{}
	for _, name := range slices.Sorted(maps.Keys(m.Hosts)) {
		left = append(left, m.Hosts[name].Left)
	}
	for _, id := range slices.Concat(slices.Sorted(maps.Values(m.Withdrawn)), left, slices.Sorted(maps.Values(m.Specs)), []string{m.Member}) {
		if id != "" && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

func refNow(id string) ledger.CommitRef { return ledger.CommitRef{ID: id, Since: time.Now().UTC()} }

// setIdentityUnknown notes that a commit took the identity out of the site, "" that it is
// in it.
func (m *memory) setIdentityUnknown(id string) {
	switch id {
	case "":
		m.Unknown = ledger.CommitRef{}
	case m.Unknown.ID:
	default:
		m.Unknown = refNow(id)
	}
	m.persist()
}

// drifted reports whether a plan has differences that no commit asked for: the host was as
// this commit says before, but for what was suspended then.
func (m *memory) drifted(id string, p *plan.Plan) bool {
	return p != nil && m.Converged.ID == id && slices.ContainsFunc(p.Steps, func(s plan.Step) bool {
		if s.Address.Kind == model.RestoreKind {
			return false // it differs from nothing
		}
		return s.Manifest == "" || !slices.Contains(m.Aside, s.Manifest)
	})
}

// consumeGrant records that a step of the pass deleted a guest, at once: a pass that is
// killed must not give the whole grant again.
func (m *memory) consumeGrant(g *allowance, name string) {
	orphaned := slices.Contains(g.orphans, name) && !slices.Contains(m.Orphaned, name)
	if g.removals == 0 && !orphaned {
		return
	}
	if orphaned {
		m.Orphaned = append(slices.Clone(m.Orphaned), name)
	}
	if g.removals > 0 {
		g.removals--
		m.Consumed++
	}
	m.Counted = union(m.Counted, g.by)
	m.persist()
}

// converged makes a commit the one that the host converged to: the trailers before it are
// used up, those of a branch that is no longer there included. Aside are the manifests
// that were suspended.
func (m *memory) converged(id string, g allowance, aside []string) {
	if m.Converged.ID == id {
		aside = slices.DeleteFunc(aside, func(name string) bool { return !slices.Contains(m.Aside, name) })
	} else {
		used := union(union(m.UsedTrailers, m.Counted), g.by)
		m.UsedTrailers = used[max(len(used)-mostUsedTrailers, 0):]
		m.Converged, m.Consumed, m.Counted, m.Orphaned = refNow(id), 0, nil, nil
	}
	if !slices.Equal(m.Aside, aside) {
		m.Aside = aside
	}
}

// An agent does not ask guests how they are as long as nothing changes: a host with
// hundreds of them would be asked all day. But a guest whose checks failed is not
// forgotten when the next pass finds nothing to change in it. Its address is kept as a
// hint, and passes try its checks again until they hold. Losing the hint loses no more
// than that: what depends on the guest waits for its checks anyway.

// failing lists the guests whose checks failed when they were tried last.
func (m *memory) failing() []model.Address {
	var out []model.Address
	for _, text := range m.Failing {
		if addr, err := model.ParseAddress(text); err == nil {
			out = append(out, addr)
		}
	}
	return out
}

// noteFailing keeps which checks fail after a pass.
func (m *memory) noteFailing(r *engine.Report) {
	if r.Want == nil {
		return
	}
	before := m.failing()
	after := slices.DeleteFunc(slices.Clone(before), func(addr model.Address) bool {
		tried, ok := r.Checks[addr]
		gone := r.Want.State[addr] == nil && len(r.Want.Suspended) == 0 && !r.Have.Only // else its owner is unknown now
		return gone || ok && tried.Err == nil || slices.Contains(r.Unchecked, addr)
	})
	for addr, report := range r.Checks {
		if report.Err != nil && !slices.Contains(after, addr) {
			after = append(after, addr)
		}
	}
	slices.SortFunc(after, model.Address.Compare)
	if slices.Equal(before, after) {
		return
	}
	for _, addr := range before {
		if !slices.Contains(after, addr) && r.Want.State[addr] != nil && !slices.Contains(r.Unchecked, addr) {
			m.log.Info("checks hold again", "address", addr.String())
		}
	}
	m.Failing = nil
	for _, addr := range after {
		m.Failing = append(m.Failing, addr.String())
	}
	m.persist()
}

// A VMID that no guest has may still be one under which none can be created: a creation
// that died leaves a volume of its name, and the host refuses to create that again. Few
// tokens may see such volumes, so the refusal itself is kept, as a hint to choose another
// VMID from then on. Losing it costs one creation that fails.

// mostUnusable is the number of these VMIDs that are kept, the newest of them.
const mostUnusable = 64

// noteUnusable keeps the VMIDs under which this pass could create no guest. One that a
// guest has by now is usable again.
func (m *memory) noteUnusable(r *engine.Report) {
	after := slices.DeleteFunc(slices.Clone(m.UnusableVMIDs), func(vmid int) bool { return r.Have.Taken[vmid] != "" })
	for _, res := range r.Results {
		if e, ok := errors.AsType[*model.UnusableVMIDError](res.Err); ok && !slices.Contains(after, e.VMID) {
			after = append(after, e.VMID)
		}
	}
	after = after[max(0, len(after)-mostUnusable):]
	if !slices.Equal(m.UnusableVMIDs, after) {
		m.UnusableVMIDs = after
		m.persist()
	}
}

// noteSweepHints keeps what the observation wants to be given again by the next pass. An
// observation that failed takes nothing away.
func (m *memory) noteSweepHints(r *engine.Report) {
	if r.Want == nil || r.Have.NothingSeen() {
		return
	}
	was := m.SweepHints
	m.SweepHints = r.Have.SweepHints // also if both are empty: nil says that nothing is remembered
	if !slices.Equal(was, m.SweepHints) {
		m.persist()
	}
}

// restored is what passes need of the verifications of backups.
func (m *memory) restored() map[model.Address]model.Restored {
	out := make(map[model.Address]model.Restored, len(m.Restores))
	for text, r := range m.Restores {
		if addr, err := model.ParseAddress(text); err == nil {
			out[addr] = model.Restored{Tried: r.Tried, Proved: r.Proved, Archive: r.Archive, Error: r.Error}
		}
	}
	return out
}

// noteRestores keeps which backups a pass verified. It forgets those of guests that are not backed up any more, or not the same guest.
func (m *memory) noteRestores(r *engine.Report) {
	if r.Want == nil || r.Have.Only {
		return
	}
	after := maps.Clone(m.Restores)
	maps.DeleteFunc(after, func(guest string, _ ledger.Restore) bool {
		addr, err := model.ParseAddress(guest)
		return err != nil || r.Want.Backups[addr] == nil && r.Want.State[addr] != nil
	})
	for _, res := range r.Results {
		if a := res.Step.Action; res.Status == apply.Done && (a == plan.Create || a == plan.Replace || a == plan.Delete) {
			delete(after, res.Step.Address.String())
		}
		if res.Step.Want == nil || res.Status != apply.Done && res.Status != apply.Failed || errors.Is(res.Err, context.Canceled) {
			continue // one that the end of the agent cut off shows nothing
		}
		test, ok := res.Step.Want.Spec.(*model.RestoreTest)
		if !ok {
			continue
		}
		if after == nil {
			after = map[string]ledger.Restore{}
		}
		now := ledger.Restore{Tried: time.Now().UTC(), Proved: after[test.Of.String()].Proved, Archive: test.Archive}
		if res.Err != nil {
			now.Error = res.Err.Error()
		} else {
			now.Proved = now.Tried
		}
		after[test.Of.String()] = now
	}
	if !maps.Equal(m.Restores, after) {
		m.Restores = after
		m.persist()
	}
}

// A commit whose evaluation had to be ended is not tried again, neither by the next pass nor after a
// restart: each try costs seconds of a processor. Another version of the program may need less.

// mostHarmful is the number of these commits that are kept.
const mostHarmful = 16

// harmful returns what was found in a commit that must not be evaluated; nil for any other.
func (m *memory) harmful(id, program string) diag.List {
	for _, h := range m.Harmful {
		if h.ID == id && h.Program == program {
			return h.Findings
		}
	}
	return nil
}

// noteHarmful keeps that a commit must not be evaluated again.
func (m *memory) noteHarmful(d engine.Desired, program string) {
	if !d.Harmful {
		return
	}
	rest := slices.DeleteFunc(slices.Clone(m.Harmful), func(h ledger.Harmful) bool { return h.ID == d.Commit })
	rest = append(rest, ledger.Harmful{ID: d.Commit, Program: program, Findings: listed(d.Findings)})
	m.Harmful = rest[max(0, len(rest)-mostHarmful):]
	m.persist()
}
