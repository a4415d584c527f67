package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Tree draws an agent with its nodes, and what they reported.
func (p Paint) Tree(r wire.Report, now time.Time) string {
	t := treeText{below: map[string][]wire.ReportNode{}, now: now, paint: p}
	for _, n := range r.Nodes {
		t.below[n.Parent] = append(t.below[n.Parent], n)
	}
	state, tone := ready(r.Ready, false, "")
	root := []string{diag.Clean(r.Identity), string(r.Phase), p.as(tone, state)}
	if r.Commit != "" {
		root = append(root, "at "+Short(r.Commit))
	}
	fmt.Fprintln(&t.out, strings.Join(root, "  "))
	t.draw(r.Identity, "")
	if r.Cut > 0 {
		fmt.Fprintln(&t.out, Cut(r.Cut))
	}
	return t.out.String()
}

// Cut counts nodes that a report has no room for.
func Cut(n int) string {
	return fmt.Sprintf("and %s that did not fit into a report", diag.Count(n, "node"))
}

// treeText is a tree that is drawn.
type treeText struct {
	below map[string][]wire.ReportNode
	now   time.Time
	paint Paint
	out   strings.Builder
}

// ready is the state of a node in one or two words.
func ready(ready, stale bool, failing string) (string, Tone) {
	switch {
	case stale:
		return "stale", bad
	case ready && failing != "":
		return "failing", bad
	case ready:
		return "ready", good
	default:
		return "not ready", bad
	}
}

// TreeState is the state of a node in one or two words.
func TreeState(n wire.ReportNode) (string, Tone) { return ready(n.Ready, n.Stale, n.Failing) }

// TreeNode is a node of a tree in words. What does not apply is "".
type TreeNode struct {
	Name, Type, Phase string
	State             string
	Tone              Tone
	Drift             string // 2 differ
	Commit            string // its first digits
	Reported          string // 12 s ago
	Error, Check      string // one line each
}

// TreeNodeOf puts a node into words.
func TreeNodeOf(n wire.ReportNode, now time.Time) TreeNode {
	t := TreeNode{Name: diag.Clean(n.Name), Type: n.Type, Phase: string(n.Phase), Error: diag.Clean(firstOf(n.Error))}
	t.State, t.Tone = TreeState(n)
	if n.Life != "" && n.Life != string(plan.Operating) {
		t.Phase = diag.Clean(n.Life)
	}
	if n.Drift > 0 {
		t.Drift = fmt.Sprintf("%d differ", n.Drift)
	}
	if n.Commit != "" {
		t.Commit = Short(n.Commit)
	}
	if !n.Reported.IsZero() {
		t.Reported = ago(now, n.Reported) + " ago"
	}
	if n.Failing != "" {
		t.Check = "check " + diag.Line(n.Failing)
	}
	return t
}

// draw draws what is below a node; indent is what its lines begin with.
func (t *treeText) draw(parent, indent string) {
	nodes := t.below[parent]
	width := 0
	for _, n := range nodes {
		width = max(width, len(n.Name))
	}
	for i, node := range nodes {
		branch, deeper := "├── ", "│   "
		if i == len(nodes)-1 {
			branch, deeper = "└── ", "    "
		}
		n := TreeNodeOf(node, t.now)
		fields := []string{fmt.Sprintf("%-*s", width, n.Name), fmt.Sprintf("%-3s", n.Type), n.Phase, t.paint.as(n.Tone, n.State)}
		add := func(before, text string) {
			if text != "" {
				fields = append(fields, before+text)
			}
		}
		add("", n.Drift)
		add("at ", n.Commit)
		add("reported ", n.Reported)
		add("", n.Error)
		add("", n.Check)
		fmt.Fprintf(&t.out, "%s%s%s\n", indent, branch, strings.Join(fields, "  "))
		t.draw(node.Name, indent+deeper)
	}
}

// firstOf is the first line of a text.
func firstOf(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
