package health_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
)

// machine is a fake way into a guest: each question has its answer as a function.
type machine struct {
	address func() (guest.Address, error)
	ping    func(ctx context.Context) error
	exec    func(ctx context.Context, c guest.Command) (guest.Output, error)
}

func (g *machine) Address(context.Context) (guest.Address, error) {
	if g.address == nil {
		return guest.Address{IP: netip.MustParseAddr("192.0.2.7"), Declared: true}, nil
	}
	return g.address()
}

func (g *machine) Ping(ctx context.Context) error { return g.ping(ctx) }

func (g *machine) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	return g.exec(ctx, c)
}

// dialer answers connections: with an error, or with what serve does on the other end.
type dialer struct {
	err   func(n int) error // of the n-th, from 1
	serve func(net.Conn)
	to    []string
}

func (d *dialer) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	d.to = append(d.to, addr)
	if d.err != nil {
		if err := d.err(len(d.to)); err != nil {
			return nil, err
		}
	}
	if d.serve == nil { // nobody answers
		<-ctx.Done()
		return nil, ctx.Err()
	}
	here, there := net.Pipe()
	go func() {
		defer func() { _ = there.Close() }()
		d.serve(there)
	}()
	return here, nil
}

// request reads a request up to its empty line.
func request(c net.Conn) {
	buf, seen := make([]byte, 1), ""
	for len(seen) < 4 || seen[len(seen)-4:] != "\r\n\r\n" {
		if _, err := c.Read(buf); err != nil {
			return
		}
		seen += string(buf)
	}
}

// silent keeps a connection open and says nothing.
func silent(c net.Conn) { _, _ = c.Read(make([]byte, 1<<16)); _, _ = c.Read(make([]byte, 1)) }

func subject(g guest.Machine) health.Subject {
	return health.Subject{Address: model.Address{Kind: "vm", Name: "web-1"}, Machine: g, User: "homestak"}
}

func check(edit func(*model.Check)) []model.Check {
	at := diag.Range{File: "web.hcl", Start: diag.Pos{Line: 31, Column: 5}}
	c := model.Check{Name: "web", Timeout: 20 * time.Second, Interval: 5 * time.Second, At: at}
	edit(&c)
	return []model.Check{c}
}

// saw runs one try and gives what was seen.
func saw(t *testing.T, p health.Prober, s health.Subject, edit func(*model.Check)) (string, bool) {
	t.Helper()
	r := p.Once(t.Context(), s, check(edit))
	require.Len(t, r.Results, 1)
	require.Equal(t, 1, r.Results[0].Tries)
	require.Equal(t, r.Results[0].OK, r.Err == nil)
	return r.Results[0].Detail, r.Results[0].OK
}

var errRefused = errors.New("refused for the test")
