package pve_test

import (
	"fmt"
	"net/url"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestMappings: devices and folders under one name in the cluster (PVE/API2/Cluster/Mapping).
func TestMappings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Nodes: []string{"mother"}})
		const pci, graphics = "/cluster/mapping/pci", "node=father,path=0000:00:02.0,id=1234:1111,iommugroup=2"
		c.steps(
			step{"GET", pci + "/gpu", nil, "500 mapping 'gpu' not found"},
			step{"POST", pci, form{"id": "gpu"}, "map: property is missing and it is not optional"},
			step{"POST", pci, form{"id": "gpu", "map": graphics, "description": "graphics", "mdev": "1"}, "OK"},
			step{"POST", pci, form{"id": "gpu", "map": graphics}, "500 create hardware mapping failed: pci ID 'gpu' already defined"},
			step{"PUT", pci + "/none", form{"map": graphics}, "500 update hardware mapping failed: pci ID 'none' does not exist"},
			step{"PUT", pci + "/gpu", form{"map": "node=father,id=1234:1111"}, "500 update hardware mapping failed: 400 Parameter verification failed."},
		)
		entry := c.object(pci + "/gpu")
		require.Equal(t, []any{"graphics", 1.0, []any{graphics}, "pci"}, []any{entry["description"], entry["mdev"], entry["map"], entry["type"]})
		require.NotContains(t, entry, "id")
		body := url.Values{"map": {graphics, "node=mother,path=0000:00:09.0,id=1234:1111"}, "delete": {"description"}, "digest": {fmt.Sprint(entry["digest"])}}.Encode()
		require.Equal(t, 200, c.body("PUT", pci+"/gpu", body).status)
		require.Contains(t, c.body("PUT", pci+"/gpu", body).reason, "detected modified configuration")
		require.Empty(t, c.list(pci + "?check-node=father")[0]["checks"])
		require.Equal(t, []any{map[string]any{"severity": "error", "message": "Invalid configuration: pci device '0000:00:09.0' not found\n"}},
			c.list(pci + "?check-node=mother")[0]["checks"])

		c.steps(
			step{"POST", "/cluster/mapping/usb", form{"id": "stick", "map": "node=father,id=1d6b:0002"}, "OK"},
			step{"POST", "/cluster/mapping/dir", form{"id": "share", "map": "node=father,path=/srv/share"}, "OK"},
			step{"DELETE", pci + "/gpu", nil, "OK"},
			step{"DELETE", pci + "/gpu", nil, "OK"},
		)
		require.Equal(t, []any{map[string]any{"severity": "warning", "message": "No mapping for node mother."}},
			c.list("/cluster/mapping/usb?check-node=mother")[0]["errors"])
		require.Empty(t, c.agent().list("/cluster/mapping/usb"), "who may not use it does not see it")
	})
}

// TestMetricServers: PVE/API2/Cluster/MetricServer.pm; the token is kept elsewhere.
func TestMetricServers(t *testing.T) {
	c := newClient(t, pve.Config{Guests: 1})
	const at = "/cluster/metrics/server"
	c.steps(
		step{"GET", at + "/influx", nil, "500 status server entry 'influx' does not exist"},
		step{"POST", at + "/influx", form{"type": "influxdb", "server": "192.0.2.9"}, "port: property is missing and it is not optional"},
		step{"POST", at + "/influx", form{"type": "influxdb", "server": "192.0.2.9", "port": "8089", "token": "secret", "mtu": "1400"}, "OK"},
		step{"POST", at + "/influx", form{"type": "influxdb", "server": "192.0.2.9", "port": "8089"}, "500 Metric server 'influx' already exists"},
		step{"POST", at + "/coal", form{"type": "graphite", "server": "192.0.2.9", "port": "2003", "bucket": "b"}, "500 unexpected property 'bucket'"},
		step{"PUT", at + "/coal", form{"port": "1"}, "500 no such server 'coal'"},
		step{"PUT", at + "/influx", form{"port": "8090", "delete": "mtu"}, "OK"},
		step{"PUT", at + "/influx", form{"delete": "server"}, "500 unable to delete required option 'server'"},
	)
	require.Equal(t, map[string]any{"type": "influxdb", "server": "192.0.2.9", "port": 8090.0}, withoutDigest(c.object(at+"/influx")))
	require.Equal(t, []any{0.0, "influx"}, []any{c.list(at)[0]["disable"], c.list(at)[0]["id"]})
	c.ok("DELETE", at+"/influx", nil)
	require.Empty(t, c.list(at))
}

