package specserve

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// keyed admits a client with the key. kind names the key in the log and in errors.
func (x *request) keyed(key []byte, kind string) error {
	values := x.Header.Values("Authorization")
	if len(values) == 0 {
		return &wire.Error{Code: wire.CodeNoCredential, Message: "the " + kind + " key is needed", Hint: hintOfKey}
	}
	text := wire.Token(x.Header)
	if len(values) > 1 || text == "" {
		return &wire.Error{Code: wire.CodeNoCredential, Message: "the credentials are malformed", Hint: hintOfKey}
	}
	given, want := sha256.Sum256([]byte(text)), sha256.Sum256(key) // so that the time says nothing of the length
	if len(key) == 0 || subtle.ConstantTimeCompare(given[:], want[:]) != 1 {
		return &wire.Error{Code: wire.CodeRefused, Message: "this is not the " + kind + " key", Hint: hintOfKey}
	}
	x.shown.Credential = policy.Credential{Kind: kind + "_key", Valid: true}
	x.verified()
	return nil
}

const hintOfKey = "send the key that is in the data folder of the server: Authorization: Bearer KEY"

// reconcile makes the server check its files now, and asks all nodes that wait to check themselves.
func reconcile(x *request) error {
	return x.checkAll()
}

// checkAll makes the server check its files, and every node that waits. With ?wait the answer of the server of an
// agent says how its pass ended.
func (x *request) checkAll() error {
	x.waiting.askAll()
	if x.o.Reconcile != nil && x.URL.Query().Has("wait") {
		return x.awaitAgent("the pass was not completed: the agent stops", x.o.Reconcile)
	}
	x.o.Check()
	return x.done(http.StatusAccepted, string(wire.AskedChecking))
}

// maxAsked is the largest request that is passed on to the agent.
const maxAsked = 64 << 10

// askAgent answers as the socket of the agent does.
func askAgent(x *request) error {
	if x.o.Agent == nil {
		return &wire.Error{Code: wire.CodeNoEndpoint, Message: "this server is not that of an agent"}
	}
	x.o.Agent.ServeHTTP(recorder{x.w, x}, x.Request)
	return nil
}

// mayOperate says that the key of the request may operate.
func mayOperate(x *request) error { return x.done(http.StatusOK, "may operate") }

// planOf makes the agent of a host make its plan.
func planOf(x *request) error {
	if x.o.Plan == nil {
		return &wire.Error{Code: wire.CodeNoEndpoint, Message: "this server is not that of an agent, and so it makes no plans"}
	}
	return x.awaitAgent("the plan was not made: the agent stops", func(ctx context.Context) (any, error) {
		return x.o.Plan(ctx, x.identity, x.URL.Query().Get("attributes"), x.RemoteAddr)
	})
}

// verify runs checks of nodes, which are in the query.
func verify(x *request) error {
	if x.o.Verify == nil {
		return &wire.Error{Code: wire.CodeNoEndpoint, Message: "this server is not that of an agent, and so it runs no checks"}
	}
	of := x.URL.Query()
	return x.awaitAgent("the checks were not run: the agent stops", func(ctx context.Context) (any, error) {
		return x.o.Verify(ctx, of["node"], of.Get("manifest"), x.RemoteAddr)
	})
}

