package pveapi_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// TestFormats: for each format words it takes, and words it refuses with PVE's
// text, in which %s is the word.
func TestFormats(t *testing.T) {
	tests := map[string]struct {
		good, bad []string
		text      string // Empty where the text differs by word.
	}{
		"pve-vmid":                       {[]string{"100", "999999999"}, []string{"", "1", "99", "0100", "1000000000", "10a", "-100"}, "value does not look like a valid VM ID\n"},
		"pve-node":                       {[]string{"pve1", "a", "A-1"}, []string{"", "-a", "a-", "a.b", "a_b"}, "value does not look like a valid node name\n"},
		"dns-name":                       {[]string{"a", "a.b-c.d", "1"}, []string{"", "a_b", "-a", "a-", "a..b", "a.", ".a"}, "value does not look like a valid DNS name\n"},
		"dns-name-list":                  {[]string{"", "a b.c", "a,b;c", "a\x00b"}, []string{"a b_c", "a;-"}, "value does not look like a valid DNS name\n"},
		"pve-storage-id":                 {[]string{"local", "l1", "A.b-c_d"}, []string{"1l", "l-", "a b"}, "storage ID '%s' contains illegal characters\n"},
		"pve-bridge-id":                  {[]string{"vmbr0", "a.b-c_d"}, []string{"", "a b", "a:1"}, "invalid bridge ID '%s'\n"},
		"pve-configid":                   {[]string{"ab", "A_b-1"}, []string{"", "a", "1a", "a.b"}, "invalid configuration ID '%s'\n"},
		"pve-poolid":                     {[]string{"a", "a/b/c", "a.b_c-d"}, []string{"", "a//b", "/a", "a/", "a b"}, "pool name '%s' contains invalid characters\n"},
		"pve-groupid":                    {[]string{"a.b"}, []string{"", "a/b"}, "group name '%s' contains invalid characters\n"},
		"pve-roleid":                     {[]string{"a.b"}, []string{"", "a b"}, "role name '%s' contains invalid characters\n"},
		"pve-realm":                      {[]string{"pam", "a.b"}, []string{"", "a", "1a"}, "value does not look like a valid realm\n"},
		"pve-userid":                     {[]string{"root@pam", "a@bc", "a@b@cd"}, []string{"", "ab", "a:b@pam", "a b@pam", "nobody", strings.Repeat("a", 64) + "@pam"}, ""},
		"pve-tokenid":                    {[]string{"root@pam!lab"}, []string{"root!lab", "root@pam", "root@pam!1"}, "value '%s' does not look like a valid token ID\n"},
		"pve-iface":                      {[]string{"eth0", "vmbr0.5", "eth0:1"}, []string{"", "e", "0eth", "eth0.x"}, "invalid network interface name '%s'\n"},
		"pve-tag":                        {[]string{"a", "A_1", "a-b+c.d", "1"}, []string{"", "-a", "a b", "ä", "a/b"}, "invalid characters in tag\n"},
		"pve-tag-list":                   {[]string{"", "a;b c,d"}, []string{"a;-b"}, "invalid characters in tag\n"},
		"urlencoded":                     {[]string{"", "a%20b", "-_.!~*'()"}, []string{"a b", "a+b", "ü"}, "invalid urlencoded string: %s\n"},
		"mac-addr":                       {[]string{"bc:24:11:00:00:01", "02:AA:00:00:00:0f"}, []string{"", "01:00:00:00:00:00", "bc:24:11:00:00", "bc-24-11-00-00-01"}, "value does not look like a valid unicast MAC address\n"},
		"mac-prefix":                     {[]string{"bc", "bc:24:11", "bc:24:11:"}, []string{"", "bd", "bc:24:11:00"}, "value is not a valid unicast MAC address prefix\n"},
		"ipv4":                           {[]string{"10.0.0.1", "255.255.255.255"}, []string{"", "10.0.0", "10.0.0.256", "010.0.0.1", "::1"}, "value does not look like a valid IPv4 address\n"},
		"ipv6":                           {[]string{"::", "fd00::1", "::ffff:10.0.0.1"}, []string{"", "10.0.0.1", "fe80::1%eth0", "1::2::3"}, "value does not look like a valid IPv6 address\n"},
		"ip":                             {[]string{"10.0.0.1", "::1"}, []string{"", "host"}, "value does not look like a valid IP address\n"},
		"ipv4mask":                       {[]string{"0.0.0.0", "255.255.254.0", "255.255.255.255"}, []string{"", "255.0.255.0", "24", "::"}, "value does not look like a valid IP netmask\n"},
		"CIDRv4":                         {[]string{"10.0.0.1/8", "10.0.0.1/32"}, []string{"", "10.0.0.1", "10.0.0.1/7", "10.0.0.1/33", "10.0.0.1/-8", "::/64"}, "value does not look like a valid IPv4 CIDR network\n"},
		"CIDRv6":                         {[]string{"fd00::/8", "::1/128"}, []string{"", "fd00::", "fd00::/7", "fd00::/129"}, "value does not look like a valid IPv6 CIDR network\n"},
		"CIDR":                           {[]string{"10.0.0.0/24", "fd00::/64"}, []string{"", "10.0.0.0/255.0.0.0"}, "value does not look like a valid CIDR network\n"},
		"IPorCIDR":                       {[]string{"10.0.0.1", "10.0.0.0/1", "::/0"}, []string{"", "a", "300.0.0.1"}, "value does not look like a valid IP address or CIDR network\n"},
		"IPorCIDRorAlias":                {[]string{"10.0.0.1", "lan"}, []string{"", "1a"}, "value does not look like a valid IP address or CIDR network\n"},
		"pve-ipv4-config":                {[]string{"dhcp", "manual", "10.0.0.2/24"}, []string{"", "auto", "10.0.0.2"}, "value does not look like a valid ipv4 network configuration\n"},
		"pve-ipv6-config":                {[]string{"dhcp", "manual", "auto", "fd00::2/64"}, []string{"", "slaac", "fd00::2"}, "value does not look like a valid ipv6 network configuration\n"},
		"address":                        {[]string{"10.0.0.1", "::1", "ns.example"}, []string{"", "a_b"}, "value does not look like a valid address: %s\n"},
		"address-list":                   {[]string{"", "10.0.0.1, ns.example"}, nil, ""},
		"lxc-ip-with-ll-iface":           {[]string{"fe80::1%eth0", "10.0.0.1"}, []string{"", "fd00::1%eth0", "fe80::1%"}, "value does not look like a valid IP address\n"},
		"pve-storage-server":             {[]string{"nas", "10.0.0.1"}, []string{"", "a_b"}, "value does not look like a valid server name or IP address\n"},
		"pve-storage-portal-dns":         {[]string{"nas:3260", "10.0.0.1", "[::1]:3260", "[nas]", "::1", "::1.3260"}, []string{"", "a_b", "[::1", "nas:x", "[::1]3260"}, "value does not look like a valid portal address\n"},
		"pve-vlan-id-or-range":           {[]string{"2", "4094", "2-4"}, []string{"", "1", "4095", "4-2", "2-2", "2-9999", "a", "99999999999999999999"}, ""},
		"email-opt":                      {[]string{"", "0", "a.b+c@example.org"}, []string{"a", "a@", "@b"}, "value does not look like a valid email address\n"},
		"email-or-username-list":         {[]string{"root, a@example.org"}, []string{"a@", "a b@c d!"}, "value does not look like a valid email address or user name\n"},
		"disk-size":                      {[]string{"1", "1.5G", "10T", "0K"}, []string{"", "1P", "G", "1 G", "-1"}, "value does not look like a valid disk size: %s\n"},
		"pve-volume-id":                  {[]string{"local:iso/a.iso", "l1:x"}, []string{"", "local", "local:", "1:a", "/dev/sda"}, "unable to parse volume ID '%s'\n"},
		"pve-volume-id-or-qm-path":       {[]string{"none", "cdrom", "/dev/sda", "local:5"}, []string{"", "nothing"}, "unable to parse volume ID '%s'\n"},
		"pve-volume-id-or-absolute-path": {[]string{"/x", "local:5"}, []string{"none", ""}, "unable to parse volume ID '%s'\n"},
		"pve-startup-order":              {[]string{"1", "order=1,up=2,down=3", "1,,"}, []string{"", "0", "-1", "order=", "up=x", "later=1"}, "unable to parse startup options\n"},
		"pve-hotplug-features":           {[]string{"0", "1", "", "network,disk;usb cpu memory cloudinit"}, []string{"sound"}, "invalid hotplug feature '%s'\n"},
		"pve-cpuset":                     {[]string{"", "0", "0-3,5, 7", "1,"}, []string{"a", "3-1", "1,,2", "-1", "99999999999999999999-1"}, "unable to parse cpuset option\n"},
		"pve-phys-bits":                  {[]string{"host", "8", "64"}, []string{"", "7", "65", "x"}, "value must be an integer between 8 and 64 or 'host'\n"},
		"pve-storage-zfs-blocksize":      {[]string{"", "512", "8k", "16M"}, []string{"256", "32m", "12k"}, "value '%s' is not a valid ZFS blocksize. Must be a power of 2 between 512B and 16MiB (e.g., 4k, 8k, 16k, 64k, 1m).\n"},
		"pve-qm-bootdev-list":            {[]string{"", "scsi0;net0 usb13;hostpci15"}, []string{"efidisk0", "unused0", "scsi31", "net", "numa0"}, "invalid boot device '%s'\n"},
		"pve-qm-bootdisk":                {[]string{"scsi0", "efidisk0", "tpmstate0"}, []string{"", "net0", "scsi31", "efidisk1"}, "invalid boot disk '%s'\n"},
		"pve-lxc-mp-string":              {[]string{"/srv", "srv/..a", ""}, []string{"/../a", "/a/.", "/a/..", "../a", "a/./b"}, "%s contains illegal character sequences\n"},
		"pve-lxc-dev-string":             {[]string{"/dev/net/tun"}, []string{"", "dev/tun", "/dev/../mem", "/etc/passwd"}, "%s is not a valid device path\n"},
		"pve-ct-timezone":                {[]string{"host", "UTC", "Europe/Vienna", "America/Argentina/Salta"}, []string{"", "Nowhere", "Nowhere/City", "Europe", "Europe/", "US/Eastern", "Etc/UTC"}, "invalid time zone '%s'\n"},
		"pve-ha-resource-id":             {[]string{"vm:100"}, []string{"", "100", "vm:"}, "value does not look like a valid ha resource id\n"},
		"pve-ha-resource-or-vm-id":       {[]string{"vm:100", "100"}, []string{"", "vm"}, "value does not look like a valid ha resource id\n"},
		"pve-ha-node-list":               {[]string{"a, b:2"}, []string{"a:", "b:x"}, "value does not look like a valid ha group node\n"},
		"pve-task-status-type-list":      {[]string{"ok,Error"}, []string{"fine"}, "invalid status '%s'\n"},
		"pve-day-of-week-list":           {[]string{"mon,sun"}, []string{"monday"}, "invalid day '%s'\n"},
		"pve-replication-job-id":         {[]string{"100-0"}, []string{"99-0", "100", "100-"}, "invalid replication job id '%s'\n"},
		"pve-storage-content-list":       {[]string{"", "images,iso,import,none"}, []string{"bogus"}, "invalid content type '%s'\n"},
		"pve-storage-path":               {[]string{"/mnt/x"}, []string{"", "mnt", "/", "/;"}, "value does not look like a valid absolute path\n"},
		"pve-storage-vgname":             {[]string{"pve", "1a"}, []string{"", "a", "-a"}, "lvm name '%s' contains illegal characters\n"},
		"pve-storage-options":            {[]string{"vers=4.2,soft"}, []string{"", "a b"}, "invalid options '%s'\n"},
		"pve-dir-override-list":          {[]string{"", "iso=a/b.c,backup=x"}, []string{"iso", "bogus=x", "iso=a/../b", "iso=" + strings.Repeat("a", 255), "iso=" + strings.Repeat("a/", 600)}, ""},
		"storage-pair-list":              {[]string{"1", "a1:b2", "a1:b2,c3"}, []string{"a", "a1:b", "a1:b2:c3"}, ""},
		"bridge-pair-list":               {[]string{"1", "vmbr0:vmbr1"}, []string{"a/b"}, ""},
		"ldap-simple-attr":               {[]string{"cn"}, []string{"", "c-n"}, "value '%s' does not look like a simple ldap attribute name\n"},
		"pve-acme-domain":                {[]string{"a.example"}, []string{"", "a"}, "value '%s' does not look like a valid domain name!\n"},
		"pve-acme-alias":                 {[]string{"_a.example"}, []string{"", "a"}, "value '%s' does not look like a valid alias name!\n"},
		"pve-fw-addr-spec":               {[]string{"", "+set", "+dc/set", "lan", "guest/lan", "10.0.0.1,10.1.0.0/16", "10.0.0.1-10.0.0.9", "::1"}, []string{"10.0.0.1,", "10.0.0.1,::1", "10.0.0.1-10.0.0.9,10.0.1.1", "10.0.0", "10.0.0.1-x"}, ""},
		"pve-fw-dport-spec":              {[]string{"", "80", "80,443", "80:90", "https", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"}, []string{"65536", "1:65536", "90:80", "-1", "a:b", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"}, ""},
		"pve-fw-protocol-spec":           {[]string{"", "tcp", "6"}, []string{"t p"}, "unknown protocol '%s'\n"},
		"pve-fw-icmp-type-spec":          {[]string{"", "echo-request", "3/1"}, []string{"echo request"}, "invalid icmp-type value '%s'\n"},
		"pve-fw-conntrack-helper":        {[]string{"ftp"}, []string{"", "http"}, "unknown helper '%s'\n"},
		"string-list":                    {[]string{"", "anything, at all"}, nil, ""},
		"pve-priv-list":                  {[]string{"VM.Audit,Sys.Modify"}, []string{"VM.Nothing"}, "invalid privilege '%s'\n"},
		"prune-backups":                  {[]string{"", "keep-all=1", "keep-last=3,keep-daily=0", "keep-all=0,keep-last=1"}, []string{"keep-all=1,keep-last=3"}, "keep-all cannot be set together with other options.\n"},
		"backup-fleecing":                {[]string{"1,storage=local", "enabled=0"}, []string{"1,storage=1"}, "format error\nx.storage: invalid format - storage ID '1' cannot be shorter than 2 characters\n\n"},
		"backup-performance":             {[]string{"max-workers=4"}, []string{"max-workers=0"}, "format error\nx.max-workers: value must have a minimum value of 1\n"},
		"proxmox-remote":                 {[]string{"host=pve,apitoken=PVEAPIToken"}, []string{"host=pve"}, "format error\nx.apitoken: property is missing and it is not optional\n"},
		"realm-sync-options":             {[]string{"scope=both,remove-vanished=acl;entry"}, []string{"scope=all"}, "format error\nx.scope: value 'all' does not have a value in the enumeration 'users, groups, both'\n"},
		"pve-tfa-config":                 {[]string{"type=oath,digits=6"}, []string{"digits=6"}, "format error\nx.type: property is missing and it is not optional\n"},
		"pve-qemu-sev-fmt":               {[]string{"snp,allow-smt=0"}, []string{"no-debug=1"}, "format error\nx.type: property is missing and it is not optional\n"},
		"pve-qemu-tdx-fmt":               {[]string{"tdx,attestation=1"}, []string{"tdx"}, "format error\nx.attestation: property is missing and it is not optional\n"},
		"pve-calendar-event": {[]string{
			"daily", "semi-annually", "mon", "Monday..fri 2:30", "sat..mon,wed 8..17,22:0/15", "*/15", "*:*:*", "2026-12-24", "12-24 18:00",
			"*-*-1..7 0:0", "24:00", " 02:00 ", "02:00 UTC", "weekly UTC",
		}, []string{"", "nonsense", "61", "*/61", "every day", "2026-13-01", "mon,1", "mon 25:61", "02:00 daily", "9..8:00", "2..99"}, ""},
	}
	for format, test := range tests {
		t.Run(format, func(t *testing.T) {
			m := &pveapi.Method{Params: map[string]*pveapi.Value{"x": {Type: "string", Format: format}}}
			for _, word := range test.good {
				require.Nil(t, m.Check(map[string]any{"x": word}), "%q", word)
			}
			for _, word := range test.bad {
				got := m.Check(map[string]any{"x": word})
				require.Contains(t, got, "x", "%q", word)
				require.Contains(t, got["x"], "invalid format - ", "%q", word)
				if text := test.text; text != "" {
					element := word
					if strings.HasSuffix(format, "-list") { // Only the last element is wrong.
						words := strings.FieldsFunc(word, func(r rune) bool { return strings.ContainsRune(",; ", r) })
						element = words[len(words)-1]
					}
					require.Equal(t, "invalid format - "+strings.ReplaceAll(text, "%s", element), got["x"], "%q", word)
				}
			}
		})
	}
}

