package push

// A host with a spec is a node whose machine is the host itself. What the spec says is guest.HOST in a plan, as inside of
// any node. Only the way in differs: the helper of the agent's machine, this machine if the program runs there as root,
// else SSH.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// onHost returns the desired state of the host's own machine, for model.Kind.Inside.
func (c Config) onHost(in model.Scope) (*model.Resource, diag.List) {
	if c.Direct {
		return &model.Resource{Deferred: "not applied, since the host is simulated"}, nil
	}
	site, host := in.Site, in.Host
	if in.Earlier != nil {
		site, host = in.Earlier.Site, in.Earlier.Host
	}
	declared := site.Specs[host.Spec]
	if declared == nil {
		return nil, nil // reported where it is named
	}
	known, missing := withoutMissing(site, declared)
	if len(missing) > 0 {
		return &model.Resource{Deferred: fmt.Sprintf("spec %s is not applied, since the value of %s is not known here: provide it with --secrets FILE", declared.Name, strings.Join(missing, ", "))}, nil
	}
	want, found := spec.Resolve(known, host.Machine())
	if in.Earlier != nil {
		return &model.Resource{Spec: want.Withdrawn(), At: in.Host.At}, nil
	}
	return &model.Resource{
		Spec: want, At: declared.At, Sensitive: want.Sensitive, Report: declared.Config != nil && declared.Config.Drift == "report",
	}, found
}

// hostSpec returns the wanted resource that is the host's own machine; nil for none.
func hostSpec(w *model.Want) *model.Resource {
	if r := w.State[converge.Address(w.Host.Name)]; r != nil && r.Inside.Kind == model.HostKind {
		return r
	}
	return nil
}

// add adds the host's own machine to what was observed of the host. A machine whose API does not answer may be one that
// is to become a host: its spec is applied although nothing else is known of it. Then err is why, and nil is returned.
func (o ownMachine) add(ctx context.Context, w *model.Want, have model.Observed, err error) (model.Observed, error) {
	want := hostSpec(w)
	if want == nil || err == nil && have.Only {
		return have, err
	}
	own := o.observe(ctx, want)
	if err == nil {
		return model.Together(have, own), nil
	}
	at := own.State[want.Addr]
	if at == nil || model.Same(want.Spec, at.Spec) || ctx.Err() != nil {
		return have, err
	}
	others := slices.DeleteFunc(w.State.Addresses(), func(a model.Address) bool { return a == want.Addr })
	own.At = time.Now().UTC()
	if len(others) > 0 {
		own.Unknown = append(own.Unknown, model.Unknown{Scope: "host " + w.Host.Name, Why: err.Error(), Kind: others[0].Kind, Only: others})
	}
	return own, nil
}

// observe reads the host's own machine. If it cannot be entered, that is unknown, and nothing else.
func (o ownMachine) observe(ctx context.Context, want *model.Resource) model.Observed {
	ctx, cancel := context.WithTimeoutCause(ctx, o.d.cfg.Observe, fmt.Errorf("not finished after %s", o.d.cfg.Observe))
	defer cancel()
	o.want = want.Spec.(*spec.Spec)
	in, _, err := o.way(ctx)
	var s state
	if err == nil {
		if s, err = in.Observe(ctx, nil, o.want); err != nil {
			err = o.withoutHelper(err)
		}
	}
	if err != nil {
		return model.Observed{Unknown: []model.Unknown{{Scope: want.Inside.String(), Why: err.Error(), Kind: want.Addr.Kind, Only: []model.Address{want.Addr}}}}
	}
	have := s.Observed()
	for _, r := range have.State {
		r.Node = "" // it is not a node of a manifest
	}
	return have
}

// withoutHelper adds to an error of another way why the helper of this machine was not asked, if there could be one.
func (o ownMachine) withoutHelper(err error) error {
	if o.d.cfg.Helper != nil {
		if why := o.d.cfg.Helper.Ready(); why != nil {
			return fmt.Errorf("%w\nso SSH was tried: %w", why, err)
		}
	}
	return err
}

