package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Provider opens a driver. Kinds are the resources that it adds to the site language.
type Provider struct {
	Name  string
	Kinds model.Kinds
	Open  func(d Desired, h *model.Host) (Driver, error)
}

// Join combines several providers into one with the kinds of all. Its driver observes a host
// with all of them, each about its own kinds, and applies each step by the one that has
// its kind. So there is one observation and one plan, and a resource of one driver may
// need one of another driver.
//
// If a driver without guests can observe nothing, its kinds are unknown, and the others
// continue. Join panics if two providers have a kind of the same name.
func Join(parts ...Provider) Provider {
	if len(parts) == 1 {
		return parts[0]
	}
	all, of := Provider{}, map[string]int{}
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.Name
		for _, k := range p.Kinds {
			if j, taken := of[k.Name]; taken {
				panic(fmt.Sprintf("join drivers: both %s and %s have a kind %s", parts[j].Name, p.Name, k.Name))
			}
			of[k.Name] = i
		}
		all.Kinds = append(all.Kinds, p.Kinds...)
	}
	all.Name = strings.Join(names, "+")
	all.Open = func(d Desired, h *model.Host) (Driver, error) {
		j := &joined{host: h.Name, parts: parts, of: of}
		for _, p := range parts {
			driver, err := p.Open(d, h)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.Name, err)
			}
			j.drivers = append(j.drivers, driver)
		}
		return j, nil
	}
	return all
}

// joined is several drivers as one. It is immutable.
type joined struct {
	host    string
	parts   []Provider
	drivers []Driver       // one for each part
	of      map[string]int // kind → part
}

// Observe observes with all drivers concurrently, and merges the results.
func (j *joined) Observe(ctx context.Context, w *model.Want) (model.Observed, error) {
	seen, errs := make([]model.Observed, len(j.parts)), make([]error, len(j.parts))
	var all sync.WaitGroup
	for i, d := range j.drivers {
		all.Go(func() { seen[i], errs[i] = d.Observe(ctx, j.share(w, i)) })
	}
	all.Wait()
	for i, p := range j.parts {
		if errs[i] != nil {
			if slices.ContainsFunc(p.Kinds, func(k *model.Kind) bool { return k.Guest }) {
				return model.Observed{}, errors.Join(errs...)
			}
			seen[i] = unobservedKinds(j.host, p, errs[i])
		}
		seen[i].SweepHints = prefixed(p.Name+hintSeparator, seen[i].SweepHints)
	}
	return model.Together(seen...), nil
}

// prefixed puts a word before each of some texts.
func prefixed(word string, texts []string) []string {
	out := make([]string, len(texts))
	for i, text := range texts {
		out[i] = word + text
	}
	return out
}

// hintSeparator stands between the name of a driver and its hint in Observed.SweepHints.
const hintSeparator = ": "

// unobservedKinds is the observation of a driver that could observe nothing.
func unobservedKinds(host string, p Provider, err error) model.Observed {
	var o model.Observed
	for _, k := range p.Kinds {
		o.Unknown = append(o.Unknown, model.Unknown{Scope: fmt.Sprintf("%s of host %s", k.Name, host), Why: err.Error(), Kind: k.Name})
	}
	return o
}

// share returns the part of the wanted state that has the kinds of one driver.
func (j *joined) share(w *model.Want, part int) *model.Want {
	s := *w
	others := func(a model.Address) bool { return j.of[a.Kind] != part }
	s.State = maps.Clone(w.State)
	maps.DeleteFunc(s.State, func(a model.Address, _ *model.Resource) bool { return others(a) })
	s.Declared = maps.Clone(w.Declared)
	maps.DeleteFunc(s.Declared, func(a model.Address, _ bool) bool { return others(a) })
	s.Nodes = maps.Clone(w.Nodes)
	maps.DeleteFunc(s.Nodes, func(a model.Address, _ *model.Node) bool { return others(a) })
	s.SweepHints = nil
	for _, text := range w.SweepHints {
		if hint, ours := strings.CutPrefix(text, j.parts[part].Name+hintSeparator); ours {
			s.SweepHints = append(s.SweepHints, hint)
		}
	}
	return &s
}

// Apply applies a step by the driver of its kind.
func (j *joined) Apply(ctx context.Context, s plan.Step) error {
	i, ok := j.of[s.Address.Kind]
	if !ok {
		return fmt.Errorf("no driver has the kind %s", s.Address.Kind)
	}
	return j.drivers[i].Apply(ctx, s)
}

// Machine returns the access to a guest that the driver of its kind has.
func (j *joined) Machine(addr model.Address, at model.Guest, near []netip.Addr) guest.Machine {
	i, ok := j.of[addr.Kind]
	if !ok {
		return nil
	}
	return j.drivers[i].Machine(addr, at, near)
}
