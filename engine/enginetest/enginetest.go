// Package enginetest provides a host in memory, with guests called boxes, and sites that declare them, for the
// tests of passes and agents.
package enginetest

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Box is the kind of these tests: a guest with a size and an address.
type Box struct {
	Size int    `hcl:"size"`
	IP   string `hcl:"ip,optional"`

	Image    string `hcl:"image,optional" cost:"data-loss"`
	Recreate string `hcl:"recreate,optional" cost:"data-loss"`
}

// Kinds are those of these tests.
func Kinds() model.Kinds {
	return model.Kinds{
		{Name: "box", Block: "node", Guest: true, New: func() any { return &Box{} }, Claims: func(spec any) []model.Claim {
			if spec.(*Box).IP == "" {
				return nil
			}
			return []model.Claim{{What: "label", Value: "on " + spec.(*Box).IP}, {What: "address", Value: spec.(*Box).IP}}
		}},
		{Name: "disk", Block: "disk", Everywhere: true, New: func() any { return &Box{} }},
	}
}

// IPOf is the address of a box; no two claim one.
func IPOf(name string) string {
	h := fnv.New32a()
	_, _ = io.WriteString(h, name)
	sum := h.Sum(nil)
	return fmt.Sprintf("10.%d.%d.%d", sum[1], sum[2], sum[3])
}

// Addr is an address.
func Addr(kind, name string) model.Address { return model.Address{Kind: kind, Name: name} }

// Site declares boxes of manifest web on host father; all need disk.base.
func Site(sizes map[string]int) *model.Site {
	m := &model.Manifest{Name: "web", Host: "father"}
	for name, size := range sizes {
		n := &model.Node{Name: name, Type: "box", Manifest: m}
		n.Resource = &model.Resource{
			Addr: Addr("box", name), Spec: &Box{Size: size, IP: IPOf(name)}, Manifest: "web", Node: name,
			Guest: &model.Guest{}, Needs: []model.Address{Addr("disk", "base")},
		}
		m.Nodes = append(m.Nodes, n)
	}
	return &model.Site{
		Name: "home", Kinds: Kinds(), Hosts: map[string]*model.Host{"father": {Name: "father"}},
		Manifests: map[string]*model.Manifest{"web": m},
		Objects:   model.State{Addr("disk", "base"): {Addr: Addr("disk", "base"), Spec: &Box{Size: 1}}},
	}
}

// Host is a driver over a map. Its lock is for what it Holds: steps come from many
// goroutines.
type Host struct {
	Mu         sync.Mutex
	Holds      model.State
	Unknown    []model.Unknown
	Unmanaged  []model.Unmanaged
	ObserveErr error            // what every observation fails with
	Fail       map[string]error // what a step fails with, by address
	Applied    []string         // steps, in the order in which they ended
	During     func(ctx context.Context, s plan.Step) error
}

// Observe returns what it holds; what is inside of boxes as far as the caller asks for it.
func (h *Host) Observe(_ context.Context, w *model.Want) (model.Observed, error) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.ObserveErr != nil {
		return model.Observed{}, h.ObserveErr
	}
	state := maps.Clone(h.Holds)
	maps.DeleteFunc(state, func(a model.Address, _ *model.Resource) bool { return a.Kind == "inner" && w.State[a] == nil })
	return model.Observed{At: time.Unix(0, 0), State: state, Unknown: h.Unknown, Unmanaged: h.Unmanaged}, nil
}

// Apply does a step, after During.
func (h *Host) Apply(ctx context.Context, s plan.Step) error {
	h.Mu.Lock()
	during := h.During
	h.Mu.Unlock()
	if during != nil {
		if err := during(ctx, s); err != nil {
			return err
		}
	}
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.Applied = append(h.Applied, fmt.Sprintf("%s %s", s.Action, s.Address))
	if err := h.Fail[s.Address.String()]; err != nil {
		return err
	}
	if s.Action == plan.Delete || s.Action == plan.Replace {
		delete(h.Holds, s.Address)
		delete(h.Holds, Addr("inner", s.Address.Name))
	}
	if s.Action == plan.Delete {
		return nil
	}
	made := *s.Want
	if s.Inside != nil { // its host must not keep it from being removed
		made.Needs, made.Inside = nil, model.Address{}
	}
	made.Spec = model.Clone(s.Want.Spec)
	if s.Want.Guest != nil {
		g := *s.Want.Guest
		g.Running = true
		made.Guest = &g
	}
	h.Holds[s.Address] = &made
	return nil
}

// Machine has no way into a guest; see Inn.
func (*Host) Machine(model.Address, model.Guest, []netip.Addr) guest.Machine { return nil }

// Pass is one over father with a yes to everything.
func (h *Host) Pass(s *model.Site) *engine.Pass {
	if h.Holds == nil {
		h.Holds = model.State{}
	}
	return &engine.Pass{
		Verb: "apply", Host: "father",
		Load:    func(context.Context) engine.Desired { return engine.Desired{Site: s, Commit: "c0ffee"} },
		Open:    func(engine.Desired, *model.Host) (engine.Driver, error) { return h, nil },
		Verdict: func(context.Context, *plan.Plan) (bool, error) { return true, nil },
	}
}

// History is an engine.History with one site, or an error, for the spec of each guest.
type History struct {
	Site *model.Site
	Err  error
}

// Before implements engine.History.
func (History) Before(context.Context) *engine.Before { return nil }

// Earlier implements engine.History.
func (h History) Earlier(context.Context, model.Address) (*model.Site, error) { return h.Site, h.Err }

// Statuses says what became of the nodes of a pass: name:status, in order.
func Statuses(r engine.Report) string {
	var out []string
	for _, n := range r.Nodes {
		out = append(out, fmt.Sprintf("%s:%s", n.Name, n.Status))
	}
	return strings.Join(out, " ")
}

// Denial is the finding of rules that deny box.a.
func Denial(severity diag.Severity, source diag.Source) diag.List {
	return diag.List{{Severity: severity, Source: source, Summary: "not on a Friday", Address: "box.a"}}
}

// LostError is an answer that never came.
type LostError string

// Error is its text.
func (l LostError) Error() string { return string(l) }

// OutcomeUnknown says that the step may have been done; see apply.Repeat.
func (LostError) OutcomeUnknown() bool { return true }

// TwoNodes is a site in the language, with a manifest of two nodes on the host father and a recipe.
const TwoNodes = `
site "home" {
}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "debian" {
  url = "https://example.org/debian.qcow2"
}
manifest "web" {
  pattern = "flat"
  host    = "father"

  node "one" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
  }
  node "two" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
  }
}
manifest "recipe" {
  pattern = "flat"
  node "three" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
  }
}
`

// Log keeps what several goroutines write.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write adds to the log.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// String returns everything that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
