package debian

// The SSH server of a simulated machine speaks the protocol over a connection, with the users,
// keys and settings of that machine, and runs commands on it. It forwards connections to
// other simulated machines, as the host of a guest does.

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/crypto/ssh"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
)

// Server is the sshd of one machine.
type Server struct {
	Machine *Machine
	// Trusts is a key that logs in like any key of the user: that of the simulation's user, who lacks the private
	// keys of the site. Nil: no such key.
	Trusts ssh.PublicKey
	// Anybody admits every user with any key.
	Anybody bool
	// Dial opens a connection for who is forwarded; nil refuses it.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Serve serves one connection until it ends, and waits for what it has started but for processes,
// which end with the machine. It answers only on a port where the server of the machine listens.
func (s Server) Serve(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }() // the other end has noticed
	settings := s.Machine.SSHD()
	if settings == nil {
		return
	}
	gone := make(chan struct{})
	defer close(gone)
	go func() { // a halting machine stops responding
		select {
		case <-s.Machine.Down():
			_ = conn.Close()
		case <-gone:
		}
	}()
	cfg := &ssh.ServerConfig{
		ServerVersion: "SSH-2.0-OpenSSH_simulated",
		PublicKeyCallback: func(c ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if _, why := s.Machine.Admits(settings, c.User(), key, s.Trusts); why != "" && !s.Anybody {
				return nil, errors.New(why)
			}
			return &ssh.Permissions{}, nil
		},
	}
	for _, key := range settings.HostKeys {
		cfg.AddHostKey(key)
	}
	sc, chans, reqs, err := ssh.NewServerConn(conn, cfg)
	if err != nil {
		return
	}
	user, _ := s.Machine.User(sc.User())
	c := &connection{Server: s, settings: settings, user: user, slots: make(chan struct{}, max(settings.MaxSessions, 0))}
	c.all.Go(func() { ssh.DiscardRequests(reqs) })
	for ch := range chans {
		c.open(ctx, ch)
	}
	_ = sc.Close() // it has ended
	c.all.Wait()
}

// connection is one after a login.
type connection struct {
	Server

	settings *Settings
	user     User
	slots    chan struct{} // an entry for each session
	all      sync.WaitGroup
}

func (c *connection) open(ctx context.Context, ch ssh.NewChannel) {
	switch ch.ChannelType() {
	case "session":
		select {
		case c.slots <- struct{}{}:
		default:
			_ = ch.Reject(ssh.ConnectionFailed, "open failed")
			return
		}
		c.all.Go(func() {
			defer func() { <-c.slots }()
			c.session(ch)
		})
	case "direct-tcpip":
		c.all.Go(func() { c.forward(ctx, ch) })
	default:
		_ = ch.Reject(ssh.UnknownChannelType, "unknown channel type")
	}
}

// forward is a connection to another machine (RFC 4254 section 7.2).
func (c *connection) forward(ctx context.Context, ch ssh.NewChannel) {
	var to struct {
		Host     string
		Port     uint32
		From     string
		FromPort uint32
	}
	if ssh.Unmarshal(ch.ExtraData(), &to) != nil || !c.settings.TCPForwarding || c.Dial == nil {
		_ = ch.Reject(ssh.Prohibited, "administratively prohibited")
		return
	}
	conn, err := c.Dial(ctx, "tcp", net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))))
	if err != nil {
		_ = ch.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	defer func() { _ = conn.Close() }()
	far, reqs, err := ch.Accept()
	if err != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { ssh.DiscardRequests(reqs) })
	both.Go(func() {
		_, _ = io.Copy(conn, far) // it ends with either
		_ = conn.Close()
	})
	_, _ = io.Copy(far, conn) // likewise
	_ = far.Close()
	both.Wait()
}

// session is one command.
func (c *connection) session(ch ssh.NewChannel) {
	channel, reqs, err := ch.Accept()
	if err != nil {
		return
	}
	defer func() { _ = channel.Close() }()
	var p *machine.Process
	ended := make(chan struct{})
	defer func() {
		if p != nil {
			<-ended
		}
	}()
	for req := range reqs {
		ok := false
		switch req.Type {
		case "exec", "shell":
			var command struct{ Line string }
			if req.Type == "exec" && ssh.Unmarshal(req.Payload, &command) != nil || p != nil {
				break
			}
			args := []string{c.user.Shell, "-c", command.Line}
			if req.Type == "shell" {
				args = []string{c.user.Shell}
			}
			if p, err = c.start(channel, args); err != nil {
				break
			}
			ok = true
			go func() {
				c.finish(channel, p)
				close(ended)
			}()
		case "env", "pty-req":
			ok = true
		case "signal":
			var signal struct{ Name string }
			if p != nil && c.user.Cred.UID != 0 && ssh.Unmarshal(req.Payload, &signal) == nil {
				p.Signal(userland.SignalNumber(signal.Name))
			}
		}
		if req.WantReply {
			_ = req.Reply(ok, nil)
		}
	}
}

func (c *connection) start(channel ssh.Channel, args []string) (*machine.Process, error) {
	s := c.Machine.Start(c.user, args...)
	s.Args[0] = c.user.Shell
	s.Env = append(s.Env, "SSH_CONNECTION=192.0.2.254 50000 192.0.2.1 22")
	s.Out, s.Err = writer{channel}, writer{channel.Stderr()}
	return c.Machine.K.StartWithInput(s, channel)
}

// writer hides that a channel can be closed: other processes may still write to it.
type writer struct{ w io.Writer }

// Write is as io.Writer wants it.
func (w writer) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if err != nil {
		err = syscall.EPIPE
	}
	return n, err
}

// finish reports the end of a command (RFC 4254 section 6.10).
func (c *connection) finish(channel ssh.Channel, p *machine.Process) {
	code, signal := p.Ended()
	select {
	case <-c.Machine.Down(): // who is cut off does not learn how it ended
	default:
		_ = channel.CloseWrite()
		if signal != 0 {
			_, _ = channel.SendRequest("exit-signal", false, ssh.Marshal(struct {
				Name       string
				Core       bool
				Text, Lang string
			}{userland.SignalName(signal), false, "", ""}))
		} else {
			_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(code)}))
		}
	}
	_ = channel.Close()
}
