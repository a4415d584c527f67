package client

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// failure is an attempt that failed.
type failure struct {
	problem *wire.Error
	final   bool          // another attempt would end the same way
	after   time.Duration // the server asks to wait that long
}

// statusError is an answer that is an error.
type statusError struct {
	status  int
	after   time.Duration // of Retry-After; 0 for none
	problem *wire.Error
}

func (e *statusError) Error() string { return e.problem.Error() }

func (e *statusError) Unwrap() error { return e.problem }

// asFailure decides what becomes of the attempts after one that failed.
func (c *Client) asFailure(err error) failure {
	if s, ok := errors.AsType[*statusError](err); ok {
		return c.answered(s)
	}
	if e, ok := errors.AsType[*wire.Error](err); ok { // an answer that is not what it should be
		return failure{problem: e, final: true}
	}
	if m, ok := errors.AsType[*wire.PinMismatchError](err); ok {
		return failure{final: true, problem: &wire.Error{
			Code: wire.CodeConnection, Message: m.Error(), Cause: err,
			Hint: "if the server was set up again, give this node its new pins and a new token; otherwise another server answers at that address",
		}}
	}
	return failure{problem: &wire.Error{Code: wire.CodeConnection, Message: err.Error(), Cause: err}}
}

// answered is an answer of the server that is an error. Those of the client (4xx) end the attempts.
func (c *Client) answered(s *statusError) failure {
	e := *s.problem
	if c.Parent.Token != "" { // a server that repeats what it was sent
		e.Message = strings.ReplaceAll(e.Message, c.Parent.Token, "(token)")
		e.Hint = strings.ReplaceAll(e.Hint, c.Parent.Token, "(token)")
	}
	f := failure{problem: &e, after: s.after}
	switch {
	case s.after > maxRetryAfter:
		f.final, e.Message = true, fmt.Sprintf("%s (it asks to come back after %s)", e.Message, s.after.Round(time.Second))
	case s.status == http.StatusTooManyRequests:
	case s.status < http.StatusInternalServerError:
		f.final = true
	}
	if s.status/100 == 3 && s.status != http.StatusNotModified {
		e.Code, e.Hint = wire.CodeConnection, "write the address that it redirects to, if that is the server"
	}
	return f
}
