// A declared guest is completed by its preset, its spec and the defaults of the site, and checked
// against what Proxmox VE accepts.

package proxmox

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// resolveGuest returns the function that completes and checks guests of a kind, see model.Kind.Resolve.
func resolveGuest(kind string) func(*model.Resource, model.Scope) []model.Problem {
	return func(r *model.Resource, in model.Scope) []model.Problem {
		g := &resolver{in: in, kind: kind, of: r}
		adopted := g.in.Node != nil && g.in.Node.Adopt != ""
		r.Private = &guest.Resolution{Adopted: adopted, Files: filesOf(in)}
		switch want := guest.TargetOf(r).(type) {
		case guest.VMTarget:
			g.bare = adopted && want.Image == "" && want.Template == "" && !want.Blank()
			(&vmResolver{want, g}).complete()
			g.checkAgent(want.Agent)
		case guest.CTTarget:
			g.bare = adopted && want.Template == ""
			(&ctResolver{want, g}).complete()
		}
		if adopted {
			g.checkAdopt()
		}
		if r.Guest != nil {
			r.Guest.NoOrigin = g.bare
		}
		if r.IsSensitive("recreate") {
			g.errorf("recreate", "recreate must not come from a secret", "the ownership tag in the notes of the guest shows it")
		}
		if len(g.missing) > 0 {
			r.Missing = slices.Concat(r.Missing, g.missing)
			slices.Sort(r.Missing)
			r.Missing = slices.Compact(r.Missing)
		}
		return g.problems
	}
}

// filesOf are the images and downloads among what a guest needs; none on a host that is one node, where they are in
// their place.
func filesOf(in model.Scope) []guest.File {
	var out []guest.File
	if in.Host == nil || len(in.Host.AllNodes()) == 1 {
		return nil
	}
	for _, addr := range in.Needs {
		switch addr.Kind {
		case "image":
			if i := objects.ImageOf(in, addr.Name); i != nil {
				out = append(out, guest.File{Addr: addr, Image: i})
			}
		case "template":
			if t := templateOf(in, addr.Name); t.File != "" {
				out = append(out, guest.File{Addr: addr, Image: t.AsImage()})
			}
		}
	}
	return out
}

// resolver has what VMs and containers share: the scope of the node, the rules for both, and the
// problems found.
type resolver struct {
	in       model.Scope
	kind     string
	of       *model.Resource
	content  string // see owner.Tag.Content
	bare     bool   // it was made elsewhere, and has no defaults for what a guest made by hand may lack
	problems []model.Problem
	missing  []string // secrets whose value is not known here
}

func (r *resolver) errorf(path, summary, detail string, args ...any) {
	r.problems = append(r.problems, model.Problem{Path: path, Severity: diag.Error, Summary: summary, Detail: fmt.Sprintf(detail, args...)})
}

func (r *resolver) warnf(path, summary, detail string, args ...any) {
	r.problems = append(r.problems, model.Problem{Path: path, Severity: diag.Warning, Summary: summary, Detail: fmt.Sprintf(detail, args...)})
}

// spec is the spec of the node; nil if it has none.
func (r *resolver) spec() *model.Spec {
	if r.in.Node == nil {
		return nil
	}
	return r.in.Site.Specs[r.in.Node.Spec]
}

// pulls is the spec that the guest fetches and applies itself; "" if it does not, or without a spec.
func (r *resolver) pulls() string {
	if r.in.Node == nil || r.in.Node.Mode != model.ModePull {
		return ""
	}
	return r.in.Node.Spec
}

// checkAdopt checks the identity of a guest to adopt.
func (r *resolver) checkAdopt() {
	n := r.in.Node
	if n.VMID == 0 {
		r.errorf("adopt", "adopt without vmid", "the identity counts only for the guest with that VMID: set vmid to the one that the guest has")
	}
	switch {
	case r.kind == "ct" && !macPattern.MatchString(n.Adopt):
		r.errorf("adopt", fmt.Sprintf("adopt = %q is not a MAC address", n.Adopt), "a container is known by the MAC address of its first nic, such as BC:24:11:00:00:01: hwaddr in `pct config VMID`")
	case r.kind != "ct" && !owner.IsUUID(n.Adopt):
		r.errorf("adopt", fmt.Sprintf("adopt = %q is not a UUID", n.Adopt), "a VM is known by its SMBIOS UUID, such as 1bae9530-15f1-4d8a-8b09-1412c51fdb8d: uuid of smbios1 in `qm config VMID`")
	case r.kind == "pve" && r.bare:
		r.errorf("adopt", "a pve node made elsewhere cannot be adopted", "its own agent would empty it when it leaves the site, so it could not be given up: write type = \"vm\", or an image or template to create it from")
	}
}

