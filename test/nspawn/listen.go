package nspawn

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"

	"github.com/stretchr/testify/require"
)

// sysSetns is setns(2); the syscall package has no name for it.
var sysSetns = map[string]uintptr{"amd64": 308, "arm64": 268}

// Listen listens on an address of TCP as the guest has it, for a server that runs in the test: a
// socket stays in the network that it was made in. It is closed when the test is over.
func (m *Machine) Listen(address string) net.Listener {
	m.t.Helper()
	l, err := listenIn(fmt.Sprintf("/proc/%d/ns/net", m.leader), address)
	require.NoError(m.t, err)
	m.t.Cleanup(func() {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			m.t.Error(err)
		}
	})
	return l
}

// listenIn listens on a thread that is in another network meanwhile. The thread must not end: a
// guest that it has started would be killed with it (PR_SET_PDEATHSIG in prctl(2)).
func listenIn(network, address string) (l net.Listener, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, here.Close()) }()
	there, err := os.Open(network)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, there.Close()) }()
	if err := setns(there); err != nil {
		return nil, fmt.Errorf("entering the network of the guest: %w", err)
	}
	defer func() {
		if err := setns(here); err != nil {
			panic(err) // this process is of no use any more
		}
	}()
	return net.Listen("tcp", address) //nolint:noctx // a literal address: it does not wait
}

func setns(network *os.File) error {
	if _, _, e := syscall.RawSyscall(sysSetns[runtime.GOARCH], network.Fd(), syscall.CLONE_NEWNET, 0); e != 0 {
		return e
	}
	return nil
}
