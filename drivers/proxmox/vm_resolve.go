package proxmox

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// vmResolver fills in what stands around a VM.
type vmResolver struct {
	*VM
	in       model.Scope
	kind     string
	problems []model.Problem
}

func (r *vmResolver) errorf(path, summary, detail string, args ...any) {
	r.problems = append(r.problems, model.Problem{Path: path, Severity: diag.Error, Summary: summary, Detail: fmt.Sprintf(detail, args...)})
}

func (r *vmResolver) resolve() {
	r.Name, r.Description = r.in.Name, strings.TrimRight(r.Description, " \t\r\n") // PVE cuts what trails, too
	r.size()
	r.disks()
	r.nics()
	r.cloudInit()
	r.seed()
	r.tags()
	r.enums()
	r.options()
	r.defaults()
	r.owner()
}

func (r *vmResolver) size() {
	if p := r.in.Site.Presets[r.Preset]; p != nil {
		r.Cores, r.Memory, r.Disk = or(r.Cores, p.Cores), or(r.Memory, p.Memory), or(r.Disk, p.Disk)
	}
	missing := []string{}
	if r.Cores == 0 {
		missing = append(missing, "cores")
	}
	if r.Memory == 0 {
		missing = append(missing, "memory")
	}
	if len(missing) > 0 && r.Preset == "" {
		r.errorf("", "node without size", "it has no %s: name a preset, or set them", strings.Join(missing, " and no "))
	}
	if r.Cores < 0 || r.Cores > 8192 {
		r.errorf("cores", "cores out of range", "%d is not between 1 and 8192", r.Cores)
	}
	if r.Memory != 0 && r.Memory < 16 {
		r.errorf("memory", "memory out of range", "%d MiB is less than the 16 MiB that PVE allows; memory is in MiB", r.Memory)
	}
	switch {
	case r.Image == "" && r.Template == "":
		r.errorf("", r.kind+" without image or template", "name what its root disk is made from: image = image.NAME, or template = template.NAME for a clone")
	case r.Image != "" && r.Template != "":
		r.errorf("template", "image and template on one node", "a root disk is made from one of them: remove the other")
	}
	if img := r.in.Site.Objects[model.Address{Kind: "image", Name: r.Image}]; img != nil {
		full := model.Clone(img.Spec).(*Image)
		full.resolve(model.Scope{Site: r.in.Site, Host: r.in.Host, Name: r.Image})
		r.imageVolume = full.Volume
		if full.Format == "iso" {
			r.errorf("image", fmt.Sprintf("image %q is an ISO image", r.Image), "a root disk is made from a disk image (qcow2, raw or vmdk)")
		}
	}
	if t := r.in.Site.Templates[r.Template]; t != nil {
		r.templateVMID = t.VMID
	}
	if r.Template != "" && r.templateVMID == 0 && r.in.Site.Templates[r.Template] != nil {
		r.errorf("template", fmt.Sprintf("template %q is no VM template", r.Template), "a %s is cloned from a template with a vmid; this one is for containers", r.kind)
	}
}

func (r *vmResolver) disks() {
	storage := "local-lvm"
	if h := r.in.Host; h != nil && h.Storage != nil && h.Storage.Disks != "" {
		storage = h.Storage.Disks
	}
	r.storage = storage
	root := slices.IndexFunc(r.Disks, func(d Disk) bool { return d.Name == "root" })
	if root < 0 {
		r.Disks = append(r.Disks, Disk{Name: "root"})
		root = len(r.Disks) - 1
	}
	r.Disks[root].Size = or(r.Disks[root].Size, r.Disk)
	for i := range r.Disks {
		d := &r.Disks[i]
		d.Storage = or(d.Storage, storage)
		if d.Size < 0 || (d.Size == 0 && d.Name != "root") {
			r.errorf("disk."+d.Name+".size", fmt.Sprintf("disk %q without a size", d.Name), "set size in GiB, at least 1")
		}
	}
	count := map[string]int{}
	for _, d := range r.Disks {
		bus := or(d.Bus, "scsi")
		count[bus]++
		most, known := buses[bus]
		switch path := "disk." + d.Name; {
		case !known:
			r.errorf(path+".bus", fmt.Sprintf("bus = %q is not possible", d.Bus), "%s", diag.DidYouMean(d.Bus, slices.Sorted(maps.Keys(buses))))
		case count[bus] == most+1:
			r.errorf(path, "too many disks", "PVE has %d slots on the bus %s", most, bus)
		}
		if d.Name == "root" && d.Remove {
			r.errorf("disk.root.remove", "the root disk cannot leave the files", "it goes with its guest: take remove out")
		}
	}
	slices.SortStableFunc(r.Disks, func(a, b Disk) int { return boolCompare(b.Name == "root", a.Name == "root") })
}