// diskSize checks the size of a disk; one of an adopted guest may be in no whole GiB.
func (r *resolver) diskSize(name string, size int) {
	if size < 0 || size == 0 && name != "root" && !r.bare {
		r.errorf("disk."+name+".size", fmt.Sprintf("disk %q without a size", name), "set size in GiB, at least 1")
	}
}

// littleMemory, in MiB: who declares less for a VM means GiB in most cases.
const littleMemory = 128

// size completes the size by the preset, and checks it. Memory is in MiB, the root disk in GiB.
func (r *resolver) size(preset string, cores, memory, disk int) (allCores, allMemory, rootDisk int) {
	sizes := []int{cores, memory, disk}
	for i, path := range []string{"cores", "memory", "disk"} {
		if sizes[i] == 0 && r.of.Declares(path) && len(r.of.Missing) == 0 { // else it may be that of a secret
			r.errorf(path, path+" = 0 is not valid", "set it to more, or remove the line for the value of the preset")
		}
	}
	if p := r.in.Site.Presets[preset]; p != nil {
		cores, memory, disk = cmp.Or(cores, p.Cores), cmp.Or(memory, p.Memory), cmp.Or(disk, p.Disk)
	}
	missing := []string{}
	if cores == 0 && !r.bare && !r.of.Declares("cores") {
		missing = append(missing, "cores")
	}
	if memory == 0 && !r.of.Declares("memory") {
		missing = append(missing, "memory")
	}
	if len(missing) > 0 && preset == "" {
		r.errorf("", "node without size", "it has no %s: name a preset, or set them", strings.Join(missing, " and no "))
	}
	if cores == 0 && r.kind != "ct" && r.bare {
		cores = 1 // PVE's default
	}
	if cores < 0 || cores > 8192 {
		r.errorf("cores", "cores out of range", "%d is not between 1 and 8192", cores)
	}
	if memory != 0 && memory < 16 {
		r.errorf("memory", "memory out of range", "%d MiB is less than the 16 MiB that PVE allows; memory is in MiB", memory)
	} else if memory != 0 && memory < littleMemory && r.kind != "ct" {
		r.warnf("memory", fmt.Sprintf("memory is %d MiB", memory), "memory is in MiB: for %d GiB write %d", memory, memory<<10)
	}
	return cores, memory, disk
}

// storage is the storage of disks that do not name one.
func (r *resolver) storage() string {
	if h := r.in.Host; h != nil && h.Storage != nil && h.Storage.Disks != "" {
		return h.Storage.Disks
	}
	return "local-lvm"
}

// nameServers are the name servers and the domain of the spec, else of the site.
func (r *resolver) nameServers() (dns []string, domain string) {
	dns, domain = r.in.Site.DNS, r.in.Site.Domain
	if spec := r.spec(); spec != nil {
		if spec.Network != nil && len(spec.Network.DNS) > 0 {
			dns = spec.Network.DNS
		}
		if spec.Identity != nil {
			domain = cmp.Or(spec.Identity.Domain, domain)
		}
	}
	return slices.Clone(dns), domain
}

// checkCommon checks power, restart, startup and notes.
func (r *resolver) checkCommon(power, restart, notes string, st *guest.Startup) {
	for path, c := range map[string]struct {
		value string
		known []string
	}{
		"power":   {power, []string{"running", "stopped"}},
		"restart": {restart, []string{"never", "allowed"}},
	} {
		if !slices.Contains(c.known, c.value) {
			r.errorf(path, fmt.Sprintf("%s = %q is not valid", path, c.value), "%s", diag.DidYouMean(c.value, c.known))
		}
	}
	if st != nil {
		for path, n := range map[string]*int{"order": st.Order, "up": st.Up, "down": st.Down} {
			if n != nil && *n < 0 {
				r.errorf("startup."+path, fmt.Sprintf("startup.%s = %d is not valid", path, *n), "it is a count: 0 or more")
			}
		}
	}
	if strings.Contains(notes, owner.Prefix) {
		r.errorf("description", "description contains an ownership tag", "the line that starts with %q is added by the program", owner.Prefix)
	}
	if len(notes) > 6000 {
		r.errorf("description", "description too long", "PVE keeps %d characters, and the ownership tag needs some: at most 6000", owner.MaxDescription)
	}
}

