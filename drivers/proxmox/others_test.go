package proxmox_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// as sends a request with a token, and gives what PVE answers.
func (w *world) as(token, method, path string, values url.Values) string {
	w.T.Helper()
	r, err := http.NewRequestWithContext(w.T.Context(), method, "https://pve.test:8006/api2/json"+path, strings.NewReader(values.Encode()))
	require.NoError(w.T, err)
	r.Header.Set("Authorization", "PVEAPIToken="+token)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := w.Host.RoundTrip(r)
	require.NoError(w.T, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(w.T, err)
	require.Equal(w.T, http.StatusOK, res.StatusCode, "%s %s: %s", method, path, body)
	return string(body)
}

// tokenOf makes a user with some rights, and a token of that user.
func (w *world) tokenOf(user string, acl map[string]string) string {
	w.T.Helper()
	w.Root(http.MethodPost, "/access/users", url.Values{"userid": {user}})
	for path, privs := range acl {
		role := strings.Split(user, "@")[0] + strings.ReplaceAll(path, "/", "-")
		w.Root(http.MethodPost, "/access/roles", url.Values{"roleid": {role}, "privs": {privs}})
		w.Root(http.MethodPut, "/access/acl", url.Values{"path": {path}, "users": {user}, "roles": {role}})
	}
	var doc struct{ Data struct{ Value string } }
	require.NoError(w.T, json.Unmarshal([]byte(w.as(w.Host.Token(), http.MethodPost, "/access/users/"+user+"/token/gitops", url.Values{"privsep": {"0"}})), &doc))
	return user + "!gitops=" + doc.Data.Value
}

// guestPrivs are the rights of the documented role on guests, and those to clone a template.
const guestPrivs = "VM.Allocate,VM.Audit,VM.Clone,VM.Config.CDROM,VM.Config.CPU,VM.Config.Cloudinit,VM.Config.Disk,VM.Config.HWType,VM.Config.Memory,VM.Config.Network,VM.Config.Options,VM.PowerMgmt"

// least is a token with the documented rights, and without those on a node unless audits.
func (w *world) least(audits bool) string {
	node := "Sys.AccessNetwork"
	if audits {
		node += ",Sys.Audit"
	}
	return w.tokenOf("homestak@pve", map[string]string{
		"/vms": guestPrivs, "/storage/local-lvm": "Datastore.AllocateSpace", "/storage/tank": "Datastore.AllocateSpace",
		"/storage/local": "Datastore.Allocate,Datastore.AllocateTemplate,Datastore.Audit", "/sdn/zones/localnetwork": "SDN.Use", "/nodes/father": node,
	})
}

// reopenAs makes a new driver with another token.
func (w *world) reopenAs(token string) {
	d, err := proxmox.Open(proxmox.Config{Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: token, Transport: w.Host})
	require.NoError(w.T, err)
	w.Driver = d
}

// unowned is a stopped VM of somebody else with a disk.
func (w *world) unowned(vmid int) {
	w.Root(http.MethodPost, "/nodes/father/qemu", url.Values{"vmid": {strconv.Itoa(vmid)}, "name": {"hers"}, "scsi0": {"tank:2"}})
	time.Sleep(2 * time.Second)
}

// TestOtherPeoplesWorkBlocksNothingOfOurs: for an hour a colleague's task works on the host. Our pass does all of its
// own work meanwhile. Only in a range of ours a guest waits, as long as the guest that is being created may be it.
func TestOtherPeoplesWorkBlocksNothingOfOurs(t *testing.T) {
	all := []string{"create vm.comes", "create vm.elsewhere", "delete vm.leaves", "update vm.stays: onboot"}
	waits := []string{"create vm.elsewhere", "delete vm.leaves", "update vm.stays: onboot"}
	begins := map[string]func(w *world, token, vmid string){
		"clone": func(w *world, token, vmid string) {
			w.as(token, http.MethodPost, "/nodes/father/qemu/60000/clone", url.Values{"newid": {vmid}, "full": {"1"}, "name": {"copy"}})
		},
		"create": func(w *world, token, vmid string) {
			w.as(token, http.MethodPost, "/nodes/father/qemu", url.Values{"vmid": {vmid}, "name": {"new"}, "scsi0": {"tank:2"}})
		},
		"restore": func(w *world, token, vmid string) {
			w.as(token, http.MethodPost, "/nodes/father/qemu", url.Values{"vmid": {vmid}, "archive": {backups(w)[0].ID}, "storage": {"tank"}})
		},
		"migration": func(w *world, token, _ string) {
			w.as(token, http.MethodPost, "/nodes/father/qemu/60000/migrate", url.Values{"target": {"mother"}, "with-local-disks": {"1"}})
		},
	}
	for name, c := range map[string]struct {
		work, vmid string
		audits     bool
		steps      []string
		seen       string // what the plan says of the guest
	}{
		"clone":                        {"clone", "69997", true, all, "is being created by task qmclone of root@pam"},
		"clone, tasks unseen":          {"clone", "69997", false, all, "no task of this token works on it"},
		"clone in range":               {"clone", "10050", true, all, "is being created by task qmclone of root@pam"}, // no node is a clone of that guest
		"clone in range, unseen":       {"clone", "10050", false, all, "no task of this token works on it"},
		"create":                       {"create", "69997", true, all, "is being created by task qmcreate of root@pam"},
		"create, tasks unseen":         {"create", "69997", false, all, "no task of this token works on it"},
		"create in range":              {"create", "10050", true, waits, "vm 10050 is being created by task qmcreate of root@pam!other, and may be it"},
		"restore":                      {"restore", "69997", true, all, "is being created by task qmrestore of root@pam"},
		"restore, tasks unseen":        {"restore", "69997", false, all, "no task of this token works on it"},
		"restore in range":             {"restore", "10050", true, waits, "vm 10050 is being created by task qmrestore of root@pam!other, and may be it"},
		"restore in range of a kind":   {"restore", "20050", true, all, "is being created by task qmrestore of root@pam"}, // where only containers live
		"migration":                    {"migration", "", true, all, ""},
		"migration, tasks unseen":      {"migration", "", false, all, ""},
		"restore under a declared one": {"restore", "30000", true, []string{"create vm.comes", "delete vm.leaves", "update vm.stays: onboot"}, "vm 30000 is being created"},
	} {
		t.Run(name, func(t *testing.T) {
			tank := pve.Storage{Name: "tank", Type: "zfspool", Content: []string{"images", "rootdir"}}
			times := map[string]time.Duration{}
			inTime(t, pve.Config{Nodes: []string{"mother"}, TaskTime: time.Second, TaskTimes: times, Storages: append(pve.DefaultStorages(), tank)}, func(t *testing.T, w *world) {
				var doc struct{ Data struct{ Value string } }
				require.NoError(t, json.Unmarshal([]byte(w.as(w.Host.Token(), http.MethodPost, "/access/users/root@pam/token/other", url.Values{"privsep": {"0"}})), &doc))
				colleague := "root@pam!other=" + doc.Data.Value
				w.unowned(60000)
				w.Root(http.MethodPost, "/nodes/father/vzdump", url.Values{"vmid": {"60000"}, "storage": {"local"}})
				time.Sleep(time.Minute)
				w.reopenAs(w.least(c.audits))
				w.ct("cache", nil)
				w.Site.Manifests["web"].Nodes[0].Resource.Guest.Choose = []model.VMIDRange{{Name: "cts", From: 20000, To: 20099}}
				w.Node("leaves", nil)
				w.Node("stays", nil)
				w.Apply()
				time.Sleep(time.Minute)

				for _, kind := range []string{"qmclone", "qmcreate", "qmrestore", "qmigrate"} {
					times[kind] = time.Hour
				}
				begins[c.work](w, colleague, c.vmid)
				time.Sleep(2 * time.Minute)
				w.Host.Snapshot() // the task is at work by now
				clear(times)
				w.Drop("leaves")
				w.VM("stays").OnBoot = true
				w.Node("comes", nil)
				w.Node("elsewhere", nil).Resource.Guest.VMID = 30000
				p := w.Plan()
				require.ElementsMatch(t, c.steps, steps(p), card(p))
				require.Contains(t, card(p), c.seen)
				if len(c.steps) == len(all) {
					require.Empty(t, p.Unknown, card(p))
					require.False(t, p.Findings.HasErrors(), card(p))
				} else {
					require.Len(t, p.Unknown, 2, card(p))
					for _, u := range p.Unknown {
						if u.VMID != 0 {
							require.Len(t, u.Withheld, 1)
							require.Equal(t, p.Unknown[1-indexOf(p.Unknown, u.Scope)].Scope, u.Withheld[0].String())
						}
					}
				}
				began := time.Now()
				require.Empty(t, w.Run(p))
				require.Less(t, time.Since(began), 10*time.Minute)
				if c.vmid != "" {
					id, err := strconv.Atoi(c.vmid)
					require.NoError(t, err)
					require.NotEmpty(t, w.Guest(id).Lock, "the colleague's task is still at work")
				} else {
					require.Equal(t, "migrate", w.Guest(60000).Lock)
				}
				time.Sleep(2 * time.Hour)
				if c.vmid == "30000" {
					require.Contains(t, card(w.Plan()), `vm 30000 "hers" exists already and is unmanaged`)
					return
				}
				w.Apply()
				w.Converged()
			})
		})
	}
}

func indexOf(list []model.Unknown, scope string) int {
	for i, u := range list {
		if u.Scope == scope {
			return i
		}
	}
	return -1
}
