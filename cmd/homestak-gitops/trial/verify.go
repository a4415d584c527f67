package trial

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// AddLogins gives every node of a manifest a check that logs in, where there is a key to
// do so. It returns findings about nodes where it cannot.
func AddLogins(site *model.Site, manifest string, h *model.Host) diag.List {
	m := site.Manifests[manifest]
	if m.Settings != nil && m.Settings.VerifySSH != nil && !*m.Settings.VerifySSH {
		return nil
	}
	if h.SSH == nil || h.SSH.Key == "" {
		return nil // the error is not about a key
	}
	var found diag.List
	for _, n := range m.Nodes {
		r, _ := site.Resolve(n.Resource, h, n)
		switch {
		case slices.ContainsFunc(site.Checks(n), func(c model.Check) bool { return c.SSH }):
		case engine.CanLogIn(h, r):
			n.Checks = append(slices.Clone(n.Checks), model.Check{Name: "verify-ssh", SSH: true, At: n.At})
		default:
			f := diag.Warnf(n.At, fmt.Sprintf("node %s is not logged in to", n.Name),
				"The private key in ssh of host %s belongs to none of its ssh_keys. Add it there, or set verify_ssh = false.", h.Name)
			found = append(found, f)
		}
	}
	return found
}

const (
	// verifyFor bounds how long verify observes again: PVE reports some things late (the
	// status of a guest by up to ten seconds, pve-manager's pvestatd).
	verifyFor   = time.Minute
	verifyEvery = time.Second
)

// verify observes again until everything is there, runs, and nothing is left to do.
func (t *Trial) verify(ctx context.Context) error {
	return t.phase("verify", func() error {
		ctx, cancel := engine.Until(ctx, t.o.Stop)
		defer cancel()
		limit := time.NewTimer(verifyFor)
		defer limit.Stop()
		t.o.Progress.Waits("verifying")
		for {
			p := t.pass()
			p.Locate = true
			p.Verdict = func(_ context.Context, made *plan.Plan) (bool, error) { return len(made.Steps) == 0, nil }
			for _, n := range t.o.Manifest.Nodes {
				p.Failing = append(p.Failing, n.Resource.Addr) // what passed when it was made must still pass
			}
			r := p.Run(ctx)
			t.checked(r)
			lacking := t.lacking(r)
			if len(lacking) == 0 {
				return nil
			}
			pause := time.NewTimer(verifyEvery)
			select {
			case <-pause.C:
				continue
			case <-ctx.Done():
				pause.Stop()
				return ui.ExitCode(context.Cause(ctx)).With(context.Cause(ctx))
			case <-limit.C:
				pause.Stop()
				t.Report.Findings = append(t.Report.Findings, lacking...)
				return ui.ExitFailed.With(nil)
			}
		}
	})
}

// checked takes the results of the checks into the report.
func (t *Trial) checked(r engine.Report) {
	for i := range t.Report.Nodes {
		n := &t.Report.Nodes[i]
		for _, now := range r.Nodes {
			if now.Name != n.Name {
				continue
			}
			if n.IP = now.IP; len(now.Checks) > 0 {
				n.Checks = now.Checks
			}
		}
	}
}

// lacking returns how the host is not as the manifest says.
func (t *Trial) lacking(r engine.Report) diag.List {
	var out diag.List
	miss := func(addr model.Address, format string, args ...any) {
		out = append(out, diag.Finding{
			Severity: diag.Error, Source: diag.FromGuard, Address: addr.String(),
			Summary: fmt.Sprintf("verify: "+format, args...),
		})
	}
	for _, addr := range slices.SortedFunc(maps.Keys(r.Checks), model.Address.Compare) {
		if err := r.Checks[addr].Err; err != nil {
			miss(addr, "%s: %v", addr, err)
		}
	}
	if len(out) > 0 {
		return out
	}
	if r.Plan == nil || r.Err != nil {
		return append(out, engine.FindingOf(fmt.Errorf("verify: %w", r.Err))...)
	}
	for _, s := range r.Plan.Steps {
		miss(s.Address, "%s is not as the site says: %s", s.Address, s.Reason)
	}
	for _, u := range r.Plan.Unknown {
		miss(model.Address{}, "%s is unknown: %s", u.Scope, u.Why)
	}
	for _, n := range t.Report.Nodes {
		for addr, res := range r.Have.State {
			if res.Node == n.Name && res.Guest != nil && !res.Guest.Running && t.runs(addr) {
				miss(addr, "%s does not run", addr)
			}
		}
	}
	return out
}

// runs reports whether a node shall be running.
func (t *Trial) runs(addr model.Address) bool {
	for _, n := range t.o.Manifest.Nodes {
		if n.Resource.Addr != addr {
			continue
		}
		return model.TextOf(n.Resource.Spec, "power") == "running"
	}
	return false
}
