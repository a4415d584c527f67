// Package sim runs programs in the guests of simulated hosts, in a network in memory: the agents of guests that are
// hosts themselves (world.go, agent.go), and nodes in mode pull, with the program that they run (program.go) and
// their parent, a real server (parent.go). network.go connects them.
package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// parentAddress is the address at which simulated nodes reach their parent.
const parentAddress = "192.0.2.254:44443"

// Parent serves the nodes of simulated hosts. It is what drivers.Access wants as Parent. Its methods may
// be called from any goroutine, but New and Close.
type Parent struct {
	server  *specserve.Server
	pins    func() []string
	ring    keys.Ring
	book    *keys.Book
	folder  string
	program *specserve.Program
	silent  atomic.Pointer[map[string]bool]
	net     machine.Net
	end     context.CancelFunc
	served  chan error
}

// NewParent makes a parent that has nothing to serve yet. Its keys are new, and gone with it.
func NewParent(log *slog.Logger) (p *Parent, err error) {
	p = &Parent{served: make(chan error, 1)}
	if p.folder, err = os.MkdirTemp("", "homestak-gitops-sim-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("the parent of simulated nodes: %w", err), os.RemoveAll(p.folder))
		}
	}()
	if p.ring, err = keys.Folder(p.folder).Ensure(time.Now()); err != nil {
		return nil, err
	}
	if p.book, err = keys.Folder(p.folder).OpenBook(); err != nil {
		return nil, err
	}
	certificate, err := keys.OpenCert(keys.CertOptions{Dir: p.folder, Log: log})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(p.folder, "program")
	if err = os.WriteFile(file, []byte(download("simulated")), 0o600); err != nil {
		return nil, err
	}
	if p.program, err = specserve.OpenProgram(file); err != nil {
		return nil, err
	}
	server := specserve.New(specserve.Options{Version: "simulated", Program: p.program, Spool: p.folder, TLS: certificate.TLS(), Log: log})
	p.server, p.pins = server, certificate.Pins
	at := netip.MustParseAddrPort(parentAddress)
	ln, err := p.net.Listen(at, at)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	p.end = end
	go func() { p.served <- server.Serve(ctx, ln) }()
	return p, nil
}

// Publish makes a site the one that nodes get their specs from. The silent ones are those inside of
// which nothing is simulated: they are taken to report that they are ready. An error means that the
// site cannot be served, such as one with secrets whose values are not known here.
func (p *Parent) Publish(site *model.Site, commit string, policies *policy.Set, silent map[string]bool) error {
	p.silent.Store(&silent)
	made, found := specserve.MakeCatalog(specserve.CatalogInput{Site: site, Commit: commit, Policies: policies})
	if made == nil {
		return fmt.Errorf("the specs of the site cannot be served: %s", found.Sorted()[0])
	}
	p.server.Publish(specserve.View{Catalog: made, Keys: p.ring.Tokens(), Book: p.book, Pins: p.pins()})
	return nil
}

func (p *Parent) isSilent(node string) bool {
	silent := p.silent.Load()
	return silent != nil && (*silent)[node]
}

// Parent is as drivers.Parent wants it.
func (p *Parent) Parent(node, spec string) (wire.Parent, error) {
	minted, err := keys.Folder(p.folder).Mint(node, spec, keys.TokenLifetime, time.Now())
	if err != nil {
		return wire.Parent{}, err
	}
	pins, err := wire.ParsePins(p.pins())
	if err != nil {
		return wire.Parent{}, err
	}
	p.server.Forget(node)
	return wire.Parent{Identity: node, Server: "https://" + parentAddress, Pins: pins, Token: minted.Token}, nil
}

// HasReported is as drivers.Parent wants it.
func (p *Parent) HasReported(node string) bool {
	return p.isSilent(node) || p.server.HasReported(node)
}

// Revoked is as drivers.Parent wants it.
func (p *Parent) Revoked(node string) bool {
	_, is := p.book.Revoked()[node]
	return is
}

// Revoke revokes the tokens of a node, as token revoke and the server do.
func (p *Parent) Revoke(node string) error {
	_, err := keys.Folder(p.folder).Revoke(node, time.Now())
	p.server.Forget(node)
	return err
}

// Accepts is as drivers.Parent wants it.
func (p *Parent) Accepts(node, token string) error {
	_, err := p.ring.Tokens().VerifyBy(p.book, token, node, time.Now())
	return err
}

// Reported is as drivers.Parent wants it.
func (p *Parent) Reported(node string) (saw string, err error) {
	if p.isSilent(node) {
		return "taken to report, since it is simulated", nil
	}
	return p.server.Reported(node)
}

// Dial connects a simulated node to it. It is the only server of the network.
func (p *Parent) Dial(ctx context.Context, _, to string) (net.Conn, error) {
	if to != parentAddress {
		return nil, fmt.Errorf("%s: %w", to, syscall.EHOSTUNREACH)
	}
	at := netip.MustParseAddrPort(parentAddress)
	return p.net.Dial(ctx, at, at)
}

// Close ends the server and removes its keys.
func (p *Parent) Close() error {
	p.end()
	return errors.Join(<-p.served, p.program.Close(), os.RemoveAll(p.folder))
}
