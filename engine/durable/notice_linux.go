package durable

import (
	"context"
	"os"
	"syscall"
)

const nameMax = 255 // bytes of a name, limits.h

// Notice sends after a file of one of some folders was written, replaced, created, removed, or got other rights, until ctx
// ends. Several changes may be one notice. A process that waits for it never wakes up for nothing. What a link leads to elsewhere, or a
// folder that is not there yet, is not noticed, so check once in a while as well.
func Notice(ctx context.Context, folders ...string) <-chan struct{} {
	notices := make(chan struct{}, 1)
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return notices // the user has as many as the kernel allows
	}
	f := os.NewFile(uintptr(fd), "inotify") //nolint:gosec // a file descriptor
	for _, folder := range folders {
		_, _ = syscall.InotifyAddWatch(fd, folder, syscall.IN_CLOSE_WRITE|syscall.IN_MOVE|syscall.IN_CREATE|syscall.IN_DELETE|syscall.IN_ATTRIB)
	}
	context.AfterFunc(ctx, func() { _ = f.Close() })
	go func() {
		events := make([]byte, 16*(syscall.SizeofInotifyEvent+nameMax+1))
		for {
			if _, err := f.Read(events); err != nil {
				return
			}
			select {
			case notices <- struct{}{}:
			default:
			}
		}
	}()
	return notices
}
