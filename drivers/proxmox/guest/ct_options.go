package guest

import (
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// IsReservedCT reports whether a key cannot be an option of a container: an attribute or the
// program sets it, or it is a parameter of the request.
func IsReservedCT(key string) bool {
	if api.IsMount(key) || CTAttributes().ByKey(key) != nil {
		return true
	}
	switch strings.TrimRight(key, "0123456789") {
	case "description", "net", "unused", "lock", "digest", "template", "vmid", "node", "ostemplate",
		"ssh-public-keys", "start", "pool", "storage", "force", "restore", "unique":
		return true
	default:
		return false
	}
}

// isOption implements Guest.
func (*CT) isOption(key, _ string) bool { return !IsReservedCT(key) }

// Declared implements Guest: the options of the container and the further members of its cards.
func (c *CT) Declared() map[string]string {
	out := maps.Clone(c.Options)
	for _, n := range c.NICs {
		for member, val := range n.Options {
			if out == nil {
				out = map[string]string{}
			}
			out[memberOption(n.Name, member)] = val
		}
	}
	return out
}

// propertyFlags are the members of a property string that are on, such as the features of a container:
// by name, sorted, with the value of one that is not 1.
func propertyFlags(s string) []string {
	out := []string{}
	for k, v := range api.ParseProperty(s).Values {
		switch v {
		case "0":
		case "1":
			out = append(out, k)
		default:
			out = append(out, k+"="+v)
		}
	}
	slices.Sort(out)
	return out
}

// encodeFlags writes what propertyFlags reads.
func encodeFlags(flags []string) string {
	var parts []string
	for _, f := range flags {
		if !strings.Contains(f, "=") {
			f += "=1"
		}
		parts = append(parts, f)
	}
	return strings.Join(parts, ",")
}
