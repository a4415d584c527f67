// Package machine is a simulated machine in memory: its processes (kernel.go), its files (files.go), and
// connections from the network to it (wire.go).
package machine

// The kernel runs the programs of a simulated machine as processes with descriptors, signals
// and pipes, over the file system of files.go. A process is a goroutine. A program is a Go
// function that an executable file of the machine names. No process of the real machine is
// ever started.
//
// Read Kernel first, then process.go and pipe.go.

import (
	"cmp"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Program is the code of an executable file. It returns the exit code.
type Program func(p *Process) int

// Clock is the time of a machine, which may run faster than that of the process. The zero value is the time of the
// process.
type Clock struct {
	Begin time.Time // when both showed the same
	Speed int       // as many times as fast; 0 is 1
}

// Now is the time on the machine.
func (c Clock) Now() time.Time {
	now := time.Now()
	if c.Speed > 1 {
		now = now.Add(now.Sub(c.Begin) * time.Duration(c.Speed-1))
	}
	return now
}

// Timer fires when d has passed on the machine.
func (c Clock) Timer(d time.Duration) *time.Timer {
	if c.Speed > 1 {
		d /= time.Duration(c.Speed)
	}
	return time.NewTimer(d)
}

// Kernel is a machine that runs. Safe for concurrent use.
type Kernel struct {
	FS       *FS
	Clock    Clock
	Programs map[string]Program // by the name in the executable file; immutable

	// mu is for a moment only: processes come and go side by side.
	mu     sync.Mutex
	procs  map[int]*Process
	last   int
	name   string
	locks  map[uint64]*OpenFile // by inode: who holds flock(2)
	freed  chan struct{}        // closed when a lock is given up
	halted bool
	seen   func(args, env []string)
	all    sync.WaitGroup
}

// NewKernel makes a machine that has no process yet.
func NewKernel(fs *FS, clock Clock, programs map[string]Program) *Kernel {
	return &Kernel{FS: fs, Clock: clock, Programs: programs, procs: map[int]*Process{}, last: 300, locks: map[uint64]*OpenFile{}, freed: make(chan struct{}), name: "localhost"}
}

// Watch calls a function with the arguments and the environment of each program that starts from now on, as a
// process list shows them. It may be called from several goroutines.
func (k *Kernel) Watch(seen func(args, env []string)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen = seen
}

// Hostname is the name of the machine.
func (k *Kernel) Hostname() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.name
}

// SetHostname changes it.
func (k *Kernel) SetHostname(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.name = name
}

// Halt kills every process, and waits until none is left. No other begins from then on.
func (k *Kernel) Halt() {
	k.mu.Lock()
	k.halted = true
	var all []*Process
	for _, p := range k.procs {
		all = append(all, p)
	}
	k.mu.Unlock()
	for _, p := range all {
		p.Signal(syscall.SIGKILL)
	}
	k.all.Wait()
}

// Find is a process by its number; nil if there is none.
func (k *Kernel) Find(pid int) *Process {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.procs[pid]
}

// NextPID is a number that no process has.
func (k *Kernel) NextPID() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last++
	return k.last
}

// magic begins an executable file whose program is a Go function.
const magic = "\x7fELF simulated "

// Executable is the content of an executable file for a program of the machine.
func Executable(name string) string { return magic + name + "\n" }

// interpreter finds what runs a file: its program, and the words that come before the arguments of
// a script.
func (k *Kernel) interpreter(c Cred, name string) (Program, []string, error) {
	before := []string{name}
	for depth := range mostScripts {
		i, err := k.FS.Stat(c, name)
		switch {
		case err != nil:
			return nil, nil, err
		case i.Kind != PlainFile || !k.FS.Access(c, name, 1):
			return nil, nil, syscall.EACCES
		}
		text, err := k.FS.ReadFile(name)
		if err != nil {
			return nil, nil, err
		}
		if program, ok := strings.CutPrefix(text, magic); ok {
			run := k.Programs[strings.TrimSpace(program)]
			if run == nil {
				return nil, nil, syscall.ENOEXEC
			}
			if depth == 0 {
				before = nil
			}
			return run, before, nil
		}
		line, _, _ := strings.Cut(text, "\n")
		line, script := strings.CutPrefix(line, "#!")
		words := strings.Fields(line)
		if !script || len(words) == 0 {
			return nil, nil, syscall.ENOEXEC
		}
		before = append(words, before...)
		name = words[0]
	}
	return nil, nil, syscall.ELOOP
}

// mostScripts is the number of scripts that may run one another (execve(2)).
const mostScripts = 5

// Find finds a program by PATH, as execvp(3) does.
func (p *Process) Find(name string) (string, error) {
	if strings.Contains(name, "/") {
		return p.Path(name), nil
	}
	found := error(syscall.ENOENT)
	for dir := range strings.SplitSeq(cmp.Or(p.Getenv("PATH"), "/bin:/usr/bin"), ":") {
		file := p.Path(path.Join(dir, name))
		i, err := p.K.FS.Stat(p.Cred, file)
		switch {
		case err != nil || i.Kind != PlainFile:
		case p.K.FS.Access(p.Cred, file, 1):
			return file, nil
		default:
			found = syscall.EACCES
		}
	}
	return "", found
}
