package pveapi_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

const unknownText = "property is not defined in schema and the schema does not allow additional properties"

func TestCheck(t *testing.T) {
	tests := map[string]struct {
		method string
		values map[string]any
		want   map[string]string // Without node and vmid, which are always given.
	}{
		"a whole virtual machine": {
			"POST /nodes/{node}/qemu",
			map[string]any{
				"name": "web", "memory": "2048", "cores": "2", "cpu": "x86-64-v2-AES,flags=+aes", "ostype": "l26", "onboot": "1",
				"scsihw": "virtio-scsi-single", "scsi0": "local:0,import-from=local:import/debian.qcow2,discard=on,ssd=1",
				"net0": "virtio,bridge=vmbr0,tag=5", "ide2": "local:cloudinit", "boot": "order=scsi0;net0", "agent": "1",
				"ipconfig0": "ip=10.0.0.2/24,gw=10.0.0.1,ip6=auto", "nameserver": "10.0.0.1 fe80::1", "tags": "a;b,c",
				"sshkeys": "ssh-ed25519%20AAAA", "description": "two\nlines", "startup": "order=2,up=30", "smbios1": "base64=1,serial=YQ==",
				"hotplug": "network,disk", "vga": "serial0", "serial0": "socket", "cicustom": "user=local:snippets/u.yaml",
				"rng0": "source=/dev/urandom,max_bytes=1024", "watchdog": "i6300esb,action=reset", "hostpci0": "mapping=gpu,pcie=on",
				"startdate": "2026-01-02T03:04:05", "pool": "a/b", "bootdisk": "scsi0", "affinity": "0,2-4",
			},
			nil,
		},
		"a whole container": {
			"POST /nodes/{node}/lxc",
			map[string]any{
				"ostemplate": "local:vztmpl/debian.tar.zst", "hostname": "ct", "rootfs": "local:8", "mp0": "local:4,mp=/srv,backup=yes",
				"net0": "name=eth0,bridge=vmbr0,ip=dhcp,hwaddr=BC:24:11:00:00:01", "unprivileged": "1", "features": "nesting=1,mount=nfs;cifs",
				"password": "secret", "nameserver": "fe80::1%eth0", "timezone": "Europe/Vienna", "dev0": "/dev/net/tun,mode=0660",
			},
			nil,
		},
		"JSON values": {
			"PUT /nodes/{node}/qemu/{vmid}/config",
			map[string]any{"onboot": true, "cores": json.Number("2"), "cpulimit": 0.5, "memory": json.Number("512"), "tags": []any{"a", "b"}, "name": nil},
			nil,
		},
		"wrong JSON values": {
			"PUT /nodes/{node}/qemu/{vmid}/config",
			map[string]any{"name": true, "cores": true, "onboot": json.Number("2"), "memory": map[string]any{}, "cpulimit": []any{"1"}},
			map[string]string{
				"name":     "type check ('string') failed - got JSON::PP::Boolean",
				"cores":    "type check ('integer') failed - got JSON::PP::Boolean",
				"onboot":   "type check ('boolean') failed - got '2'",
				"memory":   "type check ('string') failed - got HASH",
				"cpulimit": "type check ('number') failed - got ARRAY",
			},
		},
		"unknown and missing": {
			"POST /nodes/{node}/qemu/{vmid}/clone",
			map[string]any{"nosuch": "1", "net32": "virtio"},
			map[string]string{
				"newid": "property is missing and it is not optional",
				"net32": unknownText, "nosuch": unknownText,
			},
		},
		"a requirement not met": {
			"POST /nodes/{node}/qemu",
			map[string]any{"force": "1", "unique": "1"},
			// Two texts on one name are joined by PVE with a backslash and an n.
			map[string]string{"archive": `missing property required by 'force'\nmissing property required by 'unique'`},
		},
		"limits": {
			"PUT /nodes/{node}/qemu/{vmid}/config",
			map[string]any{"cores": "0", "cpulimit": "128.5", "cpuunits": "262145", "shares": "-1", "description": strings.Repeat("ü", 8193)},
			map[string]string{
				"cores": "value must have a minimum value of 1", "cpulimit": "value must have a maximum value of 128",
				"cpuunits": "value must have a maximum value of 262144", "shares": "value must have a minimum value of 0",
				"description": "value may only be 8192 characters long",
			},
		},
		"characters are not bytes": {
			"PUT /nodes/{node}/qemu/{vmid}/config", map[string]any{"description": strings.Repeat("ü", 8192)}, nil,
		},
		"enumeration and pattern": {
			"PUT /nodes/{node}/qemu/{vmid}/config",
			map[string]any{"bios": "efi", "startdate": "yesterday", "vmgenid": "2", "serial0": "ttyS0"},
			map[string]string{
				"bios":      "value 'efi' does not have a value in the enumeration 'seabios, ovmf'",
				"startdate": "value does not match the regex pattern", "vmgenid": "value does not match the regex pattern",
				"serial0": "value does not match the regex pattern",
			},
		},
		"a trailing line break is overlooked, one inside is not": {
			"PUT /nodes/{node}/qemu/{vmid}/config",
			map[string]any{"name": "web\n", "startdate": "now\n", "hookscript": "local:snippets/a\nb"},
			map[string]string{"hookscript": "invalid format - unable to parse volume ID 'local:snippets/a\nb'\n"},
		},
		"property strings": {
			"PUT /nodes/{node}/qemu/{vmid}/config",
			map[string]any{
				"net0": "virtio,tag=0,nosuch=1", "scsi0": "local:1,discard=maybe", "agent": "perhaps", "ipconfig0": "gw=10.0.0.1",
				"boot": "order=scsi0;sound0", "numa0": "cpus=x", "cpu": "flags=+aes", "ide0": "local:1,wwn=5", "vga": "std,clipboard=spice",
			},
			map[string]string{
				"net0":      "invalid format - format error\nnet0.nosuch: " + unknownText + "\nnet0.tag: value must have a minimum value of 1\n",
				"scsi0":     "invalid format - format error\nscsi0.discard: value 'maybe' does not have a value in the enumeration 'ignore, on'\n",
				"agent":     "invalid format - format error\nagent.enabled: type check ('boolean') failed - got 'perhaps'\n",
				"ipconfig0": "invalid format - format error\nipconfig0.ip: missing property required by 'ipconfig0.gw'\n",
				"boot":      "invalid format - format error\nboot.order: invalid format - invalid boot device 'sound0'\n\n",
				"numa0":     "invalid format - format error\nnuma0.cpus: value does not match the regex pattern\n",
				"cpu":       "invalid format - CPU is missing cputype\n",
				"ide0":      "invalid format - format error\nide0.wwn: value does not match the regex pattern\n",
				"vga":       "invalid format - format error\nvga.clipboard: value 'spice' does not have a value in the enumeration 'vnc'\n",
			},
		},
		"a list given as several values": {
			"POST /nodes/{node}/vzdump", map[string]any{"vmid": []string{"100", "101"}, "exclude-path": "/tmp"}, nil,
		},
		"a single value twice": {
			"PUT /nodes/{node}/qemu/{vmid}/config",
			map[string]any{"description": []any{"a", "b"}},
			map[string]string{"description": "type check ('string') failed - got ARRAY"},
		},
		"elements of arrays": {
			"POST /nodes/{node}/qemu/{vmid}/agent/exec",
			map[string]any{"command": []any{"ls", []any{}}},
			map[string]string{"command[1]": "type check ('string') failed - got ARRAY"},
		},
		"additional parameters": {
			"POST /nodes/{node}/qemu/{vmid}/config",
			map[string]any{"import-working-storage": "9"},
			map[string]string{"import-working-storage": "invalid format - storage ID '9' cannot be shorter than 2 characters\n"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			verb, path, _ := strings.Cut(test.method, " ")
			m := method(t, verb, path)
			test.values["node"] = "pve1"
			if _, ok := m.Params["vmid"]; ok && test.values["vmid"] == nil {
				test.values["vmid"] = "100"
			}
			require.Equal(t, test.want, m.Check(test.values))
		})
	}
}

