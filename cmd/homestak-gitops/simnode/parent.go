// Package simnode is nodes in mode pull where hosts are simulated: their parent, a real server whose
// network is in memory, and the program that they get from it and run (program.go).
package simnode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/drivers/simworld/wire"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/catalog"
	"github.com/homestak/homestak-gitops/specserve/cert"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/parent"
	"github.com/homestak/homestak-gitops/specserve/pin"
	"github.com/homestak/homestak-gitops/specserve/program"
)

// address is where simulated nodes reach their parent.
const address = "192.0.2.254:44443"

// Parent serves the nodes of simulated hosts. It is what drivers.Access wants as Parent. Its methods may
// be called from any goroutine, but New and Close.
type Parent struct {
	server  *specserve.Server
	pins    func() []string
	ring    keys.Ring
	folder  string
	program *program.Program
	silent  atomic.Pointer[map[string]bool]
	calls   chan net.Conn
	callers atomic.Uint32
	end     context.CancelFunc
	served  chan error
}

// New makes a parent that has nothing to serve yet. Its keys are new, and gone with it.
func New(log *slog.Logger) (p *Parent, err error) {
	p = &Parent{calls: make(chan net.Conn), served: make(chan error, 1)}
	if p.folder, err = os.MkdirTemp("", "homestak-gitops-sim-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("the parent of simulated nodes: %w", err), os.RemoveAll(p.folder))
		}
	}()
	if p.ring, err = keys.Ensure(p.folder, time.Now()); err != nil {
		return nil, err
	}
	certificate, err := cert.Open(cert.Options{Dir: p.folder, Log: log})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(p.folder, "program")
	if err = os.WriteFile(file, []byte(download), 0o600); err != nil {
		return nil, err
	}
	if p.program, err = program.Open(file); err != nil {
		return nil, err
	}
	server := specserve.New(specserve.Options{Version: "simulated", Program: p.program, Spool: p.folder, TLS: certificate.TLS(), Log: log})
	p.server, p.pins = server, certificate.Pins
	ctx, end := context.WithCancel(context.Background())
	p.end = end
	go func() { p.served <- server.Serve(ctx, &listener{calls: p.calls, closed: make(chan struct{})}) }()
	return p, nil
}

// Publish makes a site the one that nodes get their specs from. The silent ones are those inside of
// which nothing is simulated: they are taken to report that they are ready. An error means that the
// site cannot be served, such as one with secrets whose values are not known here.
func (p *Parent) Publish(site *model.Site, commit string, policies *policy.Set, silent map[string]bool) error {
	p.silent.Store(&silent)
	made, found := catalog.Make(catalog.Input{Site: site, Commit: commit, Policies: policies})
	if made == nil {
		return fmt.Errorf("the specs of the site cannot be served: %s", found.Sorted()[0])
	}
	p.server.Publish(specserve.View{Catalog: made, Keys: p.ring.Tokens(), Pins: p.pins()})
	return nil
}

func (p *Parent) isSilent(node string) bool {
	silent := p.silent.Load()
	return silent != nil && (*silent)[node]
}

// Parent is as drivers.Parent wants it.
func (p *Parent) Parent(node, spec string) (parent.Parent, error) {
	minted, err := keys.Mint(p.folder, node, spec, keys.Lifetime, time.Now())
	if err != nil {
		return parent.Parent{}, err
	}
	pins, err := pin.ParseAll(p.pins())
	if err != nil {
		return parent.Parent{}, err
	}
	p.server.Forget(node)
	return parent.Parent{Identity: node, Server: "https://" + address, Pins: pins, Token: minted.Token}, nil
}

// HasReported is as drivers.Parent wants it.
func (p *Parent) HasReported(node string) bool {
	return p.isSilent(node) || p.server.HasReported(node)
}

// Reported is as drivers.Parent wants it.
func (p *Parent) Reported(node string) (saw string, err error) {
	if p.isSilent(node) {
		return "taken to report, since it is simulated", nil
	}
	return p.server.Reported(node)
}

// Dial connects a simulated node to it. It is the only server of the network.
func (p *Parent) Dial(ctx context.Context, network, to string) (net.Conn, error) {
	far := netip.MustParseAddrPort(address)
	refused := &net.OpError{Op: "dial", Net: network, Addr: net.TCPAddrFromAddrPort(far), Err: syscall.ECONNREFUSED}
	if to != address {
		return nil, fmt.Errorf("%s: %w", to, syscall.EHOSTUNREACH)
	}
	n := p.callers.Add(1) // each from an address of its own, since what one may do is limited by that
	caller, callee := wire.Pipe(netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}), 50000), far)
	select {
	case p.calls <- callee:
		return caller, nil
	case err := <-p.served:
		p.served <- err
		return nil, refused
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close ends the server and removes its keys.
func (p *Parent) Close() error {
	p.end()
	return errors.Join(<-p.served, p.program.Close(), os.RemoveAll(p.folder))
}

// listener is the network of the server.
type listener struct {
	calls  <-chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// Accept waits for a call.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.calls:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr is where it listens.
func (*listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address)) }
