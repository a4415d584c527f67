package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/cluster"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiPCI is GET /nodes/{node}/hardware/pci. Bridges and the like are left out unless
// somebody asks for every class.
func apiPCI(_ *core.World, c *core.Call) (any, error) {
	devices := cluster.PciDevices()
	hidden := []string{"05", "06", "08"}
	if c.Has("pci-class-blacklist") {
		hidden = c.List("pci-class-blacklist")
	}
	devices = slices.DeleteFunc(devices, func(d map[string]any) bool {
		return slices.ContainsFunc(hidden, func(class string) bool { return strings.HasPrefix(fmt.Sprint(d["class"]), "0x"+class) })
	})
	if c.Has("verbose") && !c.Flag("verbose") {
		for i := range devices {
			devices[i] = map[string]any{"id": devices[i]["id"]}
		}
	}
	return devices, nil
}

// apiScanLVM and apiScanThin are GET /nodes/{node}/scan/lvm and lvmthin: the volume
// group of a fresh installation, where a storage needs it.
func apiScanLVM(w *core.World, _ *core.Call) (any, error) {
	if !hasLVM(w) {
		return []any{}, nil
	}
	return []map[string]any{{"vg": "pve"}}, nil
}

func apiScanThin(w *core.World, c *core.Call) (any, error) {
	if c.In["vg"] != "pve" || !hasLVM(w) {
		return []any{}, nil
	}
	return []map[string]any{{"lv": "data"}}, nil
}

// machineVersions are those of QEMU 9.2, the newest first as PVE sorts them; 4.0.1 is
// there for q35 only (hw/i386/pc_q35.c of QEMU).
var machineVersions = strings.Fields("9.2+pve1 9.2 9.1 9.0 8.2 8.1 8.0 7.2 7.1 7.0 6.2 6.1 6.0 5.2 5.1 5.0 4.2 4.1+pve2 4.1+pve1 4.1 4.0.1 4.0 " +
	"3.1 3.0 2.12 2.11 2.10 2.9 2.8 2.7 2.6 2.5 2.4")

// machineChanges are what PVE says of its own revisions (PVE/QemuServer/Machine.pm).
var machineChanges = map[string]string{
	"9.2+pve1": "Disables S3/S4 power states by default.",
	"4.1+pve2": "Increases the number of SCSI drives supported.",
	"4.1+pve1": "Introduction of pveX versioning, no changes.",
}

// apiMachines is GET /nodes/{node}/capabilities/qemu/machines.
func apiMachines(w *core.World, _ *core.Call) (any, error) {
	versions := machineVersions
	if w.V9() {
		versions = append([]string{"10.1", "10.0+pve1", "10.0"}, versions...)
	}
	list := []map[string]any{}
	for _, kind := range []string{"q35", "i440fx"} {
		for _, version := range versions {
			if version == "4.0.1" && kind != "q35" {
				continue
			}
			entry := map[string]any{"id": "pc-" + kind + "-" + version, "type": kind, "version": version}
			if changes := machineChanges[version]; changes != "" {
				entry["changes"] = changes
			}
			list = append(list, entry)
		}
	}
	return list, nil
}

// cpuModels are some of those that QEMU knows, by vendor.
var cpuModels = map[string]string{
	"AuthenticAMD": "EPYC EPYC-Genoa EPYC-IBPB EPYC-Milan EPYC-Rome Opteron_G1 Opteron_G2 Opteron_G3 Opteron_G4 Opteron_G5 athlon phenom",
	"GenuineIntel": "486 Broadwell Broadwell-noTSX Cascadelake-Server Conroe Cooperlake Haswell Haswell-noTSX Icelake-Server IvyBridge Nehalem " +
		"Penryn SandyBridge SapphireRapids Skylake-Client Skylake-Server Westmere core2duo coreduo pentium pentium2 pentium3",
	"default": "host kvm32 kvm64 max qemu32 qemu64 x86-64-v2 x86-64-v2-AES x86-64-v3 x86-64-v4",
}

