package pve_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// ownCertificate makes a certificate and its key, as PEM.
func ownCertificate(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pve.example.test"}, DNSNames: []string{"pve.example.test"},
		NotBefore: time.Now(), NotAfter: time.Now().Add(90 * 24 * time.Hour),
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	text, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}))
}

// TestCertificates: one's own, and those of an authority (PVE/API2/Certificates.pm, PVE/API2/ACME.pm).
func TestCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		const at = "/nodes/father/certificates"
		certificate, key := ownCertificate(t)
		c.steps(
			step{"POST", at + "/custom", form{"certificates": "nonsense"}, "certificates: invalid format - not a valid PEM-formatted string."},
			step{"POST", at + "/custom", form{"certificates": certificate}, "key: Attempted to upload custom certificate without (existing) key."},
			step{"POST", at + "/custom", form{"certificates": certificate, "key": key}, "OK"},
			step{"POST", at + "/custom", form{"certificates": certificate, "key": key}, "500 Custom certificate file exists but force flag is not set."},
			step{"POST", at + "/custom", form{"certificates": certificate, "key": key, "force": "1"}, "OK"},
		)
		shown := objects(t, c.ok("GET", at+"/info", nil))
		require.Len(t, shown, 3)
		require.Equal(t, []any{"pveproxy-ssl.pem", "/CN=pve.example.test", certificate}, []any{shown[2]["filename"], shown[2]["subject"], shown[2]["pem"]})
		c.steps(
			step{"POST", at + "/acme/certificate", nil, "force: Custom certificate exists but 'force' is not set."},
			step{"DELETE", at + "/custom", nil, "OK"},
			step{"PUT", at + "/acme/certificate", nil, "500 No current (custom) certificate found, please order a new certificate!"},
			step{"POST", at + "/acme/certificate", nil, "400 ACME domain list in node configuration is missing!"},
		)
		c.ok("PUT", "/nodes/father/config", form{"acme": "account=home,domains=pve.example.test"})
		c.steps(step{"POST", at + "/acme/certificate", nil, "ACME account config file 'home' does not exist."})
		c.ticketed().done("POST", "/cluster/acme/account", form{"name": "home", "contact": "a@b.test"})
		c.steps(
			step{"POST", at + "/acme/certificate", nil, "OK"},
			step{"PUT", at + "/acme/certificate", nil, "force: Certificate does not expire within the next 30 days, and 'force' is not set."},
			step{"DELETE", at + "/acme/certificate", nil, "OK"},
		)
		require.Len(t, c.list(at+"/info"), 2)
	})
}

// TestElsewhere: what reaches out of the host.
func TestElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		const pull = "/nodes/father/storage/local/oci-registry-pull"
		away := form{"target-endpoint": "apitoken=PVEAPIToken=a@pve!b=c,host=192.0.2.77", "target-bridge": "vmbr0", "target-storage": "local"}
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		key := form{"key": "pve1c-0123456789"}
		c.steps(
			step{"POST", pull, form{"reference": "docker.io/library/nginx:alpine"}, "OK"},
			step{"POST", pull, form{"reference": "docker.io/library/nginx:alpine"}, "500 refusing to override existing file 'nginx_alpine.tar'"},
			step{"POST", pull, form{"reference": "docker.io/library/nginx:alpine", "filename": "web.tar"}, "OK"},
			step{"POST", "/nodes/father/storage/local-lvm/oci-registry-pull", form{"reference": "docker.io/library/nginx:alpine"}, "500 can't upload to storage type 'lvmthin', not a file based storage!"},
			step{
				"GET", "/nodes/father/scan/pbs",
				form{"server": "192.0.2.9", "username": "a@pbs", "password": "x"},
				"500 error fetching datastores - 500 Can't connect to 192.0.2.9:8007 (No route to host)",
			},
			step{"GET", "/cluster/ceph/status", nil, "500 binary not installed: /usr/bin/ceph-mon"},
			step{"POST", "/nodes/father/ceph/init", form{"network": "192.0.2.0/24"}, "500 binary not installed: /usr/bin/ceph-mon"},
			step{"POST", vmURL("100", "/remote_migrate"), away, "500 500 Can't connect to 192.0.2.77:8006 (No route to host)"},
			step{"POST", vmURL("100", "/status/start"), nil, "OK"},
			step{"POST", vmURL("100", "/remote_migrate"), away, "500 can't migrate running VM without --online"},
			step{"PUT", "/nodes/father/subscription", key, "500 Subscription check failed: 500 Can't connect to shop.proxmox.com:443 (No route to host)"},
		)
		var names []string
		for _, v := range c.list("/nodes/father/storage/local/content?content=vztmpl") {
			names = append(names, fmt.Sprint(v["volid"]))
		}
		require.Equal(t, []string{"local:vztmpl/nginx_alpine.tar", "local:vztmpl/web.tar.tar"}, names)
		shown := func(c *client) []any {
			entry := c.object("/nodes/father/subscription")
			return []any{entry["status"], entry["key"], entry["level"], entry["serverid"] != nil, entry["message"]}
		}
		c.ok("POST", "/access/users", form{"userid": "guest@pve"})
		token, _ := c.ok("POST", "/access/users/guest@pve/token/look", nil).(map[string]any)
		nobody := c.as(fmt.Sprint("guest@pve!look=", token["value"]))
		require.Equal(t, []any{"new", "pve1c-0123456789", nil, true, nil}, shown(c))
		require.Equal(t, []any{"new", nil, nil, false, nil}, shown(nobody))
		c.ok("DELETE", "/nodes/father/subscription", nil)
		require.Equal(t, "notfound", c.object("/nodes/father/subscription")["status"])
		c.ok("POST", "/nodes/father/subscription", nil)
		require.Equal(t, []any{"notfound", nil, nil, false, "There is no subscription key"}, shown(nobody))

		root := c.ticketed()
		join := form{"fingerprint": fingerprint, "hostname": "192.0.2.77", "password": "secret"}
		require.Equal(t, "Check if node may join a cluster failed!", root.task("POST", "/cluster/config/join", join), "it has a guest")
		join["force"] = "1"
		require.Equal(t, "500 Can't connect to 192.0.2.77:8006 (No route to host)", root.task("POST", "/cluster/config/join", join))
		delete(join, "force")
		cluster := newClient(t, pve.Config{Nodes: []string{"mother", "aunt"}}).ticketed()
		cluster.steps(
			step{"POST", "/cluster/config", form{"clustername": "ours"}, "500 cluster config '/etc/pve/corosync.conf' already exists"},
			step{"POST", "/cluster/config/join", join, "Check if node may join a cluster failed!"},
			step{"POST", "/cluster/config/nodes/mother", nil, "500 can't add existing cluster node 'mother'"},
			step{"DELETE", "/cluster/config/nodes/father", nil, "500 Cannot delete myself from cluster!"},
			step{"DELETE", "/cluster/config/nodes/uncle", nil, "500 Node/IP: uncle is not a known host of the cluster."},
			step{"POST", "/nodes/aunt/status", form{"command": "reboot"}, "OK"},
			step{"DELETE", "/cluster/config/nodes/aunt", nil, "OK"},
		)
		time.Sleep(5 * time.Minute) // What was to be done to it is not.
		require.Len(t, cluster.list("/cluster/config/nodes"), 2)
	})
}

// fingerprint is one of a certificate that nobody has.
const fingerprint = "00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF:00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF"
