package control

import (
	"net"
	"syscall"
)

// peer is the user at the other end of a connection over a unix socket (SO_PEERCRED in unix(7)); false if it is not known.
func peer(c net.Conn) (uid int, ok bool) {
	if b, is := c.(*boundedConn); is {
		c = b.Conn
	}
	unix, is := c.(*net.UnixConn)
	if !is {
		return 0, false
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = raw.Control(func(fd uintptr) {
		cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED) //nolint:gosec // a file descriptor is small
		if ok = err == nil; ok {
			uid = int(cred.Uid)
		}
	})
	return uid, ok && err == nil
}
