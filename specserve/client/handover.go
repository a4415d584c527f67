package client

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Next is the parent that a commit gives to a host that has another one.
type Next struct {
	Server string   // URL
	Keys   [][]byte // handover keys of the host, the current one first
}

// handOver turns to another parent. Neither its pin nor a token is known: each side proves that it knows the handover key, bound
// to the key that the server shows. The error is a *wire.Error, or that of ctx.
func (c *Client) handOver(ctx context.Context, keys [][]byte) (wire.Parent, error) {
	pin, err := c.shownPin(ctx)
	if err != nil {
		return wire.Parent{}, c.failed(ctx, "turning to the parent of", wire.Errorf(wire.CodeConnection, "%w", err))
	}
	fresh := make([]byte, sha256.Size)
	_, _ = rand.Read(fresh) // it never fails (crypto/rand)
	ask := *c
	ask.Parent.Pins, ask.Parent.Token = []wire.Pin{pin}, ""
	request := wire.NewJoin(hex.EncodeToString(fresh))
	err = wire.Errorf(wire.CodeRefused, "there is no handover key")
	for _, key := range keys {
		request.Proof = wire.HandoverChild.Proof(key, c.Parent.Identity, pin, request.Key)
		document, encoding := json.Marshal(request)
		if encoding != nil {
			return wire.Parent{}, encoding
		}
		var status int
		var header http.Header
		var body []byte
		status, header, body, err = ask.exchange(ctx, usual(), http.MethodPost, wire.JoinPath.Of(c.Parent.Identity), document, http.Header{"Content-Type": {"application/json"}})
		if err != nil {
			break
		}
		if status != http.StatusOK {
			err = &statusError{status, wire.RetryAfter(header, time.Now()), wire.ReadProblem(status, body)}
			continue
		}
		got, pins, invalid := wire.ReadJoined(body, c.Parent.Identity)
		switch {
		case invalid != nil:
			err = wire.Errorf(wire.CodeSchema, "%w", invalid)
		case !hmac.Equal([]byte(got.Proof), []byte(wire.HandoverParent.Proof(key, c.Parent.Identity, pin, request.Key))):
			err = wire.Errorf(wire.CodeSchema, "the server did not prove that it is a parent of this site")
		default:
			known := ask.Parent
			known.Pins, known.Token = pins, got.Token
			return known, nil
		}
	}
	return wire.Parent{}, c.failed(ctx, "turning to the parent of", err)
}

// shownPin is the key that a server shows. It is not trusted: see handOver.
func (c *Client) shownPin(ctx context.Context) (wire.Pin, error) {
	ctx, cancel := context.WithTimeout(ctx, usual().Connect)
	defer cancel()
	server, err := url.Parse(c.Parent.Server)
	if err != nil {
		return wire.Pin{}, err
	}
	address := server.Host
	if server.Port() == "" {
		address = net.JoinHostPort(server.Hostname(), "443")
	}
	dial := c.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return wire.Pin{}, err
	}
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // nothing is sent over it
	defer func() { _ = secure.Close() }()
	if err := secure.HandshakeContext(ctx); err != nil {
		return wire.Pin{}, err
	}
	shown := secure.ConnectionState().PeerCertificates
	if len(shown) == 0 {
		return wire.Pin{}, errors.New("the server shows no certificate")
	}
	return wire.PinOf(shown[0]), nil
}
