package integration_test

import (
	"maps"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// requests are all that the host has seen so far.
func (s *story) requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

// forgetPeaks begins to count anew how many requests were in service at once.
func (s *story) forgetPeaks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.most)
}

// peaks are the most requests that were in service at once, by the node they were for.
func (s *story) peaks() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.most)
}

// writes counts those that are no reads.
func (s *story) writes() int {
	n := 0
	for _, r := range s.requests() {
		if r.writes() {
			n++
		}
	}
	return n
}

// ours are the guests that were not there when the story began, by name. Two of one
// name are a failure of any story but those that make them by hand.
func (s *story) ours() map[string]pve.Guest {
	s.t.Helper()
	out := map[string]pve.Guest{}
	for _, g := range s.host.Snapshot().Guests {
		if slices.ContainsFunc(s.strangers, func(f pve.Guest) bool { return f.VMID == g.VMID }) {
			continue
		}
		require.NotContains(s.t, out, g.Name(), "two guests of one name")
		out[g.Name()] = g
	}
	return out
}

// names are those of our guests, sorted.
func (s *story) names() []string {
	s.t.Helper()
	return slices.Sorted(maps.Keys(s.ours()))
}

// guest is one of ours.
func (s *story) guest(name string) pve.Guest {
	s.t.Helper()
	g, ok := s.ours()[name]
	require.True(s.t, ok, "no guest %s on the host", name)
	return g
}

func guestIn(snap pve.Snapshot, vmid int) *pve.Guest {
	i := slices.IndexFunc(snap.Guests, func(g pve.Guest) bool { return g.VMID == vmid })
	if i < 0 {
		return nil
	}
	return &snap.Guests[i]
}
