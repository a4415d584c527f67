package debian

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
)

// journal is the last lines of what runs of units wrote, the newest run last. Safe for concurrent use.
type journal struct {
	mu   sync.Mutex
	runs []*journalOf
}

const (
	keptRuns  = 64
	keptLines = 20
)

// journalOf has the output of one run of a unit: an invocation, as systemd calls it.
type journalOf struct {
	id string

	mu    sync.Mutex
	lines []string
	part  string // of a line that has no end yet
}

// open is a run of a unit, which may begin.
func (j *journal) open(id string) *journalOf {
	j.mu.Lock()
	defer j.mu.Unlock()
	if i := slices.IndexFunc(j.runs, func(r *journalOf) bool { return r.id == id }); i >= 0 {
		return j.runs[i]
	}
	if len(j.runs) >= keptRuns {
		j.runs = slices.Delete(j.runs, 0, 1)
	}
	j.runs = append(j.runs, &journalOf{id: id})
	return j.runs[len(j.runs)-1]
}

// Write takes what a process of the run wrote.
func (r *journalOf) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := strings.Split(r.part+string(p), "\n")
	r.part = lines[len(lines)-1]
	r.lines = append(r.lines, lines[:len(lines)-1]...)
	if more := len(r.lines) - keptLines; more > 0 {
		r.lines = slices.Delete(r.lines, 0, more)
	}
	return len(p), nil
}

// failed notes that a program did not start, as systemd-executor does, and says so if a real machine could run it.
func (r *journalOf) failed(program string, err error) {
	why := err.Error()
	if no, is := errors.AsType[syscall.Errno](err); is {
		why = no.Error()
	}
	if errors.Is(err, syscall.ENOEXEC) {
		why += " (this machine is simulated, and runs no program that was copied to it: agents of children run in simulations with --sim, and not behind the verb sim)"
	}
	_, _ = fmt.Fprintf(r, "Failed to execute %s: %s\n", program, why)
}

// last are the last lines.
func (r *journalOf) last(n int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Clone(r.lines)
	if r.part != "" {
		all = append(all, r.part)
	}
	return all[max(len(all)-n, 0):]
}

// journalctl shows lines of one run, by _SYSTEMD_INVOCATION_ID=.
func (m systemd) journalctl(p *machine.Process, o userland.Options) int {
	n, err := strconv.Atoi(cmp.Or(o.Text("lines"), "10"))
	if err != nil {
		return p.Failf("Failed to parse lines '%s'", o.Text("lines"))
	}
	m.journal.mu.Lock()
	runs := slices.Clone(m.journal.runs)
	m.journal.mu.Unlock()
	for _, r := range runs {
		if slices.Contains(o.Args, "_SYSTEMD_INVOCATION_ID="+r.id) {
			for _, line := range r.last(n) {
				p.Printf("%s\n", line)
			}
		}
	}
	return 0
}