// A method that allows more does not refuse unknown names.
func TestCheckAdditional(t *testing.T) {
	m := &pveapi.Method{AdditionalParams: true, Params: map[string]*pveapi.Value{"n": {Type: "integer"}}}
	require.Nil(t, m.Check(map[string]any{"n": "1", "other": "x"}))
	m.AdditionalParams = false
	require.Equal(t, map[string]string{"other": unknownText}, m.Check(map[string]any{"n": "1", "other": "x"}))
}

// Objects do not occur in parameters of the table, but in PVE's checks.
func TestCheckObjects(t *testing.T) {
	inner := &pveapi.Value{
		Type: "object", Additional: &pveapi.Additional{},
		Props: map[string]*pveapi.Value{"a": {Type: "integer"}, "b": {Type: "string", Optional: true, Pattern: "x+"}},
	}
	m := &pveapi.Method{Params: map[string]*pveapi.Value{"o": inner}}
	require.Nil(t, m.Check(map[string]any{"o": map[string]any{"a": 1}}))
	require.Equal(t, map[string]string{"o": "type check ('object') failed"}, m.Check(map[string]any{"o": "a=1"}))
	require.Equal(t, map[string]string{
		"o.a": "property is missing and it is not optional", "o.b": "value does not match the regex pattern", "o.c": unknownText,
	}, m.Check(map[string]any{"o": map[string]any{"b": "y", "c": 1}}))

	inner.Additional = &pveapi.Additional{Allowed: true, Value: &pveapi.Value{Type: "integer"}}
	require.Equal(t, map[string]string{"o.c": "type check ('integer') failed - got 'z'"},
		m.Check(map[string]any{"o": map[string]any{"a": 1, "c": "z"}}))
}

