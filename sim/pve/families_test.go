package pve_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestFirewall: rules in their order, sets, aliases and groups, of a guest, a node and
// the cluster; a stale digest is refused; a clone takes them along.
func TestFirewall(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
	for _, at := range []string{vmURL("100", "/firewall"), "/nodes/father/firewall", "/cluster/firewall"} {
		empty := c.object(at + "/options")["digest"]
		c.ok("PUT", at+"/options", form{"enable": "1"})
		require.Equal(t, 1.0, c.object(at + "/options")["enable"])
		require.Contains(t, c.ask("PUT", at+"/options", form{"enable": "0", "digest": fmt.Sprint(empty)}).reason, "detected modified configuration")
		c.ok("POST", at+"/rules", form{"type": "in", "action": "ACCEPT", "dport": "22", "proto": "tcp", "enable": "1"})
		c.ok("POST", at+"/rules", form{"type": "in", "action": "DROP"})
		c.ok("PUT", at+"/rules/0", form{"moveto": "2"})
		rules := c.list(at + "/rules")
		require.Equal(t, []any{"ACCEPT", "DROP"}, []any{rules[0]["action"], rules[1]["action"]})
		require.Equal(t, "no rule at position 5", c.ask("DELETE", at+"/rules/5", nil).reason)
	}
	at := vmURL("100", "/firewall")
	c.ok("POST", at+"/aliases", form{"name": "Gate", "cidr": "192.0.2.1/32"})
	require.Equal(t, "192.0.2.1", c.object(at + "/aliases/gate")["cidr"])
	c.ok("POST", at+"/ipset", form{"name": "home"})
	c.ok("POST", at+"/ipset/home", form{"cidr": "192.0.2.0/24", "nomatch": "1"})
	require.Equal(t, 1.0, c.list(at + "/ipset/home")[0]["nomatch"])
	require.Equal(t, "IPSet 'home' is not empty", c.ask("DELETE", at+"/ipset/home", nil).reason)
	require.Len(t, c.list(at+"/refs"), 2)
	c.ok("POST", "/cluster/firewall/groups", form{"group": "web"})
	c.ok("POST", "/cluster/firewall/groups/web", form{"type": "in", "action": "ACCEPT", "macro": "HTTPS"})
	require.Equal(t, "Security group 'web' is not empty", c.ask("DELETE", "/cluster/firewall/groups/web", nil).reason)

	c.done("POST", vmURL("100", "/clone"), form{"newid": "101"})
	require.Len(t, c.list("/nodes/father/qemu/101/firewall/rules"), 2)
	c.done("DELETE", vmURL("101", ""), nil)
	c.done("POST", "/nodes/father/qemu", form{"vmid": "101"})
	require.Empty(t, c.list("/nodes/father/qemu/101/firewall/rules"), "they go with the guest")
}

// TestAgentTakesLettersForBytes: Perl makes a byte of each letter of what a program reads, of its
// arguments and of a file's content, and fails where one is wider; an agent keeps 16 MiB
// of an output (QEMU, qga/commands.c).
func TestAgentTakesLettersForBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := strings.Repeat("x", 16<<20+1)
		c := newClient(t, pve.Config{Exec: func(_ int, command []string, input string) (out, err string, code int, known bool) {
			return long, fmt.Sprintf("%q %q", command, input), 0, true
		}})
		c.image()
		c.vm("100", nil)
		c.done("POST", vmURL("100", "/status/start"), nil)
		time.Sleep(5 * time.Second)
		pid := c.ok("POST", vmURL("100", "/agent/exec"), form{"command": "\u00c3\u00a4", "input-data": "\u00ff"}).(map[string]any)["pid"]
		status := c.object(vmURL("100", fmt.Sprintf("/agent/exec-status?pid=%v", pid)))
		require.Equal(t, "[\"\u00c3\u00a4\"] \"\\xff\"", status["err-data"], "what it wrote comes as letters, too")
		require.Equal(t, []any{1.0, 0.0, 16 << 20}, []any{status["out-truncated"], status["err-truncated"], len(status["out-data"].(string))})
		for _, f := range []form{{"command": "\u2013"}, {"command": "x", "input-data": "\u2013"}} {
			require.Contains(t, c.ask("POST", vmURL("100", "/agent/exec"), f).reason, "Wide character in subroutine entry at ")
		}
		require.Contains(t, c.ask("POST", vmURL("100", "/agent/exec"), form{"command": "\u00ff"}).reason, "invalid UTF-8")
		require.Contains(t, c.ask("POST", vmURL("100", "/agent/file-write"), form{"file": "/tmp/x", "content": "\u2013"}).reason, "Wide character")
		c.ok("POST", vmURL("100", "/agent/file-write"), form{"file": "/tmp/x", "content": "\u00ff"})
		require.Equal(t, 1.0, c.object(vmURL("100", "/agent/file-read?file=/tmp/x"))["bytes-read"])
	})
}

