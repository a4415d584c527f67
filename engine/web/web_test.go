package web

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

const commitID = "3f2c1a9d00000000000000000000000000000000"

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// fake is an agent that answers what it is set to, and writes down what it is asked to do.
type fake struct {
	status   agent.Status
	tree     wire.Report
	receipts []ledger.Receipt
	plan     plan.Plan
	events   *control.EventLog
	asked    []string
	err      error
}

func (f *fake) Status(context.Context) (agent.Status, error) { return f.status, f.err }
func (f *fake) Tree(context.Context) (wire.Report, error)    { return f.tree, f.err }

func (f *fake) StatusAndTree(context.Context) (agent.Status, wire.Report, error) {
	return f.status, f.tree, f.err
}

func (f *fake) History(_ context.Context, n int, address string) (control.History, error) {
	h := control.History{}
	for _, r := range f.receipts {
		touches := slices.ContainsFunc(r.Steps, func(s ledger.Step) bool { return s.Address == address })
		if (address == "" || touches) && len(h.Receipts) < n {
			h.Receipts = append(h.Receipts, r)
		}
	}
	return h, f.err
}

func (f *fake) Why(_ context.Context, address string) (control.Reasons, error) {
	for _, n := range f.status.Nodes {
		if n.Address == address || n.Node == address {
			return control.Reasons{Address: n.Address, Running: true, Known: true, Node: &n, Receipts: f.receipts}, f.err
		}
	}
	return control.Reasons{Address: address, NotFound: true}, f.err
}

func (f *fake) Plan(_ context.Context, host, attributes string) (wire.TaskResult, error) {
	made := plan.Document{Plan: &f.plan}
	if attributes != "" {
		addr, err := model.ParseAddress(attributes)
		if err != nil {
			return wire.TaskResult{}, err
		}
		for _, a := range []plan.Attribute{{Path: "cores", Declared: int64(4), Observed: int64(2)}, {Path: "nic.lan.mac", Observed: "BC:24:11:00:00:01"}, {Path: "password", Declared: model.Sensitive, Sensitive: true}} {
			a.Address = addr
			made.Attributes = append(made.Attributes, a)
		}
	}
	doc, err := json.Marshal(made)
	f.asked = append(f.asked, "plan "+host)
	return wire.TaskResult{Outcome: wire.TaskDone, Plan: doc}, errors.Join(f.err, err)
}