func TestCheckFor(t *testing.T) {
	update := method(t, "PUT", "/nodes/{node}/qemu/{vmid}/config")
	values := map[string]any{"node": "n", "vmid": "100", "allow-ksm": "1"}
	refused := map[string]string{"allow-ksm": unknownText}
	for version, want := range map[string]map[string]string{
		"8.4.21": refused, "9.0.11": refused, "9.1": nil, "9.1.4": nil, "9.2": nil, "10.0": nil, "": nil,
	} {
		require.Equal(t, want, update.CheckFor(version, values), "version %q", version)
	}

	backup := method(t, "POST", "/nodes/{node}/vzdump")
	values = map[string]any{"node": "n", "vmid": "100", "notification-policy": "always"}
	require.Nil(t, backup.CheckFor("8.4", values))
	require.Equal(t, map[string]string{"notification-policy": unknownText}, backup.CheckFor("9.0", values))
	require.Equal(t, map[string]string{"notification-policy": unknownText}, backup.Check(values))

	roles := method(t, "POST", "/access/roles")
	values = map[string]any{"roleid": "r", "privs": "VM.Monitor VM.GuestAgent.Audit"}
	require.Equal(t, "invalid format - invalid privilege 'VM.GuestAgent.Audit'\n", roles.CheckFor("8.4", values)["privs"])
	require.Equal(t, "invalid format - invalid privilege 'VM.Monitor'\n", roles.CheckFor("9.1", values)["privs"])
}

func TestIn(t *testing.T) {
	rules := method(t, "GET", "/cluster/ha/rules")
	require.False(t, rules.In("8.4.21"))
	require.True(t, rules.In("9.0"))
	require.True(t, rules.In(""))
	require.True(t, method(t, "GET", "/version").In("8.4"))
}

// TestTextsOfVersions: what a host says of the same mistake changed with PVE/JSONSchema.pm.
func TestTextsOfVersions(t *testing.T) {
	ask := func(version, method, name, value string) map[string]string {
		verb, path, _ := strings.Cut(method, " ")
		m, _, _ := pveapi.Lookup(verb, path)
		values := map[string]any{name: value}
		for placeholder, v := range m.Params {
			if v.InPath || placeholder == "node" || placeholder == "vmid" {
				values[placeholder] = "100"
			}
		}
		values["node"] = "pve1"
		return m.CheckFor(version, values)
	}
	for _, test := range []struct {
		method, name, value, about string
		want                       map[string]string // By version; "" is the newest.
	}{
		{"POST /nodes/{node}/qemu", "force", "1", "archive", map[string]string{
			"8.4": "missing property - 'force' requires this property", "9.1": "missing property required by 'force'", "": "missing property required by 'force'",
		}},
		{"PUT /nodes/{node}/qemu/{vmid}/config", "ipconfig0", "gw=10.0.0.1", "ipconfig0", map[string]string{
			"8.4": "invalid format - format error\nipconfig0.ip: missing property - 'ipconfig0.gw' requires this property\n",
			"9.2": "invalid format - format error\nipconfig0.ip: missing property required by 'ipconfig0.gw'\n",
		}},
		{"PUT /nodes/{node}/qemu/{vmid}/config", "vmstatestorage", "a", "vmstatestorage", map[string]string{
			"8.4": "invalid format - storage ID 'a' contains illegal characters\n", "9.1": "invalid format - storage ID 'a' contains illegal characters\n",
			"9.2": "invalid format - storage ID 'a' cannot be shorter than 2 characters\n",
		}},
		{"PUT /nodes/{node}/qemu/{vmid}/config", "agent", "on", "agent", map[string]string{
			"8.4": "invalid format - format error\nagent.enabled: type check ('boolean') failed - got 'on'\n", "9.1": "", "9.2": "",
		}},
		{"PUT /nodes/{node}/qemu/{vmid}/config", "scsi0", "file=local:1,volume=local:2", "scsi0", map[string]string{
			"8.4": "", "9.1": "", "9.2": "invalid format - key 'file' is already defined (via alias)\n",
		}},
	} {
		for version, want := range test.want {
			require.Equal(t, want, ask(version, test.method, test.name, test.value)[test.about], "%s: %s=%s", version, test.name, test.value)
		}
	}
}

// TestLookupBlanks: no blank stands for a placeholder (register_method in
// PVE/RESTHandler.pm).
func TestLookupBlanks(t *testing.T) {
	for _, path := range []string{"/access/users/a@pve/token/a%20b", "/access/roles/a%09b", "/nodes/a%20b/qemu", "/nodes/pve1/storage/local/content/local:iso/a%20b.iso"} {
		m, _, known := pveapi.Lookup("GET", path)
		require.Nil(t, m, path)
		require.False(t, known, path)
	}
}
