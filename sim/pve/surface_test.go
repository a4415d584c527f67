package pve_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// methodsFile lists the methods that the simulator answers, one a line. Every other
// method of the API answers 501.
const methodsFile = "testdata/methods.txt"

var update = flag.Bool("update", false, "write testdata/methods.txt")

// simulated are the lines of methodsFile.
func simulated(t *testing.T) map[string]bool {
	t.Helper()
	all := pve.Simulated()
	if *update {
		require.NoError(t, os.WriteFile(methodsFile, []byte(strings.Join(all, "\n")+"\n"), 0o600))
	}
	text, err := os.ReadFile(methodsFile)
	require.NoError(t, err)
	require.Equal(t, strings.Join(all, "\n")+"\n", string(text), "go test ./sim/pve -run TestSurface -update writes the list")
	known := map[string]bool{}
	for _, name := range all {
		known[name] = true
	}
	return known
}

// unspoken says whether an answer is that of a call without a handler.
func unspoken(a answer) bool { return strings.HasPrefix(a.reason, "the simulator does not implement") }

// ticketed is a client with a ticket of root@pam, for whom nothing is forbidden.
func (c *client) ticketed() *client {
	c.t.Helper()
	_, secret, _ := strings.Cut(c.token, "=")
	login := c.ok("POST", "/access/ticket", form{"username": "root@pam", "password": secret}).(map[string]any)
	root := *c
	root.ticket = [2]string{fmt.Sprint(login["ticket"]), fmt.Sprint(login["CSRFPreventionToken"])}
	return &root
}

// unsimulated are requests for methods that the API table leaves out and the simulator
// does not answer.
var unsimulated = strings.Fields(`GET:/cluster/acme GET:/cluster/acme/account POST:/cluster/acme/account GET:/cluster/acme/plugins GET:/cluster/ceph/status
	GET:/cluster/metrics/export GET:/cluster/notifications/targets POST:/cluster/notifications/targets/mail-to-root/test GET:/nodes/father/ceph
	GET:/cluster/notifications/matcher-fields POST:/nodes/father/certificates/custom POST:/nodes/father/certificates/acme/certificate
	GET:/nodes/father/disks/list POST:/nodes/father/disks/zfs DELETE:/nodes/father/disks/lvm/pve POST:/nodes/father/termproxy POST:/nodes/father/vncshell
	GET:/nodes/father/vncwebsocket GET:/nodes/father/replication POST:/nodes/father/replication/102-0/schedule_now`)

// TestSurface asks every method of the API table, of all versions, for something that
// exists, first with an unknown parameter: that is always a 400, also for a method that
// is not simulated. Simulated readings must answer, and every answer is checked against
// the table. All other methods answer 501.
func TestSurface(t *testing.T) {
	known := simulated(t)
	for _, version := range pve.Versions() {
		t.Run(version, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, pve.Config{Version: version, Nodes: []string{"mother"}, Storages: pve.DefaultStorages()})
				vars := furnish(c)
				root, answered, refused := c.ticketed(), 0, 0
				furnishMore(c, version)
				for _, m := range append(pveapi.Methods(), pve.PastTable()...) {
					if !m.In(version) {
						require.Equal(t, 501, root.ask(m.Verb, vars.path(m), nil).status, m.Verb+" "+m.Path)
						continue
					}
					if !m.AdditionalParams {
						wrong := root.ask(m.Verb, vars.path(m), form{"no-such-thing": "1"})
						require.Equal(t, 400, wrong.status, "%s %s: %s", m.Verb, m.Path, wrong.reason)
						require.Contains(t, wrong.errors, "no-such-thing", m.Path)
					}
					params, complete := vars.required(m)
					switch {
					case !complete, known[m.Verb+" "+m.Path] && m.Verb != "GET": // Others test what these do.
					case known[m.Verb+" "+m.Path]:
						a := root.ask(m.Verb, vars.path(m), params)
						require.NotContains(t, []int{400, 501}, a.status, "%s %s: %s %v", m.Verb, m.Path, a.reason, a.errors)
						answered++
					default:
						a := root.ask(m.Verb, vars.path(m), params)
						require.True(t, unspoken(a), "%s %s: %d %s %v", m.Verb, m.Path, a.status, a.reason, a.errors)
						refused++
					}
				}
				for _, request := range unsimulated {
					verb, path, _ := strings.Cut(request, ":")
					require.Equal(t, "501 Method '"+verb+" "+path+"' not implemented", root.told(step{verb, path, nil, ""}))
				}
				t.Logf("%d readings answer, %d methods are refused", answered, refused)
				require.Greater(t, answered, 120)
				require.Greater(t, refused, 60)
			})
		})
	}
}

