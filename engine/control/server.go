package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Agent is the part of the agent that the server needs.
type Agent interface {
	Status() agent.Status
	CheckNow()
	Reconcile(ctx context.Context) (agent.PassStatus, error)
	Pause(ctx context.Context, who string) (release func(), err error)
	Suspend(s ledger.Suspension) error
	Resume(manifest string) (bool, error)
	VerifyNodes(ctx context.Context, by string, match func(*engine.Probe) bool) (engine.Verified, error)
}

// receipts gives access to the receipts.
type receipts interface {
	Last(n int, match func(*ledger.Receipt) bool) ([]ledger.Receipt, error)
	Verify(e ledger.Expect) (ledger.Proof, error)
}

// Server serves the agent's socket: HTTP with JSON bodies, see routes. A process that may open the socket may do all of this;
// access is controlled by the mode of the file. Whatever goes wrong is a ProblemError with a status of 4xx or 5xx.
type Server struct {
	Agent    Agent
	Receipts receipts
	Facts    *Facts
	Events   *EventLog
	Card     Card // without what Facts knows
	Log      *slog.Logger

	// Tree returns the agent with its nodes, and the reports of nodes and children.
	Tree func() wire.Report
	// Exec runs a command on nodes, or makes plans of hosts, and calls each with every result.
	Exec func(ctx context.Context, a wire.Asking, each func(wire.TaskResult)) error
	Jobs jobs
	// Wake asks a node to check itself, or the child that manages it.
	Wake func(node string) wire.Asked
	// TestNotify sends a test by a notifier of the site.
	TestNotify func(ctx context.Context, name string) error
}

// jobs gives access to the jobs of the agent.
type jobs interface {
	List() ([]Job, error)
	// Receipts are those of a job, or of all commands for "", newest first.
	Receipts(job string, n int) ([]ledger.Receipt, error)
}

// Job is a job with nodes on the host of the agent.
type Job struct {
	Name     string     `json:"name"`
	Nodes    []string   `json:"nodes"`    // of this host
	Schedule string     `json:"schedule"` // "": it runs once
	Once     string     `json:"once"`
	Next     *time.Time `json:"next"`   // null: it has no schedule
	Last     *time.Time `json:"last"`   // when it ran last; null: it has not
	Ran      []string   `json:"ran"`    // nodes on which it ran then
	Failed   int        `json:"failed"` // of these
}

// Card identifies an agent.
type Card struct {
	Version   int      `json:"version"` // of this interface: 1
	Program   string   `json:"program"` // version of the program
	Identity  string   `json:"identity"`
	API       string   `json:"api"` // of the host that it converges, "" as long as no site was read
	DataDir   string   `json:"data_dir"`
	PID       int      `json:"pid"`
	Manifests []string `json:"manifests"` // those that it deploys; null as long as no site was read
}

// History is the answer of /history.
type History struct {
	Receipts []ledger.Receipt `json:"receipts"`
	Problem  string           `json:"problem"` // receipts that cannot be read, "" for none
}

// Limits for requests and connections.
const (
	controlBody  = 64 << 10         // bytes of a request
	controlRead  = 30 * time.Second // to send it
	controlWrite = time.Minute      // to take the answer
	controlConns = 64               // connections at once; the next ones wait
	controlEnd   = time.Second      // for answers under way when the agent stops
)

// Serve serves requests until ctx ends, and then ends those that wait. It closes the listener.
func (c *Server) Serve(ctx context.Context, ln net.Listener) error {
	s := &http.Server{
		Handler: c.routes(ctx.Done()), BaseContext: func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: controlRead, ReadTimeout: controlRead, WriteTimeout: controlWrite, IdleTimeout: controlRead,
		MaxHeaderBytes: controlBody, ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
	}
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if uid, ok := peer(conn); ok {
			ctx = context.WithValue(ctx, peerKey{}, uid)
		}
		return ctx
	}
	var silent wire.Silent
	s.ConnState = silent.Track
	served := make(chan error, 1)
	go func() { served <- s.Serve(Bounded(ln, controlConns)) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve the control socket: %w", err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), controlEnd)
	defer cancel()
	defer time.AfterFunc(controlEnd/4, silent.Close).Stop() // who said nothing so far is not waited for
	if s.Shutdown(end) != nil {
		_ = s.Close() // a client does not read its response
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the control socket: %w", err)
	}
	return nil
}

// Handler answers as the socket does, without limits of connections.
func (c *Server) Handler() http.Handler { return c.routes(nil) }