var macText = regexp.MustCompile(`(?i)^[0-9a-f][02468ace](:[0-9a-f]{2}){5}$`)

func (r *vmResolver) nics() {
	if len(r.NICs) == 0 {
		r.NICs = []NIC{{Name: "lan"}}
	}
	if len(r.NICs) > 32 {
		r.errorf("nic", "too many nics", "PVE has 32 slots for network cards, the node declares %d", len(r.NICs))
	}
	bridge := "vmbr0"
	if r.in.Site.Bridge != "" {
		bridge = r.in.Site.Bridge
	}
	if h := r.in.Host; h != nil && h.Bridge != "" {
		bridge = h.Bridge
	}
	spec := r.spec()
	for i := range r.NICs {
		n := &r.NICs[i]
		path := "nic." + n.Name
		n.Bridge = or(n.Bridge, bridge)
		n.MAC = strings.ToUpper(n.MAC)
		if i == 0 && spec != nil && spec.Network != nil {
			n.IP, n.Gateway = or(n.IP, spec.Network.IP), or(n.Gateway, spec.Network.Gateway)
		}
		if i == 0 {
			n.IP = or(n.IP, "dhcp")
		}
		if n.VLAN < 0 || n.VLAN > 4094 {
			r.errorf(path+".vlan", "VLAN tag out of range", "%d is not between 1 and 4094", n.VLAN)
		}
		if n.MAC != "" && !macText.MatchString(n.MAC) {
			r.errorf(path+".mac", fmt.Sprintf("%q is no MAC address of a single card", n.MAC), "write six bytes such as BC:24:11:00:00:01; the second digit must be even")
		}
		r.address(path, n, i == 0)
	}
}

func (r *vmResolver) address(path string, n *NIC, first bool) {
	if n.IP == "" || n.IP == "dhcp" {
		if n.Gateway != "" {
			r.errorf(path+".gateway", "gateway without a static address", "with DHCP the gateway comes from there: remove it, or set ip")
		}
		return
	}
	prefix, err := netip.ParsePrefix(n.IP)
	if err != nil {
		r.errorf(path+".ip", fmt.Sprintf("%q is no address with prefix length", n.IP), "write an address such as 10.0.12.5/24, or dhcp")
		return
	}
	if first && n.Gateway == "" {
		n.Gateway = r.in.Site.Gateway
	}
	if n.Gateway == "" {
		return
	}
	gw, err := netip.ParseAddr(n.Gateway)
	switch {
	case err != nil:
		r.errorf(path+".gateway", fmt.Sprintf("%q is no address", n.Gateway), "write an address such as 10.0.12.1")
	case !prefix.Contains(gw):
		r.errorf(path+".ip", fmt.Sprintf("gateway %s is not in the network of %s", gw, n.IP), "a gateway must be reachable directly: check the prefix length, or set gateway on the nic")
	}
}

func (r *vmResolver) spec() *model.Spec {
	if r.in.Node == nil {
		return nil
	}
	return r.in.Site.Specs[r.in.Node.Spec]
}

