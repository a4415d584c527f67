package specserve

import (
	"time"
)

// Limits are the limits of clients. A client that only connects costs one goroutine until Header.
// Requests that are answered well are not counted: what they take is bounded by the connections.
type Limits struct {
	Header time.Duration // for the TLS handshake, and then for the header of a request
	Read   time.Duration // for a whole request
	Write  time.Duration // for a request and its answer
	Idle   time.Duration // between two requests of a connection whose client has shown a valid credential

	IdleUnverified time.Duration // between two requests of another connection

	HeaderBytes int

	Connections          int // at once
	ConnectionsPerClient int
	Unverified           int           // connections whose client has not shown a valid credential; the rest of Connections is reserved
	Refusals             Rate          // of a client, before all of its requests are refused
	RefusalsPerNode      Rate          // of a client about one node, before all of its requests about it are
	Remembered           int           // clients and nodes whose refusals are counted
	Reports              Rate          // of a node
	Streams              int           // of events at once
	Wait                 time.Duration // of a node that waits for something to do
	Waiters              int           // at once
	WaitersPerNode       int

	Shutdown time.Duration // for requests under way
}

// Usual are the limits unless others are set.
func Usual() Limits {
	return Limits{
		Header: 10 * time.Second, Read: 20 * time.Second, Write: 40 * time.Second, Idle: 2 * time.Minute, IdleUnverified: 5 * time.Second,
		HeaderBytes: 16 << 10,
		Connections: 4096, ConnectionsPerClient: 256, Unverified: 2048,
		Refusals:        Rate{Every: 10 * time.Millisecond, Burst: 500}, // many nodes may share an address
		RefusalsPerNode: Rate{Every: 500 * time.Millisecond, Burst: 20},
		Remembered:      64 << 10,
		Reports:         Rate{Every: 5 * time.Second, Burst: 12},
		Streams:         64,
		Wait:            55 * time.Second, Waiters: 2048, WaitersPerNode: 2,
		Shutdown: 1500 * time.Millisecond,
	}
}
