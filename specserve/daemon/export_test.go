package daemon

import (
	"context"
	"net"
	"time"
)

// RetryAfter sets how long it takes until what failed is tried again; before Run.
func (s *Server) RetryAfter(d time.Duration) { s.retry = d }

// DialAbove replaces how the address is found by which the machine reaches its parent; before Run.
func (s *Server) DialAbove(above string, dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	s.o.Above, s.way.dial = above, dial
}

// CheckNow reads the files again, as the server does every few seconds.
func (s *Server) CheckNow() { s.check() }
