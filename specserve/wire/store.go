package wire

import (
	"cmp"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// staleAfter is the number of periods for which a report is valid.
const staleAfter = 3

// ReceivedReport is a report with the time at which it came, by our clock.
type ReceivedReport struct {
	Report
	ReceivedAt time.Time
}

// Period returns the interval of the child's reports: its own, else the usual one. 0: only when it boots.
func (r ReceivedReport) Period(usual time.Duration) time.Duration {
	if r.Every > 0 {
		return time.Duration(r.Every) * time.Second
	}
	return usual
}

// Stale reports whether nothing came for three periods of the child. Usual is its period unless it says
// another one. A report of a child that reports only when it boots is never stale.
func (r ReceivedReport) Stale(now time.Time, usual time.Duration) bool {
	every := r.Period(usual)
	return every > 0 && now.Sub(r.ReceivedAt) > staleAfter*every
}

// Same reports whether a report says the same as another one, at another time.
func (r Report) Same(as Report) bool { return reflect.DeepEqual(r.timeless(), as.timeless()) }

// timeless is a report without its time.
func (r Report) timeless() Report {
	r.At, r.Nodes = time.Time{}, slices.Clone(r.Nodes)
	for i := range r.Nodes {
		r.Nodes[i].Reported = time.Time{}
	}
	return r
}

// ReportStore holds the last report of each child. It may be used from several goroutines; what it
// returns is not changed afterwards. The zero value has no reports.
type ReportStore struct {
	mu      sync.Mutex // for a moment only: children report side by side
	last    map[string]ReceivedReport
	awaited map[string]time.Time // since when the first report of a child is waited for
}

// Put keeps a report. An older one than the store has, by the clock of the child, is not kept:
// requests may overtake each other. It reports whether it was kept.
func (s *ReportStore) Put(r Report, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, there := s.last[r.Identity]
	// A clock that was set back must not silence the child: what is stale is replaced by anything.
	if there && r.At.Before(old.At) && now.Sub(old.ReceivedAt) < maxAhead {
		return false
	}
	if s.last == nil {
		s.last = map[string]ReceivedReport{}
	}
	s.last[r.Identity] = ReceivedReport{r, now}
	return true
}

// Get returns the last report of a child.
func (s *ReportStore) Get(identity string) (ReceivedReport, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, there := s.last[identity]
	return r, there
}

// Await drops the last report of a child that is created now, since it came from another machine, and waits for its first.
func (s *ReportStore) Await(identity string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.last, identity)
	s.await(identity, now)
}

func (s *ReportStore) await(identity string, now time.Time) {
	if s.awaited == nil {
		s.awaited = map[string]time.Time{}
	}
	s.awaited[identity] = now
}

// AwaitedSince returns the time at which a child was created, or else of the first call: a store does not outlive its process.
func (s *ReportStore) AwaitedSince(identity string, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.awaited[identity]; !there {
		s.await(identity, now)
	}
	return s.awaited[identity]
}

// Through is the child whose subtree has a node, as it reported; "" if none has. If several claim the node, the one
// that manages it itself counts, rather than one that heard of it from further down.
func (s *ReportStore) Through(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	through, nearest := "", 0
	for _, identity := range slices.Sorted(maps.Keys(s.last)) {
		r := s.last[identity]
		depth := r.depths()
		if d := depth[name]; name != identity && d > 0 && (through == "" || d < nearest) {
			through, nearest = identity, d
		}
	}
	return through
}

// depths says how far below the reporting child each of its nodes is: 1 for its own.
func (r Report) depths() map[string]int {
	depth := map[string]int{r.Identity: 0}
	for _, n := range r.Nodes { // each has its parent before it
		depth[n.Name] = depth[n.Parent] + 1
	}
	return depth
}

// All lists the last reports, by identity.
func (s *ReportStore) All() []ReceivedReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Collect(maps.Values(s.last))
	sort.Slice(all, func(i, j int) bool { return all[i].Identity < all[j].Identity })
	return all
}

// Keep drops the reports of children that are no longer served, so that a store does not grow with
// every identity that ever was.
func (s *ReportStore) Keep(served func(identity string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.last, func(identity string, _ ReceivedReport) bool { return !served(identity) })
	maps.DeleteFunc(s.awaited, func(identity string, _ time.Time) bool { return !served(identity) })
}