// tagTerms stores the ownership tag of a guest in its resolution, and returns its terms. from is
// the origin of the guest. longest has identities of the greatest length, to check that the tag
// fits.
func (r *resolver) tagTerms(g guest.Target, from string, longest owner.Tag) (terms string) {
	c := g.Common()
	down := 0
	if c.Startup != nil && c.Startup.Down != nil {
		down = *c.Startup.Down
	}
	m := owner.Of(r.in, r.kind, from, down)
	m.Content, m.Recreate = r.content, c.Recreate
	m.Removes = g.Volumes().Removes()
	g.Resolved().OwnerTag, terms = m, m.Terms()
	m.UUID, m.Seed, m.MAC, m.Keys, m.CreationVMID = longest.UUID, longest.Seed, longest.MAC, longest.Keys, 999_999_999
	m.Adopted = r.in.Node != nil && r.in.Node.Adopt != ""
	m.Begun, m.Sig = math.MaxInt32, strings.Repeat("0", owner.SigLength)
	m.Slots, m.Options = g.Slots(api.GuestConfig{}, nil), slices.Sorted(maps.Keys(g.Declared()))
	r.checkLength(c.Description, m)
	return terms
}

// checkLength checks that notes and ownership tag fit into a description.
func (r *resolver) checkLength(notes string, m owner.Tag) {
	if n := utf8.RuneCountInString(m.Describe(notes)); n > owner.MaxDescription {
		r.errorf("description", "description too long", "with the ownership tag it has %d characters, PVE keeps %d: shorten it", n, owner.MaxDescription)
	}
}

// checkAttributes checks attributes against the API table, except those that already have a
// problem.
func (r *resolver) checkAttributes(as guest.AttributeTable, spec any, k *guest.OptionKeys) {
	before := r.problems
	for _, no := range as.Refused(spec, k.Refusal) {
		if !slices.ContainsFunc(before, func(p model.Problem) bool { return p.Path == no.Name || strings.HasPrefix(p.Path, no.Name+".") }) {
			r.errorf(no.Name, fmt.Sprintf("PVE refuses %s = %q", no.Name, no.Text), "%s", no.Why)
		}
	}
}

var tagPattern = regexp.MustCompile(`^[a-z0-9_][a-z0-9_\-+.]*$`)

// tags are the declared tags and PVETag as PVE stores them: in lower case, sorted, each once
// (pve-guest-common, PVE/GuestHelpers.pm, get_unique_tags). One that is declared in another form
// gets a warning: a host may be set to keep upper case, and the guest would then have another tag
// than the files say.
func (r *resolver) tags(declared []string) []string {
	tags := []string{owner.PVETag}
	for i, t := range declared {
		kept := strings.ToLower(t)
		switch {
		case !tagPattern.MatchString(kept):
			r.errorf("tags", fmt.Sprintf("%q is not a tag", t), "a tag has letters, digits, and _ - + . behind the first character")
			continue
		case kept != t:
			r.warnf("tags", fmt.Sprintf("tag %q is kept as %q", t, kept), "PVE keeps tags in lower case: write %q", kept)
		case slices.ContainsFunc(declared[:i], func(other string) bool { return strings.ToLower(other) == t }):
			r.warnf("tags", fmt.Sprintf("tag %q is listed twice", t), "PVE keeps each tag once: remove one of them")
		}
		tags = append(tags, kept)
	}
	slices.Sort(tags)
	return slices.Compact(tags)
}

// checkAgent reports what a VM declares for its backups and its removal that needs the guest agent.
func (r *resolver) checkAgent(has bool) {
	n := r.in.Node
	if n == nil || has {
		return
	}
	if n.Decomm != nil && len(n.Decomm.Before) > 0 {
		r.errorf("decommission.before_destroy", "before_destroy needs the guest agent", "Write agent = true in the node, and install the agent in its image.")
	}
	if b, _ := n.BackupIn(r.in.Site); b != nil && b.Verify != "" || n.Decomm != nil && n.Decomm.Verify != "" {
		r.errorf("agent", "a restored backup of this VM cannot show that it booted", "Write agent = true in the node, and install the agent in its image; or declare a backup block without verify.")
	}
}
