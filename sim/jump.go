package sim

import (
	"context"
	"net"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/sim/debian"
)

// Jump is the sshd of a simulated host, by which its guests are reached from the network of this machine:
// it admits every user with any key, and forwards connections.
type Jump struct {
	machine *debian.Machine
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
}

// newJump starts the system of a host. dial leads to its guests.
func newJump(name string, dial func(ctx context.Context, network, address string) (net.Conn, error)) *Jump {
	return &Jump{debian.NewDisk(debian.Options{}).Begin(debian.Birth{Instance: name, Hostname: name}), dial}
}

// HostKey is its public key as authorized_keys has it.
func (j *Jump) HostKey() string {
	text, _ := j.machine.K.FS.ReadFile("/etc/ssh/ssh_host_ed25519_key.pub") // it was made at the boot
	f := strings.Fields(text)
	return strings.Join(f[:min(len(f), 2)], " ")
}

// Serve serves connections until ctx ends, and then halts the system.
func (j *Jump) Serve(ctx context.Context, ln net.Listener) {
	defer j.machine.Halt()
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := ln.Accept()
		if err != nil {
			return // it was closed
		}
		all.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			debian.Server{Machine: j.machine, Anybody: true, Dial: j.dial}.Serve(ctx, conn)
		})
	}
}
