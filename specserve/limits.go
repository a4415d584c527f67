package specserve

import (
	"time"

	"github.com/homestak/homestak-gitops/specserve/limit"
)

// Limits are what clients may take. A client that only connects costs one goroutine until Header.
type Limits struct {
	Header time.Duration // for the TLS handshake, and then for the header of a request
	Read   time.Duration // for a whole request
	Write  time.Duration // for a request and its answer
	Idle   time.Duration // between two requests of a connection

	HeaderBytes int

	Connections          int // at once
	ConnectionsPerClient int
	Requests             limit.Rate // of a client
	RequestsPerNode      limit.Rate // of a client, about one node
	Remembered           int        // clients and nodes whose requests are counted

	Shutdown time.Duration // for requests under way
}

// Usual are the limits unless others are set.
func Usual() Limits {
	return Limits{
		Header: 10 * time.Second, Read: 20 * time.Second, Write: 40 * time.Second, Idle: 2 * time.Minute,
		HeaderBytes: 16 << 10,
		Connections: 4096, ConnectionsPerClient: 256,
		Requests:        limit.Rate{Every: 5 * time.Millisecond, Burst: 1000}, // many nodes may share an address
		RequestsPerNode: limit.Rate{Every: 500 * time.Millisecond, Burst: 20},
		Remembered:      64 << 10,
		Shutdown:        1500 * time.Millisecond,
	}
}