// routes is the table of endpoints.
func (c *Server) routes(ending <-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, answer func(w http.ResponseWriter, r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, controlBody)
			doc, err := answer(w, r)
			switch p, ok := errors.AsType[*ProblemError](err); {
			case ok:
				p.write(w)
			case err != nil:
				(&ProblemError{Status: http.StatusInternalServerError, Code: "failed", Message: err.Error()}).write(w)
			case doc != nil:
				writeAnswer(w, http.StatusOK, doc)
			}
		})
	}
	document := func(pattern string, doc func() any) {
		handle(pattern, func(http.ResponseWriter, *http.Request) (any, error) { return doc(), nil })
	}
	document("GET /agent", func() any { return c.self() })
	document("GET /status", func() any { return c.Agent.Status() })
	document("GET /tree", func() any { return c.Tree() }) // the nodes, and what those reported of their own: wire.Report
	handle("GET /history", c.history)                     // receipts, newest first; n= of them (20; 0: all), address=
	handle("GET /history/verify", c.verify)               // whether the chain of receipts holds: ledger.Proof
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) { c.Events.Serve(w, r, ending) })
	handle("GET /why/{address}", c.why)               // where an object comes from and what was done to it: Reasons
	handle("POST /reconcile", c.reconcile)            // check now; with ?wait the answer is the agent.PassStatus of that pass
	handle("POST /reconcile/{node}", c.reconcileNode) // ask a node to check itself, or the child that manages it
	handle("POST /verify", c.verifyNodes)             // run checks now: Selected
	handle("GET /jobs", func(http.ResponseWriter, *http.Request) (any, error) { return c.Jobs.List() })
	handle("GET /runs", c.runs)        // receipts of commands, newest first: n=, job=
	handle("POST /tasks", c.exec)      // a wire.Asking; the answer is a wire.TaskResult for each node, as JSON lines
	handle("POST /suspend", c.suspend) // a ledger.Suspension, without since
	handle("POST /resume", c.resume)   // {"manifest": "…"}, "" for everything
	handle("POST /notify/{name}", c.testNotify)
	handle("POST /hold", c.hold) // pause the agent: who=, verb=; granted when the headers come, until the connection ends
	handle("/", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return nil, &ProblemError{
			Status: http.StatusNotFound, Code: "not_found", Message: "there is no " + r.Method + " " + r.URL.Path + " here",
			Hint: "the agent that runs is version " + c.Card.Program,
		}
	})
	return mux
}

func (c *Server) self() Card {
	card := c.Card
	card.API, card.Manifests = c.Facts.host()
	return card
}

// history lists the receipts that touched an address, or of all.
func (c *Server) history(_ http.ResponseWriter, r *http.Request) (any, error) {
	n := 20
	if text := r.URL.Query().Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 0 {
			return nil, badRequest("n is not a number of receipts", "omit it for 20, or use 0 for all")
		}
	}
	return historyOf(c.Receipts, n, r.URL.Query().Get("address")), nil
}

// runs lists the receipts of commands.
func (c *Server) runs(_ http.ResponseWriter, r *http.Request) (any, error) {
	n, err := strconv.Atoi(r.URL.Query().Get("n"))
	if err != nil || n < 0 {
		return nil, badRequest("n is not a number of receipts", "use 0 for all")
	}
	list, err := c.Jobs.Receipts(r.URL.Query().Get("job"), n)
	h := History{Receipts: append([]ledger.Receipt{}, list...)}
	if err != nil {
		h.Problem = err.Error()
	}
	return h, nil
}

// historyOf reads receipts; those that cannot be read are reported beside the others.
func historyOf(from receipts, n int, address string) History {
	list, err := from.Last(n, touches(address))
	h := History{Receipts: append([]ledger.Receipt{}, list...)}
	if err != nil {
		h.Problem = err.Error()
	}
	return h
}

// touches finds the receipts with a step about an address or a name, nil for "".
func touches(address string) func(*ledger.Receipt) bool {
	if address == "" {
		return nil
	}
	return func(r *ledger.Receipt) bool {
		return slices.ContainsFunc(r.Steps, func(s ledger.Step) bool { return model.Means(address, s.Address) })
	}
}

func (c *Server) verify(http.ResponseWriter, *http.Request) (any, error) {
	return c.Receipts.Verify(ledger.Expect{})
}

func (c *Server) why(_ http.ResponseWriter, r *http.Request) (any, error) {
	return c.Facts.Reasons(r.PathValue("address"), c.Agent.Status(), c.Receipts), nil
}

// reconcile checks now; with ?wait it answers after the pass, for as long as the client stays.
func (c *Server) reconcile(w http.ResponseWriter, r *http.Request) (any, error) {
	c.Log.Info("reconcile requested", "over", "socket")
	if !r.URL.Query().Has("wait") {
		c.Agent.CheckNow()
		writeAnswer(w, http.StatusAccepted, struct{}{})
		return nil, nil //nolint:nilnil // the answer is written
	}
	patient(w)
	pass, err := c.Agent.Reconcile(r.Context())
	if errors.Is(err, engine.ErrInterrupted) || r.Context().Err() != nil {
		return nil, stoppingProblem()
	}
	return pass, err
}