// apiCPUModels is GET /nodes/{node}/capabilities/qemu/cpu.
func apiCPUModels(*core.World, *core.Call) (any, error) {
	list := []map[string]any{}
	for vendor, names := range cpuModels {
		for name := range strings.FieldsSeq(names) {
			list = append(list, map[string]any{"custom": 0, "name": name, "vendor": vendor})
		}
	}
	slices.SortFunc(list, func(a, b map[string]any) int { return strings.Compare(perl.Text(a["name"]), perl.Text(b["name"])) })
	return list, nil
}

// apiCPUFlags is GET /nodes/{node}/capabilities/qemu/cpu-flags, since PVE 9.1.
func apiCPUFlags(*core.World, *core.Call) (any, error) {
	flags := [][2]string{
		{"aes", "Activate AES instruction set for HW acceleration."},
		{"md-clear", "Required to let the guest OS know if MDS is mitigated correctly."},
		{"nested-virt", "Controls nested virtualization, namely 'svm' for AMD CPUs and 'vmx' for Intel CPUs."},
		{"pcid", "Meltdown fix cost reduction on Westmere, Sandy-, and IvyBridge Intel CPUs."},
		{"pdpe1gb", "Allow guest OS to use 1GB size pages, if host HW supports it."},
		{"spec-ctrl", "Allows improved Spectre mitigation with Intel CPUs."},
		{"ssbd", "Protection for \"Speculative Store Bypass\" for Intel models."},
	}
	list := []map[string]any{}
	for _, flag := range flags {
		list = append(list, map[string]any{"name": flag[0], "description": flag[1]})
	}
	return list, nil
}

// apiMigrationCapabilities is GET /nodes/{node}/capabilities/qemu/migration.
func apiMigrationCapabilities(*core.World, *core.Call) (any, error) {
	return map[string]any{"has-dbus-vmstate": 1}, nil
}

// packages are what a host shows of itself; the versions of all but the manager are
// those of the time.
var packages = strings.Fields("proxmox-ve pve-manager qemu-server pve-container pve-cluster pve-firewall pve-ha-manager libpve-storage-perl " +
	"libpve-access-control libpve-common-perl libpve-guest-common-perl libpve-http-server-perl pve-qemu-kvm lxc-pve corosync zfsutils-linux")

// apiPackages is GET /nodes/{node}/apt/versions.
func apiPackages(w *core.World, _ *core.Call) (any, error) {
	release, version, _ := w.Version()
	list := []map[string]any{}
	for _, name := range packages {
		entry := map[string]any{
			"Package": name, "Title": "Simulated " + name, "Description": "Simulated " + name, "Version": release + ".0", "OldVersion": release + ".0",
			"Arch": "amd64", "CurrentState": "Installed", "Origin": "Proxmox", "Priority": "optional", "Section": "admin",
		}
		if name == "pve-manager" {
			entry["Version"], entry["OldVersion"], entry["ManagerVersion"] = version, version, version
		}
		if name == "proxmox-ve" {
			entry["RunningKernel"] = "6.17.4-2-pve"
		}
		list = append(list, entry)
	}
	return list, nil
}

// apiRefreshPackages is POST /nodes/{node}/apt/update; everything is up to date.
func apiRefreshPackages(w *core.World, c *core.Call) (any, error) {
	return w.Fork(c, c.In["node"], core.Job{Kind: "aptupdate", End: func(t *core.Task) error {
		t.Logf("starting apt-get update")
		return nil
	}}), nil
}

// apiReport is GET /nodes/{node}/report.
func apiReport(w *core.World, c *core.Call) (any, error) {
	_, version, repoid := w.Version()
	return fmt.Sprintf("==== general system info ====\n\n# hostname\n%s\n\n# pveversion\npve-manager/%s/%s\n", c.In["node"], version, repoid), nil
}