func withoutDigest(entry map[string]any) map[string]any {
	delete(entry, "digest")
	return entry
}

// TestNotifications: endpoints and matchers (PVE/API2/Cluster/Notifications.pm and the
// crate proxmox-notify, whose failures have statuses of their own).
func TestNotifications(t *testing.T) {
	c := newClient(t, pve.Config{})
	const ends, matchers = "/cluster/notifications/endpoints", "/cluster/notifications/matchers"
	require.Equal(t, []any{"mail-to-root", "builtin"}, []any{c.list(ends + "/sendmail")[0]["name"], c.list(ends + "/sendmail")[0]["origin"]})
	c.steps(
		step{"GET", ends + "/gotify/phone", nil, "404 endpoint 'phone' not found"},
		step{"POST", ends + "/gotify", form{"name": "phone", "server": "https://push.test"}, "token: property is missing and it is not optional"},
		step{"POST", ends + "/gotify", form{"name": "phone", "server": "https://push.test", "token": "secret", "comment": "mine"}, "OK"},
		step{
			"POST", ends + "/smtp",
			form{"name": "phone", "server": "mx.test", "from-address": "a@b.test", "mailto": "c@d.test"},
			"400 Cannot create 'phone', an entity with the same name already exists",
		},
		step{
			"POST", ends + "/smtp",
			form{"name": "mail", "server": "mx.test", "from-address": "a@b.test"},
			"400 must at least provide one recipient, either in mailto or in mailto-user",
		},
		step{"POST", ends + "/smtp", form{"name": "mail", "server": "mx.test", "from-address": "a@b.test", "mailto": "c@d.test", "password": "x", "port": "25"}, "OK"},
		step{"POST", ends + "/webhook", form{"name": "hook", "url": "https://hook.test", "method": "post", "secret": "name=key,value=eA=="}, "OK"},
		step{"POST", matchers, form{"name": "ours", "target": "phone", "mode": "any", "match-field": "exact:type=vzdump"}, "OK"},
		step{"DELETE", ends + "/gotify/phone", nil, "400 cannot delete 'phone', referenced by: ours"},
		step{"PUT", matchers + "/none", form{"comment": "x"}, "404 matcher 'none' not found"},
		step{"POST", matchers, form{"name": "lost", "target": "fax"}, "404 endpoint 'fax' does not exist"},
		step{"POST", matchers, form{"name": "odd", "match-field": "type=vzdump"}, "500 could not apply filter: invalid match-field statement: type=vzdump"},
		step{"POST", matchers, form{"name": "odd", "match-field": "exact:=vzdump"}, "500 could not apply filter: invalid match-field statement: exact:=vzdump"},
		step{"POST", matchers, form{"name": "odd", "match-field": "regex:job-id=.*"}, "OK"},
		step{"DELETE", matchers + "/odd", nil, "OK"},
		step{"PUT", ends + "/sendmail/mail-to-root", form{"comment": "changed"}, "OK"},
		step{"DELETE", ends + "/sendmail/mail-to-root", nil, "OK"}, // A matcher names it, and it comes back.
	)
	require.Equal(t, "builtin", c.list(ends + "/sendmail")[0]["origin"])
	phone := c.object(ends + "/gotify/phone")
	require.Equal(t, map[string]any{"name": "phone", "server": "https://push.test", "comment": "mine"}, withoutDigest(phone))
	require.Equal(t, []any{"c@d.test"}, c.object(ends + "/smtp/mail")["mailto"])
	require.NotContains(t, c.object(ends+"/smtp/mail"), "password")
	require.Equal(t, []any{"name=key"}, c.object(ends + "/webhook/hook")["secret"])
	digest := fmt.Sprint(c.object(matchers + "/ours")["digest"])
	c.ok("PUT", matchers+"/ours", form{"delete": "match-field", "digest": digest})
	require.Contains(t, c.ask("PUT", matchers+"/ours", form{"comment": "y", "digest": digest}).reason, "detected modified configuration")
	c.steps(step{"DELETE", matchers + "/ours", nil, "OK"}, step{"DELETE", ends + "/gotify/phone", nil, "OK"})
	c.ok("PUT", matchers+"/default-matcher", form{"comment": "changed"})
	require.Equal(t, "modified-builtin", c.list(matchers)[0]["origin"])
	c.ok("DELETE", matchers+"/default-matcher", nil)
	require.Equal(t, "builtin", c.list(matchers)[0]["origin"], "what is built in comes back")
}
