package engine

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Probe is a guest with checks as a pass left it. It has what they need to run after the pass.
type Probe struct {
	Node     string
	Manifest string
	Guest    model.Guest
	Checks   []model.Check
	Idle     string         // why its checks cannot run, "" if they can
	Off      bool           // it is idle since it is switched off, as it may be
	New      bool           // the pass created or replaced it
	Subject  health.Subject // Address is always set, the rest only if it is not idle
}

// probes returns the guests with checks that the pass was about.
func (c *checker) probes(of progress) []Probe {
	results := map[model.Address]*apply.Result{}
	for i := range of.results {
		if r := &of.results[i]; r.Step.Inside == nil {
			results[r.Step.Address] = r
		}
	}
	out, secrets := []Probe{}, c.secrets()
	if p := c.ofHost(secrets); len(p.Checks) > 0 {
		out = append(out, p)
	}
	for addr, want := range c.want.State {
		n := c.want.Nodes[addr]
		if n == nil || want.Guest == nil {
			continue
		}
		p := Probe{Node: n.Name, Manifest: want.Manifest, Checks: c.site.Checks(n), Subject: health.Subject{Address: addr}}
		if len(p.Checks) == 0 {
			continue
		}
		for i := range p.Checks {
			p.Checks[i].At = diag.Range{} // it has the text of the file
		}
		running := false
		p.Guest, running, p.New = c.left(addr, results[addr])
		switch power := model.TextOf(want.Spec, "power"); {
		case p.Guest.VMID == 0:
			p.Idle = "it is not seen on the host"
		case p.Guest.Adoptable:
			p.Idle = "it is not adopted yet"
		case slices.ContainsFunc(of.have.Unknown, func(u model.Unknown) bool { return u.Node != "" && u.Node == p.Guest.Node }):
			p.Idle = "its node " + p.Guest.Node + " is not seen"
		case power == "stopped", power == "" && !running:
			p.Idle, p.Off = "it is switched off", true
		default:
			p.Subject = c.between(addr, p.Guest, secrets)
		}
		if p.Idle == "" && p.Subject.Machine == nil {
			p.Idle = "no access to the guests of this host is configured"
		}
		out = append(out, p)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Subject.Address.Compare(out[j].Subject.Address) < 0 })
	return out
}

// ofHost returns the host's own machine, with the checks of its spec.
func (c *checker) ofHost(secrets []string) Probe {
	h := c.want.Host
	if h == nil || h.Spec == "" {
		return Probe{}
	}
	own := h.Machine()
	if !slices.ContainsFunc(slices.Collect(maps.Values(c.want.State)), func(r *model.Resource) bool { return r.Inside == own.Resource.Addr }) {
		return Probe{} // it is simulated
	}
	p := Probe{Node: h.Name, Subject: health.Subject{Address: own.Resource.Addr, Machine: hostMachine{c.driver.Machine(own.Resource.Addr, model.Guest{}, nil), h.API}, Key: privateKey(h), Secrets: secrets}}
	for _, check := range c.site.Checks(own) {
		if !check.Agent {
			check.At = diag.Range{} // it has the text of the file
			p.Checks = append(p.Checks, check)
		}
	}
	return p
}

// hostMachine is the machine of a host, and the URL of its API.
type hostMachine struct {
	guest.Machine // runs commands; nil: none

	api string
}

// Address returns the address of the API.
func (m hostMachine) Address(ctx context.Context) (guest.Address, error) {
	u, err := url.Parse(m.api)
	if err != nil {
		return guest.Address{}, err
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return guest.Address{}, err
	}
	return guest.Address{IP: found[0].Unmap(), Why: "that of the host's API"}, nil
}

// Run implements guest.Machine.
func (m hostMachine) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	if m.Machine == nil {
		return guest.Output{}, errors.New("the host itself is not entered for checks")
	}
	return m.Machine.Run(ctx, c)
}

// left returns the guest that a pass leaves at an address, whether it runs, and whether the pass made it. A guest that is not
// there has VMID 0.
func (c *checker) left(addr model.Address, res *apply.Result) (g model.Guest, running, made bool) {
	if have := c.have[addr]; have != nil && have.Guest != nil {
		g = *have.Guest
	}
	switch {
	case res == nil:
	case res.Status == apply.RolledBack, res.Status == apply.Done && res.Step.Action == plan.Delete:
		return model.Guest{}, false, false
	case res.Status == apply.Done && (res.Step.Action == plan.Create || res.Step.Action == plan.Replace):
		return c.guestAt(res.Step), true, true
	}
	return g, g.Running, false
}

// between returns a guest as the prober needs it between passes. It holds nothing of the site but values, since a site is not
// kept between passes.
func (c *checker) between(addr model.Address, at model.Guest, secrets []string) health.Subject {
	driver, gateways := c.driver, near(c.site, c.want.Nodes[addr])
	s := c.subject(addr, at)
	s.Secrets = secrets
	if s.Machine == nil {
		return s
	}
	known := &located{open: func() guest.Machine { return driver.Machine(addr, at, gateways) }, at: declared(c.site.Kinds, c.want.State[addr])}
	if r, tried := c.all()[addr]; tried && !known.at.IP.IsValid() {
		known.at.IP, _ = netip.ParseAddr(r.IP)
	}
	s.Machine = known
	if s.Dial != nil { // the connection that leads to guests ends with the pass
		s.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialOf(driver)(ctx, network, address)
		}
	}
	return s
}

