package guest

import (
	"cmp"

	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/template"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// FromConfig reads a proven guest back into the form of its kind.
func FromConfig(g view.Listed, cfg view.Config, notes string, m owner.Tag) *model.Resource {
	switch m.Type {
	case "ct":
		return ctFromConfig(g, cfg, notes, m)
	case owner.TemplateType:
		return template.Observed(g, cfg, m)
	}
	return vmFromConfig(g, cfg, notes, m)
}

// resource is a guest of ours as it was observed.
func resource(g view.Listed, cfg view.Config, m owner.Tag, spec, private any) *model.Resource {
	return &model.Resource{
		Addr: m.Addr(), Spec: spec, Private: private, Needs: m.Needs, Manifest: m.Manifest, Node: m.Node,
		Guest: &model.Guest{VMID: g.VMID, Node: g.Node, Running: g.Running, Digest: cfg.Digest, Lock: cmp.Or(g.Lock, cfg.Now["lock"]), HA: g.HA},
	}
}

// Finding is a finding about a managed guest, which no line of the files is to blame for.
func Finding(severity diag.Severity, addr model.Address, summary, detail string) diag.Finding {
	return diag.Finding{Severity: severity, Source: diag.FromGuard, Address: addr.String(), Summary: summary, Detail: detail}
}

// Warning is a warning about a managed guest that is as the files say.
func Warning(addr model.Address, summary, detail string) diag.Finding {
	f := Finding(diag.Warning, addr, summary, detail)
	f.Source = diag.FromHost
	return f
}
