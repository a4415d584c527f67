package cluster

import (
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Mappings give devices and folders of nodes one name in the cluster
// (PVE/API2/Cluster/Mapping and PVE/Mapping).

// mapFormats are the parts of an entry of a map, by the kind of mapping.
var mapFormats = map[string]string{
	"pci": `node: string pve-node needed
		id: string needed /[0-9A-Fa-f]{4}:[0-9A-Fa-f]{4}/
		path: string needed /(?:[a-f0-9]{4,}:[a-f0-9]{2}:[a-f0-9]{2}(?:\.[a-f0-9])?;)*[a-f0-9]{4,}:[a-f0-9]{2}:[a-f0-9]{2}(?:\.[a-f0-9])?/
		subsystem-id: string /[0-9A-Fa-f]{4}:[0-9A-Fa-f]{4}/
		iommugroup: integer
		description: string <=4096`,
	"usb": `node: string pve-node needed
		id: string needed /[0-9A-Fa-f]{4}:[0-9A-Fa-f]{4}/
		path: string /(\d+)\-(\d+(\.\d+)*)/
		description: string <=4096`,
	"dir": `node: string pve-node needed
		path: string pve-storage-path needed
		description: string <=4096`,
}

func mappingFiles() []core.SectionFile {
	var all []core.SectionFile
	for _, kind := range []string{"dir", "pci", "usb"} {
		path := "/mapping/" + kind
		f := core.SectionFile{
			Name: "mapping/" + kind, Path: "/cluster" + path, Key: "id", ID: "pve-configid", Only: kind, Untyped: true, Whole: true, Plain: true,
			Kinds: map[string]string{kind: "map description? mdev? live-migration-capable?"},
			Props: "map: array\ndescription: string <=4096\nmdev: boolean\nlive-migration-capable: boolean @9.0",
			Query: "check-node: string pve-node", Open: true,
			Read:  either(allOf(path+"/{id}", "Mapping.Use"), allOf(path+"/{id}", "Mapping.Modify"), allOf(path+"/{id}", "Mapping.Audit")),
			Write: allOf(path, "Mapping.Modify"), Change: allOf(path+"/{id}", "Mapping.Modify"),
			Guard: func(c *core.Call, id string, _ map[string]any, write bool) error {
				if write {
					return nil
				}
				return c.NeedAny(path+"/"+id, "Mapping.Modify", "Mapping.Use", "Mapping.Audit")
			},
			Twice: kind + " ID '%s' already defined", Missing: "mapping '%s' not found", Gone: kind + " ID '%s' does not exist",
			Failed: "%s hardware mapping failed", Lock: "mapping_" + kind + "_cfg",
			Check: func(_ *core.World, _ *core.Call, _ string, conf, _ perl.Config) error {
				return checkMap(kind, conf["map"])
			},
			Show: showMapping(kind), MissingIsGone: true,
		}
		switch kind {
		case "dir":
			f.Since, f.Failed = "9.0", "%s dir mapping failed"
			f.Kinds[kind], f.Props = "map description?", "map: array\ndescription: string <=4096"
		case "usb":
			f.Kinds[kind], f.Props = "map description?", "map: array\ndescription: string <=4096"
		}
		all = append(all, f)
	}
	return all
}

// checkMap reads the entries of a map, which are property strings.
func checkMap(kind, text string) error {
	format := &pveapi.Value{Type: "string", Sub: core.Props(mapFormats[kind])}
	m := &pveapi.Method{Params: map[string]*pveapi.Value{"map": {Type: "array", Items: format}}}
	var entries []any
	for entry := range strings.SplitSeq(text, "\n") {
		entries = append(entries, entry)
	}
	if wrong := m.Check(map[string]any{"map": entries}); wrong != nil {
		return &perl.APIError{Status: 400, Errors: wrong}
	}
	return nil
}

// showMapping adds to a mapping what a node makes of it, if a call asks for that.
func showMapping(kind string) func(*core.World, *core.Call, string, map[string]any) {
	member := map[string]string{"pci": "checks", "dir": "checks", "usb": "errors"}[kind]
	return func(_ *core.World, c *core.Call, id string, entry map[string]any) {
		node := c.In["check-node"]
		if node == "" {
			return
		}
		checks, found := []map[string]any{}, false
		report := func(severity, format string, args ...any) {
			checks = append(checks, map[string]any{"severity": severity, "message": fmt.Sprintf(format, args...)})
		}
		entries, _ := entry["map"].([]string)
		for _, text := range entries {
			if perl.OptionOf(text, "node") != node {
				continue
			}
			found = true
			if wrong := wrongDevice(kind, id, text); wrong != "" {
				report("error", "Invalid configuration: %s\n", wrong)
			}
		}
		if !found {
			report("warning", "No mapping for node %s.", node)
		}
		entry[member] = checks
	}
}

// wrongDevice says what a node has else than an entry of a map expects (assert_valid).
func wrongDevice(kind, name, text string) string {
	switch kind {
	case "usb":
		return "USB device '" + perl.OptionOf(text, "id") + "' not found"
	case "dir":
		return ""
	}
	for path := range strings.SplitSeq(perl.OptionOf(text, "path"), ";") {
		found := false
		for _, device := range pciDevices() {
			if !strings.HasPrefix(fmt.Sprint(device["id"]), path) {
				continue
			}
			found = true
			is := strings.ReplaceAll(fmt.Sprint(device["vendor"], ":", device["device"]), "0x", "")
			if want := perl.OptionOf(text, "id"); want != is {
				return fmt.Sprintf("'id' does not match for '%s' (%s != %s)", name, is, want)
			}
		}
		if !found {
			return "pci device '" + path + "' not found"
		}
	}
	return ""
}

// pciDevices are those that every node has.
func pciDevices() []map[string]any {
	return []map[string]any{
		{"id": "0000:00:00.0", "class": "0x060000", "vendor": "0x8086", "vendor_name": "Intel Corporation", "device": "0x1237", "device_name": "440FX - 82441FX PMC [Natoma]", "iommugroup": -1},
		{"id": "0000:00:02.0", "class": "0x030000", "vendor": "0x1234", "vendor_name": "Technical Corp.", "device": "0x1111", "device_name": "Simulated graphics", "iommugroup": 2},
		{"id": "0000:00:03.0", "class": "0x020000", "vendor": "0x1af4", "vendor_name": "Red Hat, Inc.", "device": "0x1000", "device_name": "Virtio network device", "iommugroup": 3},
	}
}
