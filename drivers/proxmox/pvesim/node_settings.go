package pvesim

import (
	"fmt"
	"maps"
	"strings"
	"time"
)

// nodeSettings are the files of one node that the API edits.
type nodeSettings struct {
	subscription string       // Its key.
	repositories []repository // Nil are those of a fresh installation.
	hosts        string       // /etc/hosts; empty as it was installed.
	zone         string       // Of time; empty is Etc/UTC.
}

func settingsOf(n *node) *nodeSettings { return partOf[nodeSettings](&n.parts) }

// settings are those of the node of a call.
func (c *call) settings() *nodeSettings { return settingsOf(c.node()) }

// hostsFile is /etc/hosts.
func (n *node) hostsFile() string {
	if settingsOf(n).hosts != "" {
		return settingsOf(n).hosts
	}
	return fmt.Sprintf("127.0.0.1 localhost.localdomain localhost\n192.0.2.%d %s.example.test %s\n", 1+n.index, n.name, n.name)
}

// apiHosts is GET /nodes/{node}/hosts.
func apiHosts(w *world, c *call) (any, error) {
	text := w.nodes[c.in["node"]].hostsFile()
	return map[string]any{"data": text, "digest": sumOf(text)}, nil
}

// apiSetHosts is POST /nodes/{node}/hosts.
func apiSetHosts(w *world, c *call) (any, error) {
	if err := c.modified(sumOf(w.nodes[c.in["node"]].hostsFile())); err != nil {
		return nil, err
	}
	c.settings().hosts = c.in["data"]
	return nil, nil
}

// apiNodeDNS is GET /nodes/{node}/dns.
func apiNodeDNS(_ *world, c *call) (any, error) {
	return section(c.node().dns, map[string]any{}), nil
}

// apiSetNodeDNS is PUT /nodes/{node}/dns: all of it at once.
func apiSetNodeDNS(_ *world, c *call) (any, error) {
	conf := config{}
	c.update(conf, "node")
	c.node().dns = conf
	return nil, nil
}

// apiNodeTime is GET /nodes/{node}/time: the local time is a count of seconds too.
func apiNodeTime(w *world, c *call) (any, error) {
	name := c.settings().zone
	if name == "" {
		name = "Etc/UTC"
	}
	local := w.now.Unix()
	if zone, err := time.LoadLocation(name); err == nil {
		_, offset := w.now.In(zone).Zone()
		local += int64(offset)
	}
	return map[string]any{"time": w.now.Unix(), "localtime": local, "timezone": name}, nil
}

// apiSetNodeTime is PUT /nodes/{node}/time.
func apiSetNodeTime(_ *world, c *call) (any, error) {
	if _, err := time.LoadLocation(c.in["timezone"]); err != nil {
		return nil, badParam("timezone", "No such timezone '"+c.in["timezone"]+"'")
	}
	c.settings().zone = c.in["timezone"]
	return nil, nil
}

// apiNodeConfig is GET /nodes/{node}/config.
func apiNodeConfig(_ *world, c *call) (any, error) {
	conf := c.node().conf
	entry := typedBy("PUT /nodes/{node}/config", conf)
	if len(conf) > 0 {
		entry["digest"] = sumOf(configText(conf))
	}
	if text := conf["description"]; text != "" {
		entry["description"] = strings.TrimRight(text, "\n") + "\n"
	}
	if only := c.in["property"]; only != "" {
		maps.DeleteFunc(entry, func(key string, _ any) bool { return key != only && key != "digest" })
	}
	return entry, nil
}

// apiSetNodeConfig is PUT /nodes/{node}/config.
func apiSetNodeConfig(w *world, c *call) (any, error) {
	s := c.node()
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	if err := c.modified(sumOf(configText(s.conf))); err != nil {
		return nil, err
	}
	if s.conf == nil {
		s.conf = config{}
	}
	c.update(s.conf, "node")
	return nil, nil
}

func configText(conf config) string {
	var b strings.Builder
	writeSection(&b, conf, false)
	return b.String()
}
