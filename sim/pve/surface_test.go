package pve_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// words are values that mean something somewhere.
var words = strings.Fields("father mother aunt local local-lvm tank 100 101 102 200 300 0 1 -1 7 4096 lab blue core wide names names home nightly one two ours " +
	"ann@pve root@pam devs vmbr0 eth0 eth1 pve tree sync hook push mail 192.0.2.1 192.0.2.0/24 2001:db8::1 198.51.100.9/33 lab-192.0.2.0-24 192.0.2.5-192.0.2.9 " +
	"start-address=192.0.2.5,end-address=192.0.2.9 local-lvm:1 local:cloudinit local-lvm:vm-100-disk-0 local:iso/x.iso scsi0 net0 mp0 rootfs virtio,bridge=vmbr0 " +
	"virtio,bridge=blue name=eth0,bridge=vmbr0,ip=dhcp node=father,path=0000:00:02.0,id=1234:1111 mapping=nightly dir,dirid=nightly daily */5 sat exact:type=vzdump " +
	"simple vlan evpn vxlan bgp isis ospf openfabric pve1c-0123456789 https://images.test/x.iso docker.io/library/nginx:latest /dev/sdb /dev/sdc /dev/sdb,/dev/sdc " +
	"/srv/x +1G 2G order=scsi0 VM.Audit PVEVMAdmin Administrator /vms/100 / x= =x ,,, ;; : ! % é a-b_c.d x.tar x.tar.zst")

// certificates are the differences between two hosts that are otherwise the same.
var certificates = regexp.MustCompile(`"(?:ssl_fingerprint|pve_fp|serverid|config_digest)":"[0-9A-Fa-f:]+"|"cert":"[^"]*"`)

// caprice draws requests of all methods, with values that often fit their parameters.
type caprice struct {
	*rand.Rand
	methods []*pveapi.Method
	vars    surface
}

func newCaprice(seed uint64, vars surface) caprice {
	return caprice{rand.New(rand.NewPCG(seed, seed)), append(pveapi.Methods(), pve.PastTable()...), vars} //nolint:gosec // Drawn again by its seed.
}

// value draws one for a parameter.
func (r caprice) value(name string, v *pveapi.Value) string {
	known, ok := r.vars[name]
	switch roll := r.IntN(10); {
	case roll == 0:
		return words[r.IntN(len(words))]
	case len(v.Enum) > 0:
		return v.Enum[r.IntN(len(v.Enum))]
	case v.Type == "boolean":
		return fmt.Sprint(r.IntN(2))
	case ok && roll < 7:
		return known
	case v.Type == "integer" || v.Type == "number":
		return fmt.Sprint(r.IntN(200))
	}
	return words[r.IntN(len(words))]
}

// request draws one.
func (r caprice) request() *http.Request {
	m := r.methods[r.IntN(len(r.methods))]
	params := url.Values{}
	for _, name := range slices.Sorted(maps.Keys(m.Params)) {
		v := m.Params[name]
		if v.InPath || strings.Contains(m.Path, "{"+name+"}") || name == "delay" || v.Optional && r.IntN(6) > 0 {
			continue
		}
		name = strings.ReplaceAll(name, "[n]", fmt.Sprint(r.IntN(3)))
		for range 1 + r.IntN(8)/7 {
			params.Add(name, r.value(name, v))
		}
	}
	path := r.vars.path(m)
	if r.IntN(8) == 0 {
		path = strings.Replace(path, "/father/", "/mother/", 1)
	}
	if r.IntN(8) == 0 {
		parts := strings.Split(path, "/")
		parts[len(parts)-1] = url.PathEscape(words[r.IntN(len(words))])
		path = strings.Join(parts, "/")
	}
	const at = "https://pve/api2/json"
	if m.Verb == http.MethodGet || m.Verb == http.MethodDelete {
		req, err := http.NewRequest(m.Verb, at+path+"?"+params.Encode(), nil)
		if err != nil {
			panic(err)
		}
		return req
	}
	req, err := http.NewRequest(m.Verb, at+path, strings.NewReader(params.Encode()))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return req
}

// methodsFile lists the methods that the simulator answers, one a line. Every other
// method of the API answers 501.
const methodsFile = "testdata/methods.txt"

