package hcl_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// The kinds of the tests: small, but with every form that a kind can have.

type guest struct {
	Preset string `hcl:"preset,optional" ref:"preset" plan:"-" doc:"Size."`
	Image  string `hcl:"image,optional" ref:"image" cost:"data-loss" doc:"Disk image."`

	Cores   int               `hcl:"cores,optional" cost:"restart" doc:"CPU cores."`
	Memory  int               `hcl:"memory,optional" cost:"restart" doc:"Memory in MiB."`
	Disk    int               `hcl:"disk,optional" plan:"-" doc:"Root disk in GiB."`
	Disks   []disk            `hcl:"disk,block" doc:"Further disks."`
	NICs    []nic             `hcl:"nic,block" doc:"Network cards."`
	Tags    []string          `hcl:"tags,optional" doc:"Tags."`
	Notes   string            `hcl:"notes,optional" doc:"Notes."`
	Power   string            `hcl:"power,optional" cost:"restart" doc:"running or stopped."`
	OnBoot  bool              `hcl:"onboot,optional" doc:"Start with the host."`
	Startup *startup          `hcl:"startup,block" doc:"Order at boot."`
	Options map[string]string `hcl:"options,optional" cost:"restart" doc:"Further PVE keys."`
	Weight  float64           `hcl:"weight,optional" doc:"Share of the CPU."`
	Wait    time.Duration     `hcl:"wait,optional" doc:"Time to come up."`
	Root    string            `hcl:"root_password,optional" secret:"true" doc:"Password of root."`
	Pool    string            `hcl:"pool,optional" ref:"pool" plan:"-" doc:"Resource pool."`
	Near    []string          `hcl:"near,optional" ref:"node" plan:"-" doc:"Nodes that it stands beside."`

	Name string `plan:"name"`
}

type disk struct {
	Name    string `hcl:"name,label"`
	Size    int    `hcl:"size" cost:"hot" doc:"GiB."`
	Storage string `hcl:"storage,optional" cost:"migrate" doc:"Storage."`
}

type nic struct {
	Name string `hcl:"name,label"`
	MAC  string `hcl:"mac,optional" cost:"hot" doc:"MAC address."`
	IP   string `hcl:"ip,optional" doc:"Address."`
	VLAN int    `hcl:"vlan,optional" cost:"hot" doc:"VLAN tag."`
}

type startup struct {
	Order *int `hcl:"order,optional" doc:"Position."`
	Up    *int `hcl:"up,optional" doc:"Seconds."`
}

type container struct {
	Preset       string  `hcl:"preset,optional" ref:"preset" plan:"-" doc:"Size."`
	Template     string  `hcl:"template,optional" ref:"template" cost:"data-loss" doc:"Container template."`
	Unprivileged bool    `hcl:"unprivileged,optional" cost:"replace" doc:"Own user ids."`
	Mounts       []mount `hcl:"mount,block" doc:"Mount points."`
}

type mount struct {
	Name string `hcl:"name,label"`
	Path string `hcl:"path" doc:"Where."`
}

type image struct {
	Name     string `hcl:"name,label"`
	URL      string `hcl:"url" cost:"replace" doc:"Where it is downloaded from."`
	Checksum string `hcl:"checksum,optional" cost:"replace" doc:"sha256:…"`
}

type tmpl struct {
	Volume   string `hcl:"volume,optional" doc:"Volume of a container template."`
	URL      string `hcl:"url,optional" doc:"Where it is downloaded from."`
	Checksum string `hcl:"checksum,optional" doc:"sha256:…"`
	VMID     int    `hcl:"vmid,optional" doc:"VMID of the template to clone."`
	Storage  string `hcl:"storage,optional" doc:"Storage."`
}

func (t *tmpl) resolve(in model.Scope) []model.Problem {
	ways := slices.DeleteFunc([]string{t.Volume, t.URL, strings.Repeat("v", t.VMID)}, func(s string) bool { return s == "" })
	if len(ways) != 1 {
		return []model.Problem{{Summary: fmt.Sprintf("template %q does not say what it is", in.Name), Detail: "Set one of volume, url and vmid."}}
	}
	return nil
}

type pool struct {
	Name    string `hcl:"name,label"`
	Host    string `hcl:"host" ref:"host" plan:"-" doc:"Host where it lives."`
	Comment string `hcl:"comment,optional" doc:"Comment."`
}

func newGuest() any { return &guest{Power: "running", OnBoot: true} }

func resolveGuest(r *model.Resource, in model.Scope) []model.Problem {
	v := r.Spec.(*guest)
	v.Name = in.Name
	if p := in.Site.Presets[v.Preset]; p != nil {
		v.Cores, v.Memory = max(v.Cores, p.Cores), max(v.Memory, p.Memory)
	}
	var out []model.Problem
	if v.Cores == 0 || v.Memory == 0 {
		out = append(out, model.Problem{Summary: "node without size", Detail: "Name a preset, or set cores and memory."})
	}
	if v.Image == "" {
		out = append(out, model.Problem{Summary: "vm without image", Detail: "Write image = image.NAME."})
	}
	for _, d := range v.Disks {
		if d.Size > 1000 {
			out = append(out, model.Problem{Path: "disk." + d.Name + ".size", Summary: fmt.Sprintf("disk of %d GiB", d.Size), Detail: "At most 1000."})
		}
	}
	return out
}

