package daemon

import (
	"fmt"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/tasks"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Reports are the last ones of nodes and children.
func (s *Server) Reports() []wire.ReceivedReport { return s.o.Reports.All() }

// Tree puts what nodes and children reported below what the agent knows itself.
func (s *Server) Tree(own wire.Report, now time.Time) wire.Report {
	s.mutex.Lock()
	c, credentials := s.view.Catalog, s.credentials
	s.mutex.Unlock()
	var revoked map[string]time.Time
	if credentials != nil {
		revoked = credentials.Book().Revoked()
	}
	for i, n := range own.Nodes {
		if at, is := revoked[n.Name]; is {
			own.Nodes[i].Ready = false
			own.Nodes[i].Error = fmt.Sprintf("its tokens were revoked at %s, and it has not used a new one", at.Format(time.RFC3339))
		}
	}
	for _, h := range s.Waiting() {
		if own.Empty {
			break // that is not about what waits
		}
		own.Nodes = append(own.Nodes, wire.ReportNode{
			Name: h.Name, Type: "pve", Parent: own.Identity, Phase: wire.PhaseCreate, Since: h.Since,
			Error: wire.WaitingSaid + "it joined from " + h.From + ", and no commit in force has a host of this name",
		})
	}
	every := func(string) time.Duration { return specserve.Period }
	if c != nil {
		every = func(identity string) time.Duration { return c.Node(identity).ReportPeriod() }
		for i, n := range own.Nodes {
			if node := c.Node(n.Name); node != nil && node.Child {
				own.Nodes[i].Type = "pve"
			}
		}
	}
	return own.Fold(s.o.Reports.All(), every, now)
}

// Wake asks a node to check itself, or the child that manages it; see specserve.Server.
func (s *Server) Wake(node string) wire.Asked {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.server == nil {
		return wire.AskedUnknown
	}
	return s.server.Wake(node)
}

// Waiting lists the machines that joined under names that the site does not have.
func (s *Server) Waiting() []specserve.WaitingHost {
	s.mutex.Lock()
	server, site := s.server, s.commit.Site
	s.mutex.Unlock()
	if server == nil || site == nil {
		return nil
	}
	return slices.DeleteFunc(server.Waiting(), func(h specserve.WaitingHost) bool { return has(site, h.Name) })
}

// has reports whether a name is that of a host or node of a site.
func has(s *model.Site, name string) bool {
	if s.Hosts[name] != nil {
		return true
	}
	for _, m := range s.Manifests {
		if m.Node(name) != nil {
			return true
		}
	}
	return false
}

// Next is the child that a node is reached through; see specserve.Server.
func (s *Server) Next(node string) (child string, pushed bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.server == nil {
		return "", false
	}
	return s.server.Next(node)
}

// Announce tells a child of the tasks in its queue; see specserve.Server.
func (s *Server) Announce(child string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.server != nil {
		s.server.Announce(child)
	}
}

// Queue sets what the children are asked for, before Run.
func (s *Server) Queue(q *tasks.Queue) { s.o.Queue = q }
