package guest

import (
	"cmp"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// FromConfig makes the resource of a managed guest from its configuration: a VM, a container, or a
// template that was made here. notes is its description without the ownership tag m.
func FromConfig(g api.ListedGuest, cfg api.GuestConfig, notes string, m owner.Tag) *model.Resource {
	switch m.Type {
	case "ct":
		return ctFromConfig(g, cfg, notes, m)
	case owner.TemplateType:
		return observed(g, cfg, m)
	}
	return vmFromConfig(g, cfg, notes, m)
}

// Relisted is a guest that FromConfig made, as a list shows it later: spec and seen are what it made of the same configuration
// and ownership tag. It is nil if the list shows another power, or for a template. They are shared, so they are immutable.
func (o *Observation) Relisted(spec any, g api.ListedGuest) *model.Resource {
	if o == nil || o.runs != g.Running {
		return nil
	}
	now := *o
	now.uptime = g.Uptime
	return resource(g, now.Config, now.Tag, spec, &now)
}

// startLasts is the number of seconds after its start in which a guest need not answer: it boots, and cloud-init
// works.
const startLasts = 300

// resource is a managed guest as it was observed.
func resource(g api.ListedGuest, cfg api.GuestConfig, m owner.Tag, spec, private any) *model.Resource {
	return &model.Resource{
		Addr: m.Addr(), Spec: spec, Private: private, Needs: m.Needs, Manifest: m.Manifest, Node: m.Node,
		Guest: &model.Guest{VMID: g.VMID, Node: g.Node, Running: g.Running, Starting: g.Running && g.Uptime < startLasts, Pulls: m.Seed != nil && m.Seed.Pull, Digest: cfg.Digest, Lock: cmp.Or(g.Lock, cfg.Now["lock"]), HA: g.HA, Adopted: m.Adopted},
	}
}

// Finding is a finding about a managed guest that no line of the files causes.
func Finding(severity diag.Severity, addr model.Address, summary, detail string) diag.Finding {
	return diag.Finding{Severity: severity, Source: diag.FromGuard, Address: addr.String(), Summary: summary, Detail: detail}
}

// warning is a warning about a managed guest that is as the files say, see diag.FromHost.
func warning(addr model.Address, summary, detail string) diag.Finding {
	f := Finding(diag.Warning, addr, summary, detail)
	f.Source = diag.FromHost
	return f
}