// cloudInit gives the user of the site all its keys, or those that the spec names
// for that user.
func (r *vmResolver) cloudInit() {
	site, spec := r.in.Site, r.spec()
	r.User = or(site.VMUser, "homestak")
	r.DNS, r.Domain = site.DNS, site.Domain
	var keys *[]string
	if spec != nil {
		if spec.Network != nil && len(spec.Network.DNS) > 0 {
			r.DNS = spec.Network.DNS
		}
		if spec.Identity != nil {
			r.Domain = or(spec.Identity.Domain, r.Domain)
		}
		if spec.Access != nil {
			for _, u := range spec.Access.Users {
				if u.Name == r.User {
					keys = u.SSHKeys
				}
			}
		}
	}
	r.DNS = slices.Clone(r.DNS)
	r.Keys = []string{}
	all := map[string]string{}
	if site.Secrets != nil {
		all = site.Secrets.Values["ssh_keys"]
	}
	if keys == nil {
		for _, k := range all {
			r.Keys = append(r.Keys, keyLines(k)...)
		}
	} else {
		for _, k := range *keys {
			if v, ok := all[k]; ok {
				k = v
			}
			r.Keys = append(r.Keys, keyLines(k)...)
		}
	}
	slices.Sort(r.Keys)
	r.Keys = slices.Compact(r.Keys)
}

var tagText = regexp.MustCompile(`^[a-z0-9_][a-z0-9_\-+.]*$`)

func (r *vmResolver) tags() {
	tags := []string{Tag}
	for _, t := range r.Tags {
		t = strings.ToLower(t)
		if !tagText.MatchString(t) {
			r.errorf("tags", fmt.Sprintf("%q is no tag", t), "a tag has letters, digits, and _ - + . behind the first character")
			continue
		}
		tags = append(tags, t)
	}
	slices.Sort(tags)
	r.Tags = slices.Compact(tags)
}

func (r *vmResolver) enums() {
	for path, c := range map[string]struct {
		value string
		known []string
	}{
		"power":   {r.Power, []string{"running", "stopped"}},
		"restart": {r.Restart, []string{"never", "allowed"}},
	} {
		if !slices.Contains(c.known, c.value) {
			r.errorf(path, fmt.Sprintf("%s = %q is not possible", path, c.value), "%s", diag.DidYouMean(c.value, c.known))
		}
	}
	if st := r.Startup; st != nil {
		for path, n := range map[string]*int{"order": st.Order, "up": st.Up, "down": st.Down} {
			if n != nil && *n < 0 {
				r.errorf("startup."+path, fmt.Sprintf("startup.%s = %d is not possible", path, *n), "it is a count: 0 or more")
			}
		}
	}
	if strings.Contains(r.Description, markPrefix) {
		r.errorf("description", "description holds an owner mark", "the line that starts with %q is added by the program", markPrefix)
	}
	if len(r.Description) > 6000 {
		r.errorf("description", "description too long", "PVE keeps %d characters, and the owner mark needs some: at most 6000", maxDescription)
	}
}

// maxDescription is how many characters PVE takes (qemu-server, QemuServer.pm).
const maxDescription = 8192

// owner writes down what the files decide of the mark.
func (r *vmResolver) owner() {
	m := mark{V: 1, Site: r.in.Site.Name, Type: r.kind, Node: r.in.Name, Needs: slices.Clone(r.in.Needs)}
	if r.in.Host != nil {
		m.Owner = r.in.Host.Name
	}
	if r.in.Manifest != nil {
		m.Manifest = r.in.Manifest.Name
	}
	d := markDestroy{}
	if n := r.in.Node; n != nil {
		if n.Decomm != nil {
			d.Policy = n.Decomm.Policy
		}
		d.Orphan = n.Orphan
	}
	if r.Startup != nil && r.Startup.Down != nil {
		d.Down = *r.Startup.Down
	}
	if d != (markDestroy{}) {
		m.Destroy = &d
	}
	switch {
	case r.Image != "":
		m.From = "image." + r.Image
	case r.Template != "":
		m.From = "template." + r.Template
	}
	slices.SortFunc(m.Needs, model.Address.Compare)
	m.Needs = slices.Compact(m.Needs)
	m.Removes = r.removes()
	r.mark, r.Terms = m, m.terms()
	m.Seed = r.seedRoom()
	m.UUID, m.Slots, m.Options = strings.Repeat("0", 36), slots(r.VM, config{}, nil), slices.Sorted(maps.Keys(r.Options))
	if n := utf8.RuneCountInString(describe(r.Description, m)); n > maxDescription {
		r.errorf("description", "description too long", "with the owner mark it has %d characters, PVE keeps %d: shorten it", n, maxDescription)
	}
}

func or[T comparable](a, b T) T {
	var zero T
	if a != zero {
		return a
	}
	return b
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}
