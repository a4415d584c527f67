package sourcetest

import (
	"io"
	"net"
	"os"
	"sync"
)

// socketPair gives two connected sockets: one for here, one for a child process.
// They are real tcp, which sshd expects.
func socketPair() (ours net.Conn, theirs *os.File, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is over at once
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = l.Close() }()
	ours, err = net.Dial("tcp", l.Addr().String()) //nolint:noctx // as above
	if err != nil {
		return nil, nil, err
	}
	other, err := l.Accept()
	if err != nil {
		_ = ours.Close()
		return nil, nil, err
	}
	f, err := other.(*net.TCPConn).File()
	_ = other.Close()
	if err != nil {
		_ = ours.Close()
		return nil, nil, err
	}
	return ours, f, nil
}

// pump copies both ways until both sides have ended.
func pump(a, b net.Conn) {
	var wait sync.WaitGroup
	one := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_ = to.Close()
		_ = from.Close()
	}
	wait.Go(func() { one(a, b) })
	wait.Go(func() { one(b, a) })
	wait.Wait()
}