// declared returns the static address of a resource with one network card; zero if it has none, or more cards: then the host
// says which one counts.
func declared(kinds model.Kinds, r *model.Resource) guest.Address {
	kind := kinds.Get(r.Addr.Kind)
	if kind == nil || kind.Claims == nil {
		return guest.Address{}
	}
	cards := map[string]bool{}
	for _, a := range model.Attrs(r.Spec) {
		if parts := strings.Split(a.Path, "."); parts[0] == "nic" && len(parts) == 3 {
			cards[parts[1]] = true
		}
	}
	for _, claim := range kind.Claims(r.Spec) {
		if ip, err := netip.ParseAddr(claim.Value); err == nil && len(cards) <= 1 {
			return guest.Address{IP: ip, Why: ip.String() + ", as declared", Declared: true}
		}
	}
	return guest.Address{}
}

// located is a machine with an address that is kept from check to check. What runs inside the guest has a fresh machine
// each time, which verifies again that the guest is ours.
type located struct {
	open func() guest.Machine

	mu sync.Mutex // for a moment only: checks of a guest run side by side
	at guest.Address
}

// Address returns the address that is known, or asks for it.
func (l *located) Address(ctx context.Context) (guest.Address, error) {
	l.mu.Lock()
	at := l.at
	l.mu.Unlock()
	if at.IP.IsValid() {
		return at, nil
	}
	at, err := l.open().Address(ctx)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.at = at
	}
	return at, err
}

// Ping implements guest.Machine.
func (l *located) Ping(ctx context.Context) error { return l.open().Ping(ctx) }

// Run implements guest.Machine.
func (l *located) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	return l.open().Run(ctx, c)
}

// forget drops an address that may have changed: that of a lease.
func (l *located) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.at.Declared {
		l.at = guest.Address{}
	}
}

// Keep takes over what an earlier pass found out about the same guest.
func (p *Probe) Keep(before *Probe) {
	now, ok := p.Subject.Machine.(*located)
	old, was := before.Subject.Machine.(*located)
	if !ok || !was || p.New || p.Guest.VMID != before.Guest.VMID || p.Guest.Digest != before.Guest.Digest || now.at.IP.IsValid() {
		return
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	now.at = old.at
}

// Check runs one check once. Its result has no trace of secrets, and is short.
func (p *Probe) Check(ctx context.Context, by health.Prober, c model.Check) health.Result {
	r := by.Once(ctx, p.Subject, []model.Check{c}).Results[0]
	if l, ok := p.Subject.Machine.(*located); ok && !r.OK {
		l.forget()
	}
	return r
}

// CheckRun is one run of a check that was asked for.
type CheckRun struct {
	Address string  `json:"address"`
	Node    string  `json:"node"`
	Check   string  `json:"check"`
	Status  RunEnd  `json:"status"`
	Detail  string  `json:"detail"` // what it saw, or why it did not run
	Seconds float64 `json:"duration_seconds"`
}

// RunEnd is how a run of a check ended.
type RunEnd string

// The ends of a run.
const (
	RunPassed  RunEnd = "passed"
	RunFailed  RunEnd = "failed"
	RunSkipped RunEnd = "skipped" // its guest is not to be checked now
)

// Verified is the document of verify: one run of each check, sorted by address.
type Verified struct {
	Success bool       `json:"success"` // none failed
	Host    string     `json:"host"`
	Commit  string     `json:"commit"`
	Checks  []CheckRun `json:"checks"`
}

// Failed is the number of checks that failed.
func (v *Verified) Failed() int {
	n := 0
	for _, c := range v.Checks {
		if c.Status == RunFailed {
			n++
		}
	}
	return n
}

// Ran returns the result of a check as a row.
func (p *Probe) Ran(r health.Result, took time.Duration) CheckRun {
	end := RunFailed
	if r.OK {
		end = RunPassed
	}
	return CheckRun{p.Subject.Address.String(), p.Node, r.Name, end, r.Detail, seconds(took)}
}

// Skipped returns a check that did not run as a row.
func (p *Probe) Skipped(check, why string) CheckRun {
	return CheckRun{Address: p.Subject.Address.String(), Node: p.Node, Check: check, Status: RunSkipped, Detail: why}
}

// Matches returns what finds guests: the nodes or addresses of a list, or all for none, of one manifest, or any for "".
func Matches(nodes []string, manifest string) func(*Probe) bool {
	return func(p *Probe) bool {
		named := len(nodes) == 0 || slices.Contains(nodes, p.Node) || slices.Contains(nodes, p.Subject.Address.String())
		return named && (manifest == "" || manifest == p.Manifest)
	}
}

// RunChecks runs each check of these guests once, some at a time.
func RunChecks(ctx context.Context, by health.Prober, probes []Probe, width int) []CheckRun {
	slots, results := make(chan struct{}, width), make(chan CheckRun)
	var out []CheckRun
	var all sync.WaitGroup
	for i := range probes {
		p := &probes[i]
		for _, check := range p.Checks {
			if p.Idle != "" {
				out = append(out, p.Skipped(check.Name, p.Idle))
				continue
			}
			all.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				began := time.Now()
				results <- p.Ran(p.Check(ctx, by, check), time.Since(began))
			})
		}
	}
	go func() {
		all.Wait()
		close(results)
	}()
	for r := range results {
		out = append(out, r)
	}
	SortRuns(out)
	return out
}

// SortRuns sorts rows by address and check.
func SortRuns(rows []CheckRun) {
	sort.Slice(rows, func(i, j int) bool {
		return cmp.Or(cmp.Compare(rows[i].Address, rows[j].Address), cmp.Compare(rows[i].Check, rows[j].Check)) < 0
	})
}