// apply carries out the step about the host's own machine.
func (o ownMachine) apply(ctx context.Context, s plan.Step) error {
	o.want = s.Want.Spec.(*spec.Spec)
	in, confirm, err := o.way(ctx)
	if err != nil {
		return err
	}
	return applySpec(ctx, in, nil, s, converge.Options{Confirm: confirm, ConfirmWithin: o.d.cfg.Confirm})
}

// ownMachine is the host's own machine. Its methods as a guest.Machine go over SSH, by one connection for a pass.
type ownMachine struct {
	d    *Driver
	want *spec.Spec // nil where it is entered for another reason
}

// onMachine applies specs by package converge on one machine.
type onMachine struct {
	inside
	m guest.Machine
}

func (o onMachine) Observe(ctx context.Context, _ guest.Machine, want *spec.Spec) (state, error) {
	return o.inside.Observe(ctx, o.m, want)
}

func (o onMachine) Apply(ctx context.Context, _ guest.Machine, want *spec.Spec, c converge.Options) error {
	return o.inside.Apply(ctx, o.m, want, c)
}

// helped applies specs by the helper of this machine.
type helped struct{ by hostHelper }

func (h helped) Observe(ctx context.Context, _ guest.Machine, want *spec.Spec) (state, error) {
	s, err := h.by.Observe(ctx, want)
	if err != nil {
		return nil, err // a nil *Seen in an interface would not be nil
	}
	return s, nil
}

func (h helped) Apply(ctx context.Context, _ guest.Machine, want *spec.Spec, c converge.Options) error {
	return h.by.Apply(ctx, want, c)
}

// confirmation proves that a machine can still be entered; see converge.Options. Nil: the machine checks itself.
type confirmation = func(context.Context, *spec.Spec, aspect.Step) error

// way returns the way to the host's own machine.
func (o ownMachine) way(ctx context.Context) (inside, confirmation, error) {
	overSSH := o.d.host.SSH != nil && (len(o.d.privateKeys()) > 0 || o.d.cfg.AgentSocket != "")
	if o.d.cfg.Helper != nil {
		if err := o.d.cfg.Helper.Ready(); err == nil || !overSSH {
			return helped{o.d.cfg.Helper}, nil, err
		}
	}
	why := o.isHere(ctx)
	if why == nil {
		return onMachine{o.d.cfg.Inside, o.d.cfg.Locally}, nil, nil
	}
	if !overSSH {
		return nil, nil, fmt.Errorf("%w, and host %s has no ssh block with a key: apply as root on the machine itself, or add ssh", why, o.d.host.Name)
	}
	return onMachine{o.d.cfg.Inside, o}, o.confirm, nil
}

// isHere returns why the host is not this machine, or cannot be changed from here; nil if it can.
func (o ownMachine) isHere(ctx context.Context) error {
	user, err := o.userHere(ctx)
	if err == nil && user != "0" {
		err = errors.New("the program does not run as root")
	}
	return err
}

// userHere returns the ID of the user of this program. An error says that the host is not this machine.
func (o ownMachine) userHere(ctx context.Context) (string, error) {
	out, err := o.d.cfg.Locally.Run(ctx, guest.Command{Args: []string{"/bin/sh", "-c", "id -u; uname -n"}})
	if err != nil {
		return "", err
	}
	user, name, _ := strings.Cut(strings.TrimSpace(out.Out), "\n")
	name, _, _ = strings.Cut(name, ".")
	if name != o.d.host.Name && name != o.d.host.PVENode() {
		return "", fmt.Errorf("this machine is %s, not %s", name, o.d.host.PVENode())
	}
	return user, nil
}

// unprivileged is the host's own machine for the commands of its checks: they have the rights of this program, which runs there, and
// not those of root.
type unprivileged struct{ ownMachine }

// Run implements guest.Machine.
func (u unprivileged) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	if u.d.cfg.Helper == nil { // it may be elsewhere
		if _, err := u.userHere(ctx); err != nil {
			return guest.Output{}, fmt.Errorf("commands of checks run on the machine of the agent: %w", err)
		}
	}
	return u.d.cfg.Locally.Run(ctx, c)
}

// open returns the connection. It may be at the port that the spec gives sshd, or still at that of the host's block.
func (o ownMachine) open(ctx context.Context) (*ssh.Machine, error) {
	o.d.mu.Lock()
	own := o.d.own
	o.d.mu.Unlock()
	if own != nil {
		return own, nil
	}
	m, err := o.login(ctx, "", union([]int{o.d.host.SSH.Port}, o.sshd()))
	if err == nil {
		o.use(m)
	}
	return m, err
}