// furnishMore makes one of each kind of thing that the table does not have.
func furnishMore(c *client, version string) {
	c.t.Helper()
	c.ok("POST", "/cluster/sdn/zones", form{"zone": "lab", "type": "simple"})
	c.ok("POST", "/cluster/sdn/vnets", form{"vnet": "blue", "zone": "lab"})
	c.ok("POST", "/cluster/sdn/vnets/blue/subnets", form{"subnet": "192.0.2.0/24", "type": "subnet"})
	c.ok("POST", "/cluster/sdn/controllers", form{"controller": "wide", "type": "evpn", "asn": "65000", "peers": "192.0.2.1"})
	c.ok("POST", "/cluster/sdn/dns", form{"dns": "names", "type": "powerdns", "url": "http://192.0.2.9/api", "key": "x"})
	c.ok("POST", "/cluster/mapping/pci", form{"id": "nightly", "map": "node=father,path=0000:00:02.0,id=1234:1111"})
	c.ok("POST", "/cluster/mapping/usb", form{"id": "nightly", "map": "node=father,id=1d6b:0002"})
	if version != "8.4" {
		c.ok("POST", "/cluster/sdn/fabrics/fabric", form{"id": "core", "protocol": "ospf", "area": "0"})
		c.ok("POST", "/cluster/sdn/fabrics/node/core", form{"node_id": "father", "protocol": "ospf"})
		c.ok("POST", "/cluster/mapping/dir", form{"id": "nightly", "map": "node=father,path=/srv/share"})
	}
	c.ok("POST", "/cluster/metrics/server/nightly", form{"type": "graphite", "server": "192.0.2.9", "port": "2003"})
	const ends = "/cluster/notifications/endpoints/"
	c.ok("POST", ends+"gotify", form{"name": "push", "server": "https://push.test", "token": "x"})
	c.ok("POST", ends+"smtp", form{"name": "mail", "server": "mx.test", "from-address": "a@b.test", "mailto": "c@d.test"})
	c.ok("POST", ends+"webhook", form{"name": "hook", "url": "https://hook.test", "method": "post"})
	c.ok("POST", "/access/domains", form{"realm": "tree", "type": "ldap", "base_dn": "dc=test", "server1": "192.0.2.9", "user_attr": "uid"})
	c.ok("POST", "/storage", form{"storage": "tank", "type": "zfspool", "pool": "tank", "content": "images"})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "102", "scsi0": "tank:1"})
	c.ok("POST", "/cluster/replication", form{"id": "102-0", "type": "local", "target": "mother"})
}

// named are values of placeholders by what stands before them.
var named = map[string]string{
	"/cluster/sdn/fabrics/fabric/": "core", "/cluster/sdn/ipams/": "pve", "/cluster/notifications/endpoints/sendmail/": "mail-to-root", "/cluster/notifications/endpoints/gotify/": "push",
	"/cluster/notifications/endpoints/smtp/": "mail", "/cluster/notifications/endpoints/webhook/": "hook", "/cluster/notifications/matchers/": "default-matcher",
	"/cluster/replication/": "102-0", "/nodes/father/replication/": "102-0",
}

// surface fills the placeholders of paths and the parameters that a call must have.
type surface map[string]string

