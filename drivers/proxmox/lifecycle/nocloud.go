package lifecycle

// The seed of cloud-init's NoCloud data source: four small documents on an ISO image with the volume name cidata.
// The image may contain secrets, so it is built in memory.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// label is the name of the volume by which cloud-init knows a seed
// (cloudinit/sources/DataSourceNoCloud.py).
const label = "cidata"

// maxUserData bounds user-data, in bytes.
const maxUserData = 512 << 10

// headers are the first lines by which cloud-init tells what user-data is
// (cloudinit/handlers/__init__.py, INCLUSION_TYPES_MAP); a script names any interpreter.
var headers = []string{"#cloud-config", "#cloud-config-archive", "#cloud-config-jsonp", "#cloud-boothook", "#include", "#include-once", "#part-handler", "## template: jinja"}

// CheckUserData says what is wrong with user-data: text that cloud-init would pass over
// in silence, or too much of it. The error holds nothing of the text, which may
// have been made from secrets.
func CheckUserData(userData string) error {
	if len(userData) > maxUserData {
		return fmt.Errorf("it has %d bytes, more than the %d that fit: have the guest fetch the rest", len(userData), maxUserData)
	}
	first, _, _ := strings.Cut(userData, "\n")
	first = strings.TrimRight(first, " \t\r")
	if slices.Contains(headers, first) || strings.HasPrefix(first, "#!/") {
		return nil
	}
	if strings.HasPrefix(first, "Content-Type: multipart/") || strings.HasPrefix(first, "MIME-Version:") {
		return nil
	}
	return fmt.Errorf("its first line is nothing that cloud-init knows: begin with #cloud-config, or with #!/bin/sh for a script")
}

// Seed is the data of a machine for its first boot.
type Seed struct {
	// Instance is the instance-id: cloud-init does its work once for each. It is made from the
	// machine's identity alone, so that no later edit makes a machine provision itself again.
	Instance string
	Name     string // hostname, a DNS label
	Domain   string // may be empty
	UserData string
	User     string   // made unless UserData declares users of its own
	Keys     []string // of that user
	DNS      []string
	NICs     []NIC
}

// NIC is a network card, known to the guest by its address.
type NIC struct {
	Name    string
	MAC     string
	IP      string // address with prefix length, dhcp, or "" for none
	Gateway string

	IP6      string // address with prefix length, dhcp, auto for router advertisements, or "" for none
	Gateway6 string
	MTU      int // in bytes; 0 for what the card itself says
}

// Image is the whole seed as an ISO image; errors are of its size alone.
func (s Seed) Image() ([]byte, error) {
	return newImage(label, []imageFile{
		{"meta-data", document("", map[string]any{"instance-id": s.Instance, "local-hostname": s.Name})},
		{"network-config", document("", s.network())},
		{"user-data", []byte(s.UserData)},
		{"vendor-data", document("#cloud-config\n", s.vendor())},
	})
}

// EmptyImage is an image of the same kind that says nothing; it is smaller than any
// seed, by which the two can be told apart from outside.
func EmptyImage() []byte {
	b, err := newImage("empty", nil)
	if err != nil {
		panic(err) // a fixed label and no files
	}
	return b
}

// document writes a value as JSON, which is YAML too, without having to quote.
func document(head string, v any) []byte {
	var b bytes.Buffer
	b.WriteString(head)
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // maps of strings, lists and numbers always marshal
	}
	return b.Bytes()
}

// vendor returns what the site declares for every machine. In cloud-init user-data overrides it.
func (s Seed) vendor() map[string]any {
	out := map[string]any{"package_upgrade": false, "manage_etc_hosts": true}
	if s.Domain != "" {
		out["fqdn"] = s.Name + "." + s.Domain
	}
	if s.User != "" {
		out["user"], out["users"] = map[string]any{"name": s.User}, []string{"default"}
	}
	if len(s.Keys) > 0 {
		out["ssh_authorized_keys"] = s.Keys
	}
	return out
}

// network is a network-config of version 2. Cards are matched by address, since
// what a guest calls them depends on its kernel.
func (s Seed) network() map[string]any {
	cards := map[string]any{}
	for i, n := range s.NICs {
		card := map[string]any{"match": map[string]any{"macaddress": strings.ToLower(n.MAC)}}
		var addresses []string
		switch n.IP {
		case "":
		case "dhcp":
			card["dhcp4"] = true
		default:
			addresses = append(addresses, n.IP)
		}
		switch n.IP6 {
		case "":
		case "dhcp":
			card["dhcp6"] = true
		case "auto":
			card["accept-ra"] = true
		default:
			addresses = append(addresses, n.IP6)
		}
		if len(addresses) > 0 {
			card["addresses"] = addresses
		}
		if servers := s.nameservers(); (n.IP != "" || n.IP6 != "") && len(servers) > 0 {
			card["nameservers"] = servers
		}
		var routes []map[string]any
		for _, gateway := range []string{n.Gateway, n.Gateway6} {
			gw, err := netip.ParseAddr(gateway)
			if err != nil {
				continue
			}
			routes = append(routes, map[string]any{"to": map[bool]string{true: "::/0", false: "0.0.0.0/0"}[gw.Is6()], "via": gateway})
		}
		if len(routes) > 0 {
			card["routes"] = routes
		}
		if n.MTU != 0 {
			card["mtu"] = n.MTU
		}
		cards[fmt.Sprintf("nic%d", i)] = card
	}
	return map[string]any{"version": 2, "ethernets": cards}
}

func (s Seed) nameservers() map[string]any {
	out := map[string]any{}
	if len(s.DNS) > 0 {
		out["addresses"] = s.DNS
	}
	if s.Domain != "" {
		out["search"] = []string{s.Domain}
	}
	return out
}
