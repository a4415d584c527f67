package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// checker runs the health checks of one pass. Steps call it concurrently. Each guest is checked
// by one goroutine at a time.
type checker struct {
	prober  health.Prober
	driver  Driver
	site    *model.Site
	want    *model.Want
	have    model.State
	steps   map[model.Address]bool // guests that this pass creates or changes
	fresh   map[model.Address]bool // those that it creates or replaces
	last    map[model.Address]bool // steps that are the last ones about their guest; the checks come after them
	noWait  bool                   // a pass of an agent: it does not wait for guests that are not ready yet
	failing []model.Address        // guests that failed in an earlier pass: one attempt is enough
	stop    <-chan struct{}        // closed to end all waiting

	now func(plan.Step) plan.Step // the step with the current VMID of its guest

	mu        sync.Mutex
	found     map[model.Address]health.Report
	early     map[model.Address]health.Report // what was seen at the first login, as evidence
	verifying map[model.Address]chan struct{} // of length 1, full while the guest is checked
}

func (p *Pass) checker(of progress, d Driver) *checker {
	c := &checker{
		prober: p.Health, driver: d, site: of.desired.Site, want: of.want, have: of.have.State, failing: p.Failing, noWait: p.Unattended, stop: p.Stop,
		early: map[model.Address]health.Report{}, fresh: map[model.Address]bool{}, steps: map[model.Address]bool{}, last: map[model.Address]bool{}, found: map[model.Address]health.Report{}, verifying: map[model.Address]chan struct{}{},
	}
	for _, st := range slices.Backward(of.plan.Steps) { // a step comes after those that it waits for
		c.last[st.Address] = !c.steps[guestOf(st)]
		c.steps[guestOf(st)] = true
		if st.Inside == nil && (st.Action == plan.Create || st.Action == plan.Replace) {
			c.fresh[st.Address] = true
		}
	}
	return c
}

// around wraps do with checks: before a guest is created, the guests that it needs must pass
// theirs, and a step is done when the checks of its guest pass. It goes outside of retries, since a
// failed check does not repeat a step. While it waits for a guest, it leaves its slot to
// other steps. Pass.Stop ends the wait for a check, but no change in progress.
func (c *checker) around(do apply.Do) apply.Do {
	return func(ctx context.Context, s plan.Step) error {
		if s.Action == plan.Delete || s.Action == plan.Adopt || s.Action == plan.Forget { // the guest stays as it is, or goes
			return do(ctx, s)
		}
		stoppable, release := Until(ctx, c.stop)
		defer release()
		if s.Action != plan.Update {
			if err := c.needs(stoppable, s); err != nil {
				return err
			}
		}
		if err := c.login(stoppable, s); err != nil {
			return err
		}
		addr := guestOf(s)
		if err := do(ctx, s); err != nil || len(c.checks(addr)) == 0 || !c.last[s.Address] {
			return err
		}
		apply.YieldForever(ctx)
		err := c.verify(stoppable, addr, c.guestAt(s), c.prober.Run)
		if c.waits(err) {
			return nil // the step is done, and a later pass checks again
		}
		return err
	}
}

// waits reports whether err says that a guest is not ready yet, and the pass should not wait for it: the pass of an agent
// would keep other changes waiting.
func (c *checker) waits(err error) bool {
	failed, ok := errors.AsType[*health.Error](err)
	return ok && failed.Waiting && c.noWait
}

// guestOf returns the guest that a step changes, or inside of which it works.
func guestOf(s plan.Step) model.Address {
	if s.Inside != nil && s.Want != nil {
		return s.Want.Inside
	}
	return s.Address
}

// guestAt returns VMID and node of the guest after the step.
func (c *checker) guestAt(s plan.Step) model.Guest {
	switch {
	case s.Inside != nil:
		return *c.now(s).Inside
	case s.Have != nil && s.Have.Guest != nil && s.Action != plan.Replace:
		return *s.Have.Guest
	default:
		return model.Guest{VMID: c.now(s).VMID, Node: s.Want.Guest.Node}
	}
}

// bootTime limits the wait for the first login to a guest: a new one boots first, and creates its host keys and
// users.
const bootTime = 5 * time.Minute

