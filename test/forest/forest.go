// Package forest is a tree of agents in one process: whole agents, each with a simulated host, connected in memory.
// A VM of type pve on one host is a machine of its own, with a host and an agent, while it runs. Time may be that
// of testing/synctest.
//
//	forest.go   the machines, and their start and stop
//	network.go  the connections between them
package forest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Options are what a forest is made of.
type Options struct {
	Dir        string // the data folders of all agents are in it
	Seed       uint64
	Repository string            // URL that the agent of the root follows
	Secrets    string            // text of its secrets file
	Env        map[string]string // of all agents
	Log        func(machine string) *slog.Logger
	TaskTime   time.Duration // of the simulated hosts
	// Machine is the inside of a machine, for commands on it. May be nil.
	Machine func(name string) guest.Machine
	// Watch lets the agents watch the files of their nodes.
	Watch bool
	Web   http.RoundTripper // where agents get images
	// Fault is asked about each request to the host of a machine; see pve.Config. May be nil.
	Fault func(machine string, r *http.Request) (status int, apply bool)
	// Event is called with what happened that a law is about. May be nil.
	Event func(event)
}

// event is something that happened to a guest of type pve, or to a guest on it.
type event struct {
	What    string // booted, creates, destroys, gone
	Machine string // on which it is
	Guest   string // its name, if it is known
	Inside  []string
}

// Forest is machines and their agents.
type Forest struct {
	o       Options
	Network *network
	ctx     context.Context
	file    string // that stands for the program

	mu       sync.Mutex // hosts are asked by agents while machines come and go
	machines []*Machine // in the order in which they booted; one that moved is listed twice for a while
	serial   int        // of machines
}

// Machine is one with a host and, as long as it is up, an agent.
type Machine struct {
	Name   string
	Typo   string   // identity that its agent.hcl has by mistake; "": its name
	Parent *Machine // whose agent serves it; nil: the root
	Alone  bool     // a machine elsewhere, not a guest of its parent
	Host   *pve.Host
	Data   string // folder of the agent
	At     netip.AddrPort

	f      *Forest
	config *service.Config
	vmid   int
	Booted time.Time
	uuid   string

	mu    sync.Mutex
	agent *service.Service // nil: it does not run
	kill  context.CancelFunc
	ended chan error
	known wire.Parent // what it was given when it was installed
}

// New makes a forest of one machine, the root, whose agent does not run yet.
func New(ctx context.Context, root string, o Options) (*Forest, error) {
	if o.Log == nil {
		o.Log = func(string) *slog.Logger { return slog.New(slog.DiscardHandler) }
	}
	if o.Event == nil {
		o.Event = func(event) {}
	}
	f := &Forest{o: o, Network: newNetwork(o.Seed), ctx: ctx, file: filepath.Join(o.Dir, "program")}
	if err := os.WriteFile(f.file, []byte("a program"), 0o600); err != nil {
		return nil, err
	}
	return f, f.boot(root, nil, 0, "")
}

// boot makes a machine with an empty host.
func (f *Forest) boot(name string, parent *Machine, vmid int, uuid string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.serial++
	serial := f.serial
	m := &Machine{
		Name: name, Parent: parent, f: f, vmid: vmid, uuid: uuid, Booted: time.Now(),
		Data: filepath.Join(f.o.Dir, fmt.Sprintf("%s-%d", name, serial)), At: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(serial >> 8), byte(serial)}), 44443), //nolint:gosec // there are fewer than 65,536
	}
	if err := os.MkdirAll(m.Data, 0o700); err != nil {
		return err
	}
	c := pve.Config{Node: name, Storages: pve.DefaultStorages(), Bridges: []string{"vmbr0"}, TaskTime: f.o.TaskTime, Seed: int64(f.o.Seed)} //nolint:gosec // any seed will do
	if f.o.Watch {
		c.Files = filepath.Join(m.Data, "root")
	}
	if fault := f.o.Fault; fault != nil {
		c.Fault = func(r *http.Request) (int, bool) { return fault(name, r) }
	}
	m.Host = pve.New(c)
	f.machines = append(f.machines, m)
	return nil
}

// Add adds a machine elsewhere, with an empty host, below another one.
func (f *Forest) Add(name string, parent *Machine) (*Machine, error) {
	if err := f.boot(name, parent, 0, ""); err != nil {
		return nil, err
	}
	m := f.Machine(name)
	m.Alone = true
	return m, nil
}

