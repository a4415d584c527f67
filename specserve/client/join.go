package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Join lets a machine join its parent, in one attempt. The token of c is one for joining. The key is that of the machine: with
// the same one it may be repeated. It returns the parent as the agent is to know it. The error is a *wire.Error, or that of ctx.
func (c *Client) Join(ctx context.Context, key string) (wire.Joined, wire.Parent, error) {
	document, err := json.Marshal(wire.NewJoin(key))
	if err != nil {
		return wire.Joined{}, wire.Parent{}, err
	}
	status, header, body, err := c.exchange(ctx, usual(), http.MethodPost, wire.JoinPath.Of(c.Parent.Identity), document, http.Header{"Content-Type": {"application/json"}})
	switch {
	case err != nil:
	case status != http.StatusOK:
		err = &statusError{status, wire.RetryAfter(header, time.Now()), wire.ReadProblem(status, body)}
	default:
		got, pins, invalid := wire.ReadJoined(body, c.Parent.Identity)
		switch {
		case invalid != nil:
			err = wire.Errorf(wire.CodeSchema, "%w", invalid)
		case !slices.ContainsFunc(pins, func(p wire.Pin) bool { return slices.Contains(c.Parent.Pins, p) }):
			err = wire.Errorf(wire.CodeSchema, "the answer has none of the pins that were given")
		default:
			known := c.Parent
			known.Pins, known.Token = pins, got.Token
			return got, known, nil
		}
	}
	return wire.Joined{}, wire.Parent{}, c.failed(ctx, "joining as", err)
}

// Announced is a program that a parent has.
type Announced struct {
	Sum     string // SHA-256 in hex
	Version string
	Keep    string // why the child is to keep the one that it has; "" if it is not
}

// Announced returns the program that the parent has for this operating system and architecture, as Go names them.
func (c *Client) Announced(ctx context.Context, os, arch string) (Announced, error) {
	status, header, body, err := c.exchange(ctx, usual(), http.MethodHead, wire.AgentPath.Of(os+"-"+arch), nil, http.Header{})
	a := Announced{strings.Trim(header.Get("ETag"), `"`), header.Get(wire.VersionHeader), header.Get(wire.KeepHeader)}
	switch {
	case err != nil:
	case status != http.StatusOK:
		err = &statusError{status, wire.RetryAfter(header, time.Now()), wire.ReadProblem(status, body)}
	case len(a.Sum) != hex.EncodedLen(sha256.Size) || strings.Trim(a.Sum, "0123456789abcdef") != "":
		err = wire.Errorf(wire.CodeSchema, "the parent does not say the checksum of its program")
	default:
		return a, nil
	}
	return Announced{}, c.failed(ctx, "asking for the program for", err)
}

// Program fetches the program for this operating system and architecture, as Go names them, and holds it against its
// SHA-256, in hex.
func (c *Client) Program(ctx context.Context, os, arch, sum string) ([]byte, error) {
	limits := usual()
	limits.Total, limits.Body = 15*time.Minute, maxProgram
	status, header, body, err := c.exchange(ctx, limits, http.MethodGet, wire.AgentPath.Of(os+"-"+arch), nil, http.Header{})
	switch {
	case err != nil:
	case status != http.StatusOK:
		err = &statusError{status, wire.RetryAfter(header, time.Now()), wire.ReadProblem(status, body)}
	default:
		if has := sha256.Sum256(body); hex.EncodeToString(has[:]) == sum {
			return body, nil
		}
		err = wire.Errorf(wire.CodeSchema, "the program is not the one that the parent announced: it was replaced meanwhile, so try again")
	}
	return nil, c.failed(ctx, "fetching the program for", err)
}
