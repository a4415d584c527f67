package guest

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// Startup is the order and the delays of a guest at boot and shutdown of its node. A field that is
// nil is not set.
type Startup struct {
	Order *int `hcl:"order,optional" doc:"Position: lower starts earlier and stops later."`
	Up    *int `hcl:"up,optional" doc:"Seconds after its start before the next."`
	Down  *int `hcl:"down,optional" doc:"Seconds it gets to shut down, also before it is destroyed."`
}

// sameAs is s if both have the same text, else other.
func (s *Startup) sameAs(other *Startup) *Startup {
	if s != nil && other != nil && s.text() == other.text() {
		return s
	}
	return other
}

// text is the value of the key startup; "" for nil.
func (s *Startup) text() string {
	if s == nil {
		return ""
	}
	var parts []string
	for _, f := range []struct {
		key string
		val *int
	}{{"order", s.Order}, {"up", s.Up}, {"down", s.Down}} {
		if f.val != nil {
			parts = append(parts, fmt.Sprintf("%s=%d", f.key, *f.val))
		}
	}
	return strings.Join(parts, ",")
}

// parseStartup reads the value of the key startup.
func parseStartup(s string) *Startup {
	if s == "" {
		return nil
	}
	p := api.ParseProperty(s)
	number := func(text string) *int {
		if n, err := strconv.Atoi(text); err == nil {
			return &n
		}
		return nil
	}
	return &Startup{Order: number(p.First("order")), Up: number(p.Values["up"]), Down: number(p.Values["down"])}
}

// startupFormat reads and writes the attribute startup.
var startupFormat = map[string]format{
	"startup": formatOf(parseStartup, func(s *Startup) any { return s.text() }),
}
