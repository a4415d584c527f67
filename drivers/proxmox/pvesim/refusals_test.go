package pvesim_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
)

// refusals are recordings that do not stand alone: what was refused in them is
// refused alike by a host that holds what they speak of. Excused are exchanges
// that need more than that.
var refusals = map[string]map[int]string{
	"errors-params": {}, "errors-unknown": {}, "errors-root-only": {}, "errors-auth": {}, "qemu-locked": {}, "qemu-template-clone": {},
	"qemu-config-update": {}, "qemu-pending": {}, "qemu-lifecycle": {}, "qemu-destroy": {}, "request-encoding": {}, "storage-content": {},
	"cluster-nextid": {}, "node-network": {}, "tasks": {},
	"errors-permission":  {10: "backups are not simulated"},
	"qemu-create-errors": {0: "VM 110 is that of another recording"},
	"download-url":       {2: "there is no web server to ask", 54: "the volume is of an earlier recording"},
}

// lab is a host like the one of those recordings.
func lab(t *testing.T) (c *client, logins map[string]http.Header) {
	t.Helper()
	all := []string{"images", "rootdir", "import", "iso", "vztmpl", "backup", "snippets"}
	c = newClient(t, pvesim.Config{Node: "pve1", Version: "8.4", Password: "pw", Storages: []pvesim.Storage{
		{Name: "vmstore", Type: "dir", Path: "/srv/vmstore", Content: all}, {Name: "local", Type: "dir", Content: []string{"iso", "vztmpl"}},
	}})
	c.ok("POST", "/access/roles", form{"roleid": "GitOps", "privs": strings.Join([]string{
		"VM.Allocate,VM.Audit,VM.Clone,VM.Config.CDROM,VM.Config.CPU,VM.Config.Cloudinit,VM.Config.Disk,VM.Config.HWType",
		"VM.Config.Memory,VM.Config.Network,VM.Config.Options,VM.Monitor,VM.PowerMgmt,VM.Snapshot,VM.Snapshot.Rollback,VM.Backup",
		"Datastore.AllocateSpace,Datastore.AllocateTemplate,Datastore.Audit,Pool.Audit,Pool.Allocate,Sys.Audit,SDN.Use,SDN.Audit",
	}, ",")})
	logins = map[string]http.Header{"": {}, "root@pam!lab": {"Authorization": {"PVEAPIToken=" + c.token}}}
	for tokenid, role := range map[string]string{"ops@pve!gitops": "GitOps", "audit@pve!ro": "PVEAuditor", "ops@pve!bare": ""} {
		userid, name, _ := strings.Cut(tokenid, "!")
		c.ask("POST", "/access/users", form{"userid": userid})
		made, ok := c.ok("POST", "/access/users/"+userid+"/token/"+name, nil).(map[string]any)
		require.True(t, ok)
		logins[tokenid] = http.Header{"Authorization": {fmt.Sprintf("PVEAPIToken=%s=%s", tokenid, made["value"])}}
		if role != "" {
			c.ok("PUT", "/access/acl", form{"path": "/", "roles": role, "users": userid, "tokens": tokenid})
		}
	}
	login, ok := c.as("").ok("POST", "/access/ticket", form{"username": "root@pam", "password": "pw"}).(map[string]any)
	require.True(t, ok)
	logins["cookie"] = http.Header{
		"Cookie": {"PVEAuthCookie=" + url.PathEscape(fmt.Sprint(login["ticket"]))}, "Csrfpreventiontoken": {fmt.Sprint(login["CSRFPreventionToken"])},
	}
	c.done("POST", "/nodes/pve1/storage/vmstore/download-url", form{"url": "https://x.test/tiny", "filename": "tiny.qcow2", "content": "import"})
	c.ok("POST", "/pools", form{"poolid": "homelab"})
	c.done("POST", "/nodes/pve1/qemu", form{
		"vmid": "100", "name": "web01", "cores": "1", "memory": "256", "kvm": "0", "cpu": "qemu64", "agent": "enabled=1", "pool": "homelab",
		"scsihw": "virtio-scsi-single", "scsi0": "vmstore:0,import-from=vmstore:import/tiny.qcow2,ssd=1", "ide2": "vmstore:cloudinit", "boot": "order=scsi0",
		"net0": "virtio,bridge=vmbr0,firewall=0", "ostype": "l26", "serial0": "socket", "vga": "serial0", "ciuser": "debian", "nameserver": "10.99.0.1",
		"tags": "gitops;web", "description": "managed by gitops",
	})
	return c, logins
}

// TestRecordedRefusals holds status, reason and the texts per parameter of what
// the recorded PVE refused against the simulator's.
func TestRecordedRefusals(t *testing.T) {
	for name, excused := range refusals {
		t.Run(name, func(t *testing.T) {
			s := readStory(t, "../"+name)
			synctest.Test(t, func(t *testing.T) {
				c, logins := lab(t)
				if name == "qemu-pending" { // Which goes on with a VM that runs.
					c.done("POST", "/nodes/pve1/qemu/100/status/start", nil)
				}
				for i, e := range s.Exchanges {
					if strings.Contains(e.Request.Path, "/tasks/UPID") && e.Response.Status < 400 {
						continue // The tasks have other names here.
					}
					got := c.as("").send(recorded(t, e, logins))
					if e.Response.Status < 400 || excused[i] != "" {
						continue
					}
					var want struct {
						Errors map[string]string
					}
					if len(e.Response.Body) > 0 {
						require.NoError(t, json.Unmarshal(e.Response.Body, &want))
					}
					if got.status != e.Response.Status || got.reason != e.Response.Reason || fmt.Sprint(got.errors) != fmt.Sprint(want.Errors) {
						t.Errorf("%s: %s\n  want %d %s %q\n  got  %d %s %q", s.title(i), e.Note, e.Response.Status, e.Response.Reason, want.Errors, got.status, got.reason, got.errors)
					}
				}
			})
		})
	}
}

// recorded is a recorded request with the logins at hand.
func recorded(t *testing.T, e storyExchange, logins map[string]http.Header) *http.Request {
	t.Helper()
	body, kind := "", ""
	switch r := e.Request; {
	case r.RawBody != nil:
		body = *r.RawBody
	case r.JSON != nil:
		text, err := json.Marshal(r.JSON)
		require.NoError(t, err)
		body = string(text)
	case r.Form != nil:
		var pairs []string
		for _, pair := range r.Form {
			pairs = append(pairs, url.QueryEscape(fmt.Sprint(pair[0]))+"="+url.QueryEscape(fmt.Sprint(pair[1])))
		}
		body = strings.Join(pairs, "&")
	}
	r, err := http.NewRequest(e.Request.Method, "https://pve1"+e.Request.Path, strings.NewReader(body))
	require.NoError(t, err)
	login := ""
	for key, value := range e.Request.Headers {
		switch key {
		case "Authorization":
			r.Header.Set(key, value) // Kept if nobody is known by that name, or wrong on purpose.
			tokenid, _, _ := strings.Cut(strings.TrimPrefix(value, "PVEAPIToken="), "=")
			if logins[tokenid] != nil && e.Response.Status != http.StatusUnauthorized {
				login = tokenid
			}
		case "Cookie":
			r.Header.Set(key, value)
			if e.Response.Status != http.StatusUnauthorized {
				login = "cookie"
			}
		case "Content-Type":
			kind = value
		}
	}
	maps.Copy(r.Header, logins[login])
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	return r
}
