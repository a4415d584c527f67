package pvesim

import (
	"regexp"
	"slices"
	"strings"
)

// upidForm is the form of a task's id (PVE/UPID.pm in pve-common).
var upidForm = regexp.MustCompile(`^UPID:([A-Za-z0-9-]+):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{8,9}):([0-9A-Fa-f]{8}):([^:\s]+):([^:\s]*):([^:\s]+):$`)

// taskCall finds the task of a call, and checks who may see it: its owner, or
// who may look at the node (check_task_user and the code around it in
// PVE/API2/Tasks.pm).
func (c *call) taskCall(priv string) (*task, error) {
	parts := upidForm.FindStringSubmatch(c.in["upid"])
	if parts == nil {
		return nil, badParam("upid", "unable to parse worker upid")
	}
	t := c.w.tasks.byID[c.in["upid"]]
	if t == nil && !strings.HasSuffix(c.req.path, "/log") {
		return nil, badParam("upid", "no such task")
	}
	if user, name, _ := strings.Cut(parts[7], "!"); !c.who.owns(identity{user, name}) {
		if err := c.need("/nodes/"+c.in["node"], priv); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// apiTaskIndex is GET /nodes/{node}/tasks/{upid}.
func apiTaskIndex(*world, *call) (any, error) { return subdirs("name", "log", "status"), nil }

// apiTaskStatus is GET /nodes/{node}/tasks/{upid}/status.
func apiTaskStatus(_ *world, c *call) (any, error) {
	t, err := c.taskCall("Sys.Audit")
	if err != nil {
		return nil, err
	}
	result := t.identity()
	result["status"] = "running"
	if !t.running() {
		result["status"], result["exitstatus"] = "stopped", t.status
	}
	return result, nil
}

// identity is what a task's id tells, as the API shows it.
func (t *task) identity() map[string]any {
	result := map[string]any{
		"upid": t.upid, "node": t.node, "pid": t.pid, "pstart": t.since, "starttime": t.start.Unix(),
		"type": t.kind, "id": t.id, "user": t.who.user,
	}
	if t.who.token != "" {
		result["tokenid"] = t.who.token
	}
	return result
}

// apiTaskLog is GET /nodes/{node}/tasks/{upid}/log. Of an unknown task it
// answers one line that is no list; that is PVE's own mistake.
func apiTaskLog(_ *world, c *call) (any, error) {
	t, err := c.taskCall("Sys.Audit")
	if err != nil {
		return nil, err
	}
	if t == nil {
		return paged{map[string]any{"n": 1, "t": "unable to open file - No such file or directory"}, 1}, nil
	}
	start, limit := c.num("start", 0), c.num("limit", 50)
	lines := []map[string]any{}
	for n := start; n < len(t.log) && (limit == 0 || len(lines) < limit); n++ {
		lines = append(lines, map[string]any{"n": n + 1, "t": t.log[n]})
	}
	if len(lines) == 0 {
		lines = append(lines, map[string]any{"n": 1, "t": "no content"})
	}
	return paged{lines, len(t.log)}, nil
}

// apiTaskStop is DELETE /nodes/{node}/tasks/{upid}.
func apiTaskStop(_ *world, c *call) (any, error) {
	t, err := c.taskCall("Sys.Modify")
	if err != nil {
		return nil, err
	}
	t.kill()
	return nil, nil
}

// apiNodeTasks is GET /nodes/{node}/tasks: of what is over (source=archive, the
// default), of what runs (active), or both. Newest first.
func apiNodeTasks(w *world, c *call) (any, error) {
	node := c.in["node"]
	source := c.in["source"]
	if source == "" {
		source = "archive"
	}
	auditor := c.can("/nodes/"+node, "Sys.Audit")
	since, until := c.num("since", 0), c.num("until", 0)
	matched := []map[string]any{}
	for _, t := range slices.Backward(w.tasks.all) {
		switch {
		case t.node != node,
			source == "archive" && t.running(), source == "active" && !t.running(),
			!auditor && !c.who.owns(t.who),
			c.has("vmid") && t.id != c.in["vmid"],
			c.in["typefilter"] != "" && t.kind != c.in["typefilter"],
			c.in["userfilter"] != "" && !strings.Contains(strings.ToLower(t.who.String()), strings.ToLower(c.in["userfilter"])),
			since > 0 && t.start.Unix() < int64(since), until > 0 && t.start.Unix() > int64(until),
			c.flag("errors") && (t.running() || !statusIsError(t.status)),
			!t.hasStatus(c.list("statusfilter")):
			continue
		}
		entry := t.identity()
		if t.running() {
			// The list of running tasks takes the user from the UPID as it is.
			entry["status"], entry["user"], entry["saved"] = "RUNNING", t.who.String(), "0"
			delete(entry, "tokenid")
		} else {
			entry["status"], entry["endtime"] = t.status, t.stopped.Unix()
		}
		matched = append(matched, entry)
	}
	total := len(matched)
	start, limit := c.num("start", 0), c.num("limit", 50)
	page := matched[min(start, total):]
	if limit > 0 && len(page) > limit {
		page = page[:limit]
	}
	return paged{page, total}, nil
}

// hasStatus says whether a task passes a filter of statuses.
func (t *task) hasStatus(filter []string) bool {
	if len(filter) == 0 {
		return true
	}
	kind := "error"
	switch {
	case t.running():
		return false
	case t.status == "OK":
		kind = "ok"
	case strings.HasPrefix(t.status, "WARNINGS: "):
		kind = "warning"
	case t.status == "unexpected status":
		kind = "unknown"
	}
	return slices.Contains(filter, kind)
}

// apiClusterTasks is GET /cluster/tasks: the recent ones of all nodes.
func apiClusterTasks(w *world, c *call) (any, error) {
	// A task shows its user without the token, which is then held against who asks: a token
	// does not even see its own (tasks in PVE/API2/Cluster.pm).
	sees := func(t *task) bool { return c.can("/", "Sys.Audit") || c.who == identity{user: t.who.user} }
	recent := []map[string]any{}
	for i, t := range slices.Backward(w.tasks.all) {
		if len(w.tasks.all)-i > 25*len(w.nodes) {
			break
		}
		if !sees(t) {
			continue
		}
		entry := t.identity()
		delete(entry, "pid")
		delete(entry, "pstart")
		if !t.running() {
			entry["status"], entry["endtime"], entry["saved"] = t.status, t.stopped.Unix(), "1"
		}
		recent = append(recent, entry)
	}
	return recent, nil
}
