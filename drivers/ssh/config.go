// Package ssh runs commands on a machine over SSH: one connection for each machine, kept alive and
// shared by all of its commands.
//
// Read machine.go first (Run), then connection.go (how a connection is made and found dead),
// session.go (how a command runs over it), config.go (keys) and errors.go.
package ssh

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// Config is the configuration of a Machine. Durations and numbers that are 0 have the default in
// their comment.
type Config struct {
	Address string // a name or an IP address
	Port    int    // 22
	User    string // root; any other needs sudo without a password

	// Keys are private keys as ssh-keygen writes them, without a passphrase. They are offered in
	// this order, and after them those of the ssh-agent(1) at AgentSocket.
	Keys        []string
	AgentSocket string

	// HostKeys are the keys that the machine may show, as in the files *.pub of sshd: type, base64,
	// comment. It must show one of them.
	HostKeys []string
	// Learn is for a machine without HostKeys: it stores the key that the machine shows. It is
	// called before we log in, once: from then on the machine must show that key. An error refuses
	// the key. Nil refuses every key. Callers should set HostKeys instead, from a trusted source,
	// if they can.
	Learn func(ctx context.Context, key string) error

	// Via is the machine from which this one is reached; it forwards the connection
	// (AllowTcpForwarding of sshd_config(5)). It may be reached through another one itself.
	Via *Machine
	// Dial opens connections where there is no Via. Nil is that of net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	Connect   time.Duration // how long connecting and logging in may take: 20 s
	KeepAlive time.Duration // interval of keep-alive requests: 15 s
	Misses    int           // after how many missed answers the connection is dead: 3
	Sessions  int           // how many commands may run at once: 10, the default of MaxSessions in sshd_config(5)
}

const (
	defaultPort      = 22
	defaultConnect   = 20 * time.Second
	defaultKeepAlive = 15 * time.Second
	defaultMisses    = 3
	defaultSessions  = 10
)

// New returns a Machine. It connects on first use. Errors are about the configuration.
func New(cfg Config) (*Machine, error) {
	cfg.Port = cmp.Or(cfg.Port, defaultPort)
	cfg.User = cmp.Or(cfg.User, root)
	cfg.Connect = cmp.Or(cfg.Connect, defaultConnect)
	cfg.KeepAlive = cmp.Or(cfg.KeepAlive, defaultKeepAlive)
	cfg.Misses = cmp.Or(cfg.Misses, defaultMisses)
	cfg.Sessions = cmp.Or(cfg.Sessions, defaultSessions)
	if cfg.Dial == nil {
		cfg.Dial = new(net.Dialer).DialContext
	}
	m := &Machine{cfg: cfg, address: net.JoinHostPort(cfg.Address, strconv.Itoa(cfg.Port)), connecting: make(chan struct{}, 1), slots: make(chan struct{}, max(cfg.Sessions, 1)), conns: map[*connection]bool{}}
	switch {
	case cfg.Address == "" || strings.ContainsAny(cfg.Address, " \t\n/@"):
		return nil, &configError{fmt.Sprintf("%q is not a name or an IP address", cfg.Address)}
	case cfg.Port < 1 || cfg.Port > 65535:
		return nil, m.wrong("port %d is not between 1 and 65535", cfg.Port)
	case cfg.Connect < 0 || cfg.KeepAlive < 0 || cfg.Misses < 0 || cfg.Sessions < 0:
		return nil, m.wrong("a duration or a number is negative")
	case len(cfg.Keys) == 0 && cfg.AgentSocket == "":
		return nil, m.wrong("there is no key to log in with, and no ssh-agent: set key in ssh of the host block")
	}
	for i, text := range cfg.Keys {
		signer, err := ssh.ParsePrivateKey([]byte(text))
		if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); locked {
			return nil, m.wrong("private key %d is protected by a passphrase, and there is no terminal to type it on: use one without, or an ssh-agent", i+1)
		}
		if err != nil {
			// The library's error may quote what it found; a key is a secret.
			return nil, m.wrong("private key %d cannot be read: it must be as ssh-keygen writes it", i+1)
		}
		m.signers = append(m.signers, signer)
	}
	for _, line := range cfg.HostKeys {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			return nil, m.wrong("host key %q cannot be read: it must be as in /etc/ssh/ssh_host_ed25519_key.pub", line)
		}
		m.pinned = append(m.pinned, key)
	}
	return m, nil
}

func (m *Machine) wrong(format string, args ...any) error {
	return &configError{fmt.Sprintf("ssh to %s: ", m.name()) + fmt.Sprintf(format, args...)}
}

// IsKey reports whether New takes a text as one of Keys.
func IsKey(text string) bool {
	_, err := ssh.ParsePrivateKey([]byte(text))
	return err == nil
}

// NewKey makes a key pair: the private key as ssh-keygen writes it, without a passphrase, and the public half as a line of
// authorized_keys.
func NewKey(comment string) (private, public string, err error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return "", "", err
	}
	block, err := ssh.MarshalPrivateKey(key, comment)
	if err != nil {
		return "", "", err
	}
	half, err := ssh.NewPublicKey(key.Public())
	if err != nil {
		return "", "", err
	}
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(half)))
	return string(pem.EncodeToMemory(block)), line + " " + comment, nil
}

// algorithms are those by which a server can show one of some keys. Servers have several keys, and
// show the one whose algorithm the client names first.
func algorithms(keys []ssh.PublicKey) []string {
	var out []string
	for _, key := range keys {
		if key.Type() == ssh.KeyAlgoRSA { // the same key has signatures of several kinds (RFC 8332)
			out = append(out, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
			continue
		}
		out = append(out, key.Type())
	}
	return out
}

// fingerprint returns the form of a key that people compare.
func fingerprint(key ssh.PublicKey) string {
	return fmt.Sprintf("%s (%s)", ssh.FingerprintSHA256(key), key.Type())
}