// sshd are the ports that the spec gives sshd; none if it says nothing of them.
func (o ownMachine) sshd() []int {
	if o.want == nil || o.want.Posture.SSH == nil {
		return nil
	}
	return ports(o.want.Posture.SSH.Port)
}

// use makes a connection the one of this pass.
func (o ownMachine) use(m *ssh.Machine) {
	o.d.mu.Lock()
	old := o.d.own
	o.d.own = m
	o.d.mu.Unlock()
	if old != nil {
		_ = old.Close() // it has no error to give
	}
}

// Address implements guest.Machine.
func (o ownMachine) Address(ctx context.Context) (guest.Address, error) {
	m, err := o.open(ctx)
	if err != nil {
		return guest.Address{}, err
	}
	return m.Address(ctx)
}

// Ping implements guest.Machine.
func (o ownMachine) Ping(ctx context.Context) error {
	m, err := o.open(ctx)
	if err != nil {
		return err
	}
	return m.Ping(ctx)
}

// Run implements guest.Machine.
func (o ownMachine) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	m, err := o.open(ctx)
	if err != nil {
		return guest.Output{}, err
	}
	return m.Run(ctx, c)
}

// confirm logs in by a fresh connection and becomes root, and tries until ctx ends. From then on that connection is used.
func (o ownMachine) confirm(ctx context.Context, _ *spec.Spec, step aspect.Step) error {
	to, at := "", o.sshd()
	if step.Address.IsValid() {
		to = step.Address.String()
	}
	if step.Change != "" || len(at) == 0 {
		at = union([]int{o.d.host.SSH.Port}, at)
	}
	for {
		m, err := o.login(ctx, to, at)
		if err == nil {
			o.use(m)
			return nil
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
	}
}

// login logs in to the host and becomes root: at an address, or where its block says for "", at the first of these ports that
// answers.
func (o ownMachine) login(ctx context.Context, to string, at []int) (*ssh.Machine, error) {
	var first error
	for _, port := range at {
		m, err := o.loginAt(ctx, to, port)
		if err == nil {
			return m, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

func (o ownMachine) loginAt(ctx context.Context, to string, port int) (*ssh.Machine, error) {
	o.d.mu.Lock()
	m, err := o.dial(to, port)
	o.d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	out, err := m.Run(ctx, guest.Command{Args: []string{"true"}})
	if err == nil && out.Code != 0 {
		err = fmt.Errorf("its user cannot become root: %s", guest.Excerpt(out.Err))
	}
	if err == nil {
		err = o.d.keepJump()
	}
	if err != nil {
		_ = m.Close() // what went wrong is known
		return nil, err
	}
	return m, nil
}

// dial returns the host at an address, or where its block says for "". It does not connect yet. The caller has d.mu.
func (o ownMachine) dial(address string, port int) (*ssh.Machine, error) {
	s := o.d.host.SSH
	cfg := ssh.Config{Address: s.Address, Port: port, User: s.User, Keys: o.d.privateKeys(), AgentSocket: o.d.cfg.AgentSocket, Connect: o.d.cfg.Connect, Dial: o.d.cfg.Dial}
	if at, err := url.Parse(o.d.host.API); err == nil {
		cfg.Address = cmp.Or(cfg.Address, at.Hostname())
	}
	if s.HostKey != "" {
		cfg.HostKeys = []string{s.HostKey}
	} else {
		alias := cfg.Address
		known, err := o.d.cfg.HostKeys.Of(alias)
		if err != nil {
			return nil, err
		}
		cfg.HostKeys = known.Keys
		if len(known.Keys) == 0 {
			cfg.Learn = func(_ context.Context, key string) error {
				o.d.mu.Lock()
				defer o.d.mu.Unlock()
				o.d.learned = func() error { return o.d.cfg.HostKeys.Learn(alias, Known{Keys: []string{key}}) }
				return nil
			}
		}
	}
	cfg.Address = cmp.Or(address, cfg.Address)
	m, err := ssh.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", o.d.host.Name, err)
	}
	return m, nil
}
