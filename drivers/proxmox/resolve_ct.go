package proxmox

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// ctResolver completes a container.
type ctResolver struct {
	guest.CTTarget
	*resolver
}

func (r *ctResolver) complete() {
	r.Description = strings.TrimRight(r.Description, " \t\r\n") // as PVE does
	r.sizeAndSwap()
	r.origin()
	r.Pulls = r.pulls()
	r.disks()
	r.nics()
	r.system()
	r.Tags = r.tags(r.Tags)
	r.checkCommon(r.Power, r.Restart, r.Description, r.Startup)
	r.features()
	r.options()
	r.checkAttributes(guest.CTAttributes(), r.CT, guest.CTKeys())
	r.Terms = r.tagTerms(r.CTTarget, "template."+r.Template, owner.Tag{MAC: "BC:24:11:00:00:00", Keys: lifecycle.ShortSum("")})
}

func (r *ctResolver) sizeAndSwap() {
	r.Cores, r.Memory, r.Disk = r.size(r.Preset, r.Cores, r.Memory, r.Disk)
	if r.Swap < 0 {
		r.errorf("swap", "swap out of range", "%d MiB is negative", r.Swap)
	}
}

// origin finds what the container is unpacked or cloned from.
func (r *ctResolver) origin() {
	if r.bare {
		return
	}
	if r.Template == "" {
		r.errorf("", "ct without template", "name what its system comes from: template = template.NAME")
		return
	}
	t := templateOf(r.in, r.Template)
	r.Source, r.TemplateVMID = t.Archive(), t.VMID
	if r.Source != "" {
		r.content = path.Base(r.Source)
	}
	if t.VMID != 0 && r.Password != "" {
		r.errorf("password", "a clone takes no password", "PVE sets it only when it unpacks a container template; template %q is cloned", r.Template)
	}
	if r.Password != "" && len(r.Password) < 5 {
		r.errorf("password", "password too short", "PVE wants at least 5 characters")
	}
}

func (r *ctResolver) disks() {
	if !r.bare || r.Disk != 0 {
		r.Disks = guest.RootFirst(r.Disks, guest.CTDisk{Name: "root"})
	}
	if len(r.Disks) > 0 && r.Disks[0].Name == "root" {
		r.Disks[0].Size = cmp.Or(r.Disks[0].Size, r.Disk)
	}
	if len(r.Disks) > 257 {
		r.errorf("disk", "too many disks", "PVE has 256 mount points, the node declares %d disks", len(r.Disks))
	}
	paths := map[string]string{"/": "root"}
	for i := range r.Disks {
		d := &r.Disks[i]
		at := "disk." + d.Name
		d.Storage = cmp.Or(d.Storage, r.storage())
		r.diskSize(d.Name, d.Size)
		switch {
		case d.Name == "root" && d.Remove:
			r.errorf(at+".remove", "the root disk cannot be removed from the files", "it is removed with its container: delete remove")
		case d.Name == "root" && (d.Path != "" || d.Backup):
			r.errorf(at, "the root disk has neither path nor backup", "it is mounted on /, and in every backup: remove them")
		case d.Name != "root" && (!path.IsAbs(d.Path) || strings.ContainsAny(d.Path, ",\n")):
			r.errorf(at+".path", fmt.Sprintf("disk %q has no path to be mounted on", d.Name), "set path to an absolute path such as /var/lib/data")
		case d.Name != "root":
			d.Path = path.Clean(d.Path)
			if first := paths[d.Path]; first != "" {
				r.errorf(at+".path", fmt.Sprintf("disks %q and %q on one path", first, d.Name), "only one can be mounted on %s", d.Path)
			}
			paths[d.Path] = d.Name
		}
		r.members(at, guest.MountKey(d.Name), d.Options, guest.CTDiskMembers, d.Text(d.Storage+":1"))
		if r.Unprivileged && pveapi.BooleanWord(d.Options["quota"]) == "1" {
			r.errorf(at+".options.quota", fmt.Sprintf("disk %q with quotas in an unprivileged container", d.Name), "PVE does not start it: remove quota, or set unprivileged = false")
		}
	}
}

func (r *ctResolver) nics() {
	if len(r.NICs) == 0 && r.bare {
		r.errorf("adopt", "the nic that identifies the container is not declared", "every nic of a guest must be declared, by its slot: nic \"net0\" { … }")
	} else if len(r.NICs) == 0 {
		r.NICs = []guest.CTNIC{{Name: "lan"}}
	}
	if len(r.NICs) > 32 {
		r.errorf("nic", "too many nics", "PVE has 32 slots for network cards, the node declares %d", len(r.NICs))
	}
	for i := range r.NICs {
		n := &r.NICs[i]
		at := "nic." + n.Name
		n.Bridge = cmp.Or(n.Bridge, r.bridge())
		n.MAC = r.mac(at, n.VLAN, n.MAC)
		if i == 0 {
			n.IP, n.Gateway = r.firstAddress(n.IP, n.Gateway, "dhcp", "manual")
		}
		n.IP, n.Gateway = r.address(at, "", n.IP, n.Gateway, "dhcp", "manual")
		n.IP6, n.Gateway6 = r.address(at, "6", n.IP6, n.Gateway6, "auto", "dhcp", "manual")
		n.Trunks = r.trunks(at, n.Rate, n.Trunks, false)
		if n.MTU != 0 && (n.MTU < 64 || n.MTU > 65535) {
			r.errorf(at+".mtu", "mtu out of range", "%d is not between 64 and 65535", n.MTU)
		}
		r.members(at, "net0", n.Options, guest.CTNICMembers, guest.CTNIC{Bridge: "vmbr0", Options: n.Options}.Text("net0", "BC:24:11:00:00:00", nil))
	}
}