var update = flag.Bool("update", false, "write testdata/methods.txt")

// named are values of placeholders by what stands before them.
var named = map[string]string{
	"/cluster/sdn/fabrics/fabric/": "core", "/cluster/sdn/ipams/": "pve", "/cluster/notifications/endpoints/sendmail/": "mail-to-root", "/cluster/notifications/endpoints/gotify/": "push",
	"/cluster/notifications/endpoints/smtp/": "mail", "/cluster/notifications/endpoints/webhook/": "hook", "/cluster/notifications/matchers/": "default-matcher",
	"/cluster/replication/": "102-0", "/nodes/father/replication/": "102-0",
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

func status(a answer) any { return a.status }

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

// unsimulated are requests for methods that the API table leaves out and the simulator
// does not answer.
var unsimulated = strings.Fields(`GET:/cluster/acme GET:/cluster/acme/account POST:/cluster/acme/account GET:/cluster/acme/plugins GET:/cluster/ceph/status
	GET:/cluster/metrics/export GET:/cluster/notifications/targets POST:/cluster/notifications/targets/mail-to-root/test GET:/nodes/father/ceph
	GET:/cluster/notifications/matcher-fields POST:/nodes/father/certificates/custom POST:/nodes/father/certificates/acme/certificate
	GET:/nodes/father/disks/list POST:/nodes/father/disks/zfs DELETE:/nodes/father/disks/lvm/pve POST:/nodes/father/termproxy POST:/nodes/father/vncshell
	GET:/nodes/father/vncwebsocket GET:/nodes/father/replication POST:/nodes/father/replication/102-0/schedule_now`)

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
					require.Equal(t, "501 Method '"+verb+" "+path+"' not implemented", root.answer(step{verb, path, nil, ""}))
				}
				t.Logf("%d readings answer, %d methods are refused", answered, refused)
				require.Greater(t, answered, 120)
				require.Greater(t, refused, 60)
			})
		})
	}
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

// play sends requests to a host on which there is one of each kind of thing, and tells
// what it answers. However odd they are, it answers in its own words: nothing breaks.
func play(t *testing.T, seed uint64, version string, requests int) (all []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Seed: 7, Version: version, Nodes: []string{"mother", "aunt"}})
		draw := newCaprice(seed, furnish(c))
		furnishMore(c, version)
		c = c.ticketed()
		for range requests {
			r := draw.request()
			said := r.Method + " " + r.URL.RequestURI()
			a := c.send(r)
			require.GreaterOrEqual(t, a.status, 200, said)
			require.NotContains(t, a.reason, "\n", said)
			if strings.Contains(a.raw, "CERTIFICATE-----") { // It is recreated for every host.
				a.raw = "a certificate"
			}
			all = append(all, withoutCertificates(fmt.Sprint(said, " ", a.status, " ", a.reason, " ", a.raw)))
			if draw.IntN(4) == 0 {
				time.Sleep(time.Duration(draw.IntN(5000)) * time.Millisecond)
			}
		}
		time.Sleep(10 * time.Minute) // What they started comes to its end.
		c.h.Snapshot()
	})
	return all
}

// withoutCertificates leaves out of an answer what hangs on the certificate.
func withoutCertificates(text string) string { return certificates.ReplaceAllString(text, "") }

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

