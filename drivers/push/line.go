package push

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// lineKey is a guest at its place: one that is recreated elsewhere has another connection.
type lineKey struct {
	addr model.Address // of the guest
	vmid int
	node string
}

// line is the way into a guest by SSH: one connection, which is made when it is first needed and
// used by all that is done inside the guest. Safe for concurrent use.
type line struct {
	d    *Driver
	way  *way
	at   model.Guest
	turn chan struct{} // full while conn is in use
	conn *ssh.Machine  // nil before the first login
}

// line finds the line to a guest.
func (d *Driver) line(w *way, at model.Guest) *line {
	key := lineKey{w.guest, at.VMID, at.Node}
	d.mu.Lock()
	old := d.lines[key]
	if old != nil && sameWay(old.way, w) {
		d.mu.Unlock()
		return old
	}
	l := &line{d: d, way: w, at: at, turn: make(chan struct{}, 1)}
	d.lines[key] = l
	d.mu.Unlock()
	if old != nil {
		old.close()
	}
	return l
}

func sameWay(a, b *way) bool {
	return a.guest == b.guest && a.user == b.user && a.ip == b.ip && a.agent == b.agent && slices.Equal(a.ports, b.ports) && slices.Equal(a.near, b.near)
}

// alias is the name of a guest in the file of host keys.
func (d *Driver) alias(of model.Address) string {
	return d.site + "/" + d.host.Name + "/" + of.String()
}

// forget drops what is known of a guest that is recreated or removed, also of one that left the
// files.
func (d *Driver) forget(of model.Address) error {
	d.mu.Lock()
	var gone []*line
	for key, l := range d.lines {
		if l.way.guest == of {
			gone = append(gone, l)
			delete(d.lines, key)
		}
	}
	d.mu.Unlock()
	for _, l := range gone {
		l.close()
	}
	return d.cfg.HostKeys.Forget(d.alias(of))
}

// Address is as guest.Machine wants it: what the driver of the host says.
func (l *line) Address(ctx context.Context) (guest.Address, error) {
	m := l.d.Driver.Machine(l.way.guest, l.at, l.way.near)
	if m == nil {
		return guest.Address{}, errors.New("the addresses of guests of this host are not known")
	}
	return m.Address(ctx)
}

// Ping is as guest.Machine wants it. A connection that does not answer is replaced, at the
// address that the guest has then.
func (l *line) Ping(ctx context.Context) error {
	m, err := l.open(ctx)
	if err != nil {
		return err
	}
	if err = m.Ping(ctx); err != nil {
		l.drop(m)
	}
	return err
}

// Run is as guest.Machine wants it.
func (l *line) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	m, err := l.open(ctx)
	if err != nil {
		return guest.Output{}, err
	}
	return m.Run(ctx, c)
}

