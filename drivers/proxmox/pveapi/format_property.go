package pveapi

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
)

// propertyFormat is a format that is a property string. validate, if there is
// one, checks the members together once each of them is valid.
type propertyFormat struct {
	members  map[string]*Value
	validate func(version string, members map[string]string) error
}

// propertyFormats are the property strings that the table calls by name only.
// Sources: qemu-server (PVE/QemuServer.pm, QemuServer/CPUConfig.pm, Network.pm,
// PCI.pm, RNG.pm), pve-guest-common (PVE/VZDump/Common.pm), pve-storage
// (Storage/Plugin.pm), pve-common (PVE/JSONSchema.pm), pve-access-control
// (Auth/Plugin.pm).
var propertyFormats = sync.OnceValue(func() map[string]propertyFormat {
	return map[string]propertyFormat{
		"pve-qm-boot": {members: map[string]*Value{
			"legacy": byDefault(pattern(`[acdn]{1,4}`)),
			"order":  formatted("pve-qm-bootdev-list"),
		}},
		"pve-qm-ipconfig": {members: map[string]*Value{
			"ip":  formatted("pve-ipv4-config"),
			"gw":  requiring("ip", formatted("ipv4")),
			"ip6": formatted("pve-ipv6-config"),
			"gw6": requiring("ip6", formatted("ipv6")),
		}},
		"pve-node-location": {members: map[string]*Value{
			"name":      {Type: "string", Optional: true, MaxLength: new(128)},
			"latitude":  needed(&Value{Type: "number", Min: "-90", Max: "90"}),
			"longitude": needed(&Value{Type: "number", Min: "-180", Max: "180"}),
		}},
		"pve-qm-cicustom": {members: map[string]*Value{
			"meta":    formatted("pve-volume-id"),
			"network": formatted("pve-volume-id"),
			"user":    formatted("pve-volume-id"),
			"vendor":  formatted("pve-volume-id"),
		}},
		"pve-qm-smbios1": {members: map[string]*Value{
			"uuid":         pattern(`[a-fA-F0-9]{8}(?:-[a-fA-F0-9]{4}){3}-[a-fA-F0-9]{12}`),
			"version":      pattern(base64Text),
			"serial":       pattern(base64Text),
			"manufacturer": pattern(base64Text),
			"product":      pattern(base64Text),
			"sku":          pattern(base64Text),
			"family":       pattern(base64Text),
			"base64":       boolean(),
		}},
		"pve-qm-watchdog": {members: map[string]*Value{
			"model":  byDefault(oneOf("i6300esb", "ib700")),
			"action": oneOf("reset", "shutdown", "poweroff", "pause", "debug", "none"),
		}},
		"pve-qm-rng": {members: map[string]*Value{
			"source":    byDefault(needed(oneOf("/dev/urandom", "/dev/random", "/dev/hwrng"))),
			"max_bytes": integer("", ""),
			"period":    integer("", ""),
		}},
		"pve-qm-hostpci": {members: map[string]*Value{
			"host":          byDefault(pattern(pciIDs)),
			"mapping":       formatted("pve-configid"),
			"rombar":        boolean(),
			"romfile":       pattern(`[^,;]+`),
			"pcie":          boolean(),
			"x-vga":         boolean(),
			"legacy-igd":    boolean(),
			"mdev":          pattern(`[^/.:]+`),
			"vendor-id":     pattern(pciID),
			"device-id":     pattern(pciID),
			"sub-vendor-id": pattern(pciID),
			"sub-device-id": pattern(pciID),
		}},
		"pve-qm-ide": {members: ideMembers()},
		"pve-qemu-sev-fmt": {members: map[string]*Value{
			"type":           byDefault(needed(oneOf("std", "es", "snp"))),
			"no-debug":       boolean(),
			"no-key-sharing": boolean(),
			"allow-smt":      boolean(),
			"kernel-hashes":  boolean(),
		}},
		"pve-qemu-tdx-fmt": {members: map[string]*Value{
			"type":        byDefault(needed(oneOf("tdx"))),
			"attestation": needed(boolean()),
			"vsock-cid":   integer("2", ""),
			"vsock-port":  integer("0", ""),
		}},
		"pve-vm-cpu-conf": {members: cpuMembers(), validate: checkCPU},
		"backup-fleecing": {members: map[string]*Value{
			"enabled": byDefault(boolean()),
			"storage": formatted("pve-storage-id"),
		}},
		"backup-performance": {members: map[string]*Value{
			"max-workers":     integer("1", "256"),
			"pbs-entries-max": integer("1", ""),
		}},
		"prune-backups": {members: map[string]*Value{
			"keep-all":     boolean(),
			"keep-last":    integer("0", ""),
			"keep-hourly":  integer("0", ""),
			"keep-daily":   integer("0", ""),
			"keep-weekly":  integer("0", ""),
			"keep-monthly": integer("0", ""),
			"keep-yearly":  integer("0", ""),
		}, validate: checkPruning},
		"proxmox-remote": {members: map[string]*Value{
			"host":        needed(anyText()),
			"port":        integer("", ""),
			"apitoken":    needed(anyText()),
			"fingerprint": pattern(`([A-Fa-f0-9]{2}:){31}[A-Fa-f0-9]{2}`),
		}},
		"realm-sync-options": {members: map[string]*Value{
			"scope":           oneOf("users", "groups", "both"),
			"remove-vanished": pattern(`(?:(?:acl|properties|entry);)*(?:acl|properties|entry)|none`),
			"full":            boolean(),
			"enable-new":      boolean(),
			"purge":           boolean(),
		}},
		"pve-tfa-config": {members: map[string]*Value{
			"type":   needed(oneOf("yubico", "oath")),
			"id":     anyText(),
			"key":    anyText(),
			"url":    anyText(),
			"digits": integer("6", "8"),
			"step":   integer("10", ""),
		}},
	}
})

