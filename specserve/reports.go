package specserve

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Period is the interval of the reports of a child that sets no other.
const Period = time.Minute

// own lets the node itself through, whatever its posture allows others: a report changes what people
// see of it. A token that several nodes have does not say which one asks.
func (x *request) own() (*Node, error) {
	if err := x.identify(); err != nil {
		return nil, err
	}
	switch c := x.shown; {
	case c.Kind == policy.NoCredential:
		return nil, &wire.Error{Code: wire.CodeNoCredential, Message: "the token of the node is needed"}
	case c.Err != nil:
		return nil, &wire.Error{Code: wire.CodeOf(c.Err), Cause: c.Err}
	case !c.Valid:
		return nil, &wire.Error{Code: wire.CodeRefused}
	case c.Identity != x.identity:
		return nil, &wire.Error{Code: wire.CodeNotYours}
	}
	n, err := x.node()
	if err != nil {
		return nil, stranger(x, err)
	}
	if err := x.authorize(x.identity); err != nil {
		return nil, err
	}
	return n, nil
}

// stranger is why a node is not served that has a token. A host that joined waits for a commit with its name.
func stranger(x *request, err error) error {
	if x.shown.Claims.Spec != keys.ForAgent || x.view.Catalog == nil || x.view.Catalog.Suspended(x.identity) != "" {
		return err
	}
	parent := cmp.Or(x.o.Identity, "NAME")
	switch h := x.view.Catalog.in.Site.Hosts[x.identity]; {
	case h == nil && x.view.Book.HasJoined(x.identity):
		x.waitingHosts.note(x.identity, x.RemoteAddr, x.now)
		return &wire.Error{Code: wire.CodeNotFound, Message: "no commit in force has a host of this name yet", Hint: "declare it: host \"" + x.identity + "\" { parent = host." + parent + " }"}
	case h == nil:
		return err
	case h.Parent == "":
		return &wire.Error{Code: wire.CodeNotFound, Message: "the commit in force has this host without a parent", Hint: "set parent = host." + parent + " in its block"}
	default:
		return &wire.Error{Code: wire.CodeNotFound, Message: "the commit in force has this host below " + h.Parent, Hint: "let it join there: homestak-gitops token mint " + x.identity + " --join, on the machine of that one"}
	}
}

// node is the node that a request is about.
func (x *request) node() (*Node, error) {
	if n := x.view.node(x.identity); n != nil {
		return n, nil
	}
	if m := x.view.Catalog.Suspended(x.identity); m != "" {
		return nil, &wire.Error{Code: wire.CodeNotFound, Message: "manifest " + m + " is suspended", Hint: "its nodes stay as they are until suspend is removed from it"}
	}
	if x.view.Catalog == nil {
		return nil, noCommit()
	}
	return nil, &wire.Error{Code: wire.CodeNotFound, Message: "the site does not deploy this node"}
}

// maxLeafReport is the most that the report of a node may have that has none below it, in bytes.
const maxLeafReport = 64 << 10

// takeReport keeps the report of a node.
func takeReport(x *request) error {
	n, err := x.own()
	if err != nil {
		return err
	}
	if wait, ok := x.reporting.Take(rateKey{About: x.identity}, x.now); !ok {
		return x.later(wait, "the node reports too often")
	}
	if !n.Child {
		if x.ContentLength > maxLeafReport {
			x.unread()
			return tooLarge(maxLeafReport)
		}
		x.Body = http.MaxBytesReader(x.w, x.Body, maxLeafReport)
	}
	r, err := wire.ReadReport(x.Body, x.identity, x.now)
	switch wrong, is := errors.AsType[*wire.ReportError](err); {
	case is && wrong.TooLarge:
		x.reason = "the report is too large"
		return refusal{&wire.Error{Code: wire.CodeBadRequest, Message: err.Error()}, http.StatusRequestEntityTooLarge}
	case is:
		x.reason = "the report is not valid" // its text may have what the node wrote
		return &wire.Error{Code: wire.CodeSchema, Message: err.Error()}
	case err != nil:
		return unreadable(err)
	}
	if !n.Child && (len(r.Nodes) > 0 || r.Cut > 0 || r.Empty) {
		x.reason = "the report has nodes"
		return &wire.Error{Code: wire.CodeSchema, Message: "only a node of type pve has nodes of its own to report"}
	}
	before, _ := x.reports.Get(x.identity)
	if !x.reports.Put(r, x.now) {
		return x.done(http.StatusAccepted, "there is a newer report")
	}
	if n.Child && r.Empty && (!before.Empty || before.Commit != r.Commit) || r.Ready && before.ReceivedAt.IsZero() {
		x.o.Check() // something waits for that
	}
	if !r.Same(before.Report) {
		x.o.Reported(before.Report, r, n.Child)
	}
	return x.done(http.StatusAccepted, "kept")
}

// unreadable is a body that ends early, or is longer than it may be.
func unreadable(err error) error {
	if most, is := errors.AsType[*http.MaxBytesError](err); is {
		return tooLarge(most.Limit)
	}
	return &wire.Error{Code: wire.CodeBadRequest, Message: "the body cannot be read", Cause: err}
}

