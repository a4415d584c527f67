package pve

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// nodeSettings are the files of one node that the API edits.
type nodeSettings struct {
	hosts string // /etc/hosts; empty as it was installed.
	zone  string // Of time; empty is Etc/UTC.
}

func settingsOf(n *core.Node) *nodeSettings { return core.PartOf[nodeSettings](&n.Parts) }

// settings are those of the node of a call.
func settings(c *core.Call) *nodeSettings { return settingsOf(c.Node()) }

// hostsFile is /etc/hosts.
func hostsFile(n *core.Node) string {
	if settingsOf(n).hosts != "" {
		return settingsOf(n).hosts
	}
	return fmt.Sprintf("127.0.0.1 localhost.localdomain localhost\n192.0.2.%d %s.example.test %s\n", 1+n.Index, n.Name, n.Name)
}

// apiHosts is GET /nodes/{node}/hosts.
func apiHosts(w *core.World, c *core.Call) (any, error) {
	text := hostsFile(w.Nodes[c.In["node"]])
	return map[string]any{"data": text, "digest": perl.SumOf(text)}, nil
}

// apiSetHosts is POST /nodes/{node}/hosts.
func apiSetHosts(w *core.World, c *core.Call) (any, error) {
	if err := c.Modified(perl.SumOf(hostsFile(w.Nodes[c.In["node"]]))); err != nil {
		return nil, err
	}
	settings(c).hosts = c.In["data"]
	return nil, nil
}

// apiNodeDNS is GET /nodes/{node}/dns.
func apiNodeDNS(_ *core.World, c *core.Call) (any, error) {
	return c.Node().DNS.Section(map[string]any{}), nil
}

// apiSetNodeDNS is PUT /nodes/{node}/dns: all of it at once.
func apiSetNodeDNS(_ *core.World, c *core.Call) (any, error) {
	conf := perl.Config{}
	c.Update(conf, "node")
	c.Node().DNS = conf
	return nil, nil
}

// apiNodeTime is GET /nodes/{node}/time: the local time is a count of seconds too.
func apiNodeTime(w *core.World, c *core.Call) (any, error) {
	name := cmp.Or(settings(c).zone, "Etc/UTC")
	local := w.Now.Unix()
	if zone, err := time.LoadLocation(name); err == nil {
		_, offset := w.Now.In(zone).Zone()
		local += int64(offset)
	}
	return map[string]any{"time": w.Now.Unix(), "localtime": local, "timezone": name}, nil
}

// apiSetNodeTime is PUT /nodes/{node}/time.
func apiSetNodeTime(_ *core.World, c *core.Call) (any, error) {
	if _, err := time.LoadLocation(c.In["timezone"]); err != nil {
		return nil, perl.BadParam("timezone", "No such timezone '"+c.In["timezone"]+"'")
	}
	settings(c).zone = c.In["timezone"]
	return nil, nil
}

// apiNodeConfig is GET /nodes/{node}/config.
func apiNodeConfig(_ *core.World, c *core.Call) (any, error) {
	conf := c.Node().Conf
	entry := conf.TypedBy("PUT /nodes/{node}/config")
	if len(conf) > 0 {
		entry["digest"] = perl.SumOf(configText(conf))
	}
	if text := conf["description"]; text != "" {
		entry["description"] = strings.TrimRight(text, "\n") + "\n"
	}
	if only := c.In["property"]; only != "" {
		maps.DeleteFunc(entry, func(key string, _ any) bool { return key != only && key != "digest" })
	}
	return entry, nil
}

// apiSetNodeConfig is PUT /nodes/{node}/config.
func apiSetNodeConfig(w *core.World, c *core.Call) (any, error) {
	s := c.Node()
	if err := cmp.Or(w.NeedQuorum(), c.Modified(perl.SumOf(configText(s.Conf)))); err != nil {
		return nil, err
	}
	if s.Conf == nil {
		s.Conf = perl.Config{}
	}
	c.Update(s.Conf, "node")
	return nil, nil
}

func configText(conf perl.Config) string {
	var b strings.Builder
	conf.Write(&b, false)
	return b.String()
}

func serverID(w *core.World) string { return strings.ToUpper(w.Fingerprint[:32]) }

// apiSubscription is GET /nodes/{node}/subscription: no node has a key
// (PVE/API2/Subscription.pm).
func apiSubscription(w *core.World, c *core.Call) (any, error) {
	entry := map[string]any{
		"status": "notfound", "message": "There is no subscription key", "url": "https://www.proxmox.com/en/proxmox-virtual-environment/pricing",
	}
	if c.Can("/nodes/"+c.In["node"], "Sys.Audit") {
		entry["serverid"] = serverID(w)
	}
	return entry, nil
}
