package policy

import (
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// ThreadClock binds the goroutine to its thread, until it ends or calls release. Read gives the
// processor time of that thread, and may be called from any goroutine.
func ThreadClock() (read func() time.Duration, release func()) {
	runtime.LockOSThread()
	const perThread, scheduled = 4, 2                  // CPUCLOCK_PERTHREAD_MASK, CPUCLOCK_SCHED of the kernel
	id := ^syscall.Gettid()<<3 | perThread | scheduled // as pthread_getcpuclockid makes it
	return func() time.Duration {
		var t syscall.Timespec
		if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, uintptr(id), uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
			return 0
		}
		return time.Duration(t.Nano())
	}, runtime.UnlockOSThread
}