// lock waits for the turn to use conn.
func (l *line) lock(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// open returns the connection, and logs in if there is none.
func (l *line) open(ctx context.Context) (*ssh.Machine, error) {
	if err := l.lock(ctx); err != nil {
		return nil, err
	}
	defer func() { <-l.turn }()
	if l.conn != nil {
		return l.conn, nil
	}
	known, err := l.known()
	if err != nil {
		return nil, err
	}
	to, err := l.addresses(ctx, known)
	if err != nil {
		return nil, err
	}
	m, err := l.login(ctx, to, l.ports(known), known)
	if err == nil {
		l.conn = m
	}
	return m, err
}

func (l *line) known() (Known, error) { return l.d.cfg.HostKeys.Of(l.d.alias(l.way.guest)) }

// ports returns the ports on which sshd may listen: that of the spec, and that before the spec said otherwise.
func (l *line) ports(known Known) []int {
	if known.Port != 0 && !slices.Contains(l.way.ports, known.Port) {
		return append(slices.Clone(l.way.ports), known.Port)
	}
	return l.way.ports
}

// addresses returns the addresses at which the guest may answer: from its host, from the spec, and where it
// was entered last. They differ while its address changes. A guest whose host keys are not known is only entered
// where its host says.
func (l *line) addresses(ctx context.Context, known Known) ([]netip.Addr, error) {
	at, err := l.Address(ctx)
	if err == nil && len(known.Keys) == 0 {
		return []netip.Addr{at.IP}, nil
	}
	var out []netip.Addr
	for _, ip := range []netip.Addr{at.IP, l.way.ip, known.IP} {
		if ip.IsValid() && !slices.Contains(out, ip) {
			out = append(out, ip)
		}
	}
	if len(known.Keys) == 0 || len(out) == 0 {
		return nil, err
	}
	return out, nil
}

// drop gives up a connection.
func (l *line) drop(m *ssh.Machine) {
	l.turn <- struct{}{}
	if l.conn == m {
		l.conn = nil
	}
	<-l.turn
	_ = m.Close() // it has no error to give
}

// close ends the connection.
func (l *line) close() {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.conn != nil {
		_ = l.conn.Close() // it has no error to give
		l.conn = nil
	}
}

// again logs in by a fresh connection at one of these ports and becomes root, and tries until ctx
// ends.
func (l *line) again(ctx context.Context, at []int) error {
	m, err := l.fresh(ctx, netip.Addr{}, func(Known) []int { return at })
	if err != nil {
		return err
	}
	return m.Close()
}

// move logs in by a fresh connection at an address, or where the guest is otherwise known to be if that is
// not valid, and tries until ctx ends. From then on that connection is used.
func (l *line) move(ctx context.Context, to netip.Addr) error {
	m, err := l.fresh(ctx, to, l.ports)
	if err != nil {
		return err
	}
	l.turn <- struct{}{}
	old := l.conn
	l.conn = m
	<-l.turn
	if old != nil {
		_ = old.Close() // it has no error to give
	}
	return nil
}

// root proves that a connection gives the rights of root.
func (l *line) root(ctx context.Context, m *ssh.Machine) error {
	out, err := m.Run(ctx, guest.Command{Args: []string{"true"}})
	if err == nil && out.Code != 0 {
		return fmt.Errorf("user %s cannot become root any more: %s", l.way.user, guest.Excerpt(out.Err))
	}
	return err
}

// fresh logs in and becomes root, and tries until ctx ends.
func (l *line) fresh(ctx context.Context, to netip.Addr, at func(Known) []int) (*ssh.Machine, error) {
	for {
		known, err := l.known()
		if err != nil {
			return nil, err
		}
		where := []netip.Addr{to}
		if !to.IsValid() {
			where, err = l.addresses(ctx, known)
		}
		var m *ssh.Machine
		if err == nil {
			m, err = l.login(ctx, where, at(known), known)
		}
		if err == nil {
			if err = l.root(ctx, m); err == nil {
				return m, nil
			}
			_ = m.Close() // it has no error to give
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		case <-timer.C:
		}
	}
}

// login connects to one of these addresses. Several are tried at once, because an unreachable one takes the whole
// time.
func (l *line) login(ctx context.Context, to []netip.Addr, at []int, known Known) (*ssh.Machine, error) {
	type attempt struct {
		m   *ssh.Machine
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	attempts := make(chan attempt)
	for _, ip := range to {
		go func() {
			m, err := l.loginTo(ctx, ip, at, known)
			attempts <- attempt{m, err}
		}()
	}
	var in *ssh.Machine
	var why error
	for range to {
		a := <-attempts
		switch {
		case a.err == nil && in == nil:
			in = a.m
			cancel()
		case a.err == nil:
			_ = a.m.Close() // one is enough
		default:
			why = refused(why, a.err)
		}
	}
	cancel()
	if in == nil {
		return nil, why
	}
	return in, nil
}

// refused returns the error that says more: a guest that answers and refuses us, before one that does not answer.
func refused(a, b error) error {
	var key *ssh.HostKeyError
	var denied *ssh.LoginError
	if a == nil || errors.As(b, &key) || errors.As(b, &denied) {
		return b
	}
	return a
}

// loginTo makes a connection at the first of these ports that lets us in.
func (l *line) loginTo(ctx context.Context, ip netip.Addr, at []int, known Known) (*ssh.Machine, error) {
	var why error
	for _, port := range at {
		m, err := l.loginAt(ctx, ip, port, known)
		if err == nil {
			return m, nil
		}
		why = refused(why, err)
	}
	if why == nil {
		why = fmt.Errorf("%s has no port for SSH", l.way.guest)
	}
	return nil, why
}

// loginAt logs in at one address, and keeps what it learned once it is in.
func (l *line) loginAt(ctx context.Context, ip netip.Addr, port int, known Known) (*ssh.Machine, error) {
	learned := Known{Keys: known.Keys, Port: port, IP: ip}
	cfg := ssh.Config{
		Address: ip.String(), Port: port, User: l.way.user, Keys: l.d.privateKeys(), AgentSocket: l.d.cfg.AgentSocket,
		HostKeys: known.Keys, Connect: l.d.cfg.Connect, Dial: l.d.cfg.Dial,
	}
	if len(known.Keys) == 0 {
		cfg.Learn = func(_ context.Context, key string) error {
			learned.Keys = []string{strings.Join(strings.Fields(key)[:2], " ")}
			return nil
		}
	}
	var err error
	if cfg.Via, err = l.d.through(); err != nil {
		return nil, err
	}
	m, err := ssh.New(cfg)
	if err != nil {
		return nil, err
	}
	err = m.Ping(ctx)
	if err == nil {
		err = l.learn(ctx, known, learned)
	}
	if err == nil {
		err = l.d.keepJump()
	}
	if err != nil {
		_ = m.Close() // what went wrong is known
		if keys := l.renewed(ctx, err, known); len(keys) > 0 {
			return l.loginAt(ctx, ip, port, Known{Keys: keys})
		}
		return nil, err
	}
	return m, nil
}

// renewed returns the host keys that a guest has now, if it was refused for those that it had before and its
// guest agent knows others. cloud-init makes new ones when Proxmox VE gives it another instance ID, as
// it does after a change of address or keys (PVE/QemuServer/Cloudinit.pm).
func (l *line) renewed(ctx context.Context, err error, known Known) []string {
	var other *ssh.HostKeyError
	if !errors.As(err, &other) || len(known.Keys) == 0 {
		return nil
	}
	keys, err := l.vouched(ctx)
	if err != nil || slices.ContainsFunc(keys, func(k string) bool { return slices.Contains(known.Keys, k) }) {
		return nil // these are its keys still: another machine answers
	}
	return keys
}

// keysTime limits the time in which a guest agent returns the host keys of its guest.
const keysTime = 5 * time.Second

// vouched returns the host keys that the guest agent knows; this channel cannot be intercepted.
func (l *line) vouched(ctx context.Context) ([]string, error) {
	m := l.d.Driver.Machine(l.way.guest, l.at, l.way.near)
	if m == nil || l.way.guest.Kind == "ct" {
		return nil, fmt.Errorf("%s has no guest agent", l.way.guest)
	}
	ctx, cancel := context.WithTimeout(ctx, keysTime)
	defer cancel()
	out, err := m.Run(ctx, guest.Command{Args: []string{"/bin/sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub"}})
	if err != nil {
		return nil, err
	}
	var keys []string
	for text := range strings.Lines(out.Out) {
		if fields := strings.Fields(text); len(fields) >= 2 {
			keys = append(keys, strings.Join(fields[:2], " "))
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("it found no host keys in /etc/ssh (exit code %d)", out.Code)
	}
	return keys, nil
}

// learn keeps what was learned of the guest by logging in for the first time, or at another port. The
// guest agent has to agree with a new key, if the files say that there is one; it may start later than sshd.
func (l *line) learn(ctx context.Context, known, learned Known) error {
	if len(known.Keys) == 0 {
		keys, err := l.vouched(ctx)
		switch {
		case err == nil && !slices.Contains(keys, learned.Keys[0]):
			return fmt.Errorf("the machine at the address of %s shows the host key %s, which its guest agent does not know: another machine has this address", l.way.guest, learned.Keys[0])
		case err == nil:
			learned.Keys = keys
		case l.way.agent && denied(err):
			return fmt.Errorf("its guest agent may not be asked for the host key: %w", err)
		case l.way.agent:
			return fmt.Errorf("%s is not ready yet: its guest agent has not confirmed the host key that it shows, and it is not entered before (set agent = false if its image has no guest agent): %w", l.way.guest, err)
		}
	} else if known.Port == learned.Port && known.IP == learned.IP {
		return nil
	}
	return l.d.cfg.HostKeys.Learn(l.d.alias(l.way.guest), learned)
}

// privateKeys returns the keys for logging in.
func (d *Driver) privateKeys() []string {
	var keys []string
	if d.host.SSH != nil && d.host.SSH.Key != "" {
		keys = append(keys, d.host.SSH.Key)
	}
	return append(keys, d.cfg.PrivateKeys...)
}

// keepJump keeps the host key of the host, once a guest was entered through it: what does not let us
// in is not the host.
func (d *Driver) keepJump() error {
	d.mu.Lock()
	keep := d.learned
	d.learned = nil
	d.mu.Unlock()
	if keep == nil {
		return nil
	}
	return keep()
}

// through is the host, if connections to its guests go through it; nil if they do not.
func (d *Driver) through() (*ssh.Machine, error) {
	s := d.host.SSH
	if s == nil || !s.Jump || d.cfg.Direct {
		return nil, nil //nolint:nilnil // there is none
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.jump != nil {
		return d.jump, nil
	}
	m, err := ownMachine{d: d}.dial("", s.Port)
	if err != nil {
		return nil, err
	}
	d.jump = m
	return m, nil
}
