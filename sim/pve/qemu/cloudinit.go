package qemu

import (
	"cmp"
	"crypto/sha1" //nolint:gosec // As PVE makes its instance ids.
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// checkSSHKeys verifies public keys as ssh-keygen would: PVE runs that on each
// line. The value is percent-encoded.
func checkSSHKeys(value string) error {
	plain, err := url.PathUnescape(value)
	if err != nil {
		return perl.Fail("SSH public key validation error")
	}
	for line := range strings.SplitSeq(plain, "\n") {
		if strings.TrimSpace(line) != "" && !guests.IsPublicKey(line) {
			return perl.Fail("SSH public key validation error")
		}
	}
	return nil
}

// apiGetCloudinit is GET …/cloudinit: the keys of cloud-init, each with what the
// drive still says where that differs.
func apiGetCloudinit(_ *core.World, _ *core.Call, g *core.Guest) (any, error) {
	list := []map[string]any{}
	added := map[string]bool{}
	for _, key := range perl.SplitList(g.Cloud["added"]) {
		added[key] = true
		list = append(list, map[string]any{"key": key, "pending": core.Masked(key, perl.Typed("qemu", key, g.Conf[key]))})
	}
	for _, key := range slices.Sorted(maps.Keys(cloudKeys)) {
		value := g.Conf[key]
		if value == "" || value == "0" || added[key] {
			continue
		}
		item := map[string]any{"key": key, "value": core.Masked(key, perl.Typed("qemu", key, value))}
		if old := g.Cloud[key]; old != "" && old != "0" {
			item["value"], item["pending"] = core.Masked(key, perl.Typed("qemu", key, old)), item["value"]
		}
		list = append(list, item)
	}
	for _, key := range slices.Sorted(maps.Keys(g.Cloud)) {
		if key != "added" && g.Conf[key] == "" {
			list = append(list, map[string]any{"key": key, "delete": 1})
		}
	}
	return list, nil
}

// apiRegenerate is PUT …/cloudinit: the drive is written again.
func apiRegenerate(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	if err := cmp.Or(c.LockFile(g), g.CheckLock()); err != nil {
		return nil, err
	}
	return nil, updateCloudDrive(w, g, func(string, ...any) {})
}

// updateCloudDrive writes the drive of cloud-init, if there is one
// (vmconfig_update_cloudinit_drive in PVE/QemuServer.pm).
func updateCloudDrive(w *core.World, g *core.Guest, log func(string, ...any)) error {
	if !slices.ContainsFunc(g.Conf.DriveNames(), func(key string) bool { return perl.ParseDrive(key, g.Conf[key]).Cloudinit() }) {
		return nil
	}
	return writeCloudDrive(w, g, g.Conf, log)
}

// writeCloudDrive writes the drives of cloud-init from a configuration, after which they
// differ from it in nothing (apply_cloudinit_config in PVE/QemuServer/Cloudinit.pm).
func writeCloudDrive(w *core.World, g *core.Guest, conf perl.Config, log func(string, ...any)) error {
	own := fmt.Sprintf("vm-%d-cloudinit", g.Vmid)
	for _, key := range conf.DriveNames() {
		_, name, managed := core.VolumeID(perl.ParseDrive(key, conf[key]).File)
		if !managed || !strings.Contains(name, own) {
			continue
		}
		for _, document := range []string{"network", "user", "meta", "vendor"} {
			volid := perl.ParseProperty("cicustom", conf["cicustom"])[document]
			if err := snippet(w, g.Node, volid); volid != "" && err != nil {
				return err
			}
		}
		log("generating cloud-init ISO")
	}
	if len(g.Cloud) > 0 {
		clear(g.Cloud)
		w.Write(g)
	}
	return nil
}

// snippet fails unless a volume is a document for cloud-init that is there
// (read_cloudinit_snippets_file).
func snippet(w *core.World, node, volid string) error {
	switch n, err := core.Locate(w, volid); {
	case err != nil:
		return err
	case n.Parsed.Content != "snippets":
		return perl.Fail("%s is not in the snippets directory", volid)
	case n.Find(node, n.Volume) == nil:
		return perl.Fail("volume '%s' does not exist", volid)
	}
	return nil
}

// What PVE writes for cloud-init (PVE/QemuServer/Cloudinit.pm).

// cloudDocs makes the documents of one VM.
type cloudDocs struct {
	conf    perl.Config
	vmid    int
	host    perl.Config // The name servers and the search domain of its node.
	masking bool        // The caller may not see the password.
}

// apiCloudinitDump is GET …/cloudinit/dump: one document of the drive.
func apiCloudinitDump(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	asked := core.VMPath(g.Vmid)
	if !w.V92() {
		asked = "/vms/{vmid}" // Older ones ask about this very path, so rights on single guests do not count.
	}
	_, seen := w.Access.Privileges(c.Who, asked)["VM.Config.Cloudinit"]
	docs := cloudDocs{conf: g.Conf, vmid: g.Vmid, host: w.Nodes[g.Node].DNS, masking: !seen}
	format := docs.format()
	network := docs.configDriveNetwork
	if format == "nocloud" {
		network = docs.network
	}
	switch c.In["type"] {
	case "network":
		return network(), nil
	case "meta":
		docs.masking = false
		sum := sha1.Sum([]byte(docs.user() + network())) //nolint:gosec // As PVE does.
		id := hex.EncodeToString(sum[:])
		if format == "nocloud" {
			return "instance-id: " + id + "\n", nil
		}
		return "{\n     \"uuid\": \"" + id + "\",\n     \"network_config\": { \"content_path\": \"/content/0000\" }\n}\n", nil
	default:
		return docs.user(), nil
	}
}

// format is that of the drive: Windows knows only one (get_cloudinit_format).
func (d cloudDocs) format() string {
	switch {
	case d.conf["citype"] != "":
		return d.conf["citype"]
	case isWindows(d.conf["ostype"]):
		return "configdrive2"
	default:
		return "nocloud"
	}
}

// isWindows says whether an operating system is one (windows_version in
// PVE/QemuServer/Helpers.pm).
func isWindows(ostype string) bool {
	return slices.Contains([]string{"wxp", "w2k", "w2k3", "w2k8", "wvista", "win7", "win8", "win10", "win11"}, ostype)
}

// names are the name of the guest and with its domain (get_hostname_fqdn).
func (d cloudDocs) names() (host, full string) {
	host, named := d.conf["name"]
	if !named {
		host = fmt.Sprintf("VM%d", d.vmid)
	}
	if short, _, dotted := strings.Cut(host, "."); dotted {
		return short, host
	}
	if domain := d.conf["searchdomain"]; domain != "" && domain != "0" {
		return host, host + "." + domain
	}
	return host, host
}

// resolver are the search domains and the name servers: of the guest, else of its node
// (get_dns_conf).
func (d cloudDocs) resolver() (domains, servers []string) {
	search, set := d.conf["searchdomain"]
	if !set {
		search = d.host["search"]
	}
	given, set := d.conf["nameserver"]
	if set {
		return strings.Fields(search), strings.Fields(given)
	}
	for _, key := range []string{"dns1", "dns2", "dns3"} {
		if server := d.host[key]; server != "" {
			servers = append(servers, server)
		}
	}
	return strings.Fields(search), servers
}

// user is the user-data document (cloudinit_userdata).
func (d cloudDocs) user() string {
	host, full := d.names()
	var b strings.Builder
	fmt.Fprintf(&b, "#cloud-config\nhostname: %s\nmanage_etc_hosts: true\nfqdn: %s\n", host, full)
	user, named := d.conf["ciuser"]
	if named {
		fmt.Fprintf(&b, "user: %s\n", user)
	}
	if user == "root" {
		b.WriteString("disable_root: False\n")
	}
	if password, set := d.conf["cipassword"]; set {
		if d.masking {
			password = "**********"
		}
		fmt.Fprintf(&b, "password: %s\n", password)
	}
	if encoded, set := d.conf["sshkeys"]; set {
		b.WriteString("ssh_authorized_keys:\n")
		if keys, err := url.PathUnescape(encoded); err == nil {
			for key := range strings.SplitSeq(keys, "\n") {
				if strings.TrimSpace(key) != "" {
					fmt.Fprintf(&b, "  - %s\n", key)
				}
			}
		}
	}
	b.WriteString("chpasswd:\n  expire: False\n")
	if user != "root" {
		b.WriteString("users:\n  - default\n")
	}
	if d.conf["ciupgrade"] != "0" {
		b.WriteString("package_upgrade: true\n")
	}
	return b.String()
}

// eachNet calls write for the network devices that have an address, in the order of the
// alphabet, with the number of the device.
func (d cloudDocs) eachNet(write func(number, mac string, ip map[string]string)) {
	keys := d.conf.IndexedKeys("net")
	slices.Sort(keys)
	for _, key := range keys {
		number := strings.TrimPrefix(key, "net")
		if ip := d.conf["ipconfig"+number]; ip != "" {
			write(number, perl.ParseProperty(key, d.conf[key])["macaddr"], perl.ParseProperty("ipconfig0", ip))
		}
	}
}

// network is the network document, version 1 (nocloud_network).
func (d cloudDocs) network() string {
	var b strings.Builder
	b.WriteString("version: 1\nconfig:\n")
	d.eachNet(func(number, mac string, ip map[string]string) {
		fmt.Fprintf(&b, "    - type: physical\n      name: eth%s\n      mac_address: '%s'\n      subnets:\n", number, strings.ToLower(mac))
		writeSubnets(&b, ip)
	})
	domains, servers := d.resolver()
	b.WriteString("    - type: nameserver\n")
	writeList(&b, "address", servers)
	writeList(&b, "search", domains)
	return b.String()
}

func writeList(b *strings.Builder, name string, words []string) {
	if len(words) == 0 {
		return
	}
	fmt.Fprintf(b, "      %s:\n", name)
	for _, word := range words {
		fmt.Fprintf(b, "      - '%s'\n", word)
	}
}

// splitIP4 takes a CIDR apart into address and netmask (split_ip4).
func splitIP4(cidr string) (address, mask string) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil || !prefix.Addr().Is4() {
		return cidr, ""
	}
	bits := ^uint32(0) << (32 - prefix.Bits())
	return prefix.Addr().String(), fmt.Sprintf("%d.%d.%d.%d", bits>>24, bits>>16&255, bits>>8&255, bits&255)
}