// Fold adds the reports of children to that of their parent: the nodes of each after the child's own line,
// which the parent has from its host. If a child stopped reporting or never did, its line says so and is not ready;
// the nodes below a stale one are stale, too. every is the interval of a child that does not report its own, 0 for
// one that reports only at boot. r is not changed.
//
// Each node is listed once, as reported by the nearest agent. The nodes of the parent itself come first, then those
// that its children manage, and so on, so that claims from further down cannot take a name or room. Nodes without
// room are counted in Cut.
func (r Report) Fold(children []ReceivedReport, every func(identity string) time.Duration, now time.Time) Report {
	f := folding{out: r, reports: make(map[string]ReceivedReport, len(children)), taken: map[string]string{r.Identity: r.Identity}}
	for _, c := range children {
		f.reports[c.Identity] = c
	}
	f.out.Nodes, f.out.Findings = nil, bounded(r.Findings)
	f.room = MaxReport - size(f.out) - len(`,"cut":`) - 20
	top := make([]ReportNode, 0, len(r.Nodes))
	for _, n := range r.Nodes {
		f.taken[n.Name] = "" // also where it has no room: it is the parent's
		c, reported := f.reports[n.Name]
		if n.Type == "pve" && n.Phase != PhaseDestroy || reported {
			n = withReport(n, c, reported, every(n.Name), now)
		}
		f.out.Cut += c.Cut
		if n.Error = ShortenText(n.Error); f.fits(n) {
			f.taken[n.Name] = r.Identity
			top = append(top, n)
		} else {
			f.out.Cut += len(c.Nodes)
		}
	}
	f.below(top)
	f.out.Nodes = slices.Grow(f.out.Nodes, f.lines)
	for _, n := range top {
		f.out.Nodes = append(f.out.Nodes, n)
		for _, below := range f.reports[n.Name].Nodes {
			if f.taken[below.Name] == n.Name {
				f.out.Nodes = append(f.out.Nodes, lineOf(n, below))
			}
		}
	}
	f.out.Ready = f.out.Ready && f.out.Cut == 0 && !slices.ContainsFunc(f.out.Nodes, func(n ReportNode) bool { return !n.Ready })
	return f.out
}

// folding is one Fold.
type folding struct {
	out     Report
	reports map[string]ReceivedReport // by identity
	taken   map[string]string         // nodes, with the identity of whose report has them
	lines   int
	room    int // bytes
}

// fits takes the room of a line, if there is enough.
func (f *folding) fits(n ReportNode) bool {
	needs := lineSize(&n) + len(",")
	if f.lines >= maxNodes || needs > f.room {
		f.out.Cut++
		return false
	}
	f.lines++
	f.room -= needs
	return true
}

// lineOf is the line of a node that a child reported.
func lineOf(child, n ReportNode) ReportNode {
	n.Error = ShortenText(n.Error)
	if n.Reported.IsZero() {
		n.Reported = child.Reported
	}
	if child.Stale {
		n.Stale, n.Ready = true, false
	}
	return n
}

// below decides which nodes of the children have a line, those that are nearest first.
func (f *folding) below(top []ReportNode) {
	type claim struct {
		by, node *ReportNode
		depth    int
	}
	all := 0
	for _, by := range top {
		all += len(f.reports[by.Name].Nodes)
	}
	claims := make([]claim, 0, all)
	for i := range top {
		r := f.reports[top[i].Name]
		depth := r.depths()
		for k := range r.Nodes {
			claims = append(claims, claim{&top[i], &r.Nodes[k], depth[r.Nodes[k].Name]})
		}
	}
	sort.SliceStable(claims, func(i, j int) bool { return claims[i].depth < claims[j].depth })
	for _, c := range claims {
		_, there := f.taken[c.node.Name]
		if there || c.depth > 1 && f.taken[c.node.Parent] != c.by.Name { // or its parent has no line
			f.out.Cut++
			continue
		}
		if f.fits(lineOf(*c.by, *c.node)) {
			f.taken[c.node.Name] = c.by.Name
		}
	}
}