// TestAgentRuns: programs that the test declares, a few that are always there, and the
// 596 for one that is not; a result can be had once.
func TestAgentRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Exec: func(vmid int, command []string, input string) (out, err string, code int, known bool) {
			return fmt.Sprint(vmid, input), "odd", 7, command[0] == "/usr/bin/ours"
		}})
		c.image()
		c.vm("100", nil)
		require.Equal(t, "VM 100 is not running", c.ask("POST", vmURL("100", "/agent/exec"), form{"command": "true"}).reason)
		c.done("POST", vmURL("100", "/status/start"), nil)
		time.Sleep(5 * time.Second)
		run := func(words ...string) map[string]any {
			body := url.Values{"command": words, "input-data": {"in"}}.Encode()
			r, err := http.NewRequest(http.MethodPost, "https://pve/api2/json"+vmURL("100", "/agent/exec"), strings.NewReader(body))
			require.NoError(t, err)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			pid := c.send(r).data.(map[string]any)["pid"]
			status := c.object(vmURL("100", fmt.Sprintf("/agent/exec-status?pid=%v", pid)))
			require.Equal(t, "Agent error: Invalid parameter 'pid'", c.ask("GET", vmURL("100", fmt.Sprintf("/agent/exec-status?pid=%v", pid)), nil).reason)
			return status
		}
		ours := run("/usr/bin/ours", "x")
		require.Equal(t, []any{"100in", "odd", 7.0}, []any{ours["out-data"], ours["err-data"], ours["exitcode"]})
		require.Equal(t, 3.0, run("/bin/sh", "-c", "exit 3")["exitcode"])
		require.Equal(t, "vm-100\n", run("cat", "/etc/hostname")["out-data"])
		a := c.ask("POST", vmURL("100", "/agent/exec"), form{"command": "/bin/nosuch"})
		require.Equal(t, "596 Broken pipe", fmt.Sprint(a.status, " ", a.reason))

		c.ok("POST", vmURL("100", "/agent/file-write"), form{"file": "/tmp/x", "content": base64.StdEncoding.EncodeToString([]byte("hello")), "encode": "0"})
		require.Equal(t, "hello", c.object(vmURL("100", "/agent/file-read?file=/tmp/x"))["content"])
		c.ok("POST", vmURL("100", "/agent/shutdown"), nil)
		time.Sleep(time.Second)
		require.Equal(t, "stopped", c.object(vmURL("100", "/status/current"))["status"])
	})
}

// TestStorageEdit: a storage that was added can be used, one that is disabled cannot.
func TestStorageEdit(t *testing.T) {
	c := newClient(t, pve.Config{})
	require.Equal(t, "missing value for required option 'pool'", c.ask("POST", "/storage", form{"storage": "tank", "type": "zfspool"}).reason)
	c.ok("POST", "/storage", form{"storage": "tank", "type": "zfspool", "pool": "tank/vms", "content": "images", "sparse": "1"})
	require.Equal(t, "create storage failed: storage ID 'tank' already defined", c.ask("POST", "/storage", form{"storage": "tank", "type": "zfspool", "pool": "x"}).reason)
	entry := c.object("/storage/tank")
	require.Equal(t, []any{"tank/vms", 1.0}, []any{entry["pool"], entry["sparse"]})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "tank:1"})
	c.ok("PUT", "/storage/tank", form{"disable": "1", "digest": fmt.Sprint(entry["digest"])})
	require.Contains(t, c.ask("PUT", "/storage/tank", form{"disable": "0", "digest": fmt.Sprint(entry["digest"])}).reason, "detected modified configuration")
	require.Equal(t, "storage 'tank' is disabled", c.task("POST", vmURL("100", "/status/start"), nil))
	c.ok("PUT", "/storage/tank", form{"delete": "disable"})
	c.done("POST", vmURL("100", "/status/start"), nil)
	c.ok("DELETE", "/storage/tank", nil)
	require.Equal(t, "storage 'tank' does not exist", c.ask("GET", "/storage/tank", nil).reason)
	require.Equal(t, 501, c.ask("POST", "/storage", form{"storage": "pbs", "type": "pbs", "server": "x", "datastore": "y"}).status)
}

// TestGroups: who is in a group has what the group has, until it is gone.
func TestGroups(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.ok("POST", "/access/groups", form{"groupid": "ops", "comment": "us"})
	require.Equal(t, "create group failed: group 'ops' already exists", c.ask("POST", "/access/groups", form{"groupid": "ops"}).reason)
	c.ok("POST", "/access/users", form{"userid": "ann@pve", "groups": "ops"})
	c.ok("PUT", "/access/acl", form{"path": "/", "roles": "PVEAuditor", "groups": "ops"})
	token := c.ok("POST", "/access/users/ann@pve/token/extra", form{"privsep": "0"}).(map[string]any)["value"]
	ann := c.as(fmt.Sprintf("ann@pve!extra=%s", token))
	require.Len(t, ann.list("/storage"), 2)
	require.Equal(t, []any{"ann@pve"}, c.object("/access/groups/ops")["members"])
	c.ok("DELETE", "/access/groups/ops", nil)
	require.Empty(t, ann.list("/storage"))
	require.Equal(t, "group 'ops' does not exist", c.ask("GET", "/access/groups/ops", nil).reason)
}

// TestBackupJobs: jobs are kept, and forget a guest that is purged.
func TestBackupJobs(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
	c.ok("POST", "/cluster/backup", form{"id": "nightly", "vmid": "100,101", "storage": "local", "schedule": "daily"})
	c.ok("PUT", "/cluster/backup/nightly", form{"enabled": "0"})
	require.Equal(t, 0.0, c.object("/cluster/backup/nightly")["enabled"])
	c.done("DELETE", vmURL("100", ""), form{"purge": "1"})
	require.Equal(t, "101", c.list("/cluster/backup")[0]["vmid"])
	c.ok("DELETE", "/cluster/backup/nightly", nil)
	require.Equal(t, map[string]string{"id": "No such job 'nightly'"}, c.ask("GET", "/cluster/backup/nightly", nil).errors)
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

// certificates are what differs between two hosts that are otherwise the same.
var certificates = regexp.MustCompile(`"(?:ssl_fingerprint|pve_fp|serverid|config_digest)":"[0-9A-Fa-f:]+"|"cert":"[^"]*"`)