// TestSameAnswers: the same seed and the same requests give the same answers, byte for
// byte but for the certificate, which is recreated for every host.
func TestSameAnswers(t *testing.T) {
	answers := func(seed int64) (all []string) {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, pve.Config{Seed: seed, Guests: 20, Nodes: []string{"mother"}, TaskTime: time.Second})
			note := func(verb, path string, params form) any {
				a := c.ask(verb, path, params)
				all = append(all, fmt.Sprint(verb, path, a.status, a.reason, withoutCertificates(a.raw)))
				return a.data
			}
			finish := func(verb, path string, params form) {
				if upid, ok := note(verb, path, params).(string); ok && strings.HasPrefix(upid, "UPID:") {
					all = append(all, c.wait(upid))
				}
			}
			finish("POST", "/nodes/father/storage/local/download-url", form{"url": "https://images.test/debian.qcow2", "filename": "debian.qcow2", "content": "import"})
			finish("POST", "/nodes/father/aplinfo", form{"storage": "local", "template": debianTemplate})
			finish("POST", "/nodes/father/qemu", form{"vmid": "500", "net0": "virtio,bridge=vmbr0", "scsi0": "local-lvm:0,import-from=local:import/debian.qcow2", "agent": "1"})
			finish("POST", "/nodes/father/lxc", form{"vmid": "600", "ostemplate": "local:vztmpl/" + debianTemplate, "storage": "local-lvm", "net0": "name=eth0,bridge=vmbr0"})
			finish("POST", vmURL("500", "/snapshot"), form{"snapname": "one"})
			finish("POST", vmURL("500", "/status/start"), nil)
			finish("POST", "/nodes/father/vzdump", form{"vmid": "500,600", "storage": "local"})
			finish("POST", ctURL("600", "/clone"), form{"newid": "601"})
			finish("POST", vmURL("500", "/clone"), form{"newid": "501", "full": "1"})
			note("POST", "/access/users/root@pam/token/extra", form{})
			note("POST", "/cluster/ha/resources", form{"sid": "vm:501"})
			time.Sleep(time.Minute)
			for path := range strings.FieldsSeq(`/cluster/resources /cluster/tasks /nodes/father/tasks /cluster/status /nodes /storage
				/nodes/father/status /nodes/father/storage/local/content /nodes/father/qemu/500/config /nodes/father/lxc/601/config
				/nodes/father/qemu/500/agent/network-get-interfaces /nodes/father/qemu/501/status/current /cluster/ha/status/current`) {
				note("GET", path, nil)
			}
		})
		return all
	}
	first, second := answers(7), answers(7)
	require.Equal(t, first, second)
	require.NotEqual(t, answers(7), answers(8))
}

// FuzzMethods sends requests of all methods with drawn parameters, one after another to
// one host; the same ones to a second host get the same answers.
func FuzzMethods(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(seed, seed%2 == 0)
	}
	f.Fuzz(func(t *testing.T, seed uint64, old bool) {
		version := "9.2"
		if old {
			version = "8.4"
		}
		const requests = 150
		first := play(t, seed, version, requests)
		for i, said := range play(t, seed, version, requests) {
			require.Equal(t, first[i], said, "request %d", i)
		}
	})
}

const undefined = "property is not defined in schema and the schema does not allow additional properties"