// bounded gives as many findings, with texts as long, as a report may have; they take a quarter of
// its bytes at most.
func bounded(all diag.List) diag.List {
	out, room := diag.List{}, MaxReport/4
	for _, f := range all {
		for _, text := range []*string{&f.Summary, &f.Detail, &f.Address, &f.Code, &f.At.File, &f.Rule, &f.Waiver} {
			*text = ShortenText(*text)
		}
		if room -= size(f) + len(","); room < 0 || len(out) == maxReportFindings {
			break
		}
		out = append(out, f)
	}
	return out
}

// size is the length of a value in the document, in bytes.
func size(v any) int {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, numbers and times always marshal
	}
	return len(b)
}

// lineSize is size of a line, in a tenth of its time: a tree may have 20,000.
func lineSize(n *ReportNode) int {
	bytes := len(`{"name":"","type":"","parent":"","phase":"","ready":true,"drift":,"since":"","error":""}`)
	if !n.Ready {
		bytes++ // false
	}
	var buf [64]byte
	bytes += len(strconv.AppendInt(buf[:0], int64(n.Drift), 10)) + len(n.Since.AppendFormat(buf[:0], time.RFC3339Nano))
	for _, text := range [...]string{n.Name, n.Type, n.Parent, string(n.Phase), n.Error} {
		bytes += textSize(text)
	}
	for _, o := range [...]struct{ name, text string }{{"failing", n.Failing}, {"commit", n.Commit}, {"refused", n.Refused}, {"life", n.Life}, {"ip", n.IP}} {
		if o.text != "" {
			bytes += len(`,"":""`) + len(o.name) + textSize(o.text)
		}
	}
	for _, o := range [...]struct {
		name string
		set  bool
	}{{"stale", n.Stale}, {"drifted", n.Drifted}, {"failed", n.Failed}, {"unseen", n.Unseen}} {
		if o.set {
			bytes += len(`,"":true`) + len(o.name)
		}
	}
	if n.VMID != 0 {
		bytes += len(`,"vmid":`) + len(strconv.AppendInt(buf[:0], int64(n.VMID), 10))
	}
	if !n.Reported.IsZero() {
		bytes += len(`,"reported":""`) + len(n.Reported.AppendFormat(buf[:0], time.RFC3339Nano))
	}
	return bytes
}

// textSize is the length of a text in the document, without its quotes.
func textSize(text string) int {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || strings.IndexByte(`"\<>&`, c) >= 0 {
			return size(text) - len(`""`) // it is escaped
		}
	}
	return len(text)
}

// Errors of hosts below that have not reported: NotReported, or one that begins with WaitingSaid.
const (
	NotReported = "has not reported yet"
	WaitingSaid = "waiting: "
)

// withReport completes the line of a child by what it reported itself.
func withReport(n ReportNode, c ReceivedReport, reported bool, every time.Duration, now time.Time) ReportNode {
	switch {
	case !reported:
		n.Ready, n.Error = false, cmp.Or(n.Error, NotReported)
		return n
	case c.Stale(now, every):
		n.Ready, n.Stale = false, true
		n.Error = cmp.Or(n.Error, "last reported "+c.ReceivedAt.UTC().Format(time.RFC3339)+": its state since then is unknown")
	case !c.Ready:
		n.Ready = false
		if n.Error == "" {
			n.Error = c.Problem()
		}
	}
	n.Reported, n.Commit, n.Refused, n.Drifted, n.Failed, n.Unseen = c.ReceivedAt, c.Commit, c.Refused, c.Drifted, c.Failed, c.Unseen
	return n
}

// Problem says why a child is not ready, as far as its own findings do; "" if they do not. An error says more than a warning.
func (r Report) Problem() string {
	for _, severity := range []diag.Severity{diag.Error, diag.Warning} {
		for _, f := range r.Findings {
			if f.Summary != "" && f.Severity == severity {
				return f.Summary
			}
		}
	}
	return ""
}

// ShortenText cuts a text to what a report may have, at a character.
func ShortenText(text string) string { return shorten(text, maxText) }

// ShortenFailing cuts the text of ReportNode.Failing to what a report may have.
func ShortenFailing(text string) string { return shorten(text, maxFailing) }

func shorten(text string, bytes int) string {
	const end = "…"
	if len(text) <= bytes {
		return text
	}
	return strings.ToValidUTF8(text[:bytes-len(end)], "") + end
}
