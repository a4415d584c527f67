package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// checker tries the checks of one pass. Steps call it from many goroutines: the lock
// is for what was found, and proofs has one at a time for each guest.
type checker struct {
	prober  health.Prober
	driver  Driver
	site    *model.Site
	want    *model.Want
	have    model.State
	steps   map[model.Address]bool // guests that this pass itself makes or changes
	last    map[model.Address]bool // the last step about each of them, on it or inside of it: its checks hold after that
	hurry   bool                   // nobody waits for just this pass, and others wait for its end
	failing []model.Address        // guests that had their time in an earlier pass: one try is enough
	stop    <-chan struct{}        // closed: nothing is waited for any more

	now func(plan.Step) plan.Step // a step with the VMID that its guest has by now

	mu        sync.Mutex
	found     map[model.Address]health.Report
	verifying map[model.Address]chan struct{} // of length 1, full while the guest is checked
}

func (p *Pass) checker(of course, d Driver) *checker {
	c := &checker{
		prober: p.Health, driver: d, site: of.desired.Site, want: of.want, have: of.have.State, failing: p.Failing, hurry: p.Unattended, stop: p.Stop,
		steps: map[model.Address]bool{}, last: map[model.Address]bool{}, found: map[model.Address]health.Report{}, verifying: map[model.Address]chan struct{}{},
	}
	for _, st := range slices.Backward(of.plan.Steps) { // they are in the order in which they wait for each other
		c.last[st.Address] = !c.steps[guestOf(st)]
		c.steps[guestOf(st)] = true
	}
	return c
}

// around makes a Do whose guests are done when their checks hold, and are only made
// when those of what they need hold: that may stand there since a pass before, and
// nobody remembers how it was. It goes around all repetition, since nothing is done
// again because a check does not hold, and without a place among those at work, since
// to wait for a guest is no work of the host. Who asks to stop waits for the end of a change,
// and not for that of a check.
func (c *checker) around(do apply.Do) apply.Do {
	return func(ctx context.Context, s plan.Step) error {
		if s.Action == plan.Delete {
			return do(ctx, s)
		}
		stoppable, release := Until(ctx, c.stop)
		defer release()
		if s.Action != plan.Update && s.Action != plan.Adopt {
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
			return nil // it is made, and a later pass sees it ready
		}
		return err
	}
}

// waits reports whether a check says that its guest is not ready yet and nothing is wrong so far. Nobody waits for the
// end of a pass of an agent, and others do: such a guest must not keep it.
func (c *checker) waits(err error) bool {
	failed, ok := errors.AsType[*health.Error](err)
	return ok && failed.Waiting && c.hurry
}

// guestOf is the guest that a step is about: its own address, or the guest inside of which it works.
func guestOf(s plan.Step) model.Address {
	if s.Inside != nil && s.Want != nil {
		return s.Want.Inside
	}
	return s.Address
}

// guestAt is where the guest of a step is once that is done.
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

// bootTime is how long a guest may take until it lets a step in that works inside of it: one
// that was just made boots first, and makes its host keys and users.
const bootTime = 5 * time.Minute

// login waits until a step can work inside its guest.
func (c *checker) login(ctx context.Context, s plan.Step) error {
	if s.Inside == nil {
		return nil
	}
	subject := health.Subject{
		Address: guestOf(s), Secrets: c.secrets(),
		Machine: c.driver.Machine(s.Address, c.guestAt(s), near(c.site, c.want.Nodes[guestOf(s)])),
	}
	if subject.Machine == nil {
		return errors.New("the way into guests of this host is not known")
	}
	p := c.prober
	p.Notify = func(w health.Progress) {
		if w.For = s.Address; c.prober.Notify != nil {
			c.prober.Notify(w)
		}
	}
	back := apply.Yield(ctx)
	r := p.Run(ctx, subject, []model.Check{{Name: "login", Agent: true, Timeout: bootTime}})
	if failed, ok := errors.AsType[*health.Error](r.Err); ok {
		return fmt.Errorf("nobody can log in to %s: %s", subject.Address, failed.Saw)
	}
	return back(ctx)
}

// checks are those of a guest that shall run; none for everything else.
func (c *checker) checks(addr model.Address) []model.Check {
	return checksOf(c.site, c.want, addr, c.prober, c.hurry)
}

// reportTime is how long a new node in mode pull may take until it reports: it boots, gets the
// program, and installs the packages of its spec. The agent of a child, which is installed by then, fetches the
// repository.
const reportTime = 15 * time.Minute

// reportTry is the same in a pass that must not be kept: one try.
const reportTry = time.Nanosecond

// checksOf are the checks of a guest: first that a node which reports does so, if anybody would hear it.
func checksOf(s *model.Site, w *model.Want, addr model.Address, by health.Prober, hurry bool) []model.Check {
	n, r := w.Nodes[addr], w.State[addr]
	if n == nil || r == nil || r.Guest == nil || textOf(r.Spec, "power") == "stopped" {
		return nil
	}
	if by.Reported != nil && (n.Mode == model.ModePull && n.Spec != "" || r.Reports) {
		within := reportTime
		if hurry {
			within = reportTry
		}
		return append([]model.Check{{Name: "report", Report: true, At: n.At, Timeout: within}}, s.Checks(n)...)
	}
	return s.Checks(n)
}

// textOf is the value of an attribute that is a text; "" without it.
func textOf(spec any, path string) string {
	for _, a := range model.Attrs(spec) {
		if a.Path == path {
			text, _ := a.Value.(string)
			return text
		}
	}
	return ""
}