// reconcileNode asks a node or child to check itself.
func (c *Server) reconcileNode(w http.ResponseWriter, r *http.Request) (any, error) {
	node := r.PathValue("node")
	asked := Asked{c.Wake(node)}
	if asked.Status == wire.AskedUnknown {
		return nil, &ProblemError{
			Status: http.StatusNotFound, Code: "unknown_node", Message: fmt.Sprintf("the agent serves no node %q, and none has reported one", diag.Line(node)),
			Hint: "the agent checks push nodes itself: omit NODE",
		}
	}
	if asked.Status == wire.AskedPushed {
		c.Agent.CheckNow()
	}
	writeAnswer(w, http.StatusAccepted, asked)
	return nil, nil //nolint:nilnil // the answer is written
}

// Selected says whose checks are to run.
type Selected struct {
	Nodes    []string `json:"nodes"`    // names or addresses; none: all
	Manifest string   `json:"manifest"` // "" for all
	By       string   `json:"by"`       // who asks
}

// mostBy is the length of the name of a person who asks, in bytes.
const mostBy = 200

// asks is the name of a person who asks, clean to log.
func asks(by string) (string, error) {
	if by == "" || len(by) > mostBy {
		return "", badRequest("by is missing or too long", "it says who asks, in at most 200 bytes")
	}
	return diag.Line(by), nil
}

// verifyNodes runs checks, and answers once all have ended.
func (c *Server) verifyNodes(w http.ResponseWriter, r *http.Request) (any, error) {
	var s Selected
	if err := readBody(r, &s); err != nil {
		return nil, err
	}
	patient(w)
	return c.Facts.VerifyNodes(r.Context(), c.Agent, s)
}

// VerifyNodes runs the checks of nodes of an agent. An error is a *ProblemError.
func (k *Facts) VerifyNodes(ctx context.Context, a Agent, s Selected) (out engine.Verified, err error) {
	by, err := asks(s.By)
	if err != nil {
		return out, err
	}
	_, manifests := k.host()
	if s.Manifest != "" && manifests != nil && !slices.Contains(manifests, s.Manifest) {
		return out, badRequest(fmt.Sprintf("the agent deploys no manifest %q", s.Manifest), diag.DidYouMean(s.Manifest, manifests))
	}
	var known []string
	for _, n := range a.Status().Nodes {
		known = append(known, n.Node, n.Address)
	}
	match := engine.Matches(s.Nodes, s.Manifest)
	unknown := slices.IndexFunc(s.Nodes, func(name string) bool { return !slices.Contains(known, name) })
	if unknown >= 0 {
		match = func(*engine.Probe) bool { return false } // it only tells whether the nodes are known yet
	}
	out, err = a.VerifyNodes(ctx, by, match)
	if errors.Is(err, agent.ErrNotSeen) {
		return out, &ProblemError{Status: http.StatusServiceUnavailable, Code: "not_seen", Message: err.Error(), Hint: "run it again after its first pass: homestak-gitops status shows it"}
	}
	if unknown >= 0 {
		name := s.Nodes[unknown]
		return out, &ProblemError{Status: http.StatusNotFound, Code: "unknown_node", Message: fmt.Sprintf("the agent has no node %q", diag.Line(name)), Hint: diag.DidYouMean(name, known)}
	}
	if errors.Is(err, engine.ErrInterrupted) || ctx.Err() != nil {
		return out, stoppingProblem()
	}
	out.Checks = append([]engine.CheckRun{}, out.Checks...)
	out.Success = out.Failed() == 0
	return out, err
}

// peerKey is the key of a connection's user in the context of its requests.
type peerKey struct{}

// commands reports whether a client may run commands on nodes: root, and the user of the agent. The group of the socket may
// not: it would become root on every node.
func commands(ctx context.Context) bool {
	uid, known := ctx.Value(peerKey{}).(int)
	return known && (uid == 0 || uid == os.Geteuid())
}

// exec runs commands for as long as the client stays.
func (c *Server) exec(w http.ResponseWriter, r *http.Request) (any, error) {
	var a wire.Asking
	if err := readBody(r, &a); err != nil {
		return nil, err
	}
	if a.Kind == wire.TaskRun && !commands(r.Context()) {
		return nil, &ProblemError{Status: http.StatusForbidden, Code: "denied", Message: "only root, and the user of the agent, may run commands on nodes", Hint: "run this as root"}
	}
	var err error
	if a.By, err = asks(a.By); err != nil {
		return nil, err
	}
	patient(w)
	begun := false
	out := json.NewEncoder(w)
	err = c.Exec(r.Context(), a, func(result wire.TaskResult) {
		begun = true
		if out.Encode(result) == nil {
			_ = http.NewResponseController(w).Flush() // fails only if the client is gone
		}
	})
	if err != nil && !begun {
		return nil, badRequest(err.Error(), "")
	}
	return nil, nil //nolint:nilnil // the answer is written
}