const (
	base64Text = `[A-Za-z0-9+/]+={0,2}`
	pciDevice  = `(?:[a-f0-9]{4,}:)?[a-f0-9]{2}:[a-f0-9]{2}(?:\.[a-f0-9])?`
	pciIDs     = pciDevice + `(;` + pciDevice + `)*`
	pciID      = `0x[0-9a-fA-F]{4}`
	cpuFlag    = `[+-][a-zA-Z0-9\-_.]+`
)

// The members below are optional unless wrapped in needed.

func pattern(p string) *Value {
	return &Value{Type: "string", Optional: true, Pattern: p, expression: expression(p)}
}

func anyText() *Value { return &Value{Type: "string", Optional: true} }

func formatted(name string) *Value { return &Value{Type: "string", Optional: true, Format: name} }

func oneOf(words ...string) *Value { return &Value{Type: "string", Optional: true, Enum: words} }

func boolean() *Value { return &Value{Type: "boolean", Optional: true} }

func integer(lowest, highest json.Number) *Value {
	return &Value{Type: "integer", Optional: true, Min: lowest, Max: highest}
}

func byDefault(v *Value) *Value {
	v.DefaultKey = true
	return v
}

func needed(v *Value) *Value {
	v.Optional = false
	return v
}

func requiring(other string, v *Value) *Value {
	v.Requires = other
	return v
}

// ideMembers are those of the drive ide0 without what only allocation knows;
// "cdrom", an old name of ide2, refers to them by name.
func ideMembers() map[string]*Value {
	m, _, _ := Lookup("PUT", "/nodes/node/qemu/100/config")
	if m == nil {
		return nil
	}
	ide, ok := m.Param("ide0")
	if !ok {
		return nil
	}
	members := map[string]*Value{}
	for name, member := range ide.Sub {
		if name != "import-from" {
			members[name] = member
		}
	}
	return members
}