// Texts that depend on what is wrong.
func TestFormatTexts(t *testing.T) {
	tests := []struct{ format, word, want string }{
		{"pve-userid", "ab", "user name 'ab' is too short\n"},
		{"pve-userid", strings.Repeat("a", 65), "user name '" + strings.Repeat("a", 65) + "' is too long (65 > 64)\n"},
		{"pve-userid", "nobody", "value 'nobody' does not look like a valid user name\n"},
		{"pve-vlan-id-or-range", "x", "invalid VLAN configuration 'x'\n"},
		{"pve-vlan-id-or-range", "2-5000", "invalid VLAN tag '5000'\n"},
		{"pve-vlan-id-or-range", "9-3", "VLAN range must go from lower to higher tag '9-3'\n"},
		{"pve-fw-dport-spec", "99999", "invalid port '99999'\n"},
		{"pve-fw-dport-spec", "90:80", "backwards range '90:80' not allowed, did you mean '80:90'?\n"},
		{"pve-fw-addr-spec", "10.0.0.1,::1", "detected mixed ipv4/ipv6 addresses in address list '10.0.0.1,::1'\n"},
		{"pve-fw-addr-spec", "10.0.0.1-10.0.0.2,10.0.0.4", "you can't use a range in a list\n"},
		{"storage-pair-list", "a", "entry 'a' contains invalid ID - storage ID 'a' cannot be shorter than 2 characters\n\n\n"},
		{"IPorCIDR", "10.0.0.0/33", "Prefix length 33 is longer than IP address (32)\n"},
		{"IPorCIDRorAlias", "fd00::/129", "Prefix length 129 is longer than IP address (128)\n"},
		{"pve-storage-id", "a", "storage ID 'a' cannot be shorter than 2 characters\n"},
		{"pve-poolid", "a/b/c/d", "pool name 'a/b/c/d' nested too deeply (max levels = 3)\n"},
		{"pve-poolid", "/a/b/c", "pool name '/a/b/c' nested too deeply (max levels = 3)\n"},
		{"pve-dir-override-list", "bogus=x", "invalid content type 'bogus'\n"},
		{"pve-calendar-event", " ", "invalid calendar event ' ' - unable to parse calendar event - event is empty\n\n"},
		{"pve-calendar-event", "foo 1:0", "invalid calendar event 'foo 1:0' - unable to parse calendar event at 'foo' - Context(\"weekday\")\n\n"},
		{"pve-calendar-event", " 61", "invalid calendar event ' 61' - unable to parse calendar event at '61' - Context(\"date or time specification\")\n\n"},
		{"pve-calendar-event", "mon 25:61", "invalid calendar event 'mon 25:61' - unable to parse calendar event at ':61' - Nom(Eof)\n\n"},
		{"pve-dir-override-list", "iso", "invalid override 'iso'\n"},
	}
	for _, test := range tests {
		m := &pveapi.Method{Params: map[string]*pveapi.Value{"x": {Type: "string", Format: test.format}}}
		require.Equal(t, map[string]string{"x": "invalid format - " + test.want}, m.Check(map[string]any{"x": test.word}))
	}
}

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
		"an unknown model":             {"cpu", "custom-mine,hidden=1", map[string]string{"cputype": "custom-mine", "hidden": "1"}, ""},
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
