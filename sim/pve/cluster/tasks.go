package cluster

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// upidForm is the form of a task's id (PVE/UPID.pm in pve-common).
var upidForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^UPID:([A-Za-z0-9-]+):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{8,9}):([0-9A-Fa-f]{8}):([^:\s]+):([^:\s]*):([^:\s]+):$`)
})

// taskCall finds the task of a call, and checks who may see it: its owner, or
// who may read the node (check_task_user and the code around it in
// PVE/API2/Tasks.pm).
func taskCall(c *core.Call, priv string) (*core.Task, error) {
	parts := upidForm().FindStringSubmatch(c.In["upid"])
	if parts == nil {
		return nil, perl.BadParam("upid", "unable to parse worker upid")
	}
	t := c.W.Tasks.ByID[c.In["upid"]]
	if t == nil && !strings.HasSuffix(c.Req.Path, "/log") {
		return nil, perl.BadParam("upid", "no such task")
	}
	if user, name, _ := strings.Cut(parts[7], "!"); !c.Who.Owns(core.Identity{User: user, Token: name}) {
		if err := c.Need("/nodes/"+c.In["node"], priv); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// apiTaskStatus is GET /nodes/{node}/tasks/{upid}/status.
func apiTaskStatus(_ *core.World, c *core.Call) (any, error) {
	t, err := taskCall(c, "Sys.Audit")
	if err != nil {
		return nil, err
	}
	result := identity(t)
	result["status"] = "running"
	if !t.Running() {
		result["status"], result["exitstatus"] = "stopped", t.Status
	}
	return result, nil
}

// identity has the fields of a task's id, as the API shows them.
func identity(t *core.Task) map[string]any {
	result := map[string]any{
		"upid": t.UPID, "node": t.Node, "pid": t.Pid, "pstart": t.Since, "starttime": t.Start.Unix(),
		"type": t.Kind, "id": t.ID, "user": t.Who.User,
	}
	if t.Who.Token != "" {
		result["tokenid"] = t.Who.Token
	}
	return result
}

// apiTaskLog is GET /nodes/{node}/tasks/{upid}/log. For an unknown task it returns one line that is not a list;
// that is a bug of PVE.
func apiTaskLog(_ *core.World, c *core.Call) (any, error) {
	t, err := taskCall(c, "Sys.Audit")
	if err != nil {
		return nil, err
	}
	if t == nil {
		return core.Paged{Data: map[string]any{"n": 1, "t": "unable to open file - No such file or directory"}, Total: 1}, nil
	}
	return c.LogPage(t.Log), nil
}

// apiTaskStop is DELETE /nodes/{node}/tasks/{upid}.
func apiTaskStop(_ *core.World, c *core.Call) (any, error) {
	t, err := taskCall(c, "Sys.Modify")
	if err != nil {
		return nil, err
	}
	t.Kill()
	return nil, nil
}

// apiNodeTasks is GET /nodes/{node}/tasks: of what is over (source=archive, the
// default), of what runs (active), or both. Newest first.
func apiNodeTasks(w *core.World, c *core.Call) (any, error) {
	node := c.In["node"]
	source := cmp.Or(c.In["source"], "archive")
	auditor := c.Can("/nodes/"+node, "Sys.Audit")
	since, until := c.Num("since", 0), c.Num("until", 0)
	matched := []map[string]any{}
	for _, t := range slices.Backward(w.Tasks.All) {
		switch {
		case t.Node != node,
			source == "archive" && t.Running(), source == "active" && !t.Running(),
			!auditor && !c.Who.Owns(t.Who),
			c.Has("vmid") && t.ID != c.In["vmid"],
			c.In["typefilter"] != "" && t.Kind != c.In["typefilter"],
			c.In["userfilter"] != "" && !strings.Contains(strings.ToLower(t.Who.String()), strings.ToLower(c.In["userfilter"])),
			since > 0 && t.Start.Unix() < int64(since), until > 0 && t.Start.Unix() > int64(until),
			c.Flag("errors") && (t.Running() || !core.StatusIsError(t.Status)),
			!hasStatus(t, c.List("statusfilter")):
			continue
		}
		entry := identity(t)
		if t.Running() {
			// The list of running tasks takes the user from the UPID as it is.
			entry["status"], entry["user"], entry["saved"] = "RUNNING", t.Who.String(), "0"
			delete(entry, "tokenid")
		} else {
			entry["status"], entry["endtime"] = t.Status, t.Stopped.Unix()
		}
		matched = append(matched, entry)
	}
	total := len(matched)
	start, limit := c.Num("start", 0), c.Num("limit", 50)
	page := matched[min(start, total):]
	if limit > 0 && len(page) > limit {
		page = page[:limit]
	}
	return core.Paged{Data: page, Total: total}, nil
}

// hasStatus says whether a task passes a filter of statuses.
func hasStatus(t *core.Task, filter []string) bool {
	if len(filter) == 0 {
		return true
	}
	kind := "error"
	switch {
	case t.Running():
		return false
	case t.Status == "OK":
		kind = "ok"
	case strings.HasPrefix(t.Status, "WARNINGS: "):
		kind = "warning"
	case t.Status == "unexpected status":
		kind = "unknown"
	}
	return slices.Contains(filter, kind)
}

// apiClusterTasks is GET /cluster/tasks: the recent ones of all nodes.
func apiClusterTasks(w *core.World, c *core.Call) (any, error) {
	// A task shows its user without the token, which is then held against who asks: a token
	// does not even see its own (tasks in PVE/API2/Cluster.pm).
	sees := func(t *core.Task) bool { return c.Can("/", "Sys.Audit") || c.Who == core.Identity{User: t.Who.User} }
	recent := []map[string]any{}
	for i, t := range slices.Backward(w.Tasks.All) {
		if len(w.Tasks.All)-i > 25*len(w.Nodes) {
			break
		}
		if !sees(t) {
			continue
		}
		entry := identity(t)
		delete(entry, "pid")
		delete(entry, "pstart")
		if !t.Running() {
			entry["status"], entry["endtime"], entry["saved"] = t.Status, t.Stopped.Unix(), "1"
		}
		recent = append(recent, entry)
	}
	return recent, nil
}

// apiClusterLog is GET /cluster/log, the newest first: which tasks began and ended, and who changed the
// configuration of a VM.
func apiClusterLog(w *core.World, c *core.Call) (any, error) {
	var all []core.Message
	for _, t := range w.Tasks.All {
		all = append(all, core.Message{At: t.Start, Node: t.Node, Who: t.Who, Text: "starting task " + t.UPID})
		if !t.Running() {
			all = append(all, core.Message{At: t.Stopped, Node: t.Node, Who: t.Who, Text: "end task " + t.UPID + " " + t.Status})
		}
	}
	all = append(all, w.Messages...)
	sort.SliceStable(all, func(i, j int) bool { return all[i].At.Compare(all[j].At) < 0 })
	list := []map[string]any{}
	every, most := c.Can("/", "Sys.Syslog"), c.Num("max", 50)
	for i, m := range slices.Backward(all) {
		if len(list) < most && (every || c.Who.Owns(m.Who)) {
			n := fmt.Sprint(i + 1)
			list = append(list, map[string]any{
				"uid": n, "id": n + ":" + m.Node, "node": m.Node, "user": m.Who.String(), "tag": "pvedaemon", "pri": 6,
				"pid": cmp.Or(m.Pid, daemonPid), "time": m.At.Unix(), "msg": m.Text,
			})
		}
	}
	return list, nil
}

// daemonPid is that of a worker of pvedaemon.
const daemonPid = 941
