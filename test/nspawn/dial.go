package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
)

// Dial connects to an address as the guest itself reaches it, for a net.Dialer: its network is its own.
// It must be an IP address and a port of TCP.
func (m *Machine) Dial(_ context.Context, network, address string) (net.Conn, error) {
	return m.dial(network, address)
}

// DialFrom is Dial as a network namespace of the guest reaches the address (ip-netns(8)).
func (m *Machine) DialFrom(namespace string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(_ context.Context, network, address string) (net.Conn, error) {
		return m.dial(network, address, "ip", "netns", "exec", namespace)
	}
}

func (m *Machine) dial(network, address string, prefix ...string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	at := fmt.Sprintf("/dev/tcp/%s/%s", host, port) // bash(1), REDIRECTION
	if said, err := m.Command(append(slices.Clone(prefix), "timeout", "5", "bash", "-c", "exec 3<>"+at)...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("dial %s %s in the guest: %s", network, address, said)
	}
	cmd := m.Command(append(slices.Clone(prefix), "bash", "-c", "exec 3<>"+at+"; cat <&3 & cat >&3; kill $!")...)
	in, errIn := cmd.StdinPipe()
	out, errOut := cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	here, there := net.Pipe()
	go func() {
		_, _ = io.Copy(in, there) // who closes here ends it
		_ = in.Close()
	}()
	go func() {
		_, _ = io.Copy(there, out)
		_ = there.Close()
		_ = cmd.Wait()
	}()
	return here, nil
}
