package wire

import (
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
)

// Silent are the connections of a server on which no request has begun. http.Server.Shutdown gives them seconds;
// Close does not. The zero value has none. Each connection is served by a goroutine of its own, hence the mutex.
type Silent struct {
	mutex sync.Mutex
	open  map[net.Conn]bool
}

// Track is for http.Server.ConnState.
func (s *Silent) Track(c net.Conn, state http.ConnState) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	switch {
	case state != http.StateNew:
		delete(s.open, c)
	case s.open == nil:
		s.open = map[net.Conn]bool{c: true}
	default:
		s.open[c] = true
	}
}

// Close closes them.
func (s *Silent) Close() {
	s.mutex.Lock()
	conns := slices.Collect(maps.Keys(s.open))
	s.mutex.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}
