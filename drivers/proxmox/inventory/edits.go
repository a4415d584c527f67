package inventory

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Two logs say who changed a guest. The cluster log has the keys of each change of a VM and the start of every task,
// and shows those of other users to a token with Sys.Syslog on / (pve-manager, API2/Cluster.pm). A node lists its tasks
// to a token with Sys.Audit, and the log of a task qmconfig has the keys. Nothing logs a change of a container.

const (
	clusterLogMost = 1000 // entries that are read, the newest
	taskLogsMost   = 10   // task logs that are read in one observation
)

// logged is an entry of a log.
type logged struct {
	at         time.Time
	user, task string
	text       string
}

// Edits reads the last changes of managed guests, the newest first, as far as the logs show them. One without a user was
// made by this token. It costs one request, and one more for each node if the cluster log has no change by another user.
func Edits(ctx context.Context, h *kind.Host, guests model.State, of []model.Address) map[model.Address][]model.Edit {
	d, differ := finder{h}, map[int]model.Address{}
	for _, addr := range of {
		if r := guests[addr]; r != nil && guest.StateOf(r) != nil {
			differ[r.Guest.VMID] = addr
		}
	}
	if len(differ) == 0 {
		return nil
	}
	entries, err := d.readClusterLog(ctx)
	if !slices.ContainsFunc(entries, func(e logged) bool { return e.user != d.API.User() }) && !api.EndsPass(ctx, err) {
		entries = append(entries, d.readTaskLogs(ctx, guests, differ)...) // its own entries hide what was before them
		sort.SliceStable(entries, func(i, j int) bool { return entries[j].at.Compare(entries[i].at) < 0 })
	}
	edits := map[model.Address][]model.Edit{}
	for _, e := range entries {
		vmid, keys := readEntry(e)
		addr, of := differ[vmid]
		if !of {
			continue
		}
		edit := model.Edit{User: e.user, At: e.at, Task: e.task}
		if e.user == d.API.User() {
			edit.User = "" // it names no user, and hides what was before it
		}
		have := guest.StateOf(guests[addr])
		for _, key := range keys {
			edit.Path = editedPath(have, key)
			edits[addr] = append(edits[addr], edit)
		}
	}
	return edits
}

// readClusterLog reads the cluster log, the newest entry first.
func (d finder) readClusterLog(ctx context.Context) ([]logged, error) {
	var out []logged
	pids := map[string]int{} // process → its first entry that has no task yet
	_, err := d.API.Rows(ctx, "/cluster/log?max="+strconv.Itoa(clusterLogMost), func(e api.Row) {
		l := logged{at: time.Unix(int64(e.Number("time")), 0).UTC(), user: e.Text("user"), text: e.Text("msg")}
		if upid, starts := strings.CutPrefix(l.text, "starting task "); starts {
			l.task = upid
			if pid, ok := taskPID(upid); ok { // the process of the task wrote later entries
				if i, ok := pids[e.Text("node")+"/"+pid]; ok && out[i].user == l.user {
					out[i].task = upid
				}
				delete(pids, e.Text("node")+"/"+pid) // an earlier process may have had the same number
			}
		}
		out = append(out, l)
		pids[e.Text("node")+"/"+e.Text("pid")] = len(out) - 1
	})
	return out, err
}

// taskPID is the process of a task, in decimal.
func taskPID(upid string) (string, bool) {
	p := strings.Split(upid, ":")
	if len(p) < 4 {
		return "", false
	}
	n, err := strconv.ParseUint(p[2], 16, 32)
	return strconv.FormatUint(n, 10), err == nil
}

// readTaskLogs reads the tasks on the guests that differ, the newest first, and the keys of those that changed a
// configuration.
func (d finder) readTaskLogs(ctx context.Context, guests model.State, differ map[int]model.Address) []logged {
	var out []logged
	nodes := map[string]bool{}
	for _, addr := range differ {
		nodes[guests[addr].Guest.Node] = true
	}
	for node := range nodes {
		_, err := d.API.Rows(ctx, api.Path("nodes", node, "tasks")+"?limit=500&source=all", func(e api.Row) {
			upid := e.Text("upid")
			if vmid, _ := strconv.Atoi(api.ParseUPID(upid).Object); differ[vmid] != (model.Address{}) {
				out = append(out, logged{at: time.Unix(int64(e.Number("starttime")), 0).UTC(), user: api.ParseUPID(upid).User, task: upid, text: "starting task " + upid})
			}
		})
		if api.EndsPass(ctx, err) {
			return nil
		}
	}
	sort.SliceStable(out, func(i, j int) bool {
		return cmp.Or(out[j].at.Compare(out[i].at), strings.Compare(out[j].task, out[i].task)) < 0
	})
	read := 0
	for i, e := range out {
		id := api.ParseUPID(e.task)
		if id.Type != "qmconfig" || id.User == d.API.User() || read == taskLogsMost {
			continue
		}
		read++
		_, err := d.API.Rows(ctx, api.Path("nodes", id.Node, "tasks", e.task, "log")+"?limit=5", func(line api.Row) {
			if text := line.Text("t"); updatedKeys().MatchString(text) {
				out[i].text = text
			}
		})
		if api.EndsPass(ctx, err) {
			return nil
		}
	}
	return out
}

// updatedKeys is the entry about a change of a VM (qemu-server, API2/Qemu.pm, update_vm_api); updatedKey is one of the
// parameters in it. A value may have " -key " in it: then the entry names one key too many.
var (
	updatedKeys = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^update VM (\d+):((?s).*)$`) })
	updatedKey  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(` -([a-z][a-z0-9_-]*) (\S*)`) })
)

// taskPaths are the attributes that tasks change, by their types: "" for all of them.
var taskPaths = sync.OnceValue(func() map[string]string {
	out := map[string]string{"resize": "disk", "qmmove": "disk", "move_volume": "disk", "qmrollback": "", "vzrollback": "", "qmrestore": "", "vzrestore": ""}
	for _, t := range []string{"start", "stop", "shutdown", "reboot", "reset", "suspend", "resume", "pause"} {
		out["qm"+t], out["vz"+t] = "power", "power"
	}
	return out
})

// readEntry returns the VMID that an entry is about, and what it changed: keys of the configuration, or attributes as
// taskPaths has them. It returns 0 for all other entries.
func readEntry(e logged) (vmid int, keys []string) {
	if m := updatedKeys().FindStringSubmatch(e.text); m != nil {
		vmid, _ = strconv.Atoi(m[1])
		for _, p := range updatedKey().FindAllStringSubmatch(m[2], -1) {
			switch p[1] {
			case "delete", "revert":
				keys = append(keys, strings.FieldsFunc(p[2], func(r rune) bool { return strings.ContainsRune(",; ", r) })...)
			default:
				keys = append(keys, p[1])
			}
		}
		return vmid, keys
	}
	upid, starts := strings.CutPrefix(e.text, "starting task ")
	id := api.ParseUPID(upid)
	path, changes := taskPaths()[id.Type]
	if !starts || !changes {
		return 0, nil
	}
	vmid, _ = strconv.Atoi(id.Object)
	return vmid, []string{path}
}

// editedPath is the path in the files of a key that a log names; a path stays as it is.
func editedPath(have guest.State, key string) string {
	if n, ok := strings.CutPrefix(key, "ipconfig"); ok {
		key = "net" + n
	}
	if key == "" || key == "power" || key == "disk" {
		return key
	}
	return guest.AttributePath(have, key)
}
