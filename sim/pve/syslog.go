package pve

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
)

// nodeJournal returns the output of a node's daemons: what tasks began and ended.
func nodeJournal(w *core.World, name string) (list []string) {
	line := func(at time.Time, process string, pid int, format string, args ...any) {
		list = append(list, fmt.Sprintf("%s %s %s[%d]: %s", at.UTC().Format("Jan 02 15:04:05"), name, process, pid, fmt.Sprintf(format, args...)))
	}
	line(w.Boot, "systemd", 1, "Reached target multi-user.target - Multi-User System.")
	for _, t := range w.Tasks.All {
		if t.Node != name {
			continue
		}
		line(t.Start, "pvedaemon", t.Pid, "<%s> starting task %s", t.Who, t.UPID)
		if !t.Running() {
			line(t.Stopped, "pvedaemon", t.Pid, "<%s> end task %s %s", t.Who, t.UPID, t.Status)
		}
	}
	return list
}

// apiSyslog is GET /nodes/{node}/syslog; service picks the lines of one.
func apiSyslog(w *core.World, c *core.Call) (any, error) {
	lines := nodeJournal(w, c.In["node"])
	if service := c.In["service"]; service != "" {
		lines = slices.DeleteFunc(lines, func(l string) bool { return !strings.Contains(l, " "+service+"[") })
	}
	return c.LogPage(lines), nil
}
