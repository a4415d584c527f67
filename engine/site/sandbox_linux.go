package site

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// starts are the children to start.
var (
	starter sync.Once
	starts  = make(chan start)
)

type start struct {
	cmd *exec.Cmd
	err chan error
}

// ownGroup makes a child the leader of a group, which the kernel kills with its parent.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// startBound starts a child. The kernel takes the thread that starts it for its parent, so one
// goroutine keeps that thread as long as the process lives.
func startBound(cmd *exec.Cmd) error {
	starter.Do(func() {
		go func() {
			runtime.LockOSThread()
			for s := range starts {
				s.err <- s.cmd.Start()
			}
		}()
	})
	s := start{cmd, make(chan error, 1)}
	starts <- s
	return <-s.err
}

// killGroup ends a child and all that it started.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
