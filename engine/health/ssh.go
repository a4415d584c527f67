package health

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

const sshPort = 22

// trySSH logs in if the guest accepts the private key; otherwise it stops after the key exchange,
// in which the server proves that it has its host key. It accepts any host key, because a new guest
// creates its own: a login by public key gives the server nothing that it could use elsewhere.
func (a *attempt) trySSH(ctx context.Context, n network, addr string) (string, error) {
	c, err := a.dial(ctx, n, addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	var shown atomic.Value // the host key's fingerprint, written by the library's goroutine
	v := &version{conn: c}
	config := &ssh.ClientConfig{
		User: a.User, ClientVersion: "SSH-2.0-homestak",
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			shown.Store(ssh.FingerprintSHA256(key)) // called after the server's signature was verified
			return nil
		},
	}
	signer := a.signer()
	if signer != nil {
		config.Auth = []ssh.AuthMethod{ssh.PublicKeys(signer)}
	}
	began := time.Now()
	client, channels, requests, err := ssh.NewClientConn(v, addr, config)
	key, _ := shown.Load().(string)
	named := a.line(string(v.head)) // read after the handshake is over
	who := fmt.Sprintf("%s: %s, host key %s", addr, named, key)
	switch {
	case err == nil:
		go ssh.DiscardRequests(requests) // ends with the connection
		go func() {
			for ch := range channels {
				_ = ch.Reject(ssh.Prohibited, "")
			}
		}()
		_ = client.Close()
		_ = client.Wait()
		return fmt.Sprintf("%s, logged in as %s in %s", who, a.User, short(time.Since(began))), nil
	case key == "" && named == "":
		return "", fmt.Errorf("%s: %s", addr, c.story(err))
	case key == "":
		return "", fmt.Errorf("%s: %s, but the SSH handshake failed: %s", addr, named, c.story(err))
	case signer == nil:
		return who, nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s, %s", who, c.story(err))
	default:
		return "", fmt.Errorf("%s, but it rejects user %s with the key %s: %w", who, a.User, ssh.FingerprintSHA256(signer.PublicKey()), err)
	}
}

// CanLogIn reports whether a login by SSH can be tried: the private key belongs to one
// of those that the guest accepts.
func (s *Subject) CanLogIn() bool { return s.signer() != nil }

// signer is the private key, if the guest accepts it; nil if not.
func (s *Subject) signer() ssh.Signer {
	if s.Key == "" {
		return nil
	}
	signer, err := ssh.ParsePrivateKey([]byte(s.Key))
	if err != nil {
		return nil
	}
	for _, line := range s.Keys {
		if key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line)); err == nil && bytes.Equal(key.Marshal(), signer.PublicKey().Marshal()) {
			return signer
		}
	}
	return nil
}

// version is a connection that remembers the line by which an SSH server names itself,
// which the library does not tell of a login that failed.
type version struct {
	*conn
	head []byte
}

// Read is that of the connection.
func (v *version) Read(b []byte) (int, error) {
	n, err := v.conn.Read(b)
	if !bytes.Contains(v.head, []byte("\n")) && len(v.head) < longestBanner {
		v.head = append(v.head, b[:n]...)
	}
	return n, err
}
