package daemon

import (
	"fmt"
	"slices"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve"
)

// ServedCommit is a commit that came into force.
type ServedCommit struct {
	ID       string
	LastGood string      // the last that was converged to completely; "" for none
	Site     *model.Site // that passes converge to; it must have no errors
	Removed  []string    // children that left the site, and are still on the host
	Moved    []string    // hosts that have another parent by now
	Policies *policy.Set
	Way      string // what the children live on: what the agent lives on, and itself; "" as long as it is not known

	// Needs are the secrets that each node needs. It is called only for a site with children.
	Needs func() (map[string][]string, error)
	// Snapshot is the repository at the commit, and at the last good one. Without one, why says so to clients; an error is tried
	// again with the next call of InForce.
	Snapshot func() (s *serve.Snapshot, why string, err error)
}

// InForce makes a commit the one that is served. A commit that cannot be served as a whole changes
// nothing. Nothing is done for what is served already, so it may be called after every pass. It is for one
// goroutine at a time.
func (s *Server) InForce(c ServedCommit) {
	s.mutex.Lock()
	before, view, wrong := s.commit, s.view, s.state.Serving
	s.mutex.Unlock()
	same := wrong == nil && c.ID == before.ID && c.Site == before.Site && c.Policies == before.Policies && c.Way == before.Way && slices.Equal(c.Moved, before.Moved)
	if same && c.LastGood == before.LastGood && slices.Equal(c.Removed, before.Removed) {
		return
	}
	made, err := view.Catalog, error(nil)
	if !same {
		made, err = s.catalog(c)
	}
	if err == nil {
		view.Catalog, view.Removed = made, map[string]bool{}
		for _, name := range c.Removed {
			view.Removed[name] = true
		}
		view.Repository, view.NoRepository, err = c.Snapshot()
		if err != nil {
			view.Repository, view.NoRepository, err = nil, "it cannot be read; the log of the server says why", fmt.Errorf("the repository of the site is not served: %w", err)
		}
	} else {
		err = fmt.Errorf("commit %.8s is not served, the previous one still is: %w", c.ID, err)
	}
	s.failed(&s.state.Serving, "some parts are not served", err)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.commit = c
	if made != nil {
		s.view, s.state.Commit, s.state.Nodes = view, c.ID, len(made.Names())
		s.publish()
	}
}

func (s *Server) catalog(c ServedCommit) (*specserve.Catalog, error) {
	in := specserve.CatalogInput{Site: c.Site, Commit: c.ID, Agent: s.o.Identity, Way: c.Way, Policies: c.Policies, Moved: c.Moved}
	if in.HasChild() {
		var err error
		if in.Needs, err = c.Needs(); err != nil {
			return nil, err
		}
	}
	made, found := specserve.MakeCatalog(in)
	for _, f := range found {
		if f.Severity == diag.Error {
			return nil, fmt.Errorf("%s", f.String())
		}
		s.o.Log.Warn("finding", "text", f.String())
	}
	return made, nil
}