// awaitAgent responds with a document of the agent, as long as the client stays. The status is sent at once,
// since that may take longer than clients wait: an error comes in the body, too.
func (x *request) awaitAgent(stopped string, do func(ctx context.Context) (any, error)) error {
	select {
	case x.streams <- struct{}{}:
		defer func() { <-x.streams }()
	default:
		return x.later(streamPause, "too many clients wait for passes, or follow the events")
	}
	out := recorder{x.w, x}
	control := http.NewResponseController(out)
	_ = control.SetReadDeadline(time.Time{}) // the end of its connection is noticed all the same
	_ = control.SetWriteDeadline(time.Time{})
	out.Header().Set("Content-Type", asJSON)
	out.WriteHeader(http.StatusOK)
	if err := control.Flush(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(x.Context())
	defer cancel()
	go func() {
		select {
		case <-x.ending:
			cancel()
		case <-ctx.Done():
		}
	}()
	document, err := do(ctx)
	text := []byte(nil)
	if err == nil {
		text, err = json.Marshal(document)
	}
	if err != nil {
		x.reason = err.Error()
		text = (&wire.Error{Code: wire.CodeInternal, Message: stopped, Hint: "run it again after its restart"}).Body()
	}
	_, err = out.Write(append(text, '\n'))
	return err
}

// streamPause is after how long a client that finds too many streams may come back.
const streamPause = 10 * time.Second

// events sends the stream of events.
func events(x *request) error {
	if x.o.Events == nil {
		return &wire.Error{Code: wire.CodeNoEndpoint, Message: "this server is not that of an agent, and so it has no events"}
	}
	select {
	case x.streams <- struct{}{}:
		defer func() { <-x.streams }()
	default:
		return x.later(streamPause, "too many clients follow the events")
	}
	if x.Method == http.MethodHead {
		x.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		x.status = http.StatusOK
		x.w.WriteHeader(x.status)
		return nil
	}
	x.o.Events(recorder{x.w, x}, x.Request, x.ending)
	return nil
}

// maxHook is the largest notification; GitHub sends none that is larger.
const maxHook = 25 << 20

// hooks are the rows of all providers. One that is not known is an unknown endpoint.
func hooks() []endpoint {
	var out []endpoint
	for _, provider := range keys.HookProviders() {
		out = append(out, endpoint{method: http.MethodPost, path: "/hook/" + string(provider), body: maxHook, early: true, signed: true, access: checkedByHandler, do: func(x *request) error { return takeHook(x, provider) }})
	}
	return out
}

// takeHook takes the notification of a push. Only its signature says who sent it, and that is over
// the whole body. It is hashed as it comes: however slow a sender is, it takes one goroutine until the
// deadline of its request, and no other sender waits for it.
func takeHook(x *request, provider keys.Provider) error {
	if !provider.Signed(x.Header) && x.limited > 0 {
		return x.tooMany()
	}
	verdict, err := x.hooks.Check(provider, x.view.Access.Hook(provider), x.Header, x.Body)
	switch {
	case errors.Is(err, keys.ErrHookBody):
		return unreadable(err)
	case err != nil && x.limited > 0:
		return x.tooMany()
	case err != nil:
		x.unread()
		return unsigned(provider, err)
	}
	x.verified()
	switch verdict {
	case keys.HookPushed:
		x.o.Check()
		return x.done(http.StatusAccepted, string(wire.AskedChecking))
	case keys.HookRepeated:
		return x.done(http.StatusOK, "was here before")
	default:
		return x.done(http.StatusOK, "not about a push")
	}
}

// unsigned says why a notification is not accepted. The text of the error may have what was sent.
func unsigned(provider keys.Provider, err error) error {
	file := provider.File()
	p := wire.Error{Code: wire.CodeRefused, Message: keys.ErrHookInvalid.Error(), Hint: "the secret of this provider is in " + file + " of the data folder of the server: give it that one, or write its own into the file"}
	if provider != keys.Generic {
		p.Hint += "; " + keys.Generic.File() + " is for /hook/" + string(keys.Generic) + " alone"
	}
	switch {
	case errors.Is(err, keys.ErrHookNoSecret):
		p.Message = keys.ErrHookNoSecret.Error()
		p.Hint += "; a secret that is in two of these files counts for neither"
	case errors.Is(err, keys.ErrHookMissing):
		p.Code, p.Message = wire.CodeNoCredential, keys.ErrHookMissing.Error()
	case errors.Is(err, keys.ErrHookTime):
		p.Code, p.Message, p.Hint = wire.CodeExpired, keys.ErrHookTime.Error(), "check the clocks of both"
	}
	return &p
}