// login waits until a step that works inside of a guest can log in to it.
func (c *checker) login(ctx context.Context, s plan.Step) error {
	if s.Inside == nil {
		return nil
	}
	subject := health.Subject{
		Address: guestOf(s), Secrets: c.secrets(),
		Machine: c.driver.Machine(s.Address, c.guestAt(s), near(c.site, c.want.Nodes[guestOf(s)])),
	}
	if subject.Machine == nil {
		return errors.New("no access to the guests of this host is configured")
	}
	p := c.prober
	p.Notify = func(w health.Progress) {
		if w.For = s.Address; c.prober.Notify != nil {
			c.prober.Notify(w)
		}
	}
	back := apply.Yield(ctx)
	checks := []model.Check{{Name: "login", Agent: true, Timeout: bootTime}}
	if c.boots(subject.Address) {
		checks = append(checks, cloudInit())
	}
	r := p.Run(ctx, subject, checks)
	if len(r.Results) > 1 {
		c.mu.Lock()
		c.early[subject.Address] = health.Report{Results: r.Results[1:], Err: r.Err}
		c.mu.Unlock()
	}
	if failed, ok := errors.AsType[*health.Error](r.Err); ok && failed.Check == cloudInitCheck {
		return fmt.Errorf("cloud-init of %s did not complete: %s", subject.Address, failed.Saw)
	} else if ok {
		return fmt.Errorf("no user can log in to %s: %s", subject.Address, failed.Saw)
	}
	return back(ctx)
}

const (
	cloudInitCheck = "cloud-init"
	cloudInitTime  = 10 * time.Minute
)

// cloudInit is the check of a new VM that cloud-init is done. Exit code 2 is that of a run with warnings (cloud-init
// status --help). An image without cloud-init passes.
func cloudInit() model.Check {
	return model.Check{
		Name: cloudInitCheck, Timeout: cloudInitTime,
		Command: "command -v cloud-init >/dev/null || exit 0; cloud-init status --wait; code=$?; [ $code -eq 2 ] || exit $code",
	}
}

// isVM reports whether a guest is a VM, which cloud-init sets up at its first boot.
func isVM(guest model.Address) bool { return guest.Kind == "vm" || guest.Kind == model.PVEType }

// boots reports whether a guest is a VM that this pass creates, or an earlier one did without success, so that cloud-init may
// be at work in it.
func (c *checker) boots(addr model.Address) bool {
	return isVM(addr) && (c.fresh[addr] || slices.Contains(c.failing, addr))
}

// checks returns the checks of a guest that should run, and none for anything else. A guest that is not adopted yet is
// not entered.
func (c *checker) checks(addr model.Address) []model.Check {
	if have := c.have[addr]; have != nil && have.Guest != nil && have.Guest.Adoptable {
		return nil
	}
	list := checksOf(c.site, c.want, addr, c.prober, c.noWait)
	// PVE asks for another privilege for commands than for a ping: a site without command checks may not have it.
	if c.boots(addr) && slices.ContainsFunc(list, func(k model.Check) bool { return k.Command != "" }) {
		list = append([]model.Check{cloudInit()}, list...)
	}
	return list
}

// reportTime limits the wait for the first report of a node. In mode pull it boots, fetches the
// program and installs the packages of its spec. The agent of a child fetches the repository.
const reportTime = 15 * time.Minute

// reportTry is the limit in a pass that does not wait: one attempt.
const reportTry = time.Nanosecond

// checksOf returns the checks of a guest. The first one of a node that reports is its report, if this
// process receives reports.
func checksOf(s *model.Site, w *model.Want, addr model.Address, by health.Prober, noWait bool) []model.Check {
	n, r := w.Nodes[addr], w.State[addr]
	if n == nil || r == nil || r.Guest == nil || model.TextOf(r.Spec, "power") == "stopped" {
		return nil
	}
	if by.Reported != nil && (n.Mode == model.ModePull && n.Spec != "" || r.Reports) {
		within := reportTime
		if noWait {
			within = reportTry
		}
		return append([]model.Check{{Name: "report", Report: true, At: n.At, Timeout: within}}, s.Checks(n)...)
	}
	return s.Checks(n)
}

// turnOf lists the guests whose checks have to pass before another one is replaced: those of its manifest that this pass creates,
// replaces or sets up before it, and those that have already what it is replaced for, such as the same word in recreate.
func (c *checker) turnOf(s plan.Step) []model.Address {
	if s.Action != plan.Replace || s.Want.Guest == nil {
		return nil
	}
	var out []model.Address
	for addr, r := range c.want.State {
		if r.Guest == nil || r.Manifest != s.Manifest || addr == s.Address {
			continue
		}
		before := slices.ContainsFunc(s.After, func(a model.Address) bool {
			return a == addr && c.fresh[addr] || c.want.State[a] != nil && c.want.State[a].Inside == addr
		})
		if have := c.have[addr]; before || !c.steps[addr] && have != nil && s.Has(have) {
			out = append(out, addr)
		}
	}
	slices.SortFunc(out, model.Address.Compare)
	return out
}