func cpuMembers() map[string]*Value {
	return map[string]*Value{
		"cputype":         byDefault(anyText()),
		"reported-model":  anyText(),
		"hidden":          boolean(),
		"hv-vendor-id":    pattern(`[a-zA-Z0-9]{1,12}`),
		"flags":           pattern(cpuFlag + `(;` + cpuFlag + `)*`),
		"guest-phys-bits": integer("32", "64"),
		"phys-bits":       formatted("pve-phys-bits"),
	}
}

// checkCPU is validate_vm_cpu_conf in QemuServer/CPUConfig.pm. Models named
// custom-* are in a file of the cluster; whether one is there is not known
// here.
func checkCPU(version string, members map[string]string) error {
	model := members["cputype"]
	if !truthy(model) {
		return died("CPU is missing cputype")
	}
	if !strings.HasPrefix(model, "custom-") && !isCPUModel(model) {
		return refuse("Built-in cputype '%s' is not defined (missing 'custom-' prefix?)", model)
	}
	allowed := cpuFlags(version)
	if flags := members["flags"]; flags != "" {
		for flag := range strings.SplitSeq(flags, ";") {
			if !slices.Contains(allowed, flag[1:]) {
				return died("VM-specific CPU flags must be a subset of: " + strings.Join(allowed, ", "))
			}
		}
	}
	if members["reported-model"] != "" {
		return died("Property 'reported-model' not allowed in VM-specific CPU config.")
	}
	return nil
}

// cpuFlags are those that a guest may switch, in PVE's order, which its message
// has.
func cpuFlags(version string) []string {
	if before9(version) {
		return []string{
			"pcid", "spec-ctrl", "ibpb", "ssbd", "virt-ssbd", "amd-ssbd", "amd-no-ssb", "pdpe1gb", "md-clear",
			"hv-tlbflush", "hv-evmcs", "aes",
		}
	}
	return []string{
		"nested-virt", "md-clear", "pcid", "spec-ctrl", "ssbd", "ibpb", "virt-ssbd", "amd-ssbd", "amd-no-ssb", "pdpe1gb",
		"hv-tlbflush", "hv-evmcs", "aes",
	}
}

// isCPUModel knows QEMU's models by family, without listing each revision.
var isCPUModel = expression(`(?:host|max|(?:kvm|qemu)(?:32|64)|x86-64-v(?:2|2-AES|3|4)` +
	`|486|pentium[23]?|coreduo|core2duo|Conroe|Penryn|KnightsMill|athlon|phenom|Opteron_G[1-5]` +
	`|(?:Nehalem|Westmere|SandyBridge|IvyBridge)(?:-IBRS)?|(?:Haswell|Broadwell)(?:-noTSX)?(?:-IBRS)?` +
	`|Skylake-(?:Client|Server)(?:(?:-noTSX)?-IBRS|-v4)?|Skylake-Server-v5|Cascadelake-Server(?:-noTSX|-v[245])?` +
	`|Cooperlake(?:-v2)?|Icelake-(?:Client|Server)(?:-noTSX)?|Icelake-Server-v[3-7]` +
	`|SapphireRapids(?:-v[2-4])?|GraniteRapids(?:-v[23])?|SierraForest(?:-v[23])?|ClearwaterForest` +
	`|EPYC(?:-IBPB|-v[345])?|EPYC-Rome(?:-v[2-5])?|EPYC-Milan(?:-v[23])?|EPYC-Genoa(?:-v2)?|EPYC-Turin)`)

// checkPruning is validate_prune_backups in Storage/Plugin.pm.
func checkPruning(_ string, members map[string]string) error {
	limited := false
	for name, value := range members {
		limited = limited || (name != "keep-all" && truthy(value))
	}
	if limited && truthy(members["keep-all"]) {
		return died("keep-all cannot be set together with other options.")
	}
	return nil
}
