package enginetest

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Inn is a host with a way into its guests. Its lock is for what is asked of them:
// steps come from many goroutines.
type Inn struct {
	*Host
	Lease bool // the address of guests is not declared
	mu    sync.Mutex
	Ill   map[string]bool // by name
	Asked map[string]int
}

// NewInn is an empty one.
func NewInn() *Inn {
	return &Inn{Host: &Host{Holds: model.State{}}, Ill: map[string]bool{}, Asked: map[string]int{}}
}

// Machine is the way into a guest.
func (i *Inn) Machine(addr model.Address, _ model.Guest, _ []netip.Addr) guest.Machine {
	return room{i, addr.Name}
}

// Set makes a guest ill, or well again.
func (i *Inn) Set(name string, ill bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.Ill[name] = ill
}

// Times returns the number of times that a guest was checked.
func (i *Inn) Times(name string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.Asked[name]
}

// room is a guest of it.
type room struct {
	*Inn
	name string
}

// Address is as guest.Machine has it.
func (r room) Address(context.Context) (guest.Address, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Asked["address of "+r.name]++
	return guest.Address{IP: netip.MustParseAddr("192.0.2.99"), Declared: !r.Lease}, nil
}

// Ping is as guest.Machine has it.
func (r room) Ping(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Asked[r.name]++
	if r.Ill[r.name] {
		return errors.New(r.name + " does not answer")
	}
	return nil
}

// Run is as guest.Machine has it.
func (room) Run(context.Context, guest.Command) (guest.Output, error) {
	return guest.Output{}, errors.New("no command here")
}

// CheckedSite is the site of the boxes db and web, and of lone, which needs neither;
// web needs db, and all have a check.
func CheckedSite(onError string) *model.Site {
	s := Site(map[string]int{"db": 1, "web": 1, "lone": 1})
	m := s.Manifests["web"]
	m.OnError = onError
	for _, n := range m.Nodes {
		n.Manifest = m
		n.Checks = []model.Check{{
			Name: "up", Agent: true, Timeout: time.Minute, Interval: 10 * time.Second, Every: "off",
			At: diag.Range{File: n.Name + ".hcl", Start: diag.Pos{Line: 7, Column: 3}},
		}}
		if n.Name == "web" {
			n.Resource.Needs = append(n.Resource.Needs, Addr("box", "db"))
		}
	}
	return s
}

// Pass is one over it with a yes to everything.
func (i *Inn) Pass(s *model.Site) *engine.Pass {
	p := i.Host.Pass(s)
	p.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
	return p
}