// needs waits for the checks of the guests that a step needs and this pass does not change. A
// guest that failed before gets one attempt, since an agent must not spend each pass on one
// failing guest while pushes wait.
func (c *checker) needs(ctx context.Context, s plan.Step) error {
	back := func(context.Context) error { return nil }
	yielded := false
	for _, addr := range slices.Concat(s.Want.Needs, c.turnOf(s)) {
		why := "it needs"
		if !slices.Contains(s.Want.Needs, addr) {
			why = "it is replaced after"
		}
		have := c.have[addr]
		if _, err := c.known(addr); c.steps[addr] && c.waits(err) {
			return &apply.NotYetError{Err: fmt.Errorf("%s %s: %w", why, addr, err)}
		}
		if c.steps[addr] || have == nil || have.Guest == nil || len(c.checks(addr)) == 0 {
			continue
		}
		if known, _ := c.known(addr); !known && !yielded {
			back, yielded = apply.Yield(ctx), true
		}
		p := c.prober
		p.Notify = func(w health.Progress) {
			if w.For = s.Address; c.prober.Notify != nil {
				c.prober.Notify(w)
			}
		}
		run := p.Run
		if slices.Contains(c.failing, addr) {
			run = p.Once
		}
		switch err := c.verify(ctx, addr, *have.Guest, run); {
		case c.waits(err):
			return &apply.NotYetError{Err: fmt.Errorf("%s %s: %w", why, addr, err)}
		case err != nil:
			return fmt.Errorf("%s %s, which is not healthy: %w", why, addr, err)
		}
	}
	return back(ctx)
}

// verify runs the checks of a guest, unless this pass has their result. Concurrent calls for one
// guest share a run.
func (c *checker) verify(ctx context.Context, addr model.Address, at model.Guest, run func(context.Context, health.Subject, []model.Check) health.Report) error {
	turn := c.turn(addr)
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if known, err := c.known(addr); known {
		return err
	}
	subject := c.subject(addr, at)
	if subject.Machine == nil {
		return errors.New("its checks cannot run: no access to the guests of this host is configured")
	}
	r := run(ctx, subject, c.checks(addr))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found[addr] = r
	return r.Err
}

func (c *checker) turn(addr model.Address) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.verifying[addr] == nil {
		c.verifying[addr] = make(chan struct{}, 1)
	}
	return c.verifying[addr]
}

func (c *checker) tried(addr model.Address) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, tried := c.found[addr]
	return tried
}

// known returns the result of the checks of a guest in this pass. A run that was cut short, by the
// end of its step, does not count.
func (c *checker) known(addr model.Address) (known bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, tried := c.found[addr]
	var failed *health.Error
	cut := errors.As(r.Err, &failed) && failed.Err != nil
	return tried && !cut, r.Err
}

// subject returns the guest as the prober needs it.
func (c *checker) subject(addr model.Address, at model.Guest) health.Subject {
	return health.Subject{
		Address: addr, Machine: c.driver.Machine(addr, at, near(c.site, c.want.Nodes[addr])),
		User: model.TextOf(c.want.State[addr].Spec, "ci_user"), Keys: keysOf(c.want.State[addr].Spec), Key: privateKey(c.want.Host),
		Secrets: c.secrets(), Dial: dialOf(c.driver),
	}
}

// dialOf returns how checks over the network reach the guests of a driver, nil for the network of this machine.
func dialOf(driver Driver) func(ctx context.Context, network, address string) (net.Conn, error) {
	d, has := driver.(dialer)
	if !has {
		return nil
	}
	dial, err := d.Dial()
	if err != nil {
		return func(context.Context, string, string) (net.Conn, error) { return nil, err }
	}
	return dial
}

// CanLogIn reports whether a resolved guest accepts the private key that its host names. Then a
// check by SSH logs in.
func CanLogIn(h *model.Host, r *model.Resource) bool {
	s := health.Subject{Keys: keysOf(r.Spec), Key: privateKey(h)}
	return s.CanLogIn()
}

func privateKey(h *model.Host) string {
	if h == nil || h.SSH == nil {
		return ""
	}
	return h.SSH.Key
}

func keysOf(spec any) []string {
	list, _ := model.ValueOf(spec, "ssh_keys").([]string)
	return list
}