// later refuses a request that comes too early.
func (x *request) later(wait time.Duration, why string) error {
	x.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	return &wire.Error{Code: wire.CodeTooMany, Message: why}
}

// done is the answer to a request that asks for something.
type done struct {
	Status string   `json:"status"`          // what became of it
	Nodes  []string `json:"nodes,omitempty"` // below a child, that are to check themselves
}

func (x *request) done(status int, what string) error { return x.json(status, done{Status: what}) }

// serverStatus is the answer of /status.
type serverStatus struct {
	Commit string       `json:"commit"`
	At     time.Time    `json:"at"`
	Nodes  []nodeStatus `json:"nodes"` // that reported, by identity
}

// nodeStatus is the last report of a node.
type nodeStatus struct {
	Identity string            `json:"identity"`
	Ready    bool              `json:"ready"` // and the report is not stale
	Phase    wire.Phase        `json:"phase"`
	Received time.Time         `json:"received"`        // by the clock of the server
	Period   int               `json:"period_seconds"`  // how often it reports; 0: only when it boots
	Stale    bool              `json:"stale"`           // nothing came for three periods
	Error    string            `json:"error"`           // why it is not ready
	Commit   string            `json:"commit"`          // that it works from
	Agent    string            `json:"agent"`           // version of its program
	Nodes    []wire.ReportNode `json:"nodes,omitempty"` // below it
	Cut      int               `json:"cut,omitempty"`   // nodes below it that had no room in its report
}

func status(x *request) error {
	if x.o.Status != nil {
		return x.document(x.o.Status())
	}
	out := serverStatus{Commit: x.view.commit(), At: x.now.UTC(), Nodes: []nodeStatus{}}
	for _, r := range x.reports.All() {
		out.Nodes = append(out.Nodes, statusOf(x.view, r, x.now))
	}
	return x.document(out)
}

// statusOf describes the last report of a node.
func statusOf(v *View, r wire.ReceivedReport, now time.Time) nodeStatus {
	usual := v.Catalog.Node(r.Identity).ReportPeriod()
	stale := r.Stale(now, usual)
	return nodeStatus{
		Identity: r.Identity, Ready: r.Ready && !stale, Phase: r.Phase, Received: r.ReceivedAt.UTC(), Period: int(r.Period(usual).Seconds()),
		Stale: stale, Error: r.Problem(), Commit: r.Commit, Agent: r.Agent, Nodes: r.Nodes, Cut: r.Cut,
	}
}

// firstReport is the time that a new node has for its first report: it boots, gets the program, and installs the
// packages of its spec.
const firstReport = 15 * time.Minute

// waitingError reports that a node has not reported yet, and that this is not late.
type waitingError struct{ Since time.Time }

// Error says since when it is waited for.
func (e *waitingError) Error() string {
	return "waits for its first report since " + e.Since.UTC().Format(time.TimeOnly+" UTC")
}

// Waiting is true: no action is required.
func (*waitingError) Waiting() bool { return true }

// Reported says what a node reported last: that it is ready, or an error why it is not, a *waitingError as long as its first
// report is not late. Of a child it suffices that its agent reports: how its own nodes are is its own matter.
func (s *Server) Reported(node string) (saw string, err error) {
	now := s.o.Now()
	r, has := s.reports.Get(node)
	v := s.view.Load()
	if !has {
		since := s.reports.AwaitedSince(node, now)
		if now.Sub(since) < firstReport {
			return "", &waitingError{since}
		}
		return "", fmt.Errorf("it has not reported since %s, for more than %s: its console shows what it does", since.UTC().Format(time.TimeOnly+" UTC"), firstReport)
	}
	is := statusOf(v, r, now)
	at := is.Received.Format(time.TimeOnly + " UTC")
	switch {
	case is.Stale:
		return "", fmt.Errorf("its last report is of %s", is.Received.Format(time.RFC3339))
	case isChild(v.Catalog.Node(node)):
		return "at " + at + " its agent reported", nil
	case !is.Ready:
		return "", fmt.Errorf("at %s it reported: %s", at, cmp.Or(is.Error, "not ready, in phase "+string(is.Phase)))
	}
	return "at " + at + " it reported that it is ready", nil
}

func isChild(n *Node) bool { return n != nil && n.Child }

// Runs is the version of the program of a child, as it reported; "" if it has not reported, or is silent since then.
func (s *Server) Runs(node string) string {
	r, has := s.reports.Get(node)
	if !has || r.Stale(s.o.Now(), s.view.Load().Catalog.Node(node).ReportPeriod()) {
		return ""
	}
	return r.Agent
}

// HasReported reports whether there is a report of a node.
func (s *Server) HasReported(node string) bool {
	_, has := s.reports.Get(node)
	return has
}

// Forget drops the report of a node that is about to be created: it came from another machine.
func (s *Server) Forget(node string) { s.reports.Await(node, s.o.Now()) }

// ReportPeriod is the report interval of a node that does not state one: after each run. 0: only when it boots.
func (n *Node) ReportPeriod() time.Duration {
	if n == nil || n.Run == nil {
		return Period
	}
	return n.Run.Every()
}
