package proxmox

import (
	"context"
	"regexp"
	"slices"
	"strings"
)

const (
	lastMost = 2   // of them that are told
	lineMost = 200 // characters of each
)

// unsaid are exit statuses that name what failed, and not why: a program that ended, whose
// own words stand in the task's log (qemu-server, QemuServer.pm, vm_start_nolock;
// pve-container, LXC.pm, vm_start; pve-common, Tools.pm, run_command), or a backup, which
// says of itself that there were errors (pve-manager, VZDump.pm, exec_backup).
var unsaid = regexp.MustCompile(`exit(ed with)? code \d|got signal \d|^startup for container '\d+' failed|^job errors$`)

// cause gives the last lines that a task wrote before it died, where its exit status does
// not say why; "" where it does, or where the log cannot be seen.
func (t *tasks) cause(ctx context.Context, node, upid, status string) string {
	if !unsaid.MatchString(status) {
		return ""
	}
	var lines []struct {
		Text string `json:"t"`
	}
	// All of it, since the cause stands at its end (pve-common, Tools.pm, dump_logfile: 0 is no limit).
	if err := t.c.get(ctx, seg("nodes", node, "tasks", upid, "log")+"?limit=0", &lines); err != nil {
		return ""
	}
	var out []string
	named := status == "job errors" // its errors are called so, and other lines follow them
	for _, l := range slices.Backward(lines) {
		text := strings.TrimSpace(l.Text)
		if is := strings.HasPrefix(text, "ERROR: "); named && !is {
			continue
		}
		if text == "" || text == "no content" || strings.HasPrefix(text, "TASK ") || strings.Contains(status, text) {
			continue
		}
		if cut := []rune(text); len(cut) > lineMost {
			text = string(cut[:lineMost]) + "…"
		}
		if out = append(out, text); len(out) == lastMost {
			break
		}
	}
	slices.Reverse(out)
	return strings.Join(out, "; ")
}