// furnish makes one of each kind of thing.
func furnish(c *client) surface {
	c.t.Helper()
	c.image()
	c.done("POST", "/nodes/father/aplinfo", form{"storage": "local", "template": debianTemplate})
	c.vm("100", form{"serial0": "socket"})
	c.done("POST", vmURL("100", "/status/start"), nil)
	c.done("POST", vmURL("100", "/snapshot"), form{"snapname": "one"})
	c.done("POST", "/nodes/father/lxc", form{"vmid": "200", "ostemplate": "local:vztmpl/" + debianTemplate, "storage": "local-lvm"})
	c.done("POST", ctURL("200", "/snapshot"), form{"snapname": "one"})
	c.done("POST", "/nodes/father/vzdump", form{"vmid": "100", "storage": "local"})
	c.ok("POST", "/pools", form{"poolid": "ours"})
	c.ok("POST", "/access/groups", form{"groupid": "ops"})
	c.ok("POST", "/access/users", form{"userid": "ann@pve", "password": "secret99"})
	c.ok("POST", "/access/users/ann@pve/token/extra", nil)
	c.ok("POST", "/access/roles", form{"roleid": "Ours", "privs": "VM.Audit"})
	c.ok("POST", "/cluster/backup", form{"id": "nightly", "vmid": "100", "storage": "local", "schedule": "daily"})
	c.ok("POST", "/cluster/ha/resources", form{"sid": "vm:100"})
	for _, at := range []string{"/cluster", vmURL("100", ""), ctURL("200", "")} {
		c.ok("POST", at+"/firewall/aliases", form{"name": "gate", "cidr": "192.0.2.1"})
		c.ok("POST", at+"/firewall/ipset", form{"name": "home"})
		c.ok("POST", at+"/firewall/ipset/home", form{"cidr": "192.0.2.0/24"})
		c.ok("POST", at+"/firewall/rules", form{"type": "in", "action": "ACCEPT"})
	}
	c.ok("POST", "/nodes/father/firewall/rules", form{"type": "in", "action": "ACCEPT"})
	c.ok("POST", "/cluster/firewall/groups", form{"group": "web"})
	c.ok("POST", "/cluster/firewall/groups/web", form{"type": "in", "action": "ACCEPT"})
	time.Sleep(30 * time.Second)
	tasks := c.h.Snapshot().Tasks
	return surface{
		"node": "father", "vmid": "100", "storage": "local", "cputype": "mine", "snapname": "one", "poolid": "ours", "groupid": "ops", "userid": "ann@pve",
		"tokenid": "extra", "roleid": "Ours", "id": "nightly", "sid": "vm:100", "name": "home", "cidr": "192.0.2.0/24", "pos": "0", "group": "web",
		"realm": "pve", "iface": "vmbr0", "upid": tasks[len(tasks)-1].UPID, "volume": "local:import/debian.qcow2", "service": "pveproxy",
		"pci-id-or-mapping": "0000:00:02.0", "rule": "none", "target": "mother",
		// Parameters that a reading must have.
		"timeframe": "hour", "ds": "cpu", "feature": "clone", "type": "user", "command": "ping", "file": "/etc/hostname", "pid": "1",
		"url": "https://images.test/x.iso", "vg": "pve", "server": "192.0.2.9", "portal": "192.0.2.9", "filepath": "/", "key": "a",
		"username": "x", "password": "secret99", "schedule": "daily", "reference": "docker.io/library/nginx:latest", "socket": "/x", "ticket": "x", "port": "5900",
		"zone": "lab", "vnet": "blue", "subnet": "lab-192.0.2.0-24", "controller": "wide", "dns": "names", "fabric_id": "core", "node_id": "father", "disk": "/dev/sdb",
		"vncticket": "x", "version": "1", "action": "start", "challenge": "x",
	}
}

func (s surface) path(m *pveapi.Method) string {
	path := m.Path
	for segment := range strings.SplitSeq(m.Path, "/") {
		name := strings.Trim(segment, "{}")
		if name == segment {
			continue
		}
		value := s[name]
		switch {
		case strings.Contains(path, "/lxc/") && name == "vmid":
			value = "200"
		case strings.Contains(path, "/aliases/") && name == "name":
			value = "gate"
		case path == "/access/tfa/{userid}/{id}" && name == "id":
			value = "totp"
		}
		before, _, _ := strings.Cut(path, segment)
		if own := named[before]; own != "" {
			value = own
		}
		path = strings.Replace(path, segment, url.PathEscape(value), 1)
	}
	return path
}

// required are the parameters that a call must have; complete is whether a value of
// each is known.
func (s surface) required(m *pveapi.Method) (params form, complete bool) {
	params, complete = form{}, true
	for name, v := range m.Params {
		if v.Optional || v.InPath || strings.Contains(m.Path, "{"+name+"}") {
			continue
		}
		value, ok := s[name]
		if len(v.Enum) > 0 && !slices.Contains(v.Enum, value) {
			value, ok = v.Enum[0], true
		}
		params[name], complete = value, complete && ok
	}
	switch {
	case strings.HasSuffix(m.Path, "/extractconfig"):
		params["volume"] = "local:backup/none.vma.zst"
	case m.Path == "/cluster/replication" && m.Verb == "POST":
		params["id"] = "100-0"
	case strings.HasSuffix(m.Path, "/subscription") && m.Verb == "PUT":
		params["key"] = "pve1c-0123456789"
	case strings.HasSuffix(m.Path, "/query-oci-repo-tags"):
		params["reference"] = "docker.io/library/nginx"
	}
	return params, complete
}

