package bench_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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
				last = max(last, highWater(pid))
			case <-stop:
				peak <- last
				return
			}
		}
	}()
	return func() int64 { close(stop); return <-peak }
}

// highWater reads VmHWM, in bytes; 0 when the process is gone.
func highWater(pid int) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}

// median of an odd number of values is the one in the middle.
func median[T int | int64 | float64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// each takes one figure of every run.
func each[T any](runs []run, figure func(run) T) []T {
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
