package service

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// mapping is a range of addresses of this process, [from, to).
type mapping struct{ from, to uintptr }

// programMappings finds where the file of the program is mapped so that nothing can write to it: its code and its constants.
// It leaves out a mapping of which the process has a page of its own, as a debugger and a relocating loader make them.
// It is empty on systems without proc_pid_smaps(5).
func programMappings() []mapping {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	file, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	var out []mapping
	listed := false // the lines are about the last of out
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line := lines.Text()
		var m mapping
		var mode string
		var own int
		key, value, _ := strings.Cut(line, ":")
		switch {
		case strings.Contains(key, "-"): // the first line of each
			listed = false
			if n, _ := fmt.Sscanf(line, "%x-%x %s", &m.from, &m.to, &mode); strings.HasSuffix(line, " "+program) && n == 3 && len(mode) > 1 && mode[1] == '-' {
				out, listed = append(out, m), true
			}
		case listed && (key == "Anonymous" || key == "Swap"):
			if n, _ := fmt.Sscanf(value, "%d", &own); n == 1 && own > 0 {
				out, listed = out[:len(out)-1], false
			}
		}
	}
	return out
}

// unmap takes the pages of mappings out of the memory of this process. They stay in the page cache of the system, and
// each is mapped again when it is used: 24 MiB of them take about 2 ms of processor time.
func unmap(all []mapping) error {
	for _, m := range all {
		if _, _, err := syscall.Syscall(syscall.SYS_MADVISE, m.from, m.to-m.from, syscall.MADV_DONTNEED); err != 0 {
			return fmt.Errorf("unmap the pages of the program: %w", err)
		}
	}
	return nil
}