func (f *fake) Events(ctx context.Context, after string, follow bool, each func(control.Event) error) error {
	for {
		list, _, more := f.events.After(after)
		for _, e := range list {
			if err := each(e); err != nil {
				return err
			}
			after = e.ID
		}
		if !follow || f.err != nil {
			return f.err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fake) CheckNow(context.Context) error {
	f.asked = append(f.asked, "check")
	return f.err
}

func (f *fake) CheckNode(_ context.Context, node string) (control.Asked, error) {
	f.asked = append(f.asked, "check "+node)
	return control.Asked{}, f.err
}

func (f *fake) Suspend(_ context.Context, s ledger.Suspension, span time.Duration) (ledger.Suspension, error) {
	f.asked = append(f.asked, fmt.Sprintf("suspend %q %q %s", s.Manifest, s.Reason, span))
	return s, f.err
}

func (f *fake) Resume(_ context.Context, manifest string) error {
	f.asked = append(f.asked, fmt.Sprintf("resume %q", manifest))
	return f.err
}

// fleetOf is an agent with hosts below, each with nodes. Text is in everything that comes from outside.
func fleetOf(hosts, nodes int, text string) *fake {
	f := &fake{events: control.NewEventLog(noon)}
	f.tree = wire.Report{Version: 1, Identity: "father", Commit: commitID, At: noon, Phase: wire.PhaseRun, Ready: true}
	for h := range hosts {
		host := fmt.Sprintf("branch-%d", h)
		f.tree.Nodes = append(f.tree.Nodes, wire.ReportNode{Name: host, Type: "pve", Parent: "father", Phase: wire.PhaseRun, Ready: h%7 != 0, Commit: commitID, Reported: noon.Add(-time.Minute), Stale: h%50 == 0})
		for n := range nodes {
			r := wire.ReportNode{Name: fmt.Sprintf("web-%d-%d", h, n), Type: "vm", Parent: host, Phase: wire.PhaseRun, Ready: true, Since: noon.Add(-time.Hour)}
			switch n % 10 {
			case 3:
				r.Ready, r.Drift, r.Error = false, 2, "cores differ: "+text
			case 5:
				r.Failing = "web: " + text
			}
			f.tree.Nodes = append(f.tree.Nodes, r)
		}
	}
	f.tree.Nodes = append(f.tree.Nodes, wire.ReportNode{Name: "app", Type: "vm", Parent: "father", Phase: wire.PhaseRun, Drift: 1, Error: text})
	f.status = agent.Status{
		Version: 1, Identity: "father", PID: 7, State: agent.Idle, Healthy: true, Summary: "father is as it should be " + text, At: noon, Started: noon,
		Head: &agent.CommitStatus{ID: commitID, Subject: "Web 2 " + text, Author: "A. Homelab " + text, Since: noon}, InForce: &agent.CommitStatus{ID: commitID, Since: noon},
		Suspended: []ledger.Suspension{{Manifest: "db", Reason: "restore " + text, By: "me@here", Since: noon}},
		Last:      &agent.PassStatus{Commit: commitID, Outcome: engine.Done, Ended: noon, Findings: diag.List{{Severity: diag.Warning, Source: diag.FromPolicy, Summary: "no backup " + text, Detail: "set one\n" + text}}},
		Nodes:     []engine.NodeStatus{{Address: "vm.app", Node: "app", VMID: 10001, PVENode: "pve1", Phase: "run", Drift: 1, Error: text}},
		Checks:    []agent.CheckStatus{{Address: "vm.app", Check: "up", State: agent.CheckFailing, Since: noon, Error: text}},
	}
	first := noon.Add(-time.Hour)
	f.receipts = []ledger.Receipt{{
		ID: "r1", Verb: "agent", By: "father", Commit: commitID, Subject: "Web 2 " + text, Author: "A. Homelab", Began: noon, Seconds: 2, Outcome: "done", Drift: true, Passes: 2, First: &first,
		Steps: []ledger.Step{{Address: "vm.app", Action: "update", Status: "done", Reason: text, EditedBy: []string{"eve@pam " + text}, Changes: []ledger.Change{{Path: "notes", Before: text, After: "good"}}}},
	}}
	app := model.Address{Kind: "vm", Name: "app"}
	f.plan = plan.Plan{
		FormatVersion: plan.FormatVersion, Site: "home", Commit: commitID, Host: "father", ID: "7c1e04b2", Summary: plan.Summary{Update: 1, Unmanaged: 1},
		Steps: []plan.Step{{
			Address: app, Node: "app", VMID: 10001, Action: plan.Update, Class: model.ClassNone, Reason: "differs",
			Changes: []plan.Change{{Path: "notes", Before: text, After: "good", Class: model.ClassNone}}, Edits: []model.Edit{{Path: "notes", User: "eve@pam", At: noon}},
		}},
		Unmanaged: []model.Unmanaged{{Kind: "vm", Name: "old " + text, VMID: 100, Why: text}},
		Findings:  diag.List{{Severity: diag.Warning, Source: diag.FromHost, Summary: "locked " + text}},
	}
	f.events.Record(f.status)
	return f
}

// views are addresses of all views, of an agent that fleetOf made.
func views() []string {
	return []string{
		"/", "/?wall", "/?q=web&state=not+ready&under=branch-1", "/?page=2&hosts=2", "/host/father", "/host/father?plan=now", "/host/branch-0", "/node/app", "/node/vm.app?plan=now", "/node/web-1-3",
		"/timeline", "/timeline?address=vm.app&commit=3f2c&actor=eve", "/commit/" + commitID, "/commit/3f2c",
	}
}

var testKeys = func() ([]byte, []byte) { return []byte("the read key"), []byte("the operator key") }

// page is a browser without scripts.
type browser struct {
	t      *testing.T
	h      http.Handler
	cookie *http.Cookie
}

// open signs in with a key.
func open(t *testing.T, f *fake, key string) *browser {
	t.Helper()
	p := &browser{t: t, h: Handler(Options{Source: f, Access: Access{Keys: testKeys, Secure: true}, Now: func() time.Time { return noon }})}
	if key != "" {
		res := p.post("/sign-in", url.Values{"key": {key}})
		require.Equal(t, http.StatusSeeOther, res.StatusCode)
		p.cookie = res.Cookies()[0]
	}
	return p
}

func (p *browser) do(r *http.Request) *http.Response {
	if p.cookie != nil {
		r.AddCookie(p.cookie)
	}
	w := httptest.NewRecorder()
	p.h.ServeHTTP(w, r)
	res := w.Result()
	require.Equal(p.t, "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'", res.Header.Get("Content-Security-Policy"))
	require.Equal(p.t, "nosniff", res.Header.Get("X-Content-Type-Options"))
	return res
}

func (p *browser) get(to string) *http.Response {
	return p.do(httptest.NewRequest(http.MethodGet, to, http.NoBody))
}

func (p *browser) post(to string, form url.Values) *http.Response {
	r := httptest.NewRequest(http.MethodPost, to, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return p.do(r)
}

// read gets a page, and its text.
func (p *browser) read(to string) (*html.Node, string) {
	p.t.Helper()
	res := p.get(to)
	require.Equal(p.t, http.StatusOK, res.StatusCode, to)
	doc, err := html.Parse(res.Body)
	require.NoError(p.t, err)
	return doc, textOf(doc)
}

func textOf(n *html.Node) string {
	var words []string
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			words = append(words, strings.Fields(d.Data)...)
		}
	}
	return strings.Join(words, " ")
}

func attr(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func oneSpace(s string) string { return strings.Join(strings.Fields(s), " ") }

// Every value of a page is the one that the terminal shows.
func TestThePageShowsWhatTheTerminalShows(t *testing.T) {
	f := fleetOf(3, 12, "hello")
	p := open(t, f, "the read key")
	_, text := p.read("/")
	require.Contains(t, text, oneSpace(f.status.Summary))
	require.Contains(t, text, "healthy")
	require.Contains(t, text, "Suspended: "+view.Suspension(f.status.Suspended[0], noon))
	for _, name := range []string{"app", "branch-0", "web-1-3"} {
		i := slices.IndexFunc(f.tree.Nodes, func(n wire.ReportNode) bool { return n.Name == name })
		n := view.TreeNodeOf(f.tree.Nodes[i], noon)
		for _, word := range []string{n.Name, n.State, n.Type, n.Phase, n.Commit, n.Reported, n.Drift, n.Error, n.Check} {
			require.Contains(t, text, oneSpace(word), name)
		}
	}
	require.NotContains(t, text, "web-1-2", "a healthy node is folded into its host")
	require.Contains(t, text, "2 of 12 need attention")
	require.Less(t, strings.Index(text, "branch-0"), strings.Index(text, "app not ready"), "what is not known comes first")

	_, text = p.read("/host/father?plan=now")
	for _, row := range view.StatusRows(f.status, noon) {
		require.Contains(t, text, oneSpace(row.Label+" "+row.Text))
	}
	title, lines, last := f.plan.Lines()
	require.Contains(t, text, oneSpace(title))
	require.Contains(t, text, oneSpace(last))
	for _, l := range lines {
		require.Contains(t, text, oneSpace(l.Thing))
		require.Contains(t, text, oneSpace(l.What))
	}
	require.Contains(t, text, oneSpace(strings.Join(view.NodeCells(f.status.Nodes[0], noon), " ")))

	why, err := f.Why(t.Context(), "app")
	require.NoError(t, err)
	for _, to := range []string{"/node/app?plan=now", "/node/vm.app?plan=now"} {
		_, text = p.read(to)
		explained := view.Explain(why)
		require.Contains(t, text, explained.Head)
		for _, row := range append(explained.Rows, explained.Done...) {
			require.Contains(t, text, oneSpace(row.Text))
			for _, line := range row.Below {
				require.Contains(t, text, oneSpace(line))
			}
		}
		require.Contains(t, text, "notes hello good none eve@pam, "+view.When(noon))
		require.Contains(t, text, oneSpace("cores 2 4 nic.lan.mac BC:24:11:00:00:01 none password none "+model.Sensitive), "all attributes, after those that differ")
	}
	_, text = p.read("/timeline")
	for _, cell := range view.ReceiptCells(f.receipts[0], "") {
		require.Contains(t, text, oneSpace(cell))
	}
	require.Contains(t, text, "started version , process 7")
	_, text = p.read("/timeline?actor=eve")
	require.Contains(t, text, "pass done")
	_, text = p.read("/timeline?actor=mallory")
	require.Contains(t, text, "Nothing matches")
	_, text = p.read("/timeline?commit=dead")
	require.Contains(t, text, "Nothing matches")
	_, text = p.read("/commit/3f2c")
	require.Contains(t, text, "4 of 4 have it")
	require.Contains(t, text, commitID)
	require.Contains(t, text, "warning no backup hello set one hello")
	require.Contains(t, text, "here the newest, in force")
	require.Equal(t, "/commit/"+commitID, p.get("/commit/").Header.Get("Location"))
}

func TestSearchAndPages(t *testing.T) {
	f := fleetOf(60, 12, "")
	p := open(t, f, "the read key")
	_, text := p.read("/?q=web-7-")
	require.Contains(t, text, "12 found")
	_, text = p.read("/?under=branch-7&state=not+ready")
	require.Contains(t, text, "2 found below branch-7", "the host itself, too")
	require.NotContains(t, text, "web-8-3")
	require.Contains(t, text, "13 nodes", "counts are of what they lead to")
	_, text = p.read("/?q=nothing-like-it")
	require.Contains(t, text, "No node matches.")
	seen := map[string]bool{}
	for n := 1; ; n++ {
		doc, text := p.read(fmt.Sprintf("/?state=ready&page=%d", n))
		for d := range doc.Descendants() {
			if d.Data == "th" && attr(d, "scope") == "row" {
				name := textOf(d)
				require.False(t, seen[name], name)
				seen[name] = true
			}
		}
		if !strings.Contains(text, "Next") {
			break
		}
	}
	want := 0
	for _, n := range f.tree.Nodes {
		if n.Ready && n.Failing == "" && !n.Stale {
			want++
		}
	}
	require.Len(t, seen, want)
	for _, odd := range []string{"/?page=0", "/?page=-3", "/?page=9999999", "/?page=x"} {
		p.read(odd)
	}
	require.Equal(t, http.StatusNotFound, p.get("/host/branch-none").StatusCode)
	require.Equal(t, http.StatusNotFound, p.get("/node/none").StatusCode)
	require.Equal(t, http.StatusNotFound, p.get("/none").StatusCode)
	require.Equal(t, http.StatusRequestURITooLong, p.get("/?q="+strings.Repeat("x", mostQuery)).StatusCode)
	f.tree.Nodes = nil
	_, text = p.read("/")
	require.Contains(t, text, "There are no nodes yet.")
}

// A tree of 10,000 nodes, healthy or not, is a page of at most 100 kB.
func TestAPageOfTenThousandNodes(t *testing.T) {
	f := fleetOf(500, 19, strings.Repeat("long text ", 300))
	require.GreaterOrEqual(t, len(f.tree.Nodes), 10_000)
	p := open(t, f, "the operator key")
	for _, to := range views() {
		res := p.get(to)
		require.Equal(t, http.StatusOK, res.StatusCode, to)
		if strings.Contains(to, "plan=") || strings.HasPrefix(to, "/node") { // what is long about one object is shown
			continue
		}
		require.LessOrEqual(t, res.ContentLength, int64(100_000), to)
	}
}

// BenchmarkPage makes the page of 10,000 nodes, which 500 hosts reported, as people get it: from the agent in its own process (web in
// agent.hcl), by its socket (web), and over HTTPS (web --server). All of it counts: the agent's answer, its way, and the page.
// cpu-ms/op is processor time, which says more on a busy machine. The goal is 50 ms.
func BenchmarkPage(b *testing.B) {
	f := fleetOf(500, 19, "hello")
	own, below := f.tree, map[string][]wire.ReportNode{}
	own.Nodes, own.Findings = nil, diag.List{}
	for _, n := range f.tree.Nodes {
		if n.Parent == own.Identity {
			own.Nodes = append(own.Nodes, n)
		} else {
			below[n.Parent] = append(below[n.Parent], n)
		}
	}
	var reports []wire.ReceivedReport
	for host, nodes := range below {
		reports = append(reports, wire.ReceivedReport{Report: wire.Report{Version: 1, Identity: host, Commit: commitID, Phase: wire.PhaseRun, Ready: true, Nodes: nodes}, ReceivedAt: noon})
	}
	tree := func() wire.Report {
		return own.Fold(reports, func(string) time.Duration { return time.Hour }, noon)
	}
	require.Len(b, tree().Nodes, len(f.tree.Nodes))
	there := controltest.New()
	server := &control.Server{Agent: there, Receipts: there, Facts: control.NewFacts("father"), Events: f.events, Log: slog.New(slog.DiscardHandler), Tree: tree}
	dir, err := os.MkdirTemp("", "hg") // short enough for a socket
	require.NoError(b, err)
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	ln, err := control.Listen(b.Context(), dir+"/agent.sock")
	require.NoError(b, err)
	go func() { _ = server.Serve(b.Context(), ln) }() // until the benchmark ends
	local, err := control.Dial(b.Context(), dir+"/agent.sock")
	require.NoError(b, err)
	https := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(struct {
			agent.Status
			Tree wire.Report `json:"tree"`
		}{there.Status(), tree()})
	}))
	b.Cleanup(https.Close)
	for name, source := range map[string]Source{"inside": server.Client(b.Context()), "socket": local, "https": control.Remote(https.URL, https.Client().Transport)} {
		b.Run(name, func(b *testing.B) {
			h := Handler(Options{Source: source, Access: Access{Keys: testKeys}, Now: func() time.Time { return noon }})
			r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
			r.AddCookie((&Access{Keys: testKeys}).cookie(roleRead, noon))
			var before, after syscall.Rusage
			require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &before))
			for b.Loop() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				require.Equal(b, http.StatusOK, w.Code, w.Body)
				b.ReportMetric(float64(w.Body.Len()), "bytes")
			}
			require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &after))
			used := time.Duration(after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano())
			b.ReportMetric(float64(used.Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// inert fails if a page has anything that a text put there.
func inert(t *testing.T, to string, doc *html.Node) {
	t.Helper()
	ids := map[string]bool{}
	for d := range doc.Descendants() {
		if d.Type != html.ElementNode {
			require.NotEqual(t, html.CommentNode, d.Type, to)
			continue
		}
		switch d.Data {
		case "script":
			require.True(t, attr(d, "src") == assets().module && d.FirstChild == nil, to)
		case "link":
			require.Contains(t, []string{"icon", "stylesheet"}, attr(d, "rel"))
		case "img", "svg", "iframe", "object", "embed", "base", "style", "video", "math", "template":
			t.Fatalf("%s has an element %s", to, d.Data)
		}
		for _, a := range d.Attr {
			require.False(t, strings.HasPrefix(a.Key, "on") || a.Key == "style" || a.Key == "srcdoc", "%s: <%s %s>", to, d.Data, a.Key)
			switch a.Key {
			case "href", "src", "action":
				require.True(t, local(a.Val) || strings.HasPrefix(a.Val, "#") || strings.HasPrefix(a.Val, "data:image/svg+xml,"), "%s: %s", to, a.Val)
			case "id":
				require.False(t, ids[a.Val], "%s: id %s twice", to, a.Val)
				ids[a.Val] = true
			}
		}
		if d.Data == "section" && slices.ContainsFunc(d.Attr, func(a html.Attribute) bool { return a.Key == "data-live" }) {
			require.NotEmpty(t, attr(d, "id"), "%s: a region has a name", to)
		}
	}
	for d := range doc.Descendants() {
		if d.Data == "dl" {
			require.Equal(t, "dt", d.FirstChild.Data, "%s: a list of definitions begins with a term", to)
		}
		if d.Data == "label" {
			require.True(t, ids[attr(d, "for")], to)
		}
	}
}

const hostileText = "<img src=x onerror=alert(1)>\"'`</script><script>alert(2)</script>\u202ekcolb\u202c \u2066x\u2069 javascript:alert(3) \x1b[2J\x00 ]]> <!-- "

// Names and notes from Proxmox VE, however they are, are text.
func TestHostileTextIsInert(t *testing.T) {
	for name, text := range map[string]string{"markup": hostileText, "10 kB": strings.Repeat("A", 10<<10), "no UTF-8": "\xff\xfe<b>\xed\xa0\x80"} {
		f := fleetOf(3, 12, text)
		f.tree.Nodes[2].Name, f.status.Nodes[0].PVENode = text, text
		p := open(t, f, "the operator key")
		for _, to := range append(views(), "/node/"+url.PathEscape(text), "/?q="+url.QueryEscape(text[:min(len(text), 500)])) {
			if len(to) > mostQuery {
				continue
			}
			doc, shown := p.read(to)
			inert(t, name+" "+to, doc)
			for _, r := range "\u202e\u202c\u2066\u2069\x1b\x00" {
				require.NotContains(t, shown, string(r), "%s %s", name, to)
			}
		}
	}
}

func FuzzAnyText(f *testing.F) {
	f.Add("web-1", hostileText)
	f.Add("\" onmouseover=\"x", "javascript:alert(1)")
	f.Fuzz(func(t *testing.T, name, text string) {
		if len(name)+len(text) > 1000 || name == "" {
			t.Skip()
		}
		a := fleetOf(1, 4, text)
		a.tree.Nodes[1].Name, a.tree.Nodes[1].Commit, a.status.Suspended[0].Manifest = name, text, name
		p := open(t, a, "the operator key")
		for _, to := range []string{"/", "/?q=" + url.QueryEscape(text), "/host/father?plan=now", "/host/branch-0", "/node/app?plan=now", "/timeline?address=" + url.QueryEscape(name), "/commit/3f2c"} {
			if res := p.get(to); res.StatusCode == http.StatusOK {
				doc, err := html.Parse(res.Body)
				require.NoError(t, err)
				inert(t, to, doc)
			}
		}
	})
}

// Text that a person reads without scripts is what the module would show: it only asks for the same address.
func TestTheModuleIsSmall(t *testing.T) {
	text, err := os.ReadFile("assets/module.js")
	require.NoError(t, err)
	require.LessOrEqual(t, strings.Count(string(text), "\n"), 150)
	p := open(t, fleetOf(1, 1, ""), "")
	for name, kind := range map[string]string{assets().module: "text/javascript", assets().style: "text/css"} {
		res := p.get(name)
		require.Equal(t, http.StatusOK, res.StatusCode)
		require.Contains(t, res.Header.Get("Content-Type"), kind)
		require.Contains(t, res.Header.Get("Cache-Control"), "immutable")
	}
	require.Equal(t, http.StatusNotFound, p.get("/assets/module.js").StatusCode)
}

func TestS1Rebinding(t *testing.T) {
	h := Handler(Options{Source: fleetOf(1, 1, ""), Access: Access{Keys: testKeys, Token: NewToken(true)}, Hosts: []string{"127.0.0.1:4711"}})
	for host, want := range map[string]int{"127.0.0.1:4711": http.StatusUnauthorized, "evil.example": http.StatusMisdirectedRequest, "evil.example:4711": http.StatusMisdirectedRequest, "127.0.0.1": http.StatusMisdirectedRequest, "": http.StatusMisdirectedRequest} {
		r := httptest.NewRequest(http.MethodGet, "/sign-in", http.NoBody)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, want, w.Code, host)
	}
}

// The token of an address is good for one use, and the cookie that it is exchanged for is for this site alone.
func TestS1TheTokenIsGoodOnce(t *testing.T) {
	token := NewToken(false)
	p := &browser{t: t, h: Handler(Options{Source: fleetOf(1, 1, ""), Access: Access{Keys: RandomKeys(), Token: token}, Now: func() time.Time { return noon }})}
	require.Equal(t, http.StatusUnauthorized, p.get("/sign-in?token=x").StatusCode)
	require.Equal(t, http.StatusUnauthorized, p.get("/sign-in?token=").StatusCode)
	res := p.get(token.Path())
	require.Equal(t, "/", res.Header.Get("Location"))
	c := res.Cookies()[0]
	require.True(t, c.HttpOnly && c.SameSite == http.SameSiteStrictMode && !c.Secure && c.Path == "/")
	require.Zero(t, c.Expires, "it ends with the browser")
	another := Access{Token: NewToken(false)}
	require.NotEqual(t, another.cookieName(), c.Name, "browsers send cookies to every port")
	require.Equal(t, http.StatusUnauthorized, p.get(token.Path()).StatusCode)
	require.Equal(t, http.StatusUnauthorized, p.post("/sign-in", url.Values{"key": {""}}).StatusCode)
	p.cookie = c
	p.read("/")
	require.Equal(t, http.StatusForbidden, p.post("/reconcile", nil).StatusCode, "it may read")
}

func TestS1Cookies(t *testing.T) {
	f := fleetOf(1, 1, "")
	now, read, operator := noon, []byte("read"), []byte("operator")
	p := &browser{t: t, h: Handler(Options{Source: f, Access: Access{Keys: func() ([]byte, []byte) { return read, operator }, Secure: true}, Now: func() time.Time { return now }})}
	require.Equal(t, "/sign-in?to=%2Fhost%2Ffather%3Fplan%3Dnow", p.get("/host/father?plan=now").Header.Get("Location"))
	require.Equal(t, http.StatusUnauthorized, p.get("/events").StatusCode)
	require.Equal(t, http.StatusUnauthorized, p.post("/suspend", nil).StatusCode)

	res := p.post("/sign-in", url.Values{"key": {" read\n"}, "to": {"/timeline"}})
	require.Equal(t, "/timeline", res.Header.Get("Location"))
	c := res.Cookies()[0]
	require.True(t, c.HttpOnly && c.SameSite == http.SameSiteStrictMode && c.Secure)
	require.NotContains(t, c.Value, "read\n")
	p.cookie = c
	p.read("/")
	good := c.Value
	for _, bad := range []string{"", "read", "read.99999999999", strings.Replace(good, "read", "operator", 1), strings.Replace(good, ".", ".9", 1), good + "0", "." + good, "none.99999999999." + seal(nil, "cookie", "none.99999999999")} {
		p.cookie = &http.Cookie{Name: cookieName, Value: bad}
		require.Equal(t, http.StatusSeeOther, p.get("/").StatusCode, bad)
	}
	p.cookie = c
	now = noon.Add(cookieTime)
	require.Equal(t, http.StatusSeeOther, p.get("/").StatusCode, "it has expired")
	now = noon
	p.read("/")
	read = []byte("another")
	require.Equal(t, http.StatusSeeOther, p.get("/").StatusCode, "its key was replaced")
	read = nil
	require.Equal(t, http.StatusUnauthorized, p.post("/sign-in", url.Values{"key": {""}}).StatusCode, "no key is no key")
	for _, to := range []string{"//evil.example", "https://evil.example", "/\\evil.example", "/\t/evil.example", "javascript:alert(1)", ""} {
		require.Equal(t, "/", p.post("/sign-in", url.Values{"key": {"operator"}, "to": {to}}).Header.Get("Location"), to)
	}
	out := p.post("/sign-out", nil)
	require.Negative(t, out.Cookies()[0].MaxAge)
}

func TestS1WrongKeysAreLimited(t *testing.T) {
	now := noon
	p := &browser{t: t, h: Handler(Options{Source: fleetOf(1, 1, ""), Access: Access{Keys: testKeys}, Now: func() time.Time { return now }})}
	for range mostFailures {
		require.Equal(t, http.StatusUnauthorized, p.post("/sign-in", url.Values{"key": {"wrong"}}).StatusCode)
	}
	require.Equal(t, http.StatusTooManyRequests, p.post("/sign-in", url.Values{"key": {"the read key"}}).StatusCode)
	now = now.Add(2 * failuresTime)
	require.Equal(t, http.StatusSeeOther, p.post("/sign-in", url.Values{"key": {"the read key"}}).StatusCode)
}

// Only an operator sees buttons, and a form counts only with the token of its session.
func TestS1Buttons(t *testing.T) {
	f := fleetOf(2, 2, "")
	reader, operator := open(t, f, "the read key"), open(t, f, "the operator key")
	_, text := reader.read("/")
	require.NotContains(t, text, "Reconcile now")
	doc, text := operator.read("/?q=web")
	require.Contains(t, text, "Reconcile now")
	token := ""
	for d := range doc.Descendants() {
		if attr(d, "name") == "csrf" {
			token = attr(d, "value")
		}
	}
	require.NotEmpty(t, token)
	forms := []struct {
		to   string
		form url.Values
		did  string
	}{
		{"/reconcile", url.Values{}, "check"},
		{"/reconcile", url.Values{"node": {"branch-1"}}, "check branch-1"},
		{"/suspend", url.Values{"reason": {" restore "}, "manifest": {"db"}, "for": {"4h"}}, `suspend "db" "restore" 4h0m0s`},
		{"/suspend", url.Values{"reason": {"x"}, "for": {""}}, `suspend "" "x" 0s`},
		{"/resume", url.Values{"manifest": {"db"}}, `resume "db"`},
	}
	for _, c := range forms {
		f.asked = nil
		c.form.Set("back", "/host/father")
		for _, wrong := range []string{"", "x", token[:10]} {
			c.form.Set("csrf", wrong)
			require.Equal(t, http.StatusForbidden, operator.post(c.to, c.form).StatusCode)
		}
		c.form.Set("csrf", token)
		require.Equal(t, http.StatusForbidden, reader.post(c.to, c.form).StatusCode)
		require.Equal(t, http.StatusNotFound, operator.get(c.to).StatusCode)
		require.Empty(t, f.asked)
		res := operator.post(c.to, c.form)
		require.Equal(t, http.StatusSeeOther, res.StatusCode)
		require.Equal(t, "/host/father", res.Header.Get("Location"))
		require.Equal(t, []string{c.did}, f.asked)
	}
	f.asked = nil
	require.Equal(t, http.StatusBadRequest, operator.post("/suspend", url.Values{"csrf": {token}, "reason": {"x"}, "for": {"a while"}}).StatusCode)
	require.Empty(t, f.asked)
	f.err = &control.ProblemError{Status: http.StatusNotFound, Message: "there is nothing to resume"}
	require.Equal(t, http.StatusNotFound, operator.post("/resume", url.Values{"csrf": {token}}).StatusCode)
	f.err = errors.New("the agent does not answer")
	require.Equal(t, http.StatusBadGateway, operator.get("/").StatusCode)
}

// A browser that comes back gets what happened in between.
func TestEventsContinue(t *testing.T) {
	f := fleetOf(1, 1, "")
	p := open(t, f, "the read key")
	s := httptest.NewServer(p.h)
	defer s.Close()
	begin := func(last string) (next func() string, end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/events", http.NoBody)
		require.NoError(t, err)
		r.AddCookie(p.cookie)
		if last != "" {
			r.Header.Set("Last-Event-ID", last)
		}
		res, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.Equal(t, "text/event-stream; charset=utf-8", res.Header.Get("Content-Type"))
		lines := bufio.NewScanner(res.Body)
		return func() string {
				for lines.Scan() {
					if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
						return id
					}
				}
				return ""
			}, func() {
				cancel()
				_ = res.Body.Close()
			}
	}
	change := func(pid int) {
		st := f.status
		st.Repository.Error = strings.Repeat("x", pid%2)
		f.events.Record(st)
	}
	next, end := begin("")
	first := next()
	list, _, _ := f.events.After("")
	require.Equal(t, list[len(list)-1].ID, first, "the newest")
	change(1)
	second := next()
	require.NotEqual(t, first, second)
	end()
	for i := range 3 {
		change(2 + i)
	}
	missed, _, _ := f.events.After(second)
	require.Len(t, missed, 3)
	next, end = begin(second)
	defer end()
	for _, e := range missed {
		require.Equal(t, e.ID, next())
	}
}

// A page that shows an agent that is gone must not say that it follows it.
func TestEventsOfAnAgentThatIsGone(t *testing.T) {
	f := fleetOf(1, 1, "")
	p := open(t, f, "the read key")
	f.err = errors.New("the agent does not answer")
	for _, to := range []string{"/events", "/events?after=1-1"} {
		require.Equal(t, http.StatusBadGateway, p.get(to).StatusCode)
	}
}

// A filter of the newest passes says that there are older ones.
func TestTheTimelineSaysHowFarItGoes(t *testing.T) {
	f := fleetOf(1, 1, "")
	f.receipts = slices.Repeat(f.receipts, receiptsRead+1)
	_, text := open(t, f, "the read key").read("/timeline?commit=none")
	require.Contains(t, text, "The newest 500 passes were searched.")
}

// Pages that follow the events leave connections of the agent for those who ask it.
func TestEventsLeaveConnections(t *testing.T) {
	require.LessOrEqual(t, mostStream, 64/2) // control serves 64
}
