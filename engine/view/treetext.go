package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Tree draws an agent with its nodes, and what they reported.
func Tree(r wire.Report, now time.Time, p Paint) string {
	t := treeText{below: map[string][]wire.ReportNode{}, now: now, paint: p}
	for _, n := range r.Nodes {
		t.below[n.Parent] = append(t.below[n.Parent], n)
	}
	root := []string{diag.Clean(r.Identity), string(r.Phase), t.ready(r.Ready, false, "")}
	if r.Commit != "" {
		root = append(root, "at "+Short(r.Commit))
	}
	fmt.Fprintln(&t.out, strings.Join(root, "  "))
	t.draw(r.Identity, "")
	if r.Cut > 0 {
		fmt.Fprintf(&t.out, "and %s that did not fit into a report\n", diag.Count(r.Cut, "node"))
	}
	return t.out.String()
}

// treeText is a tree that is drawn.
type treeText struct {
	below map[string][]wire.ReportNode
	now   time.Time
	paint Paint
	out   strings.Builder
}

func (t *treeText) ready(ready, stale bool, failing string) string {
	switch {
	case stale:
		return t.paint.as(bad, "stale")
	case ready && failing != "":
		return t.paint.as(bad, "failing")
	case ready:
		return t.paint.as(good, "ready")
	default:
		return t.paint.as(bad, "not ready")
	}
}

// draw draws what is below a node; indent is what its lines begin with.
func (t *treeText) draw(parent, indent string) {
	nodes := t.below[parent]
	width := 0
	for _, n := range nodes {
		width = max(width, len(n.Name))
	}
	for i, n := range nodes {
		branch, deeper := "├── ", "│   "
		if i == len(nodes)-1 {
			branch, deeper = "└── ", "    "
		}
		fields := []string{fmt.Sprintf("%-*s", width, diag.Clean(n.Name)), fmt.Sprintf("%-3s", n.Type), string(n.Phase), t.ready(n.Ready, n.Stale, n.Failing)}
		if n.Drift > 0 {
			fields = append(fields, fmt.Sprintf("%d differ", n.Drift))
		}
		if n.Commit != "" {
			fields = append(fields, "at "+Short(n.Commit))
		}
		if !n.Reported.IsZero() {
			fields = append(fields, "reported "+ago(t.now, n.Reported)+" ago")
		}
		if n.Error != "" {
			fields = append(fields, diag.Clean(firstOf(n.Error)))
		}
		if n.Failing != "" {
			fields = append(fields, "check "+diag.Line(n.Failing))
		}
		fmt.Fprintf(&t.out, "%s%s%s\n", indent, branch, strings.Join(fields, "  "))
		t.draw(n.Name, indent+deeper)
	}
}

// firstOf is the first line of a text.
func firstOf(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
