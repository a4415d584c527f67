package pveapi_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// param is a parameter of the update of a virtual machine.
func param(t require.TestingT, name string) *pveapi.Value {
	m, _, _ := pveapi.Lookup("PUT", "/nodes/{node}/qemu/{vmid}/config")
	require.NotNil(t, m)
	v, ok := m.Param(name)
	require.True(t, ok, name)
	return v
}

func TestParseProperty(t *testing.T) {
	tests := map[string]struct {
		param, text string
		want        map[string]string
		problem     string
	}{
		"a model that is a key":        {"net0", "virtio=BC:24:11:00:00:01,bridge=vmbr0", map[string]string{"model": "virtio", "macaddr": "BC:24:11:00:00:01", "bridge": "vmbr0"}, ""},
		"a model on its own":           {"net0", "virtio,bridge=vmbr0", map[string]string{"model": "virtio", "bridge": "vmbr0"}, ""},
		"an alias":                     {"scsi0", "volume=local:100/a.raw,bps_rd_length=3", map[string]string{"file": "local:100/a.raw", "bps_rd_max_length": "3"}, ""},
		"words for booleans":           {"scsi0", "local:1,ssd=on,backup=no,iothread=True", map[string]string{"file": "local:1", "ssd": "1", "backup": "0", "iothread": "1"}, ""},
		"a word for a boolean alone":   {"agent", "yes", map[string]string{"enabled": "1"}, ""},
		"empty parts":                  {"agent", ",1, ,type=isa,", map[string]string{"enabled": "1", "type": "isa"}, ""},
		"an = in a value":              {"smbios1", "base64=1,serial=YQ==", map[string]string{"base64": "1", "serial": "YQ=="}, ""},
		"a format by name":             {"ipconfig0", "ip=dhcp,ip6=fd00::2/64,gw6=fd00::1", map[string]string{"ip": "dhcp", "ip6": "fd00::2/64", "gw6": "fd00::1"}, ""},
		"the old name of a drive":      {"cdrom", "none,media=cdrom", map[string]string{"file": "none", "media": "cdrom"}, ""},
		"the same key twice":           {"net0", "virtio,tag=1,tag=2", nil, "duplicate key in comma-separated list property: tag\n"},
		"two values without key":       {"net0", "virtio,e1000", nil, "duplicate key in comma-separated list property: model\n"},
		"key and value without key":    {"net0", "model=virtio,e1000", nil, "duplicate key in comma-separated list property: model\n"},
		"two models as keys":           {"net0", "virtio=BC:24:11:00:00:01,e1000=BC:24:11:00:00:01", nil, "key alias 'model' is already defined\n"},
		"no key, no default":           {"ipconfig0", "dhcp", nil, "value without key, but schema does not define a default key\n"},
		"a key without value":          {"net0", "virtio,tag=", nil, "missing key in comma-separated list property\n"},
		"a value without a name":       {"net0", "=virtio", nil, "missing key in comma-separated list property\n"},
		"several problems":             {"net0", "bogus,tag=x", nil, "format error\nmodel: value 'bogus' does not have a value in the enumeration 'e1000, e1000-82540em, e1000-82544gc, e1000-82545em, e1000e, i82551, i82557b, i82559er, ne2k_isa, ne2k_pci, pcnet, rtl8139, virtio, vmxnet3'\ntag: type check ('integer') failed - got 'x'\n"},
		"empty":                        {"memory", "", nil, "format error\ncurrent: property is missing and it is not optional\n"},
		"empty, nothing needed":        {"ipconfig0", "", map[string]string{}, ""},
		"a check of the whole":         {"cpu", "host,flags=+nosuch", nil, "VM-specific CPU flags must be a subset of: nested-virt, md-clear, pcid, spec-ctrl, ssbd, ibpb, virt-ssbd, amd-ssbd, amd-no-ssb, pdpe1gb, hv-tlbflush, hv-evmcs, aes\n"},
		"a model for experts":          {"cpu", "host,reported-model=host", nil, "Property 'reported-model' not allowed in VM-specific CPU config.\n"},
		"a model nobody knows here":    {"cpu", "custom-mine,hidden=1", map[string]string{"cputype": "custom-mine", "hidden": "1"}, ""},
		"not a property string at all": {"name", "a=b", nil, "not described as a property string"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := param(t, test.param).ParseProperty(test.text)
			if test.problem != "" {
				require.EqualError(t, err, test.problem)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

// Members that are fine come back as they were given, in whatever order.
func TestParsePropertyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choice := func(options ...string) *rapid.Generator[string] { return rapid.SampledFrom(options) }
		possible := map[string]*rapid.Generator[string]{
			"model":    choice("virtio", "e1000", "vmxnet3"),
			"bridge":   rapid.StringMatching(`vmbr[0-9]{1,3}`),
			"macaddr":  rapid.StringMatching(`[0-9A-F][02468ACE](:[0-9A-F]{2}){5}`),
			"tag":      choice("1", "42", "4094"),
			"firewall": choice("0", "1"),
			"rate":     choice("0.5", "10", "1e3"),
			"trunks":   rapid.StringMatching(`[1-9]([;][1-9]){0,3}`),
			"queues":   choice("0", "64"),
		}
		want := map[string]string{}
		var parts []string
		for _, name := range []string{"model", "bridge", "macaddr", "tag", "firewall", "rate", "trunks", "queues"} {
			if name != "model" && rapid.Bool().Draw(t, "leave out "+name) {
				continue
			}
			want[name] = possible[name].Draw(t, name)
			parts = append(parts, name+"="+want[name])
		}
		parts = rapid.Permutation(parts).Draw(t, "order")
		if rapid.Bool().Draw(t, "model without key") {
			i := slices.Index(parts, "model="+want["model"])
			parts[i] = want["model"]
		}
		got, err := param(t, "net0").ParseProperty(strings.Join(parts, ","))
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

// FuzzParseProperty: no text makes it panic, and what it takes it takes again
// once written out by name.
func FuzzParseProperty(f *testing.F) {
	names := []string{"net0", "scsi0", "agent", "cpu", "boot", "ipconfig0", "smbios1", "hostpci0", "numa0", "cdrom", "rng0", "memory"}
	for i, seed := range []string{
		"virtio=BC:24:11:00:00:01,bridge=vmbr0", "local:1,discard=on", "1,type=isa", "host,flags=+aes;-pcid", "order=scsi0;net0",
		"ip=10.0.0.1/24", "uuid=00000000-0000-0000-0000-000000000000", "0000:01:00.0;0000:02:00", "cpus=0-1;3", ",,=,", "a\n=b", "512",
	} {
		f.Add(uint8(i), seed)
	}
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		v := param(t, names[int(which)%len(names)])
		parsed, err := v.ParseProperty(text)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		var parts []string
		for name, value := range parsed {
			if value == "" || strings.ContainsAny(value, "\n") {
				return // Cannot be written with its name.
			}
			parts = append(parts, name+"="+value)
		}
		again, err := v.ParseProperty(strings.Join(parts, ","))
		require.NoError(t, err, "%q from %q", parts, text)
		require.Equal(t, parsed, again)
	})
}