// Sent says that a test was sent.
type Sent struct {
	Notify string `json:"notify"` // by which notifier
}

func (c *Server) testNotify(_ http.ResponseWriter, r *http.Request) (any, error) {
	name := r.PathValue("name")
	c.Log.Info("a test of a notifier is sent", "notify", name)
	return Sent{name}, c.TestNotify(r.Context(), name)
}

func (c *Server) suspend(_ http.ResponseWriter, r *http.Request) (any, error) {
	var s ledger.Suspension
	if err := readBody(r, &s); err != nil {
		return nil, err
	}
	s.Since, s.By = time.Now().UTC().Truncate(time.Second), by(r, s.By)
	_, manifests := c.Facts.host()
	switch {
	case s.Reason == "":
		return nil, badRequest("a suspension needs a reason", "add --reason TEXT: status shows why the node is suspended")
	case s.Until != nil && !s.Until.After(s.Since):
		return nil, badRequest("the suspension would end in the past", "use --for 2h, or omit --for to suspend until it is resumed")
	case s.Manifest != "" && manifests != nil && !slices.Contains(manifests, s.Manifest):
		return nil, badRequest(fmt.Sprintf("the agent deploys no manifest %q", s.Manifest), diag.DidYouMean(s.Manifest, manifests))
	}
	if err := c.agentError(c.Agent.Suspend(s)); err != nil {
		return nil, err
	}
	return s, nil
}

// by is who sent a request. Over HTTPS the name is the word of a caller with the operator key, so its address comes with it.
func by(r *http.Request, name string) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil { // the socket, which has permissions
		return name
	}
	return diag.Line(name) + " at " + host
}

func (c *Server) resume(_ http.ResponseWriter, r *http.Request) (any, error) {
	var what struct {
		Manifest string `json:"manifest"`
		By       string `json:"by"`
	}
	if err := readBody(r, &what); err != nil {
		return nil, err
	}
	c.Log.Info("resume requested", "by", by(r, what.By))
	was, err := c.Agent.Resume(what.Manifest)
	if err := c.agentError(err); err != nil {
		return nil, err
	}
	if !was {
		hint := "the agent is not suspended"
		if list := c.Agent.Status().Suspended; len(list) > 0 {
			names := map[string]bool{}
			for _, s := range list {
				names[SuspendedWhat(s.Manifest)] = true
			}
			hint = fmt.Sprintf("suspended: %s", strings.Join(slices.Sorted(maps.Keys(names)), ", "))
		}
		return nil, &ProblemError{Status: http.StatusNotFound, Code: "not_suspended", Message: "there is nothing to resume: " + SuspendedWhat(what.Manifest) + " is not suspended", Hint: hint}
	}
	return struct{}{}, nil
}

// agentError wraps errors of changes that the agent stores on disk.
func (*Server) agentError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the agent cannot save it: %w", err)
}

// hold keeps the agent paused for as long as the client's connection lives.
func (c *Server) hold(w http.ResponseWriter, r *http.Request) (any, error) {
	who, verb := r.URL.Query().Get("who"), r.URL.Query().Get("verb")
	if who == "" || len(who)+len(verb) > 200 {
		return nil, badRequest("who and verb are missing or too long", "use who= and verb=, at most 200 characters together")
	}
	patient(w)
	release, err := c.Agent.Pause(r.Context(), diag.Line(who+" ("+verb+")"))
	if err != nil {
		if r.Context().Err() != nil {
			return nil, stoppingProblem()
		}
		return nil, err
	}
	defer release()
	c.Log.Info("held", "by", who, "verb", verb)
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return nil, nil //nolint:nilnil // the client is gone
	}
	<-r.Context().Done()
	c.Log.Info("released", "by", who, "verb", verb)
	return nil, nil //nolint:nilnil // the answer was its headers
}

// patient removes the deadlines of a connection: its client may wait for any time, and a disconnect
// is still noticed.
func patient(w http.ResponseWriter) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Time{})
}

// readBody reads the one JSON document of a request.
func readBody(r *http.Request, into any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return &ProblemError{Status: http.StatusRequestEntityTooLarge, Code: "too_large", Message: "the request is larger than 64 KiB"}
	}
	if err != nil || d.More() {
		return badRequest("the body is not the expected JSON document", fmt.Sprint(err))
	}
	return nil
}
