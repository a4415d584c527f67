package limit

import (
	"net"
	"net/netip"
	"sync"
)

// Listener accepts a bounded number of connections at once, from one client and in all. Further ones
// are closed at once.
type Listener struct {
	net.Listener
	perClient, total int
	refused          func(client netip.Prefix, open int)

	mutex sync.Mutex // connections are accepted by one goroutine, and closed by any
	open  map[netip.Prefix]int
	all   int
}

// NewListener bounds a listener. Refused is called for each connection that is closed at once, with
// the number that its client has; it must not wait.
func NewListener(ln net.Listener, perClient, total int, refused func(client netip.Prefix, open int)) *Listener {
	return &Listener{Listener: ln, perClient: perClient, total: total, refused: refused, open: map[netip.Prefix]int{}}
}

// Accept waits for a connection within the bounds.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := Client(c.RemoteAddr().String())
		if open, ok := l.enter(client); !ok {
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0) // the kernel need not remember it
			}
			_ = c.Close()
			l.refused(client, open)
			continue
		}
		return &conn{Conn: c, leave: sync.OnceFunc(func() { l.leave(client) })}, nil
	}
}

func (l *Listener) enter(client netip.Prefix) (open int, ok bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.open[client] >= l.perClient || l.all >= l.total {
		return l.open[client], false
	}
	l.open[client]++
	l.all++
	return l.open[client], true
}

func (l *Listener) leave(client netip.Prefix) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.all--
	if l.open[client]--; l.open[client] == 0 {
		delete(l.open, client)
	}
}

// conn is a connection that is counted.
type conn struct {
	net.Conn
	leave func()
}

// Close closes the connection, and makes room for another one.
func (c *conn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