func claimGuest(spec any) []model.Claim {
	var out []model.Claim
	for _, n := range spec.(*guest).NICs {
		if n.MAC != "" {
			out = append(out, model.Claim{What: "MAC address", Value: n.MAC, Path: "nic." + n.Name + ".mac"})
		}
		if n.IP != "" {
			out = append(out, model.Claim{What: "static address", Value: n.IP, Path: "nic." + n.Name + ".ip"})
		}
	}
	return out
}

func testKinds() model.Kinds {
	return model.Kinds{
		{Name: "vm", Block: "node", Doc: "A virtual machine.", Guest: true, New: newGuest, Resolve: resolveGuest, Claims: claimGuest},
		{Name: "ct", Block: "node", Doc: "A container.", Guest: true, Absent: map[string]string{"notes": "nobody reads them in a container. Leave it out"}, New: func() any { return &container{Unprivileged: true} }, Resolve: func(r *model.Resource, _ model.Scope) []model.Problem {
			if r.Spec.(*container).Template == "" {
				return []model.Problem{{Summary: "ct without template", Detail: "Write template = template.NAME."}}
			}
			return nil
		}},
		{Name: "pve", Block: "node", Doc: "A PVE host of its own.", Guest: true, New: newGuest, Resolve: resolveGuest, Claims: claimGuest},
		{Name: "image", Block: "image", Doc: "A disk image.", Everywhere: true, New: func() any { return &image{} }, Resolve: func(r *model.Resource, _ model.Scope) []model.Problem {
			if r.Spec.(*image).Checksum == "" {
				return []model.Problem{{Path: "url", Severity: diag.Warning, Summary: "image without checksum", Detail: "Add checksum."}}
			}
			return nil
		}},
		{Name: "template", Block: "template", Doc: "What a container is made from.", Everywhere: true, New: func() any { return &tmpl{} }, Resolve: func(r *model.Resource, in model.Scope) []model.Problem {
			return r.Spec.(*tmpl).resolve(in)
		}},
		{Name: "pool", Block: "pool", Doc: "A resource pool.", New: func() any { return &pool{} }},
	}
}

// dump writes a site down: every attribute of every resource, and what stands
// around it.
func dump(s *model.Site) string {
	var b strings.Builder
	if s == nil {
		return "no site\n"
	}
	fmt.Fprintf(&b, "site %s at %s\n", s.Name, s.At)
	line := func(name string, v any) {
		if text := fmt.Sprint(v); text != "" && text != "[]" && text != "0" && text != "<nil>" {
			fmt.Fprintf(&b, "  %s = %s\n", name, text)
		}
	}
	attrs := func(spec any) {
		for _, a := range model.Attrs(spec) {
			line(a.Path, a.Value)
		}
	}
	attrs(s)
	for _, name := range keys(s.Hosts) {
		h := s.Hosts[name]
		fmt.Fprintf(&b, "host %s\n", name)
		attrs(h)
		line("token missing", h.TokenMissing)
		line("CA bytes", len(h.CAPEM))
	}
	for _, name := range keys(s.Presets) {
		fmt.Fprintf(&b, "preset %s\n", name)
		attrs(s.Presets[name])
	}
	for _, name := range keys(s.Postures) {
		fmt.Fprintf(&b, "posture %s\n", name)
		attrs(s.Postures[name])
	}
	for _, name := range keys(s.Specs) {
		v := s.Specs[name]
		fmt.Fprintf(&b, "spec %s\n", name)
		attrs(v)
		line("sensitive", v.Sensitive)
		line("missing", v.Missing)
	}
	for _, a := range s.Objects.Addresses() {
		dumpResource(&b, s.Objects[a])
	}
	for _, name := range keys(s.Manifests) {
		m := s.Manifests[name]
		fmt.Fprintf(&b, "manifest %s\n", name)
		attrs(m)
		for _, n := range m.Nodes {
			dumpResource(&b, n.Resource)
			attrs(n)
			line("mode", n.Mode)
			line("children", n.Children)
		}
	}
	return b.String()
}

func dumpResource(b *strings.Builder, r *model.Resource) {
	fmt.Fprintf(b, "%s at %s\n", r.Addr, r.At)
	for _, a := range model.Attrs(r.Spec) {
		if a.Value == nil {
			continue
		}
		v := fmt.Sprintf("%v", a.Value)
		if r.IsSensitive(a.Path) {
			v = fmt.Sprintf("(sensitive, %d bytes)", len(v))
		}
		fmt.Fprintf(b, "  * %s = %s\n", a.Path, v)
	}
	if g := r.Guest; g != nil {
		fmt.Fprintf(b, "  vmid %d of %v\n", g.VMID, g.Choose)
	}
	if len(r.Needs) > 0 {
		fmt.Fprintf(b, "  needs %v\n", r.Needs)
	}
	if len(r.Sensitive)+len(r.Missing) > 0 {
		fmt.Fprintf(b, "  sensitive %v, missing %v\n", r.Sensitive, r.Missing)
	}
	var places []string
	for _, p := range r.Ranges {
		places = append(places, fmt.Sprintf("%s:%d", p.Path, p.At.Start.Line))
	}
	fmt.Fprintf(b, "  places %v\n", places)
}

func keys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
