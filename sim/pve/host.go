package pve

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/cluster"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/host"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
	"github.com/homestak/homestak-gitops/sim/pve/qemu"
)

// loginDelay is the delay of every 401 (APIServer/AnyEvent.pm).
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
	req := core.ReadRequest(r, h.cfg.Version != "8.4")
	status, apply := 0, false
	if h.cfg.Fault != nil {
		status, apply = h.cfg.Fault(req.Again(ctx))
	}
	h.mu.Lock()
	now := h.clock.now()
	h.w.Advance(now)
	slot, down := admit(h.w, req.Node(), now), h.w.Nodes[h.cfg.Node].Offline
	h.mu.Unlock()
	if err := h.clock.wait(ctx, slot.begin); err != nil || down {
		return &answer{dropped: true} // The client is gone, or the node that it talks to.
	}

	h.mu.Lock()
	tally(h.table, h.w, req)
	h.mu.Unlock()
	var a *answer
	req.NoWorker = status == core.NoWorker
	if status == 0 || apply || req.NoWorker {
		a = h.answer(ctx, req)
	}
	if status != 0 && !req.NoWorker {
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
		h.cfg.Record(req.Again(ctx), req.Body, sent)
	}
	if err != nil {
		return &answer{dropped: true}
	}
	return a
}

// answer runs a request on the world; again and again while a file lock is in
// its way.
func (h *Host) answer(ctx context.Context, req *core.Request) *answer {
	for {
		h.mu.Lock()
		now := h.clock.now()
		h.w.Advance(now)
		if req.Begun.IsZero() {
			req.Begun = now
		}
		c := &core.Call{W: h.w, Req: req}
		data, err := handle(h.table, h.w, c)
		h.publish()
		h.mu.Unlock()

		if locked, ok := errors.AsType[*perl.LockedError](err); ok && h.clock.wait(ctx, locked.Until) == nil {
			continue
		}
		a := newAnswer(c, data, err)
		h.promise(c, a)
		return a
	}
}

// tally counts a request by the template of its path.
func tally(t *core.Table, w *core.World, req *core.Request) {
	key := req.Method + " " + req.Path
	if m, _, _, _ := t.Find(req.Method, req.Path); m != nil {
		key = req.Method + " " + m.Path
	}
	w.Count.Requests[key]++
	if req.Method != http.MethodGet {
		w.Count.Writes++
	}
}

// handle is dispatch that ends where a task would begin, if its worker is not to start.
func handle(t *core.Table, w *core.World, c *core.Call) (data any, err error) {
	defer func() {
		switch v := recover(); v {
		case nil:
		case core.ErrNoWorker:
			data, err = nil, core.ErrNoWorker
		default:
			panic(v)
		}
	}()
	return dispatch(t, w, c)
}

// dispatch finds out who asks for what, and lets the handler do it. The order
// of the checks is that of auth_handler and rest_handler in PVE/HTTPServer.pm.
func dispatch(t *core.Table, w *core.World, c *core.Call) (any, error) {
	req := c.Req
	if req.Format == "" {
		return nil, &perl.APIError{Status: http.StatusNotFound, Message: "no such file '" + req.Path + "'", Plain: true}
	}
	switch req.Method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete:
	default:
		return nil, &perl.APIError{Status: http.StatusNotImplemented, Message: "method '" + req.Method + "' not available", Plain: true}
	}
	m, vars, handle, known := t.Find(req.Method, req.Path)
	if m != nil && !m.In(w.Cfg.Version) {
		m, known = nil, false
	}
	if m == nil || m.Perm.User != "world" {
		who, err := host.Authenticate(w, req)
		if err != nil {
			return nil, err
		}
		c.Who = who
	}
	if req.Err != nil {
		return nil, req.Err
	}
	if formatters()[req.Format] == nil {
		return nil, perl.PlainError(http.StatusNotImplemented, "no formatter for uri "+req.Shown()+", "+req.Format)
	}
	if root, ok := cluster.RootIndex(req); ok {
		return root, nil
	}
	if !known || m == nil {
		return nil, &perl.APIError{Status: http.StatusNotImplemented, Message: "Method '" + req.Method + " " + req.Shown() + "' not implemented"}
	}
	c.M = m
	if err := c.Gather(vars); err != nil {
		return nil, err
	}
	if m.NoToken && c.Who.Token != "" {
		return nil, &perl.APIError{Status: http.StatusForbidden, Message: "Permission check failed (URI '" + req.Shown() + "' not available with API token, need proper ticket.\n)"}
	}
	if err := c.Permitted(); err != nil {
		if e, ok := errors.AsType[*perl.APIError](err); ok && req.Upload != nil {
			e.Plain = true // Of an upload the head is enough to refuse it.
		}
		return nil, err
	}
	if err := reach(w, c); err != nil {
		return nil, err
	}
	wrong := m.CheckFor(w.Cfg.Version, c.Values)
	if !w.V9() {
		wrong = qemu.WrongOf84(c, wrong)
	}
	wrong = customModel(c, wrong)
	if wrong != nil {
		return nil, &perl.APIError{Status: http.StatusBadRequest, Errors: wrong}
	}
	if handle == nil {
		return nil, c.Unimplemented("")
	}
	return run(handle, w, c)
}