func writeSubnets(b *strings.Builder, ip map[string]string) {
	switch ip["ip"] {
	case "":
	case "dhcp":
		b.WriteString("      - type: dhcp4\n")
	default:
		address, mask := splitIP4(ip["ip"])
		fmt.Fprintf(b, "      - type: static\n        address: '%s'\n        netmask: '%s'\n", address, mask)
		if gateway := ip["gw"]; gateway != "" {
			fmt.Fprintf(b, "        gateway: '%s'\n", gateway)
		}
	}
	switch address := ip["ip6"]; address {
	case "":
	case "dhcp":
		b.WriteString("      - type: dhcp6\n")
	case "auto":
		b.WriteString("      - type: ipv6_slaac\n")
	default:
		fmt.Fprintf(b, "      - type: static6\n        address: '%s'\n", address)
		if gateway := ip["gw6"]; gateway != "" {
			fmt.Fprintf(b, "        gateway: '%s'\n", gateway)
		}
	}
}

// configDriveNetwork is the network document of the other formats, that of ifupdown
// (configdrive2_network).
func (d cloudDocs) configDriveNetwork() string {
	var b strings.Builder
	b.WriteString("auto lo\niface lo inet loopback\n\n")
	domains, servers := d.resolver()
	if len(servers) > 0 {
		b.WriteString("        dns_nameservers " + strings.Join(servers, " ") + "\n")
	}
	if len(domains) > 0 {
		b.WriteString("        dns_search " + strings.Join(domains, " ") + "\n")
	}
	static := func(device, family, address, mask, gateway string) {
		fmt.Fprintf(&b, "iface %s %s static\n        address %s\n        netmask %s\n", device, family, address, mask)
		if gateway != "" {
			b.WriteString("        gateway " + gateway + "\n")
		}
	}
	d.eachNet(func(number, _ string, ip map[string]string) {
		device := "eth" + number
		b.WriteString("auto " + device + "\n")
		switch ip["ip"] {
		case "":
		case "dhcp":
			b.WriteString("iface " + device + " inet dhcp\n")
		default:
			address, mask := splitIP4(ip["ip"])
			static(device, "inet", address, mask, ip["gw"])
		}
		switch ip["ip6"] {
		case "":
		case "auto", "dhcp":
			b.WriteString("iface " + device + " inet6 " + ip["ip6"] + "\n")
		default:
			address, mask, _ := strings.Cut(ip["ip6"], "/")
			static(device, "inet6", address, mask, ip["gw6"])
		}
	})
	return b.String()
}
