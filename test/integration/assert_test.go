package integration_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// The questions that several stories ask.

// requireFinding requires a finding about an address ("" for none) that has all
// these words in it.
func requireFinding(t *testing.T, l diag.List, address string, words ...string) {
	t.Helper()
	for _, f := range l {
		text := f.Summary + "\n" + f.Detail
		if f.Address == address && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) }) {
			return
		}
	}
	require.Fail(t, "no such finding", "about %q with %q in:\n%v", address, words, l)
}

// why is the reason for which a plan holds a guest for foreign.
func why(p *plan.Plan, vmid int) string {
	for _, f := range p.Unmanaged {
		if f.VMID == vmid {
			return f.Why
		}
	}
	return ""
}

// notes is what people wrote into a description: all but the ownership tag.
func notes(g pve.Guest) string {
	text := strings.TrimRight(g.Config["description"], "\n") // PVE ends those of containers with one
	return strings.TrimRight(text[:strings.LastIndexByte(text, '\n')+1], "\n")
}

// vmidsOf are those of all guests of a name, in order.
func (s *story) vmidsOf(name string) []int {
	var ids []int
	for _, g := range s.host.Snapshot().Guests {
		if g.Name() == name {
			ids = append(ids, g.VMID)
		}
	}
	return ids
}

// vmidOf is that of the only guest of a name.
func (s *story) vmidOf(name string) int {
	s.t.Helper()
	ids := s.vmidsOf(name)
	require.Len(s.t, ids, 1, name)
	return ids[0]
}

// everyName lists the names of all guests.
func (s *story) everyName() []string {
	var names []string
	for _, g := range s.host.Snapshot().Guests {
		names = append(names, g.Name())
	}
	return names
}

// unchanged requires that these guests are as they were.
func (s *story) unchanged(before []pve.Guest) {
	s.t.Helper()
	snap := s.host.Snapshot()
	for _, was := range before {
		is := guestIn(snap, was.VMID)
		require.NotNil(s.t, is, "guest %d is gone", was.VMID)
		require.Equal(s.t, was, *is)
	}
}

// nodeOf is what a report says about a node.
func nodeOf(r engine.Report, name string) engine.Node {
	for _, n := range r.Nodes {
		if n.Name == name {
			return n
		}
	}
	return engine.Node{}
}

// status is what a report says became of a node.
func status(r engine.Report, name string) engine.Status { return nodeOf(r, name).Status }

// withoutEntry takes the entries of a list out of an answer that hold a text.
func withoutEntry(t *testing.T, answer, text string) string {
	t.Helper()
	var doc struct {
		Data []json.RawMessage `json:"data"`
	}
	require.NoError(t, json.Unmarshal([]byte(answer), &doc))
	before := len(doc.Data)
	doc.Data = slices.DeleteFunc(doc.Data, func(e json.RawMessage) bool { return strings.Contains(string(e), text) })
	require.Less(t, len(doc.Data), before, "no entry has %s", text)
	short, err := json.Marshal(doc)
	require.NoError(t, err)
	return string(short)
}
