// Package guest is the inside of a guest. So far it holds the way in, Machine; what a
// spec asks inside a machine (packages, users, services, …) comes here, over Machine, so
// that it is the same however the machine is reached.
package guest

import (
	"context"
	"net/netip"
)

// Machine is the way into one guest: through its host, over the network, or from within.
// It may be asked again and again; an error that says Hopeless of itself stays, whatever
// is waited for. Reading and writing files joins it with what needs them first, the
// aspects of a spec.
type Machine interface {
	// Address chooses where the guest is reached.
	Address(ctx context.Context) (Address, error)
	// Ping asks for a sign of life.
	Ping(ctx context.Context) error
	// Run runs a command inside the guest and waits for its end. It may have run the
	// command although it returns an error.
	Run(ctx context.Context, command []string) (Output, error)
}

// Address is where a guest is reached.
type Address struct {
	IP       netip.Addr
	Why      string // 10.0.12.7 on net0 by the guest agent
	Declared bool   // by the files: it does not change by itself
}

// Output is how a command inside a guest ended. What it wrote may be cut off.
type Output struct {
	Code     int
	Signal   int // that killed it; 0 if it ended by itself
	Out, Err string
}