// needs waits for the checks of what a step needs and this pass does not touch. Of a
// guest that failed before there is one try: an agent must not spend each of its
// passes, and every push that waits for them, on one failing guest.
func (c *checker) needs(ctx context.Context, s plan.Step) error {
	back := func(context.Context) error { return nil }
	rests := false
	for _, addr := range s.Want.Needs {
		have := c.have[addr]
		if _, err := c.known(addr); c.steps[addr] && c.waits(err) {
			return &apply.NotYetError{Err: fmt.Errorf("it needs %s: %w", addr, err)}
		}
		if c.steps[addr] || have == nil || have.Guest == nil || len(c.checks(addr)) == 0 {
			continue
		}
		if known, _ := c.known(addr); !known && !rests {
			back, rests = apply.Yield(ctx), true
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
			return &apply.NotYetError{Err: fmt.Errorf("it needs %s: %w", addr, err)}
		case err != nil:
			return fmt.Errorf("it needs %s, which is not well: %w", addr, err)
		}
	}
	return back(ctx)
}

// verify tries the checks of a guest, unless this pass knows already what comes of
// that. Who comes while somebody tries waits for its turn, and not for all of it again.
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
		return errors.New("its checks cannot be tried: the way into guests of this host is not known")
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

// known is what became of the checks of a guest in this pass. A proof that was cut
// short, by the end of the step that wanted it, tells nothing.
func (c *checker) known(addr model.Address) (known bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, tried := c.found[addr]
	var failed *health.Error
	cut := errors.As(r.Err, &failed) && failed.Err != nil
	return tried && !cut, r.Err
}

// subject says who is checked, and what is known of it.
func (c *checker) subject(addr model.Address, at model.Guest) health.Subject {
	return health.Subject{
		Address: addr, Machine: c.driver.Machine(addr, at, near(c.site, c.want.Nodes[addr])),
		User: textOf(c.want.State[addr].Spec, "ci_user"), Keys: keysOf(c.want.State[addr].Spec), Key: privateKey(c.want.Host),
		Secrets: c.secrets(),
	}
}

// CanLogIn reports whether a guest, in its resolved form, accepts the private key that
// its host names: then a check by SSH logs in.
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
	for _, a := range model.Attrs(spec) {
		if a.Path == "ssh_keys" {
			list, _ := a.Value.([]string)
			return list
		}
	}
	return nil
}

// near are the gateways that the files name for a node, beside those of its cards.
func near(s *model.Site, n *model.Node) []netip.Addr {
	names := []string{s.Gateway}
	if spec := s.Specs[n.Spec]; spec != nil && spec.Network != nil {
		names = append(names, spec.Network.Gateway)
	}
	var out []netip.Addr
	for _, name := range names {
		if ip, err := netip.ParseAddr(name); err == nil {
			out = append(out, ip)
		}
	}
	return out
}

// secrets are all values that are known: what a guest answers may repeat any of them.
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

// againFor is how long an agent goes on to the next guest that failed.
const againFor = time.Minute

// again tries each check of these guests once, all guests side by side, as far as
// they stand there and this pass did not try them. A guest that keeps failing costs
// a pass no waiting but for the time of a try; many that do not even refuse a
// connection cost an agent a minute, and whoever was not reached in that keeps its note.
func (c *checker) again(ctx context.Context, list []model.Address, width int) {
	if width <= 0 {
		width = 8
	}
	slots := make(chan struct{}, width)
	end := time.Now().Add(againFor)
	var all sync.WaitGroup
	for _, addr := range list {
		have := c.have[addr]
		if c.tried(addr) || c.steps[addr] || have == nil || have.Guest == nil || len(c.checks(addr)) == 0 {
			continue
		}
		at := *have.Guest
		slots <- struct{}{}
		if ctx.Err() != nil || c.hurry && time.Now().After(end) {
			break // the others stay noted
		}
		all.Go(func() {
			defer func() { <-slots }()
			_ = c.verify(ctx, addr, at, c.prober.Once) // stands in found
		})
	}
	all.Wait()
}

// locateFor bounds the question where a guest is: nobody asked for more than a hint.
const locateFor = 5 * time.Second

// locate asks each guest that shall run, and was not asked anything, for its address.
func (c *checker) locate(ctx context.Context, list []model.Address) {
	ctx, cancel := context.WithTimeout(ctx, locateFor)
	defer cancel()
	var all sync.WaitGroup
	for _, addr := range list {
		have, want := c.have[addr], c.want.State[addr]
		if c.tried(addr) || want == nil || have == nil || have.Guest == nil || !have.Guest.Running || textOf(want.Spec, "power") == "stopped" {
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

// all is what became of the checks.
func (c *checker) all() map[model.Address]health.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.found
}

// failedChecks lists the checks that do not hold, but of guests with a step that went wrong: that is why.
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

// unchecked are the guests that were failing and have no checks any more, in a site that
// declares them.
func (p *Pass) unchecked(c course) []model.Address {
	var out []model.Address
	for _, addr := range p.Failing {
		if c.want != nil && c.want.State[addr] != nil && len(checksOf(c.desired.Site, c.want, addr, p.Health, p.Unattended)) == 0 {
			out = append(out, addr)
		}
	}
	return out
}

// checkTime is how long the checks of a step may take, beside the step.
func checkTime(s *model.Site, w *model.Want, st plan.Step, by health.Prober, hurry bool) time.Duration {
	if st.Want == nil || w == nil || st.Action == plan.Delete {
		return 0
	}
	sum := health.Limit(checksOf(s, w, guestOf(st), by, hurry))
	for _, addr := range st.Want.Needs {
		sum += health.Limit(checksOf(s, w, addr, by, hurry))
	}
	return sum
}
