package pvesim

import (
	"crypto/sha1" //nolint:gosec // As PVE makes its instance ids.
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// checkSSHKeys verifies public keys as ssh-keygen would: PVE runs that on each
// line. The value is percent-encoded.
func checkSSHKeys(value string) error {
	plain, err := url.PathUnescape(value)
	if err != nil {
		return fail("SSH public key validation error")
	}
	for line := range strings.SplitSeq(plain, "\n") {
		if strings.TrimSpace(line) != "" && !isPublicKey(line) {
			return fail("SSH public key validation error")
		}
	}
	return nil
}

// isPublicKey says whether a line of authorized_keys holds a key: its type and
// a base64 blob that begins with the same type (RFC 4253, section 6.6).
func isPublicKey(line string) bool {
	fields := strings.Fields(line)
	for i := 0; i+1 < len(fields); i++ {
		blob, err := base64.StdEncoding.DecodeString(fields[i+1])
		if err != nil || len(blob) < 4 {
			continue
		}
		n := int(binary.BigEndian.Uint32(blob))
		if n > 0 && n <= len(blob)-4 && string(blob[4:4+n]) == fields[i] && len(blob) > 4+n {
			return true
		}
	}
	return false
}

// apiGetCloudinit is GET …/cloudinit: the keys of cloud-init, each with what the
// drive still says where that differs.
func apiGetCloudinit(_ *world, c *call) (any, error) {
	g, err := c.vm()
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	added := map[string]bool{}
	for _, key := range splitList(g.cloud["added"]) {
		added[key] = true
		list = append(list, map[string]any{"key": key, "pending": masked(key, typed("qemu", key, g.conf[key]))})
	}
	for _, key := range slices.Sorted(maps.Keys(cloudKeys)) {
		value := g.conf[key]
		if value == "" || value == "0" || added[key] {
			continue
		}
		item := map[string]any{"key": key, "value": masked(key, typed("qemu", key, value))}
		if old := g.cloud[key]; old != "" && old != "0" {
			item["value"], item["pending"] = masked(key, typed("qemu", key, old)), item["value"]
		}
		list = append(list, item)
	}
	for _, key := range slices.Sorted(maps.Keys(g.cloud)) {
		if key != "added" && g.conf[key] == "" {
			list = append(list, map[string]any{"key": key, "delete": 1})
		}
	}
	return list, nil
}

// apiRegenerate is PUT …/cloudinit: the drive is written anew.
func apiRegenerate(w *world, c *call) (any, error) {
	g, err := c.vm()
	if err != nil {
		return nil, err
	}
	if err := c.lockFile(g); err != nil {
		return nil, err
	}
	if err := g.checkLock(); err != nil {
		return nil, err
	}
	clear(g.cloud)
	w.write(g)
	return nil, nil
}

// apiCloudinitDump is GET …/cloudinit/dump: one document of the drive.
func apiCloudinitDump(_ *world, c *call) (any, error) {
	g, err := c.vm()
	if err != nil {
		return nil, err
	}
	conf := g.conf
	switch c.in["type"] {
	case "network":
		return cloudNetwork(conf), nil
	case "meta":
		sum := sha1.Sum([]byte(cloudUser(conf, g.vmid) + cloudNetwork(conf))) //nolint:gosec // As PVE does.
		return "instance-id: " + hex.EncodeToString(sum[:]) + "\n", nil
	default:
		return cloudUser(conf, g.vmid), nil
	}
}

// cloudUser is the user-data document (cloudinit_userdata in
// PVE/QemuServer/Cloudinit.pm).
func cloudUser(conf config, vmid int) string {
	host := conf["name"]
	if host == "" {
		host = fmt.Sprintf("VM%d", vmid)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "#cloud-config\nhostname: %s\nmanage_etc_hosts: true\n", host)
	if domain := strings.TrimSpace(conf["searchdomain"]); domain != "" {
		fmt.Fprintf(&b, "fqdn: %s.%s\n", host, domain)
	}
	if user := strings.TrimSpace(conf["ciuser"]); user != "" {
		fmt.Fprintf(&b, "user: %s\n", user)
	}
	if password := conf["cipassword"]; password != "" {
		fmt.Fprintf(&b, "password: %s\n", password)
	}
	if keys, err := url.PathUnescape(conf["sshkeys"]); err == nil && strings.TrimSpace(keys) != "" {
		b.WriteString("ssh_authorized_keys:\n")
		for key := range strings.SplitSeq(strings.TrimSpace(keys), "\n") {
			fmt.Fprintf(&b, "  - %s\n", key)
		}
	}
	b.WriteString("chpasswd:\n  expire: False\n")
	if user := strings.TrimSpace(conf["ciuser"]); user != "root" {
		b.WriteString("users:\n  - default\n")
	}
	if conf["ciupgrade"] != "0" {
		b.WriteString("package_upgrade: true\n")
	}
	return b.String()
}

// cloudNetwork is the network document, version 1 (nocloud_network).
func cloudNetwork(conf config) string {
	var b strings.Builder
	b.WriteString("version: 1\nconfig:\n")
	for _, key := range indexedKeys(conf, "net") {
		_, n := splitKey(key)
		ip, ok := conf["ipconfig"+strconv.Itoa(n)]
		if !ok {
			continue
		}
		mac := strings.ToLower(parseProperty(key, conf[key])["macaddr"])
		fmt.Fprintf(&b, "    - type: physical\n      name: eth%d\n      mac_address: '%s'\n      subnets:\n", n, mac)
		writeSubnets(&b, parseProperty("ipconfig0", ip))
	}
	servers, domains := splitList(conf["nameserver"]), splitList(conf["searchdomain"])
	if len(servers)+len(domains) > 0 {
		b.WriteString("    - type: nameserver\n")
		if len(servers) > 0 {
			b.WriteString("      address:\n")
			for _, s := range servers {
				fmt.Fprintf(&b, "      - '%s'\n", s)
			}
		}
		if len(domains) > 0 {
			b.WriteString("      search:\n")
			for _, d := range domains {
				fmt.Fprintf(&b, "      - '%s'\n", d)
			}
		}
	}
	return b.String()
}

func writeSubnets(b *strings.Builder, ip map[string]string) {
	switch address := ip["ip"]; address {
	case "":
	case "dhcp":
		b.WriteString("      - type: dhcp4\n")
	default:
		prefix, err := netip.ParsePrefix(address)
		if err != nil || !prefix.Addr().Is4() {
			break
		}
		mask := ^uint32(0) << (32 - prefix.Bits())
		fmt.Fprintf(b, "      - type: static\n        address: '%s'\n        netmask: '%d.%d.%d.%d'\n",
			prefix.Addr(), mask>>24, mask>>16&255, mask>>8&255, mask&255)
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