// TestVersions: what PVE 8.4, 9.1 and 9.2 answer differently, one line each. An answer is
// answer by its status, and by what it says of the one thing that differs. Where nothing is
// said of 9.2 it answers as 9.1.
func TestVersions(t *testing.T) {
	member := func(name string) func(answer) any {
		return func(a answer) any {
			object, ok := a.data.(map[string]any)
			if !ok {
				list, _ := a.data.([]any)
				if len(list) == 0 {
					return nil
				}
				object, _ = list[0].(map[string]any)
			}
			return object[name]
		}
	}
	there := func(name string) func(answer) any { return func(a answer) any { return member(name)(a) != nil } }
	reason := func(a answer) any { return a.reason }
	wrong := func(name string) func(answer) any { return func(a answer) any { return a.errors[name] } }
	count := func(a answer) any { return len(a.data.([]any)) }
	const migrated = "ha groups have been migrated to rules"
	for _, row := range []struct {
		what        string
		request     [2]string
		params      form
		says        func(answer) any
		old, recent any
		newest      any // nil: as recent.
	}{
		{"the release", [2]string{"GET", "/version"}, nil, member("release"), "8.4", "9.1", "9.2"},
		{"the version", [2]string{"GET", "/version"}, nil, member("version"), "8.4.21", "9.1.4", "9.2.11"},
		{"HA rules", [2]string{"GET", "/cluster/ha/rules"}, nil, status, 501, 200, nil},
		{
			"a new HA rule",
			[2]string{"POST", "/cluster/ha/rules"},
			form{"rule": "spread", "type": "node-affinity", "resources": "vm:100", "nodes": "father"},
			reason,
			"Method 'POST /cluster/ha/rules' not implemented", "cannot use unmanaged resource(s) vm:100.", nil,
		},
		{"HA groups", [2]string{"GET", "/cluster/ha/groups"}, nil, reason, "OK", "cannot index groups: " + migrated, nil},
		{"a new HA group", [2]string{"POST", "/cluster/ha/groups"}, form{"group": "first", "nodes": "father"}, reason, "OK", "cannot create group: " + migrated, nil},
		{"a group of a resource", [2]string{"POST", "/cluster/ha/resources"}, form{"sid": "vm:100", "group": "first"}, reason, "OK", "invalid parameter 'group': " + migrated, nil},
		{"migration of containers asked first", [2]string{"GET", "/nodes/father/lxc/200/migrate"}, nil, status, 501, 500, nil},
		{
			"images of registries",
			[2]string{"POST", "/nodes/father/storage/local/oci-registry-pull"},
			form{"reference": "docker.io/x/y:latest"},
			reason,
			"Method 'POST /nodes/father/storage/local/oci-registry-pull' not implemented", "OK", nil,
		},
		{"HA at creation", [2]string{"POST", "/nodes/father/qemu"}, form{"vmid": "101", "ha-managed": "1"}, wrong("ha-managed"), undefined, "", nil},
		{"shared pages", [2]string{"POST", "/nodes/father/qemu"}, form{"vmid": "102", "allow-ksm": "0"}, wrong("allow-ksm"), undefined, "", nil},
		{"the environment of a container", [2]string{"PUT", "/nodes/father/lxc/200/config"}, form{"env": "A=1"}, wrong("env"), undefined, "", nil},
		{"a role that may use the monitor", [2]string{"POST", "/access/roles"}, form{"roleid": "R", "privs": "VM.Monitor"}, status, 200, 400, nil},
		{"a role that may use the agent", [2]string{"POST", "/access/roles"}, form{"roleid": "S", "privs": "VM.GuestAgent.Audit"}, status, 400, 200, nil},
		{"the monitor in the roles", [2]string{"GET", "/access/roles/PVEVMAdmin"}, nil, there("VM.Monitor"), true, false, nil},
		{"the agent in the roles", [2]string{"GET", "/access/roles/PVEVMAdmin"}, nil, there("VM.GuestAgent.FileRead"), false, true, nil},
		{"replication in the roles", [2]string{"GET", "/access/roles/Administrator"}, nil, there("VM.Replicate"), false, true, nil},
		{"the agent of the auditor", [2]string{"GET", "/access/roles/PVEAuditor"}, nil, there("VM.GuestAgent.Audit"), false, true, nil},
		{"memory of the process", [2]string{"GET", "/nodes/father/qemu"}, nil, there("memhost"), false, true, nil},
		{"the state of D-Bus", [2]string{"GET", vmURL("100", "/migrate")}, nil, there("has-dbus-vmstate"), false, true, nil},
		{"ten years of figures", [2]string{"GET", "/nodes/father/rrddata"}, form{"timeframe": "decade"}, status, 400, 200, nil},
		{"GlusterFS", [2]string{"GET", "/storage"}, form{"type": "glusterfs"}, status, 200, 400, nil},
		{"limits of backup files", [2]string{"PUT", "/storage/local"}, form{"maxfiles": "0"}, wrong("maxfiles"), "", undefined, nil},
		{"the name of a pool in it", [2]string{"GET", "/pools/ours"}, nil, there("poolid"), true, true, nil},
		{"a pool that begins with a digit", [2]string{"POST", "/pools"}, form{"poolid": "1st"}, reason, "OK", "create pool failed: pool name must start with a letter", nil},
		{"the zones of nodes", [2]string{"GET", "/cluster/resources?type=sdn"}, nil, count, 1, 0, nil},
		{"the images of a registry in the index", [2]string{"GET", "/nodes/father"}, nil, count, 40, 41, nil},
		{"the identity of a storage", [2]string{"GET", "/nodes/father/storage/local"}, nil, count, 9, 10, 11},
		{"a new secret of a token", [2]string{"PUT", "/access/users/root@pam/token/sim"}, form{"regenerate": "0"}, wrong("regenerate"), undefined, undefined, ""},
		{"an emptied comment of a token", [2]string{"PUT", "/access/users/root@pam/token/sim"}, form{"comment": "", "expire": "0"}, there("comment"), false, false, nil},
		{"a parameter that needs another", [2]string{"PUT", "/access/users/root@pam"}, form{"append": "1"}, wrong("groups"), "missing property - 'append' requires this property", "missing property required by 'append'", nil},
		{"an id that is too short", [2]string{"PUT", vmURL("100", "/config")}, form{"vmstatestorage": "a"}, wrong("vmstatestorage"), "invalid format - storage ID 'a' contains illegal characters\n", "invalid format - storage ID 'a' contains illegal characters\n", "invalid format - storage ID 'a' cannot be shorter than 2 characters\n"},
		{"a path of the host", [2]string{"PUT", vmURL("100", "/config")}, form{"scsi5": "/dev/sda"}, reason, "Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 581.", "Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651.", nil},
		{"fabrics in the access list", [2]string{"PUT", "/access/acl"}, form{"path": "/sdn/fabrics/x", "roles": "NoAccess", "users": "root@pam"}, status, 400, 200, nil},
		{"route maps in the access list", [2]string{"PUT", "/access/acl"}, form{"path": "/sdn/route-maps/x", "roles": "NoAccess", "users": "root@pam"}, status, 400, 400, 200},
		{"a container that is a VM, of the HA manager", [2]string{"POST", "/cluster/ha/resources"}, form{"sid": "ct:100"}, reason, "OK", "OK", "resource 'ct:100' - guest with ID 100 is not a container"},
		{"metrics of OpenTelemetry", [2]string{"POST", "/cluster/metrics/server/x"}, form{"type": "opentelemetry", "server": "192.0.2.1", "port": "4318"}, wrong("type"), "value 'opentelemetry' does not have a value in the enumeration 'graphite, influxdb'", "", nil},
		{"tickets of consoles", [2]string{"GET", "/access"}, nil, count, 9, 10, nil},
	} {
		t.Run(row.what, func(t *testing.T) {
			if row.newest == nil {
				row.newest = row.recent
			}
			for version, want := range map[string]any{"8.4": row.old, "9.1": row.recent, "9.2": row.newest} {
				synctest.Test(t, func(t *testing.T) {
					c := newClient(t, pve.Config{Version: version})
					c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
					c.ok("POST", "/pools", form{"poolid": "ours"})
					if version == "8.4" && row.params["group"] != "" && row.params["sid"] != "" {
						c.ok("POST", "/cluster/ha/groups", form{"group": "first", "nodes": "father"})
					}
					a := c.ask(row.request[0], row.request[1], row.params)
					require.Equal(t, want, row.says(a), "%s: %d %s %v", version, a.status, a.reason, a.errors)
				})
			}
		})
	}
}