// Machine is the machine of a name, the newest if there are two; nil if there is none.
func (f *Forest) Machine(name string) *Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range slices.Backward(f.machines) {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// On is the machine of a name on another one; nil if there is none.
func (f *Forest) On(parent *Machine, name string) *Machine {
	for _, m := range f.Machines() {
		if m.Parent == parent && m.Name == name {
			return m
		}
	}
	return nil
}

// Machines are all that there are, by name.
func (f *Forest) Machines() []*Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := slices.Clone(f.machines)
	slices.SortStableFunc(out, func(a, b *Machine) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Agent is the agent of the machine; nil: it does not run.
func (m *Machine) Agent() *service.Service {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.agent
}

// Start starts the agent of a machine that has none that runs. That of a child is installed before, if it is not:
// its parent gives it a token.
func (m *Machine) Start() error {
	if m.Agent() != nil {
		return nil
	}
	f := m.f
	env := map[string]string{
		"HOMESTAK_DATA_DIR": filepath.Join(m.Data, "data"), "HOMESTAK_IDENTITY": cmp.Or(m.Typo, m.Name), "HOMESTAK_LISTEN": m.At.String(),
	}
	maps.Copy(env, f.o.Env)
	c, found := service.Flags{}.ReadConfig(func(key string) string { return env[key] })
	if found.HasErrors() {
		return errors.New(found[0].String())
	}
	if err := m.connect(c); err != nil {
		return err
	}
	log := f.o.Log(m.Name)
	access := drivers.Access{Transport: m.transport}
	o := service.Options{
		Config: c, Program: "1.0", Kinds: access.Kinds(), Log: log, Simulated: func(netip.Addr) error { return nil },
		Network: service.Network{Listen: f.Network.listen(m.At), Dial: f.Network.dial(m), Web: f.o.Web}, File: f.file,
		Open: func(files fs.FS, sent func(string, int), server *daemon.Server, near *images.Near) func(engine.Desired, *model.Host) (engine.Driver, error) {
			return drivers.Access{Files: files, Transport: m.transport, Near: near, Sent: sent, Parent: server}.Open
		},
	}
	if f.o.Machine != nil {
		o.Machine = f.o.Machine(m.Name)
	}
	if f.o.Watch {
		o.Watch = func(changed func([]int)) service.Watcher {
			return &proxmox.Watcher{Root: filepath.Join(m.Data, "root"), Changed: changed}
		}
	}
	s, err := service.New(o)
	if err != nil {
		return err
	}
	ctx, kill := context.WithCancel(f.ctx)
	ended := make(chan error, 1)
	m.mu.Lock()
	m.agent, m.kill, m.ended, m.config = s, kill, ended, c
	m.mu.Unlock()
	go func() { ended <- s.Run(ctx, control.NoSocket, nil, nil) }()
	return nil
}

// Join lets a machine elsewhere join its parent with a token, which the agent gets at its next start.
func (m *Machine) Join(token, key string, pins []wire.Pin) (wire.Joined, error) {
	ask := client.Client{Parent: wire.Parent{Identity: m.Name, Server: "https://" + m.Parent.At.String(), Pins: pins, Token: token}, Dial: m.f.Network.dial(m)}
	got, known, err := ask.Join(m.f.ctx, key)
	if err != nil {
		return got, err
	}
	m.known = known
	return got, os.WriteFile(filepath.Join(m.Data, "token"), []byte(known.Token), 0o600)
}

// connect says in the configuration where the sources of the site are.
func (m *Machine) connect(c *service.Config) error {
	if m.Parent == nil {
		c.Repository.URL = m.f.o.Repository
		if m.f.o.Secrets != "" {
			c.SecretsFile = filepath.Join(m.Data, "secrets.yaml")
			return os.WriteFile(c.SecretsFile, []byte(m.f.o.Secrets), 0o600)
		}
		return nil
	}
	token := filepath.Join(m.Data, "token")
	if m.known.Token == "" {
		above := m.Parent.Agent()
		if above == nil {
			return errors.New("the agent of the parent does not run")
		}
		known, err := above.Parent(m.Name, "plain")
		if err != nil {
			return err
		}
		if err := os.WriteFile(token, []byte(known.Token), 0o600); err != nil {
			return err
		}
		m.known = known
	}
	c.Parent.URL, c.Parent.TokenFile = m.known.Server, token
	for _, p := range m.known.Pins {
		c.Parent.Pins = append(c.Parent.Pins, p.String())
	}
	c.Repository.URL = m.known.Server + "/site.git"
	return nil
}

// Reinstall forgets what the agent of a child was given, so that its next start gets a token again. With lost its data
// folder is lost as well. The agent must not run.
func (m *Machine) Reinstall(lost bool) error {
	m.known = wire.Parent{}
	if !lost {
		return nil
	}
	return os.RemoveAll(filepath.Join(m.Data, "data"))
}

// Kill ends the agent as a crash does, if it runs.
func (m *Machine) Kill() {
	m.mu.Lock()
	agent, kill, ended := m.agent, m.kill, m.ended
	m.mu.Unlock()
	if agent == nil {
		return
	}
	kill()
	<-ended //nolint:errcheck // that it was killed
	m.mu.Lock()
	defer m.mu.Unlock()
	m.agent = nil
}

// End ends all agents.
func (f *Forest) End() {
	for _, m := range f.Machines() {
		m.Kill()
	}
}

// transport is the way of the agent to the host of its machine.
func (m *Machine) transport(*model.Site, *model.Host) (http.RoundTripper, string) {
	return way{m}, m.Host.Token()
}

// way watches what an agent does to its host.
type way struct{ m *Machine }

// RoundTrip implements http.RoundTripper.
func (w way) RoundTrip(r *http.Request) (*http.Response, error) {
	m := w.m
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api2/json/nodes/"), "/") // NODE qemu [VMID]
	switch {
	case len(parts) < 2 || parts[1] != "qemu":
	case r.Method == http.MethodPost && len(parts) == 2:
		m.f.o.Event(event{What: "creates", Machine: m.Name})
	case r.Method == http.MethodDelete && len(parts) == 3:
		for _, child := range m.f.Machines() {
			if child.Parent == m && fmt.Sprint(child.vmid) == parts[2] {
				m.f.o.Event(event{What: "destroys", Machine: m.Name, Guest: child.Name, Inside: child.Managed()})
			}
		}
	}
	return m.Host.RoundTrip(r)
}

// Guests are those on the host of a machine, by name.
func (m *Machine) Guests() map[string]pve.Guest {
	out := map[string]pve.Guest{}
	for _, g := range m.Host.Guests() {
		if g.Config["template"] != "1" {
			out[cmp.Or(g.Name(), fmt.Sprintf("guest %d", g.VMID))] = g
		}
	}
	return out
}

// tag is what this package reads of an ownership tag.
type tag struct {
	Type, Node, Owner, UUID string
}

func tagOf(g pve.Guest) (t tag, has bool) {
	for line := range strings.Lines(g.Config["description"]) {
		if doc, ok := strings.CutPrefix(line, "homestak-gitops: "); ok {
			has = json.Unmarshal([]byte(doc), &t) == nil
		}
	}
	return t, has
}

// Managed names the guests on the host that have an ownership tag, sorted.
func (m *Machine) Managed() []string {
	out := []string{}
	for _, g := range m.Host.Guests() {
		if t, has := tagOf(g); has {
			out = append(out, t.Node)
		}
	}
	slices.Sort(out)
	return out
}

// Step lets machines come and go as the guests that they are: a VM of type pve that runs boots into a machine with an
// agent, one that is stopped has none, and one that was destroyed is gone with all that was in it. It is to be called
// every second or so.
func (f *Forest) Step() error {
	for _, m := range f.Machines() {
		if m.Parent != nil && !m.Alone && f.there(m) == nil {
			f.remove(m, false)
		}
	}
	for _, m := range f.Machines() {
		for _, g := range m.Host.Guests() {
			t, has := tagOf(g)
			if !has || t.Type != "pve" || !g.Running || g.Lock != "" || f.On(m, t.Node) != nil {
				continue
			}
			if err := f.boot(t.Node, m, g.VMID, g.Config["smbios1"]); err != nil {
				return err
			}
			f.o.Event(event{What: "booted", Machine: m.Name, Guest: t.Node})
		}
	}
	return nil
}

// there is the guest that a machine is, if it runs; nil if it was destroyed or is another one.
func (f *Forest) there(m *Machine) *pve.Guest {
	if !slices.Contains(f.Machines(), m.Parent) {
		return nil
	}
	for _, g := range m.Parent.Host.Guests() {
		if g.VMID == m.vmid && g.Config["smbios1"] == m.uuid {
			return &g
		}
	}
	return nil
}

// remove takes away a machine and all that is in it.
func (f *Forest) remove(m *Machine, byHand bool) {
	m.Kill()
	what := "gone"
	if byHand {
		what = "lost"
	}
	f.o.Event(event{What: what, Machine: m.Parent.Name, Guest: m.Name, Inside: m.Managed()})
	f.mu.Lock()
	f.machines = slices.DeleteFunc(f.machines, func(other *Machine) bool { return other == m })
	f.mu.Unlock()
	for _, child := range f.Machines() {
		if child.Parent == m {
			f.remove(child, byHand)
		}
	}
}

// Destroy destroys a machine with all that is in it, as a person does who removes its VM by hand.
func (f *Forest) Destroy(m *Machine) {
	f.remove(m, true)
	m.Parent.Host.Edit(func(e *pve.Edit) { e.Delete(m.vmid) })
}
