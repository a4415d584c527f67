package pvesim

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

// loginDelay is what every 401 is held back by (APIServer/AnyEvent.pm).
const loginDelay = 3 * time.Second

// RoundTrip answers a request in process, without a network. It obeys the
// request's context; a request whose context ends while it is in service has
// taken effect.
func (h *Host) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer func() { _ = r.Body.Close() }()
	}
	a := h.serve(r.Context(), r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if a.dropped {
		return nil, io.ErrUnexpectedEOF
	}
	return a.response(r), nil
}

// serve takes a request from arrival to answer. An answer that is dropped is
// not to be sent: the connection ends.
func (h *Host) serve(ctx context.Context, r *http.Request) *answer {
	req := readRequest(r, h.cfg.Version != "8.4")
	status, apply := 0, false
	if h.cfg.Fault != nil {
		status, apply = h.cfg.Fault(req.again(ctx))
	}
	h.mu.Lock()
	now := h.clock.now()
	h.w.advance(now)
	slot, down := h.w.admit(req.node(), now), h.w.nodes[h.cfg.Node].offline
	h.mu.Unlock()
	if err := h.clock.wait(ctx, slot.begin); err != nil || down {
		return &answer{dropped: true} // The client is gone, or the node that it talks to.
	}

	h.mu.Lock()
	h.table.tally(h.w, req)
	h.mu.Unlock()
	var a *answer
	req.noWorker = status == NoWorker
	if status == 0 || apply || req.noWorker {
		a = h.answer(ctx, req)
	}
	if status != 0 && !req.noWorker {
		a = faultAnswer(status)
	}
	a.date = h.clock.now()
	end := slot.end
	if a.status == http.StatusUnauthorized || a.slow {
		end = end.Add(loginDelay)
	}
	err := h.clock.wait(ctx, end)
	if h.cfg.Record != nil {
		sent := a.status
		if a.dropped {
			sent = -1
		}
		h.cfg.Record(req.again(ctx), req.body, sent)
	}
	if err != nil {
		return &answer{dropped: true}
	}
	return a
}

// answer runs a request on the world; again and again while a file lock is in
// its way.
func (h *Host) answer(ctx context.Context, req *request) *answer {
	for {
		h.mu.Lock()
		now := h.clock.now()
		h.w.advance(now)
		if req.begun.IsZero() {
			req.begun = now
		}
		c := &call{w: h.w, req: req}
		data, err := h.table.handle(h.w, c)
		h.mu.Unlock()

		if held, ok := errors.AsType[*lockedError](err); ok && h.clock.wait(ctx, held.until) == nil {
			continue
		}
		a := newAnswer(c, data, err)
		h.promise(c, a)
		return a
	}
}

// tally counts a request by the template of its path.
func (t *table) tally(w *world, req *request) {
	key := req.method + " " + req.path
	if m, _, _, _ := t.find(req.method, req.path); m != nil {
		key = req.method + " " + m.Path
	}
	w.count.requests[key]++
	if req.method != http.MethodGet {
		w.count.writes++
	}
}

// handle is dispatch that ends where a task would begin, if its worker is not to start.
func (t *table) handle(w *world, c *call) (data any, err error) {
	defer func() {
		switch v := recover(); v {
		case nil:
		case errNoWorker:
			data, err = nil, errNoWorker
		default:
			panic(v)
		}
	}()
	return t.dispatch(w, c)
}

// dispatch finds out who asks for what, and lets the handler do it. The order
// of the checks is that of auth_handler and rest_handler in PVE/HTTPServer.pm.
func (t *table) dispatch(w *world, c *call) (any, error) {
	req := c.req
	if req.format == "" {
		return nil, &apiError{status: http.StatusNotFound, message: "no such file '" + req.path + "'", bare: true}
	}
	switch req.method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete:
	default:
		return nil, &apiError{status: http.StatusNotImplemented, message: "method '" + req.method + "' not available", bare: true}
	}
	m, vars, handle, known := t.find(req.method, req.path)
	if m != nil && !m.In(w.cfg.Version) {
		m, known = nil, false
	}
	if m == nil || m.Perm.User != "world" {
		who, err := w.authenticate(req)
		if err != nil {
			return nil, err
		}
		c.who = who
	}
	if req.err != nil {
		return nil, req.err
	}
	if formatters()[req.format] == nil {
		return nil, bareError(http.StatusNotImplemented, "no formatter for uri "+req.shown()+", "+req.format)
	}
	if root, ok := rootIndex(req); ok {
		return root, nil
	}
	if !known || m == nil {
		return nil, &apiError{status: http.StatusNotImplemented, message: "Method '" + req.method + " " + req.shown() + "' not implemented"}
	}
	c.m = m
	if err := c.gather(vars); err != nil {
		return nil, err
	}
	if m.NoToken && c.who.token != "" {
		return nil, &apiError{status: http.StatusForbidden, message: "Permission check failed (URI '" + req.shown() + "' not available with API token, need proper ticket.\n)"}
	}
	if err := c.permitted(); err != nil {
		if e, ok := errors.AsType[*apiError](err); ok && req.upload != nil {
			e.bare = true // Of an upload the head is enough to refuse it.
		}
		return nil, err
	}
	if err := w.reach(c); err != nil {
		return nil, err
	}
	wrong := m.CheckFor(w.cfg.Version, c.values)
	if !w.v9() {
		wrong = c.of84(wrong)
	}
	wrong = c.customModel(wrong)
	if wrong != nil {
		return nil, &apiError{status: http.StatusBadRequest, errors: wrong}
	}
	c.settle()
	if handle == nil {
		return nil, c.unimplemented("")
	}
	return handle(w, c)
}

// reach answers for the node that a call is proxied to.
func (w *world) reach(c *call) error {
	name, ok := c.values["node"].(string)
	if !ok || c.m.ProxyTo != "node" && !strings.HasPrefix(c.m.Path, "/nodes/{node}/") || name == w.cfg.Node {
		return nil
	}
	n := w.nodes[name]
	switch {
	case name == "localhost":
		c.values["node"] = w.cfg.Node
		return nil
	case n == nil:
		// The text is the resolver's, of glibc in English.
		return fail("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", name, name)
	case n.offline:
		return &apiError{status: 595, message: "No route to host", bare: true}
	}
	return nil
}