// surface fills the placeholders of paths and the parameters that a call must have.
type surface map[string]string

// TestVersionParameters: every parameter that came after 8.4 is unknown there, one that
// came after 9.1.1 also in 9.1, and one that went with 8.4 is unknown in 9.1 and 9.2.
func TestVersionParameters(t *testing.T) {
	as := func(version string) *client { return newClient(t, pve.Config{Version: version}).ticketed() }
	old, recent, newest := as("8.4"), as("9.1"), as("9.2")
	vars := surface{"node": "father", "vmid": "100", "userid": "root@pam", "tokenid": "sim", "sid": "vm:100", "storage": "local", "id": "x", "realm": "pve"}
	came, late, went := 0, 0, 0
	for _, m := range pveapi.Methods() {
		for name, v := range m.Params {
			if v.Since == "" && v.Until == "" {
				continue
			}
			ask := func(c *client) string {
				return c.ask(m.Verb, vars.path(m), form{name: "1", "no-such-thing": "1"}).errors[name] // Which lets nothing happen.
			}
			label := fmt.Sprint(m.Verb, " ", m.Path, " ", name)
			switch {
			case !m.In("8.4"):
			case v.Until != "":
				require.NotEqual(t, undefined, ask(old), label)
				require.Equal(t, undefined, ask(recent), label)
				require.Equal(t, undefined, ask(newest), label)
				went++
			default:
				require.Equal(t, undefined, ask(old), label)
				require.Equal(t, v.Since > "9.1", ask(recent) == undefined, label)
				require.NotEqual(t, undefined, ask(newest), label)
				came++
				if v.Since > "9.1" {
					late++
				}
			}
		}
	}
	t.Logf("%d parameters came, %d of them after 9.1, %d went", came, late, went)
	require.Greater(t, came, 20)
	require.Greater(t, late, 20)
	require.Greater(t, went, 5)
}

