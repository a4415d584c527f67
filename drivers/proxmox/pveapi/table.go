package pveapi

import (
	"encoding/json"
	"strconv"
	"strings"
)

// Value describes one parameter of a method, one member of a property string,
// or one part of an answer. Values are shared between methods and read-only.
type Value struct {
	// Type is the JSON type PVE declares: string, integer, number, boolean,
	// array, object, null or any; empty when PVE declares none.
	Type     string `json:"type"`
	Optional bool   `json:"optional"`

	Enum      []string    `json:"enum"`
	Min       json.Number `json:"min"` // Empty when unbounded; the text appears in PVE's messages.
	Max       json.Number `json:"max"`
	MinLength *int        `json:"minLength"` // In characters, not bytes.
	MaxLength *int        `json:"maxLength"`
	Pattern   string      `json:"pattern"` // Without anchors; matched as PVE does, see check.go.
	Default   any         `json:"default"`
	// Format names a rule that PVE's code implements; see format.go.
	Format string `json:"format"`

	// Sub holds the members of a property string ("virtio,bridge=vmbr0"), by
	// key. DefaultKey, Alias and KeyAlias are only set on such members.
	Sub        map[string]*Value `json:"sub"`
	DefaultKey bool              `json:"defaultKey"` // The value may stand without its key.
	Alias      string            `json:"alias"`      // The key stands for this other key.
	KeyAlias   string            `json:"keyAlias"`   // The key itself is the value of this other key.

	Items *Value            `json:"items"` // Elements of an array.
	Props map[string]*Value `json:"props"` // Members of an object.
	// Additional says whether an object may have members beyond Props; nil
	// means PVE does not say.
	Additional *Additional `json:"additional"`

	Requires      string   `json:"requires"`      // Another parameter that must be given too.
	TypeProperty  string   `json:"typeProperty"`  // The parameter that selects a subtype, and
	InstanceTypes []string `json:"instanceTypes"` // the subtypes in which this one exists.
	InPath        bool     `json:"path"`          // The value is a part of the URL.
	// Since is the first PVE version that has the value: "9.0", "9.1" or "9.1.2"
	// (later than 9.1.1); empty means 8.4 has it already. Until is the last version
	// that has it: "8.4" for what PVE 9 dropped, else empty.
	Since string `json:"since"`
	Until string `json:"-"`

	expression func(word string) bool // Pattern, compiled.
}

// Additional is PVE's schema of members of an object that it does not name.
type Additional struct {
	Allowed bool
	Value   *Value // The type of the members; nil if PVE declares none.
}

// Method is one method of one path.
type Method struct {
	Path string `json:"-"` // With placeholders: "/nodes/{node}/qemu".
	Verb string `json:"-"` // GET, POST, PUT or DELETE.

	// Protected methods run as root in pvedaemon, and pveproxy forwards them.
	Protected bool   `json:"protected"`
	ProxyTo   string `json:"proxyto"`  // The parameter that names the node doing the work.
	NoToken   bool   `json:"noToken"`  // Refused to API tokens: a ticket is needed.
	Download  bool   `json:"download"` // Answers with a file, not with JSON.
	Perm      Perm   `json:"perm"`

	Params           map[string]*Value `json:"params"`
	AdditionalParams bool              `json:"additionalParams"`
	Returns          *Value            `json:"returns"`
	Since            string            `json:"since"` // As in Value.

	check84 *Rule    // The permission check before PVE 9, where it differs.
	needed  []string // See neededParams; nil if the method is none of the table.
}

// Methods lists all methods, sorted by path and verb.
func Methods() []*Method {
	lines := table().lines
	all := make([]*Method, len(lines))
	for i, l := range lines {
		all[i] = l.method()
	}
	return all
}

// Param finds the description of a parameter by the name a request uses: the
// name itself, or for an indexed one its family ("net3" is described by
// "net[n]") when the index is within PVE's bounds and written without leading
// zeros.
func (m *Method) Param(name string) (*Value, bool) {
	if v, ok := m.Params[name]; ok && !strings.HasSuffix(name, "[n]") {
		return v, true
	}
	return indexed(m.Params, name)
}

// indexed finds the family of an indexed name.
func indexed(values map[string]*Value, name string) (*Value, bool) {
	family := strings.TrimRight(name, "0123456789")
	digits := name[len(family):]
	if family == "" || digits == "" || len(digits) > 3 || (digits[0] == '0' && digits != "0") {
		return nil, false
	}
	v, ok := values[family+"[n]"]
	if !ok {
		return nil, false
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n > highestIndex(family) {
		return nil, false
	}
	return v, true
}

// highestIndex is the bound of a family of parameters. The numbers are the
// MAX_* constants of qemu-server (PVE/QemuServer.pm, Drive.pm, PCI.pm, USB.pm,
// Memory.pm, Virtiofs.pm), pve-container (PVE/LXC/Config.pm), pve-cluster
// (corosync links) and pve-manager (PVE/NodeConfig.pm). QEMU and LXC agree
// where both have a family.
func highestIndex(family string) int {
	switch family {
	case "unused", "mp", "dev":
		return 255
	case "net", "ipconfig":
		return 31
	case "scsi":
		return 30
	case "virtio", "hostpci":
		return 15
	case "usb":
		return 13
	case "virtiofs":
		return 9
	case "numa", "link":
		return 7
	case "sata", "acmedomain":
		return 5
	case "ide", "serial":
		return 3
	case "parallel":
		return 2
	default:
		return -1
	}
}
