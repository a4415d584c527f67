package api

import (
	"context"
	"regexp"
	"strings"
	"sync"
)

const (
	lastMost = 2   // of them that are reported
	lineMost = 300 // characters of each
)

// unexplained are exit statuses that name what failed, and not why: a program that ended, whose
// own text is in the task's log (qemu-server, QemuServer.pm, vm_start_nolock;
// pve-container, LXC.pm, vm_start; pve-common, Tools.pm, run_command), or a backup, which
// says of itself that there were errors (pve-manager, VZDump.pm, exec_backup).
var unexplained = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`exit(ed with)? code \d|got signal \d|^startup for container '\d+' failed|^job errors$`)
})

// routine are lines of a log that never say why a task failed.
var routine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^$|^no content$|^TASK |^OK$|^trying to acquire lock|^generating cloud-init ISO|^Formatting '|^transferred |^(kvm|qemu[\w-]*): warning: |^WARN: |^(swtpm_setup|Starting vTPM|Ending vTPM|Creating )`)
})

// follows are lines of what went wrong because of something that an earlier line names:
// QEMU on the script that plugs in a card, PVE on QEMU, and the outer functions of LXC
// (qemu-server, QemuServer.pm, vm_start_nolock; LXC names the innermost first).
var follows = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`network script \S+ failed with status|^stopping swtpm instance|^(__lxc_start|lxc_spawn|lxc_start|lxc_init|start): \d+ |^(__lxc_start|lxc_spawn|lxc_start): `)
})

// cause gives the lines of a task's log that say why it died, where its exit status does
// not; "" where it does, or where the log cannot be seen. It is the last lines that are
// neither routine nor the consequence of another.
func (t *tasks) cause(ctx context.Context, node, upid, status string) string {
	if !unexplained().MatchString(status) {
		return ""
	}
	var lines []struct {
		Text string `json:"t"`
	}
	// All of it, since the cause is at its end (pve-common, Tools.pm, dump_logfile: 0 is unlimited).
	if err := t.c.Get(ctx, Path("nodes", node, "tasks", upid, "log")+"?limit=0", &lines); err != nil {
		return ""
	}
	log := make([]string, len(lines))
	for i, l := range lines {
		log[i] = strings.TrimSpace(l.Text)
	}
	return decisive(log, status)
}

// decisive picks those lines.
func decisive(log []string, status string) string {
	named := status == "job errors" // its errors are called so, and other lines follow them
	var causes, consequences []string
	for _, text := range log {
		switch {
		case named && !strings.HasPrefix(text, "ERROR: "), routine().MatchString(text), strings.Contains(status, text):
		case follows().MatchString(text):
			consequences = append(consequences, text)
		default:
			causes = append(causes, text)
		}
	}
	if len(causes) == 0 {
		causes = consequences
	}
	causes = causes[max(len(causes)-lastMost, 0):]
	for i, text := range causes {
		causes[i] = middleCut(text, lineMost)
	}
	return strings.Join(causes, "; ")
}

// middleCut shortens a text to most characters. It keeps a third of them from the beginning, where programs name what they
// did, and the rest from the end, where the cause is.
func middleCut(text string, most int) string {
	all := []rune(text)
	if len(all) <= most {
		return text
	}
	begin := most / 3
	return string(all[:begin]) + " … " + string(all[len(all)-(most-begin-len([]rune(" … "))):])
}
