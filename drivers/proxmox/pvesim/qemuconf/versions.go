package qemuconf

import (
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// laterWords are words that a parameter takes in the API table, but not in PVE 8.4,
// and earlierWords those that 8.4 took and the table does not list any more. The
// table has such differences of whole parameters only. Enumerations are told in the
// order of the alphabet, but for time frames, which grow.
var (
	laterWords   = map[string]string{"GET /nodes/{node}/rrddata timeframe": "decade", "GET /nodes/{node}/rrd timeframe": "decade", "POST /cluster/metrics/server/{id} type": "opentelemetry"}
	earlierWords = map[string]string{"POST /storage type": "glusterfs", "GET /storage type": "glusterfs"}
)

const notInEnumeration = "does not have a value in the enumeration '"

// Of84 makes what is wrong with parameters what PVE 8.4 says of them.
func Of84(c *core.Call, wrong map[string]string) map[string]string {
	found := maps.Clone(wrong)
	if found == nil {
		found = map[string]string{}
	}
	for name, value := range c.Values {
		key := c.M.Verb + " " + c.M.Path + " " + name
		if later := laterWords[key]; later != "" {
			if perl.Text(value) == later {
				v, _ := c.M.Param(name)
				found[name] = "value '" + later + "' " + notInEnumeration + strings.Join(v.Enum, ", ") + "'"
			}
			found[name] = strings.Replace(found[name], ", "+later+"'", "'", 1)
		}
		if earlier := earlierWords[key]; earlier != "" {
			if perl.Text(value) == earlier {
				delete(found, name)
			} else if said, list, ok := strings.Cut(found[name], notInEnumeration); ok {
				words := append(strings.Split(strings.TrimSuffix(list, "'"), ", "), earlier)
				found[name] = said + notInEnumeration + strings.Join(slices.Sorted(slices.Values(words)), ", ") + "'"
			}
		}
		if found[name] == "" {
			delete(found, name)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return found
}