// members checks the further members of a property string: PVE has them, no attribute sets them,
// and PVE accepts the whole value.
func (r *ctResolver) members(at, key string, further map[string]string, typed []string, whole string) {
	v, _ := guest.CTKeys().Create.Param(key)
	known := true
	for _, k := range slices.Sorted(maps.Keys(further)) {
		_, ok := v.Sub[k]
		switch {
		case slices.Contains(typed, k):
			known = false
			r.errorf(at+".options."+k, fmt.Sprintf("%q is set by an attribute or by the program", k), "write it as the attribute beside options; the reference page of ct has its name")
		case !ok:
			known = false
			r.errorf(at+".options."+k, fmt.Sprintf("PVE has no %q in %s", k, key), "%s", diag.DidYouMean(k, slices.Collect(maps.Keys(v.Sub))))
		}
	}
	if len(further) > 0 && known {
		r.check(at+".options", key, whole)
	}
}

// check checks a value against the API table.
func (r *ctResolver) check(at, key, value string) {
	if text := guest.CTKeys().Refusal(key, value); text != "" {
		r.errorf(at, fmt.Sprintf("PVE refuses %s = %q", key, value), "%s", strings.TrimSpace(text))
	}
}

// checkSiteZone reports a time zone of the site that no container can have. VMs do not use it, so
// it is an error only where there is a container.
func (r *ctResolver) checkSiteZone(zone string) {
	if zone == "" || guest.CTKeys().Refusal("timezone", zone) == "" {
		return
	}
	r.problems = append(r.problems, model.Problem{
		Path: "timezone", Severity: diag.Error, Site: true,
		Summary: fmt.Sprintf("PVE refuses timezone = %q for containers", zone),
		Detail:  "write UTC, host, or a name of the host's zone.tab such as Europe/Berlin; or set timezone on each container",
	})
}

// system completes the settings of the system in the container: name, name servers, time zone, SSH
// keys.
func (r *ctResolver) system() {
	r.Hostname = cmp.Or(r.Hostname, r.in.Name)
	if r.bare {
		return
	}
	r.RootKeys = r.sshKeys(cmp.Or(r.in.Site.VMUser, "homestak"))
	dns, domain := r.nameServers()
	if r.Nameserver == nil {
		r.Nameserver = dns
	}
	zone, own := r.in.Site.Timezone, r.Timezone
	if spec := r.spec(); spec != nil && spec.Config != nil {
		own = cmp.Or(own, spec.Config.Timezone)
		zone = cmp.Or(spec.Config.Timezone, zone)
	}
	if own == "" || own == r.in.Site.Timezone {
		own = ""
		r.checkSiteZone(r.in.Site.Timezone)
	}
	r.Searchdomain, r.Timezone = cmp.Or(r.Searchdomain, domain), cmp.Or(r.Timezone, zone)
	if own != "" {
		r.check("timezone", "timezone", own)
	}
}

// features checks the features. PVE reserves most of them for root@pam, which a token never is
// (pve-container, PVE/LXC.pm, check_ct_modify_config_perm).
func (r *ctResolver) features() {
	slices.Sort(r.Features)
	r.Features = slices.Compact(r.Features)
	if r.bare { // they may be what root@pam set
		return
	}
	for _, f := range r.Features {
		switch {
		case f != "nesting":
			r.errorf("features", fmt.Sprintf("feature %q cannot be set by an API token", f), "PVE leaves all features but nesting to root@pam: set it on the host with pct")
		case !r.Unprivileged:
			r.errorf("features", "features of a privileged container cannot be set by an API token", "PVE leaves them to root@pam: make it unprivileged, or set them on the host with pct")
		}
	}
}

// options checks the options against the API table and brings values into PVE's form.
func (r *ctResolver) options() {
	create, change := guest.CTKeys().Create, guest.CTKeys().Change
	for k, v := range r.Options {
		at := "options." + k
		p, ok := create.Param(k)
		_, stays := change.Param(k) // a parameter of creation alone belongs to the request, not to the container
		switch {
		case k == "hookscript" || strings.TrimRight(k, "0123456789") == "dev" || strings.HasPrefix(k, "mp") && strings.HasPrefix(v, "/"):
			r.errorf(at, fmt.Sprintf("option %q cannot be set by an API token", k), "PVE leaves it to root@pam: set it on the host with pct")
		case guest.IsReservedCT(k):
			r.errorf(at, fmt.Sprintf("option %q has an attribute of its own", k), "set it in the node block, see the reference page of ct")
		case !ok || !stays:
			r.errorf(at, fmt.Sprintf("PVE has no option %q for a container", k), "%s", diag.DidYouMean(k, slices.Collect(maps.Keys(create.Params))))
		default:
			if p.Type == "boolean" {
				r.Options[k] = pveapi.BooleanWord(v) // PVE accepts words such as yes only inside property strings
			}
			r.check(at, k, r.Options[k])
		}
	}
}

// templateOf returns the resolved form of a declared template; an empty one if the site has none with that
// name, which the loader reports.
func templateOf(in model.Scope, name string) *guest.Template {
	r := in.Site.Objects[model.Address{Kind: "template", Name: name}]
	if r == nil {
		return &guest.Template{}
	}
	t := model.Clone(r.Spec).(*guest.Template)
	t.Resolve(model.Scope{Site: in.Site, Host: in.Host, Name: name})
	return t
}
