package proxmox

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// blockKeys are PVE keys that blocks of the files say, and the description; indexed ones
// by family.
var blockKeys = map[string]string{
	"description": "description", "net[n]": "nic blocks", "ipconfig[n]": "nic blocks",
	"scsi[n]": "disk blocks", "virtio[n]": "disk blocks with bus", "sata[n]": "disk blocks with bus",
}

// typedBy says what decides a PVE key, by its family, in place of an option; "" if nothing
// does.
func typedBy(family string) string {
	if a := vmAttributes().byKey[family]; a != nil {
		return a.words
	}
	return blockKeys[family]
}

// refusedKeys are PVE keys that no option may set, with the reason; indexed ones by family.
var refusedKeys = func() map[string]string {
	out := map[string]string{
		"cipassword": "PVE never shows a password, so neither a change of it here nor one made on the host could be seen: log in with SSH keys",
		"smbios1":    "it carries the identity by which the guest is known as ours",
		"cdrom":      `it is an old name of ide2, which is the cloud-init drive: a CD drive is declared by its slot, ide0 = "local:iso/NAME.iso,media=cdrom"`,
		"unused[n]":  "detached volumes follow from the disk blocks",
		"bootdisk":   `it is an old form of boot: set boot = "order=…"`,
		"smp":        "it is an old name of sockets: set sockets",
		"template":   "a template is no guest that could run: declare it in a template block",
		"lock":       "PVE's own tasks lock and unlock a guest",
		"node":       "it follows from the host",
		"vmid":       "it has an attribute of its own",
		"pool":       "the host block says it",
		"start":      "power says it",
		"storage":    "the host block and the disk blocks say it",
		"ha-managed": "it is of the request that creates the guest, and no setting of it",
	}
	for key := range strings.FieldsSeq("archive bwlimit delete digest force import-working-storage live-restore revert skiplock unique") {
		out[key] = "it is of a request, and no setting of the guest"
	}
	for key := range strings.FieldsSeq("affinity amd-sev arch args hookscript hugepages intel-tdx ivshmem keephugepages parallel[n] spice_enhancements vmgenid") {
		out[key] = rootOnly
	}
	return out
}()

// rootOnly: PVE compares with the user's name, and a token of root@pam is not
// root@pam (qemu-server, API2/Qemu.pm, check_vm_modify_config_perm).
const rootOnly = "PVE takes it from root@pam with a password only, never from an API token: set it on the node with qm set"

// family is how the API table calls a key: an indexed one by "[n]".
func family(key string) string {
	if _, named := vmKeys().change.Params[key]; named && !strings.HasSuffix(key, "[n]") {
		return key
	}
	if plain := strings.TrimRight(key, "0123456789"); plain != key {
		return plain + "[n]"
	}
	return key
}

// isTyped reports whether a PVE key is said by an attribute of its own, or by none.
func isTyped(key string) bool {
	f := family(key)
	return typedBy(f) != "" || refusedKeys[f] != ""
}

// deviceOfHost are values that reach through to the node's own devices; PVE takes
// them from root@pam only, and from tokens those that an administrator has mapped.
var deviceOfHost = map[string]struct {
	fine *regexp.Regexp
	fix  string
}{
	"serial[n]":  {regexp.MustCompile(`^socket$`), `a token may set "socket" only`},
	"usb[n]":     {regexp.MustCompile(`(^|,)mapping=|^(host=)?spice(,|$)`), "name a resource mapping: mapping=NAME"},
	"hostpci[n]": {regexp.MustCompile(`(^|,)mapping=`), "name a resource mapping: mapping=NAME"},
	"rng0":       {regexp.MustCompile(`urandom|/random`), "take /dev/urandom"},
}

// stateOrder is what a state drive is declared by.
var stateOrder = regexp.MustCompile(`^(file=)?[^/:\s,]+:\d+(\.\d+)?(,|$)`)

// defaults are PVE keys that every guest of ours has unless the files say otherwise.
// They are options like any other, so that drift in them shows.
func (r *vmResolver) defaults() {
	cpu := "x86-64-v2-AES" // what PVE's own form proposes: runs on all hosts of the last ten years
	if r.kind == "pve" {
		cpu = "host" // its guests need the virtualisation instructions
	}
	opts := map[string]string{
		"cpu":       cpu,
		"ostype":    "l26",
		"scsihw":    "virtio-scsi-single", // one controller a disk, which iothread needs
		"serial0":   "socket",             // the kernel of Debian's cloud images stops without a serial console
		"ciupgrade": "0",                  // the spec says which packages; PVE would upgrade all at first boot
	}
	maps.Copy(opts, r.Options)
	r.Options = opts
}

// options checks further PVE keys against the API table and brings values into PVE's form.
func (r *vmResolver) options() {
	if len(r.Options) == 0 {
		return
	}
	m := vmKeys().create
	for _, k := range slices.Sorted(maps.Keys(r.Options)) {
		p, known := m.Param(k)
		f := family(k)
		switch {
		case r.cd(m, k):
			continue
		case typedBy(f) != "":
			r.errorf("options."+k, fmt.Sprintf("option %q has an attribute of its own", k), "it is said by %s: see the reference page of %s", typedBy(f), r.kind)
			continue
		case refusedKeys[f] != "":
			r.errorf("options."+k, fmt.Sprintf("option %q cannot be set here", k), "%s", refusedKeys[f])
			continue
		case !known:
			r.errorf("options."+k, fmt.Sprintf("PVE has no option %q for a VM", k), "%s", diag.DidYouMean(k, slices.Collect(maps.Keys(m.Params))))
			continue
		}
		v := strings.TrimSpace(r.Options[k])
		if v == "" {
			r.errorf("options."+k, fmt.Sprintf("option %q is empty", k), "take it out: without it PVE's default holds")
			continue
		}
		if p.Type == "boolean" {
			v = pveapi.BooleanWord(v) // of a parameter of its own PVE knows no words
		}
		r.Options[k] = v
		r.checkOption(k, v)
	}
	r.discless()
}

// checkOption refuses values that PVE would refuse, or that could never be kept.
func (r *vmResolver) checkOption(k, v string) {
	refused := fmt.Sprintf("PVE refuses option %s = %q", k, v)
	if text := vmKeys().refusal(k, v); text != "" {
		r.errorf("options."+k, refused, "%s", strings.TrimSpace(text))
		return
	}
	if d, ok := deviceOfHost[family(k)]; ok && !d.fine.MatchString(v) {
		r.errorf("options."+k, refused, "devices of the node are for root@pam with a password: %s", d.fix)
	}
	if drives.HoldsState(k) && !stateOrder.MatchString(v) {
		r.errorf("options."+k, fmt.Sprintf("option %s names a volume", k), "give an order such as local-lvm:1, from which each guest gets a volume of its own")
	}
}