// run lets a handler do a call whose parameters were checked.
func run(handle core.Handler, w *core.World, c *core.Call) (any, error) {
	c.Stringify()
	if c.Flag("skiplock") && !c.Root() { // Each method that knows it begins with this.
		return nil, perl.BadParam("skiplock", "Only root may use this option.")
	}
	return handle(w, c)
}

// reach answers for the node that a call is proxied to.
func reach(w *core.World, c *core.Call) error {
	name, ok := c.Values["node"].(string)
	if !ok || c.M.ProxyTo != "node" && !strings.HasPrefix(c.M.Path, "/nodes/{node}/") || name == w.Cfg.Node {
		return nil
	}
	n := w.Nodes[name]
	switch {
	case name == "localhost":
		c.Values["node"] = w.Cfg.Node
		return nil
	case n == nil:
		// The text is the resolver's, of glibc in English.
		return perl.Fail("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", name, name)
	case n.Offline:
		return &perl.APIError{Status: 595, Message: "No route to host", Plain: true}
	}
	return nil
}

// A node serves a few requests at a time; the others wait for a free worker.
// That needs neither a queue nor a goroutine: each worker is the time at which
// it will be free again, and a request that comes in takes the one that is free
// first. It knows at once when it will be served.

// admission is the time at which a request will be served.
type admission struct {
	begin time.Time // Its effect happens then,
	end   time.Time // its answer is sent then.
}

// admit books the next free worker of a node.
func admit(w *core.World, nodeName string, now time.Time) admission {
	n := w.Nodes[nodeName]
	if n == nil {
		n = w.Nodes[w.Cfg.Node]
	}
	first := 0
	for i := range n.Free {
		if n.Free[i].Before(n.Free[first]) {
			first = i
		}
	}
	a := admission{begin: now}
	if n.Free[first].After(now) {
		a.begin = n.Free[first]
	}
	a.end = a.begin.Add(w.Cfg.Latency)
	n.Free[first] = a.end
	w.Count.PeakRequests = max(w.Count.PeakRequests, busyAt(w, a.begin), 1)
	return a
}

// busyAt counts the workers of all nodes that are busy at a time not before now. Each is busy from now until it is
// free: there are no gaps.
func busyAt(w *core.World, t time.Time) int {
	busy := 0
	for _, n := range w.Nodes {
		for _, free := range n.Free {
			busy += perl.BoolInt(free.After(t))
		}
	}
	return busy
}

// customModel rejects custom models of a CPU: the host has no file of these (get_custom_model, called by
// validate_vm_cpu_conf in PVE/QemuServer/CPUConfig.pm).
func customModel(c *core.Call, wrong map[string]string) map[string]string {
	v, known := c.M.Param("cpu")
	if !known || v.Format != "pve-vm-cpu-conf" || wrong["cpu"] != "" {
		return wrong
	}
	name, custom := strings.CutPrefix(perl.ParseProperty("cpu", perl.Text(c.Values["cpu"]))["cputype"], "custom-")
	if !custom {
		return wrong
	}
	all := maps.Clone(wrong)
	if all == nil {
		all = map[string]string{}
	}
	all["cpu"] = "invalid format - Custom cputype '" + name + "' not found\n"
	return all
}
