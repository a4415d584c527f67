package report

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// StaleAfter is how many periods a report is valid.
const StaleAfter = 3

// Received is a report with the time at which it came, by our clock.
type Received struct {
	Report
	ReceivedAt time.Time
}

// Stale reports whether nothing came for three periods.
func (r Received) Stale(now time.Time, every time.Duration) bool {
	return now.Sub(r.ReceivedAt) > StaleAfter*every
}

// Store holds the last report of each child. It may be used from several goroutines; what it
// returns is not changed afterwards.
type Store struct {
	mu   sync.Mutex // for a moment only: children report side by side
	last map[string]Received
}

// NewStore makes a Store without reports.
func NewStore() *Store { return &Store{last: map[string]Received{}} }

// Put keeps a report. An older one than the store has, by the clock of the child, is not kept:
// requests may overtake each other. It reports whether it was kept.
func (s *Store) Put(r Report, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, there := s.last[r.Identity]
	// A clock that was set back must not silence the child: what is stale is replaced by anything.
	if there && r.At.Before(old.At) && now.Sub(old.ReceivedAt) < MaxAhead {
		return false
	}
	s.last[r.Identity] = Received{r, now}
	return true
}

// Get gives the last report of a child.
func (s *Store) Get(identity string) (Received, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, there := s.last[identity]
	return r, there
}

// Through is the child whose subtree has a node, as it reported; "" if none has.
func (s *Store) Through(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, identity := range slices.Sorted(maps.Keys(s.last)) {
		if slices.ContainsFunc(s.last[identity].Nodes, func(n Node) bool { return n.Name == name }) {
			return identity
		}
	}
	return ""
}

// All lists the last reports, by identity.
func (s *Store) All() []Received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.last), func(a, b Received) int { return cmp.Compare(a.Identity, b.Identity) })
}

// Keep drops the reports of children that are no longer served, so that a store does not grow with
// every identity that ever was.
func (s *Store) Keep(served func(identity string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.last, func(identity string, _ Received) bool { return !served(identity) })
}

// Fold puts what children reported below the report of their parent: the nodes of each behind the
// child's own line, which the parent has from its host. Where a child does not report any more, or
// never did, its line says so and is not ready; what is below a stale one is stale, too. Every is how
// often a child reports, 0 for one that does so only when it boots. What has no room is counted in Cut.
// Own is not changed.
func Fold(own Report, children []Received, every func(identity string) time.Duration, now time.Time) Report {
	out := own
	out.Nodes = nil
	reports := make(map[string]Received, len(children))
	for _, c := range children {
		reports[c.Identity] = c
	}
	taken := map[string]bool{own.Identity: true} // no child can claim a node of the parent
	for _, n := range own.Nodes {
		taken[n.Name] = true
	}
	out.Findings = bounded(own.Findings)
	room := MaxBytes - size(out) - len(`,"cut":`) - 20
	add := func(n Node) bool {
		n.Error = Shorten(n.Error)
		needs := size(n) + len(",")
		if len(out.Nodes) >= MaxNodes || needs > room {
			out.Cut++
			return false
		}
		room -= needs
		out.Nodes = append(out.Nodes, n)
		return true
	}
	for _, n := range own.Nodes {
		c, reported := reports[n.Name]
		if n.Type == "pve" && n.Phase != Destroy || reported {
			n = withReport(n, c, reported, every(n.Name), now)
		}
		out.Cut += c.Cut
		if !add(n) {
			out.Cut += len(c.Nodes)
			continue
		}
		above := map[string]bool{n.Name: true}
		for _, below := range c.Nodes {
			if taken[below.Name] || !above[below.Parent] { // or its parent had no room
				out.Cut++
				continue
			}
			if below.Reported.IsZero() {
				below.Reported = c.ReceivedAt
			}
			if n.Stale {
				below.Stale, below.Ready = true, false
			}
			if add(below) {
				taken[below.Name], above[below.Name] = true, true
			}
		}
	}
	out.Ready = out.Ready && out.Cut == 0 && !slices.ContainsFunc(out.Nodes, func(n Node) bool { return !n.Ready })
	return out
}

// bounded gives as many findings, with texts as long, as a report may have; they take a quarter of
// its bytes at most.
func bounded(all diag.List) diag.List {
	out, room := diag.List{}, MaxBytes/4
	for _, f := range all {
		for _, text := range []*string{&f.Summary, &f.Detail, &f.Address, &f.Code, &f.At.File} {
			*text = Shorten(*text)
		}
		if room -= size(f) + len(","); room < 0 || len(out) == MaxFindings {
			break
		}
		out = append(out, f)
	}
	return out
}

// size is how many bytes a value has in the document.
func size(v any) int {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, numbers and times always marshal
	}
	return len(b)
}

// withReport completes the line of a child by what it reported itself.
func withReport(n Node, c Received, reported bool, every time.Duration, now time.Time) Node {
	switch {
	case !reported:
		n.Ready, n.Error = false, cmp.Or(n.Error, "has not reported yet")
		return n
	case every > 0 && c.Stale(now, every):
		n.Ready, n.Stale = false, true
		n.Error = cmp.Or(n.Error, "last reported "+c.ReceivedAt.UTC().Format(time.RFC3339)+": its state since then is unknown")
	case !c.Ready:
		n.Ready = false
		if n.Error == "" {
			n.Error = c.Problem()
		}
	}
	n.Reported, n.Commit = c.ReceivedAt, c.Commit
	return n
}

// Problem says why a child is not ready, as far as its own findings do; "" if they do not.
func (r Report) Problem() string {
	for _, f := range r.Findings {
		if f.Summary != "" {
			return f.Summary
		}
	}
	return ""
}

// Shorten cuts a text to what a report may have, at a character.
func Shorten(text string) string {
	const end = "…"
	if len(text) <= MaxText {
		return text
	}
	text = strings.ToValidUTF8(text[:MaxText-len(end)], "")
	return text + end
}