// TestLesserAnswers: tasks that never were (PVE/API2/Tasks.pm), the confirmation of
// a password (PVE/RPCEnvironment.pm, PVE/Auth/PVE.pm), what vmstatus in
// PVE/QemuServer.pm says of a balloon.
func TestLesserAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Version: "8.4", Password: "secret"})
		c.ok("POST", "/access/users", form{"userid": "ann@pve", "password": "first-one"})
		gone := "/nodes/father/tasks/UPID:father:00000001:00000001:00000001:qmstart:100:root@pam:"
		c.steps(
			step{"DELETE", gone, nil, "upid: no such task"},
			step{"GET", gone + "/status", nil, "upid: no such task"},
		)
		login := c.as("").ok("POST", "/access/ticket", form{"username": "ann@pve", "password": "first-one"}).(map[string]any)
		ann := &client{t: t, h: c.h, ticket: [2]string{login["ticket"].(string), login["CSRFPreventionToken"].(string)}}
		own := form{"userid": "ann@pve", "password": "second-one"}
		ann.steps(
			step{"PUT", "/access/password", own, "confirmation-password: password is required to modify user"},
			step{"PUT", "/access/password", form{"userid": "ann@pve", "password": "second-one", "confirmation-password": "wrong"}, "500 invalid credentials"},
			step{"PUT", "/access/password", form{"userid": "ann@pve", "password": "second-one", "confirmation-password": "first-one"}, "OK"},
		)
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "balloon": "256"})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "101", "balloon": "256", "shares": "50"})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "102", "balloon": "0"})
		shown := func(vmid string) []any {
			v := c.object("/nodes/father/qemu/" + vmid + "/status/current")
			return []any{v["balloon_min"], v["shares"]}
		}
		require.Equal(t, []any{268435456.0, 1000.0}, shown("100"))
		require.Equal(t, []any{268435456.0, 50.0}, shown("101"))
		require.Equal(t, []any{nil, nil}, shown("102"))
	})
}

// TestAlone: what a host answers of things that it does not have: CRIU
// (PVE/API2/LXC/Status.pm), replication (PVE/API2/ReplicationConfig.pm),
// machines of other hypervisors (PVE/Storage.pm).
func TestAlone(t *testing.T) {
	c := likeRecorded(t)
	c.done("POST", "/nodes/father/aplinfo", form{"storage": "local", "template": debianTemplate})
	at := "/nodes/father/storage/local"
	c.steps(
		step{"POST", "/nodes/father/lxc", form{"vmid": "200", "ostemplate": "local:vztmpl/" + debianTemplate, "rootfs": "vmstore:1"}, "OK"},
		step{"POST", ctURL("200", "/status/suspend"), nil, "500 CT 200 not running"},
		step{"POST", ctURL("200", "/status/start"), nil, "OK"},
		step{"POST", ctURL("200", "/status/resume"), nil, "500 CT 200 already running"},
		step{"POST", ctURL("200", "/status/suspend"), nil, "command 'lxc-checkpoint -n 200 -s -D /var/lib/vz/dump' failed: exit code 1"},
		step{"GET", "/cluster/replication/100-0", nil, "500 no such replication job '100-0'"},
		step{"DELETE", "/cluster/replication/100-0", nil, "500 no such job '100-0'"},
		step{"POST", "/nodes/father/qemu", form{"vmid": "100"}, "OK"},
		step{"POST", vmURL("100", "/agent/suspend-ram"), nil, "500 No QEMU guest agent configured"},
		step{"GET", at + "/import-metadata", form{"volume": "local:iso/x.iso"}, "500 unable to parse directory volume name 'local:iso/x.iso'"},
		step{"GET", at + "/import-metadata", form{"volume": "import/x.qcow2"}, "500 invalid format"},
		step{"GET", at + "/prunebackups", nil, "500 no prune-backups options configured for storage 'local'"},
		step{"DELETE", at + "/prunebackups", nil, "no prune-backups options configured for storage 'local'"},
	)
}
