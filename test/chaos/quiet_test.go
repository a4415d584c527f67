package chaos_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// quiet makes passes until nothing is left to do but what is kept for a reason.
func (w *world) quiet() {
	var left []string
	for range 12 {
		ctx, cancel := context.WithTimeout(w.ctx, 3*time.Hour)
		_, err := w.agent.Reconcile(ctx)
		cancel()
		if err != nil {
			w.violation('a', "the agent answers nobody: %v", err)
			return
		}
		w.idle()
		w.live(11 * time.Second) // what the host shows is as old as that, and the HA manager looks as often
		w.rest()
		if w.granted() {
			continue
		}
		if left = w.look(); len(left) == 0 {
			break
		}
	}
	if len(left) == 0 && len(w.standing(w.sim.Snapshot())) == 0 {
		w.unsettled = false
	}
	for _, l := range left {
		w.violation('a', "%s", l)
	}
	if len(left) > 0 {
		w.tell("the agent says: %s: %v", w.agent.Status().Summary, w.agent.Status().Last.Findings)
	}
	if w.meddle != nil {
		w.meddle(w)
	}
	snap := w.sim.Snapshot()
	w.laws(snap)
	status, err := json.Marshal(w.agent.Status())
	require.NoError(w.t, err)
	w.secret("the status", string(status))
	if len(snap.Unimplemented) > 0 {
		w.violation('x', "the simulator does not know %v", snap.Unimplemented)
	}
}

// rest waits until nothing works on the host any more: a guest that its manager is
// starting counts as started to the program.
func (w *world) rest() {
	for range 600 {
		if !slices.ContainsFunc(w.sim.Snapshot().Tasks, func(t pve.Task) bool { return t.End.IsZero() }) {
			return
		}
		w.live(time.Second)
	}
	w.violation('a', "the host works for ten minutes after the agent had nothing to do")
}

var overCap = regexp.MustCompile(`^the plan removes \d+ of \d+ owned guests, at most \d+ in one pass$`)

// granted is people applying by hand, as the program tells them to, what it refused
// because more guests would go than one pass may take and trailers count for nothing
// (decision 12): no commit is known that the host converged to. Otherwise the trailers
// of these commits allow whatever they remove, and a refusal is wrong.
func (w *world) granted() bool {
	way := false
	said := w.agent.Status().Last.Findings
	if refused := w.agent.Status().Refused; refused != nil {
		said = append(said, refused.Findings...)
	}
	for _, f := range said {
		way = way || f.Severity == diag.Error && overCap.MatchString(f.Summary) && strings.Contains(f.Detail, "apply --allow-deletes")
	}
	if !way || !w.unsettled {
		return false
	}
	w.cancel() // as the command line does, which asks the agent to hold still
	require.ErrorIs(w.t, <-w.ended, context.Canceled)
	w.tell("by hand: apply --allow-deletes 50")
	w.wire.mu.Lock()
	through := agentWire{w.wire, w.wire.life}
	w.wire.mu.Unlock()
	p := w.byCommand("apply", through)
	p.Verdict = func(context.Context, *plan.Plan) (bool, error) { return true, nil }
	r := p.Run(w.ctx)
	w.tell("  it ends: %s, %v", r.Outcome, r.Err)
	w.start()
	return true
}

// byCommand is a pass of the command line with the newest commit.
func (w *world) byCommand(verb string, way http.RoundTripper) *engine.Pass {
	return &engine.Pass{
		Verb: verb, Host: "father", AllowDeletes: 50, Children: w.children(),
		Load: func(ctx context.Context) engine.Desired {
			c, err := w.repo.Head(ctx)
			require.NoError(w.t, err)
			return w.load(w.reader, c)
		},
		Open: func(h *model.Host) (engine.Driver, error) {
			return proxmox.Open(proxmox.Config{Host: h, Site: "home", Owner: "father", Keys: w.keys, Transport: way, Concurrency: atOnce})
		},
	}
}

// look plans once more, as `plan` does, and tells what is left that has no reason.
func (w *world) look() []string {
	r := w.byCommand("plan", w.sim).Run(w.ctx)
	if r.Plan == nil {
		return []string{fmt.Sprintf("no plan: %s, %v, %v", r.Outcome, r.Err, r.Findings)}
	}
	var text bytes.Buffer
	r.Plan.Text(&text, plan.TextOptions{})
	doc, err := json.Marshal(r.Plan)
	require.NoError(w.t, err)
	report, err := json.Marshal(r)
	require.NoError(w.t, err)
	for where, said := range map[string]string{"the plan": text.String(), "the plan's JSON": string(doc), "the report": string(report), "the findings": fmt.Sprint(r.Findings)} {
		w.secret(where, said)
	}
	return unexplained(r, w.standing(w.sim.Snapshot()))
}

// unexplained is what of a plan is left without a reason.
func unexplained(r engine.Report, stand reasons) []string {
	var out []string
	for _, s := range r.Plan.Steps {
		if len(stand[s.Address.String()]) == 0 {
			out = append(out, fmt.Sprintf("left to do: %s %s: %s", s.Action, s.Address, s.Reason))
		}
	}
	for _, u := range r.Plan.Unknown {
		out = append(out, fmt.Sprintf("not known: %s: %s", u.Scope, u.Why))
	}
	texts := says()
	for _, f := range r.Findings {
		if f.Severity != diag.Error {
			continue
		}
		if !slices.ContainsFunc(stand[f.Address], func(why reason) bool { return texts[why].MatchString(f.Summary) }) {
			out = append(out, fmt.Sprintf("finding without a reason that is known (%v): %s", stand[f.Address], f))
		}
	}
	return out
}
