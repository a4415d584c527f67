package main

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"slices"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/hcl"
)

// nodePatch is the document of import --node.
type nodePatch struct {
	Success bool       `json:"success"`
	File    string     `json:"file,omitempty"`
	Patch   string     `json:"patch"` // "": nothing to change
	Kept    []hcl.Kept `json:"kept"`
	Error   string     `json:"error,omitempty"`
}

// runImportNode prints what a node has on its host, as a patch of the file that declares it.
func runImportNode(ctx context.Context, a *app, f *importFlags) error {
	a.ui.Document = func(err error) any { return nodePatch{Kept: []hcl.Kept{}, Error: err.Error()} }
	f.Dir = cmp.Or(f.Dir, ".")
	s, n, err := a.sites.ReachNode(ctx, &f.Flags, f.node)
	if err != nil {
		return err
	}
	defer s.Close()
	h := s.Desired.Site.Hosts[n.Manifest.Host]
	if h == nil || n.Parent != "" || n.Resource.Guest == nil {
		return fmt.Errorf("the guest of node %s is not on a host of this site, so its configuration cannot be read from here", n.Name)
	}
	n.Drift = "" // with "report", a plan has no step
	p, err := s.PassOver(h, plan.Scope{Targets: []string{n.Resource.Addr.String()}})
	if err != nil {
		return err
	}
	r := s.Observe(ctx, p)
	if r.Plan == nil || r.Outcome != engine.Planned {
		a.ui.Findings(r.Findings)
		return ui.ExitOfPlan(r, false)
	}
	i := slices.IndexFunc(r.Plan.Steps, func(s plan.Step) bool { return s.Address == n.Resource.Addr })
	if i < 0 {
		a.ui.Findings(r.Findings)
		if err := ui.ExitOfPlan(r, false); err != nil {
			return err
		}
		return a.ui.Show(nodePatch{Success: true, Kept: []hcl.Kept{}}, fmt.Sprintf("node %s: the host has what the files say\n", n.Name))
	}
	step := r.Plan.Steps[i]
	if step.Have == nil || step.Want == nil {
		return fmt.Errorf("node %s: the host has no guest of it", n.Name)
	}
	src, err := fs.ReadFile(s.Files(), n.At.File)
	if err != nil {
		return fmt.Errorf("read the file that declares node %s: %w", n.Name, err)
	}
	edits, secret := editsOf(step)
	out, kept, err := hcl.Patch(src, n, edits)
	if err != nil {
		return err
	}
	doc := nodePatch{Success: true, File: n.At.File, Patch: hcl.Diff(n.At.File, src, out), Kept: append(secret, kept...)}
	if a.ui.JSON {
		return a.ui.Emit(doc)
	}
	for _, k := range doc.Kept {
		a.ui.Notef("%s: %s is not in the patch: %s", k.At, k.Path, k.Why)
	}
	return a.ui.Show(doc, doc.Patch)
}

// editsOf are the edits that turn what the files say into what the host has. Values made from secrets are left out.
func editsOf(step plan.Step) (edits []hcl.Edit, secret []hcl.Kept) {
	secret = []hcl.Kept{}
	for _, c := range step.Changes {
		if c.Sensitive {
			secret = append(secret, hcl.Kept{Path: c.Path, Why: "it comes from a secret", At: step.Want.RangeOf(c.Path)})
			continue
		}
		e := hcl.Edit{Path: c.Path, Value: c.Before, Said: c.After}
		if tags, ok := c.Before.([]string); ok && c.Path == "tags" { // the files do not name the tag of managed guests
			e.Value = slices.DeleteFunc(slices.Clone(tags), func(tag string) bool { return tag == model.GuestTag })
		}
		edits = append(edits, e)
	}
	return edits, secret
}
