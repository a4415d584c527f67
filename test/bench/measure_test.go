package bench_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// run is one process, from its start to its end.
type run struct {
	wall, cpu time.Duration
	rss       int64 // peak of its resident memory in bytes; 0 where it was not asked for
	code      int
	stdout    string
	stderr    string
}

// command is a process to measure.
type command struct {
	name string
	args []string
	env  []string // beside that of this process
	rss  bool     // watch its memory; that costs some CPU of this process
}

// measure runs a process to its end. That it exits with another code than 0 is no
// error; that it cannot be run is.
func measure(ctx context.Context, c command) (run, error) {
	var out, text bytes.Buffer
	cmd := exec.CommandContext(ctx, c.name, c.args...)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Stdout, cmd.Stderr = &out, &text
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return run{}, fmt.Errorf("start %s: %w", c.name, err)
	}
	peak := func() int64 { return 0 }
	if c.rss {
		peak = watchMemory(cmd.Process.Pid)
	}
	err := cmd.Wait()
	r := run{wall: time.Since(began), rss: peak(), stdout: out.String(), stderr: text.String()}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return r, fmt.Errorf("run %s: %w", c.name, err)
	}
	r.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	r.code = cmd.ProcessState.ExitCode()
	if r.rss == 0 {
		// Of systems without /proc. Elsewhere this figure is not good enough: the memory
		// of the process that started another one counts into it.
		if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			r.rss = int64(usage.Maxrss) << 10 //nolint:unconvert // An int32 on systems of 32 bits.
		}
	}
	return r, nil
}

// watchMemory follows the high-water mark of a process until the function that it
// returns is called, which gives it in bytes.
func watchMemory(pid int) func() int64 {
	stop, peak := make(chan struct{}), make(chan int64)
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		last := int64(0)
		for {
			select {
			case <-tick.C:
				last = max(last, memoryOf(pid, "VmHWM"))
			case <-stop:
				peak <- last
				return
			}
		}
	}()
	return func() int64 { close(stop); return <-peak }
}

// memoryOf reads one figure about the memory of a process (proc_pid_status(5)), in
// bytes; 0 when the process is gone.
func memoryOf(pid int, name string) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}

// cpuOf is the CPU that a process that runs has used, to the microsecond: what its
// threads say of themselves. The sum that times(2) gives is counted in steps of 10 ms.
func cpuOf(pid int) (time.Duration, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err == nil && len(threads) == 0 {
		err = fs.ErrNotExist
	}
	var sum time.Duration
	for _, name := range threads {
		text, rerr := os.ReadFile(name)
		var ns int64
		if rerr == nil {
			_, rerr = fmt.Sscan(string(text), &ns)
		}
		err, sum = errors.Join(err, rerr), sum+time.Duration(ns)
	}
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return sum, nil
}

// childrenOf says whether a process had children that it waited for: by the pages
// that they touched (cminflt in proc_pid_stat(5)), since no process starts without.
func childrenOf(pid int) (bool, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false, fmt.Errorf("read the children of process %d: %w", pid, err)
	}
	_, rest, _ := strings.Cut(string(text), ") ") // the name before it may hold anything
	fields := strings.Fields(rest)
	const cminflt = 11 - 3 // the first two were cut off, and lists begin with 0
	if len(fields) <= cminflt {
		return false, fmt.Errorf("read the children of process %d: %q is not understood", pid, text)
	}
	return fields[cminflt] != "0", nil
}

// sizeOf is how many bytes the files of a folder have.
func sizeOf(dir string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	return sum, err
}

// at95 is the value that 95 % of the values do not exceed.
func at95[T int64 | float64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)*95+99)/100-1]
}

// median is the value in the middle; of an even number, the greater of the two.
func median[T int | int64 | float64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// each takes one figure of every run.
func each[R, T any](runs []R, figure func(R) T) []T {
	out := make([]T, len(runs))
	for i, r := range runs {
		out[i] = figure(r)
	}
	return out
}

func wall(runs []run) time.Duration {
	return median(each(runs, func(r run) time.Duration { return r.wall }))
}

func cpu(runs []run) time.Duration {
	return median(each(runs, func(r run) time.Duration { return r.cpu }))
}

func rss(runs []run) int64 { return median(each(runs, func(r run) int64 { return r.rss })) }
