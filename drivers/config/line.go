package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// lineKey is a guest at its place: one that is recreated elsewhere has another connection.
type lineKey struct {
	addr model.Address // of what is inside
	vmid int
	node string
}

// line is the way into a guest by SSH: one connection, which is made when it is first needed and
// used by all that is done inside the guest. Safe for concurrent use.
type line struct {
	d    *Driver
	way  *way
	at   model.Guest
	turn chan struct{} // full while somebody uses conn
	conn *ssh.Machine  // nil as long as nobody logged in
}

// line finds the line to a guest.
func (d *Driver) line(addr model.Address, w *way, at model.Guest) *line {
	key := lineKey{addr, at.VMID, at.Node}
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
	return a.guest == b.guest && a.user == b.user && slices.Equal(a.ports, b.ports) && slices.Equal(a.near, b.near)
}

// alias is the name of the guest in the file of host keys.
func (w *way) alias(host string) string { return w.site + "/" + host + "/" + w.guest.String() }

// forget drops what is known of a guest that is recreated or removed.
func (d *Driver) forget(of model.Address) error {
	d.mu.Lock()
	var gone []*line
	alias := ""
	for addr, w := range d.ways {
		if w.guest != of {
			continue
		}
		alias = w.alias(d.host.Name)
		for key, l := range d.lines {
			if key.addr == addr {
				gone = append(gone, l)
				delete(d.lines, key)
			}
		}
	}
	d.mu.Unlock()
	for _, l := range gone {
		l.close()
	}
	if alias == "" {
		return nil
	}
	return d.cfg.HostKeys.Forget(alias)
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

// open gives the connection, and logs in if there is none.
func (l *line) open(ctx context.Context) (*ssh.Machine, error) {
	if err := l.lock(ctx); err != nil {
		return nil, err
	}
	defer func() { <-l.turn }()
	if l.conn != nil {
		return l.conn, nil
	}
	known, err := l.d.cfg.HostKeys.Of(l.way.alias(l.d.host.Name))
	if err != nil {
		return nil, err
	}
	at := l.way.ports
	if known.Port != 0 && !slices.Contains(at, known.Port) { // where it was before the spec said otherwise
		at = append(slices.Clone(at), known.Port)
	}
	m, err := l.login(ctx, at)
	if err == nil {
		l.conn = m
	}
	return m, err
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
	for {
		m, err := l.login(ctx, at)
		if err == nil {
			var out guest.Output
			if out, err = m.Run(ctx, guest.Command{Args: []string{"true"}}); err == nil && out.Code != 0 {
				err = fmt.Errorf("user %s cannot become root any more: %s", l.way.user, strings.TrimSpace(out.Err))
			}
			_ = m.Close() // it has no error to give
		}
		if err == nil {
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

// login makes a connection at the first of these ports that lets us in.
func (l *line) login(ctx context.Context, at []int) (*ssh.Machine, error) {
	to, err := l.Address(ctx)
	if err != nil {
		return nil, err
	}
	known, err := l.d.cfg.HostKeys.Of(l.way.alias(l.d.host.Name))
	if err != nil {
		return nil, err
	}
	var why error
	for _, port := range at {
		m, err := l.loginAt(ctx, to.IP, port, known)
		if err == nil {
			return m, nil
		}
		// A guest that answers at its port and refuses us says more than the next port.
		var key *ssh.HostKeyError
		var denied *ssh.LoginError
		if why == nil || errors.As(err, &key) || errors.As(err, &denied) {
			why = err
		}
	}
	if why == nil {
		why = fmt.Errorf("%s has no port for SSH", l.way.guest)
	}
	return nil, why
}

// loginAt logs in at one address, and keeps what it learned once it is in.
func (l *line) loginAt(ctx context.Context, ip netip.Addr, port int, known Known) (*ssh.Machine, error) {
	learned := Known{Keys: known.Keys, Port: port}
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
	if err != nil {
		_ = m.Close() // what went wrong is known
		return nil, err
	}
	return m, nil
}

// keysTime is how long a guest agent may take to give the host keys of its guest.
const keysTime = 5 * time.Second

// vouched gives the host keys that the guest agent knows; nobody can be in between of that. None of a
// guest without an agent, which most young guests are.
func (l *line) vouched(ctx context.Context) []string {
	m := l.d.Driver.Machine(l.way.guest, l.at, l.way.near)
	if m == nil || l.way.guest.Kind == "ct" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, keysTime)
	defer cancel()
	out, err := m.Run(ctx, guest.Command{Args: []string{"/bin/sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub"}})
	if err != nil || out.Code != 0 {
		return nil
	}
	var keys []string
	for text := range strings.Lines(out.Out) {
		if fields := strings.Fields(text); len(fields) >= 2 {
			keys = append(keys, strings.Join(fields[:2], " "))
		}
	}
	return keys
}

// learn keeps what was learned of the guest by logging in for the first time, or at another port. The
// guest agent, if there is one, has to agree with a new key.
func (l *line) learn(ctx context.Context, known, learned Known) error {
	if len(known.Keys) == 0 {
		if keys := l.vouched(ctx); len(keys) > 0 {
			if !slices.Contains(keys, learned.Keys[0]) {
				return fmt.Errorf("what answers as %s shows the host key %s, which its guest agent does not know: another machine has its address", l.way.guest, learned.Keys[0])
			}
			learned.Keys = keys
		}
	} else if known.Port == learned.Port {
		return nil
	}
	return l.d.cfg.HostKeys.Learn(l.way.alias(l.d.host.Name), learned)
}

// privateKeys are what we log in with.
func (d *Driver) privateKeys() []string {
	var keys []string
	if d.host.SSH != nil && d.host.SSH.Key != "" {
		keys = append(keys, d.host.SSH.Key)
	}
	return append(keys, d.cfg.PrivateKeys...)
}

// through is the host, if connections to its guests go through it; nil if they do not.
func (d *Driver) through() (*ssh.Machine, error) {
	s := d.host.SSH
	if s == nil || !s.Jump {
		return nil, nil //nolint:nilnil // there is none
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.jump != nil {
		return d.jump, nil
	}
	cfg := ssh.Config{Address: s.Address, Port: s.Port, User: s.User, Keys: d.privateKeys(), AgentSocket: d.cfg.AgentSocket, Connect: d.cfg.Connect, Dial: d.cfg.Dial}
	if at, err := url.Parse(d.host.API); err == nil {
		cfg.Address = cmp.Or(cfg.Address, at.Hostname())
	}
	if s.HostKey != "" {
		cfg.HostKeys = []string{s.HostKey}
	} else {
		alias := cfg.Address
		known, err := d.cfg.HostKeys.Of(alias)
		if err != nil {
			return nil, err
		}
		cfg.HostKeys = known.Keys
		if len(known.Keys) == 0 {
			cfg.Learn = func(_ context.Context, key string) error {
				return d.cfg.HostKeys.Learn(alias, Known{Keys: []string{key}})
			}
		}
	}
	m, err := ssh.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", d.host.Name, err)
	}
	d.jump = m
	return m, nil
}