// near returns the gateways that the site names for a node, beside those of its network cards.
func near(s *model.Site, n *model.Node) []netip.Addr {
	var declared *model.Spec
	if n != nil { // else it left the site
		declared = s.Specs[n.Spec]
	}
	return declared.Gateways(s)
}

// secrets returns all known secrets, since the output of a guest may contain any of them.
func (c *checker) secrets() []string {
	if c.site.Secrets == nil {
		return nil
	}
	var out []string
	for _, section := range c.site.Secrets.Values {
		for _, v := range section {
			out = append(out, v)
		}
	}
	return out
}

// recheckTime limits how long an agent starts to check guests that failed before.
const recheckTime = time.Minute

// recheck runs the checks of these guests once, concurrently, if they are on the host and this
// pass has not checked them. Guests that it does not reach in time stay noted as failing.
func (c *checker) recheck(ctx context.Context, list []model.Address, width int) {
	if width <= 0 {
		width = 8
	}
	slots := make(chan struct{}, width)
	end := time.Now().Add(recheckTime)
	var all sync.WaitGroup
	for _, addr := range list {
		have := c.have[addr]
		if c.tried(addr) || c.steps[addr] || have == nil || have.Guest == nil || len(c.checks(addr)) == 0 {
			continue
		}
		at := *have.Guest
		slots <- struct{}{}
		if ctx.Err() != nil || c.noWait && time.Now().After(end) {
			break
		}
		all.Go(func() {
			defer func() { <-slots }()
			_ = c.verify(ctx, addr, at, c.prober.Once) // the result is in found
		})
	}
	all.Wait()
}

// locateTime limits the search for addresses, which are only a hint in the report.
const locateTime = 5 * time.Second

// locate asks each guest that should run, and has not been checked, for its address.
func (c *checker) locate(ctx context.Context, list []model.Address) {
	ctx, cancel := context.WithTimeout(ctx, locateTime)
	defer cancel()
	var all sync.WaitGroup
	for _, addr := range list {
		have, want := c.have[addr], c.want.State[addr]
		if c.tried(addr) || want == nil || have == nil || have.Guest == nil || !have.Guest.Running || have.Guest.Adoptable || model.TextOf(want.Spec, "power") == "stopped" {
			continue
		}
		m := c.driver.Machine(addr, *have.Guest, near(c.site, c.want.Nodes[addr]))
		if m == nil {
			continue
		}
		all.Go(func() {
			if at, err := m.Address(ctx); err == nil {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.found[addr] = health.Report{IP: at.IP.String()}
			}
		})
	}
	all.Wait()
}

// all returns the results of the checks.
func (c *checker) all() map[model.Address]health.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr, early := range c.early {
		r := c.found[addr]
		r.Results, r.Err = append(slices.Clone(early.Results), r.Results...), cmp.Or(early.Err, r.Err)
		c.found[addr] = r
	}
	c.early = nil
	return c.found
}

// failedChecks lists the failed checks, without those of guests with a failed step, which is their cause.
func (r *Report) failedChecks() []error {
	var errs []error
	for _, addr := range sortedReports(r.Checks) {
		if err := r.Checks[addr].Err; err != nil && !slices.ContainsFunc(r.Results, func(res apply.Result) bool { return res.Err != nil && guestOf(res.Step) == addr }) {
			errs = append(errs, fmt.Errorf("%s: %w", addr, err))
		}
	}
	return errs
}

func sortedReports(m map[model.Address]health.Report) []model.Address {
	out := make([]model.Address, 0, len(m))
	for addr := range m {
		out = append(out, addr)
	}
	slices.SortFunc(out, model.Address.Compare)
	return out
}

// unchecked returns the guests that failed earlier and that the site declares without checks now.
func (p *Pass) unchecked(c progress) []model.Address {
	var out []model.Address
	for _, addr := range p.Failing {
		if c.want != nil && c.want.State[addr] != nil && len(checksOf(c.desired.Site, c.want, addr, p.Health, p.Unattended)) == 0 {
			out = append(out, addr)
		}
	}
	return out
}

// checkTime is the time limit of the checks of a step, without the step.
func checkTime(s *model.Site, w *model.Want, st plan.Step, by health.Prober, noWait bool) time.Duration {
	if st.Want == nil || w == nil || st.Action == plan.Delete {
		return 0
	}
	sum := health.Limit(checksOf(s, w, guestOf(st), by, noWait))
	if isVM(guestOf(st)) && st.Action != plan.Update {
		sum += cloudInitTime
	}
	for _, addr := range st.Want.Needs {
		sum += health.Limit(checksOf(s, w, addr, by, noWait))
	}
	return sum
}
