//go:build !linux

package site

import (
	"os/exec"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func startBound(cmd *exec.Cmd) error { return cmd.Start() }

func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