// TestSameSurface: the same seed and the same two thousand requests, chosen at random
// of all that reads and of much that writes, give the same answers, byte for byte but
// for the certificates, which are recreated for every host.
func TestSameSurface(t *testing.T) {
	const requests = 2000
	play := func(seed int64) (all []string) {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, pve.Config{Seed: seed, Nodes: []string{"mother"}, TaskTime: 700 * time.Millisecond})
			vars := furnish(c)
			rng := rand.New(rand.NewPCG(42, 42)) //nolint:gosec // The same requests on purpose.
			var readings []*pveapi.Method
			furnishMore(c, "9.2")
			for _, m := range append(pveapi.Methods(), pve.PastTable()...) {
				if m.Verb == "GET" && m.In("9.2") && m.Path != "/nodes/{node}/certificates/info" && !strings.Contains(m.Path, "/ceph/") {
					readings = append(readings, m)
				}
			}
			for len(all) < requests {
				var a answer
				if m := readings[rng.IntN(len(readings))]; rng.IntN(3) > 0 {
					params, _ := vars.required(m)
					a = c.ask("GET", vars.path(m), params)
				} else {
					verb, path, params := change(rng)
					a = c.ask(verb, path, params)
				}
				all = append(all, fmt.Sprint(a.status, a.reason, withoutCertificates(a.raw)))
				time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
			}
		})
		return all
	}
	one, same := play(7), play(7)
	good := 0
	for i := range one {
		require.Equal(t, one[i], same[i], "request %d", i)
		if strings.HasPrefix(one[i], "200") {
			good++
		}
	}
	t.Logf("%d of %d are good answers", good, requests)
	require.Greater(t, good, requests/2)
	require.NotEqual(t, one, play(8))
}

// change is a random request that writes.
func change(rng *rand.Rand) (verb, path string, params form) {
	id, other := fmt.Sprint(300+rng.IntN(12)), fmt.Sprint(300+rng.IntN(12))
	choices := []func() (string, string, form){
		func() (string, string, form) {
			return "POST", "/nodes/father/qemu", form{"vmid": id, "net0": "virtio,bridge=vmbr0", "scsi0": "local-lvm:1", "memory": "512"}
		},
		func() (string, string, form) {
			return "POST", "/nodes/father/lxc", form{"vmid": id, "ostemplate": "local:vztmpl/" + debianTemplate, "storage": "local-lvm", "net0": "name=eth0,bridge=vmbr0"}
		},
		func() (string, string, form) { return "POST", vmURL("100", "/clone"), form{"newid": id, "full": "1"} },
		func() (string, string, form) { return "POST", vmURL(other, "/clone"), form{"newid": id} },
		func() (string, string, form) {
			return "PUT", vmURL(id, "/config"), form{"cores": fmt.Sprint(1 + rng.IntN(4))}
		},
		func() (string, string, form) {
			return "POST", vmURL(id, "/config"), form{"net1": "virtio,bridge=vmbr0"}
		},
		func() (string, string, form) {
			return "PUT", vmURL(id, "/resize"), form{"disk": "scsi0", "size": "+1G"}
		},
		func() (string, string, form) { return "POST", vmURL(id, "/status/start"), nil },
		func() (string, string, form) { return "POST", vmURL(id, "/status/stop"), nil },
		func() (string, string, form) { return "POST", vmURL(id, "/snapshot"), form{"snapname": "snap"} },
		func() (string, string, form) { return "POST", ctURL(id, "/status/start"), nil },
		func() (string, string, form) { return "DELETE", vmURL(id, ""), nil },
		func() (string, string, form) { return "DELETE", ctURL(id, ""), form{"force": "1"} },
		func() (string, string, form) { return "POST", "/pools", form{"poolid": "pool" + id} },
		func() (string, string, form) { return "PUT", "/pools/pool" + id, form{"vms": other} },
		func() (string, string, form) { return "POST", "/access/users/ann@pve/token/t" + id, nil },
		func() (string, string, form) {
			return "POST", "/nodes/father/vzdump", form{"vmid": id, "storage": "local"}
		},
		func() (string, string, form) { return "POST", vmURL(id, "/vncproxy"), nil },
		func() (string, string, form) {
			return "POST", "/nodes/father/network", form{"iface": "vmbr" + id, "type": "bridge"}
		},
		func() (string, string, form) { return "PUT", "/nodes/father/network", nil },
	}
	return choices[rng.IntN(len(choices))]()
}

// withoutCertificates leaves out of an answer what hangs on the certificate.
func withoutCertificates(text string) string { return certificates.ReplaceAllString(text, "") }
