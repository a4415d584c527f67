package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// mostServed is the number of commits that stay in the copy of an agent after they were applied.
const mostServed = 64

// serveNodes makes the server for nodes and children, if the configuration wants one.
func (s *Service) serveNodes() {
	c := s.o.Config
	if c.Serves() == "" {
		return
	}
	var serve specserve.Images // a nil *Folder in it would not be nil
	if s.near.Folder != nil {
		serve = s.near.Folder
	}
	agent := sync.OnceValue(func() http.Handler { return answers(s).Handler() })
	s.server = daemon.NewServer(daemon.ServerOptions{
		Options: specserve.Options{
			Identity: c.Identity, Version: s.o.Program, Log: s.o.Log, Images: serve, Limits: limits(s.o.Pace),
			Check: s.checkSoon, Status: func() any { return s.StatusAndTree() }, Events: s.events.Serve, Agent: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { agent().ServeHTTP(w, r) }), Metrics: s.metrics(), Reported: s.childReported, Receipts: s.keepReceipts,
			Plan: func(ctx context.Context, host, attributes, by string) (any, error) {
				return s.carrier.planOf(ctx, host, attributes, by)
			},
			Verify: func(ctx context.Context, nodes []string, manifest, by string) (any, error) {
				return shown{s.Agent, s}.verify(ctx, nodes, manifest, by) // the agent is made later
			},
			Reconcile: func(ctx context.Context) (any, error) { return control.Await(ctx, s.Agent, s.Ledger) },
		},
		Above: c.Parent.URL, Listen: c.Serves(), ProgramFile: cmp.Or(s.o.File, ProgramFile()), Open: s.o.Network.Listen,
		Access: c.keyFiles(),
	})
}

// verify runs checks for those who ask the server.
func (s shown) verify(ctx context.Context, nodes []string, manifest, by string) (any, error) {
	v, err := s.service.facts.VerifyNodes(ctx, s, control.Selected{Nodes: nodes, Manifest: manifest, By: "https:" + by})
	if _, isProblem := errors.AsType[*control.ProblemError](err); isProblem {
		return control.ProblemOf(err), nil
	}
	return v, err
}

// keyFiles are the keys of people and programs.
func (c *Config) keyFiles() keys.Files {
	a := c.Access
	return keys.Files{Dir: filepath.Join(c.DataDir, daemon.Folder), Read: a.ReadKeyFile, Operator: a.OperatorKeyFile, Repository: a.RepositoryKeyFile, Hook: a.HookKeyFile}
}

// near makes what images come from before their URLs: the folder of this agent, and the agent above, nil for none.
func near(c *Config, above *client.Uplink, o Options) *images.Near {
	n := &images.Near{Web: o.Network.Web, Log: o.Log}
	if above != nil {
		n.Transport = above.Transport()
		n.URL = func(sum string) string { return above.Parent().Server + wire.ImagePath.Of(sum) }
	}
	if c.ServeImages {
		n.Folder = images.OpenFolder(filepath.Join(c.DataDir, "images"), int64(c.ImagesMax)<<30, n)
	}
	return n
}

// ProgramFile is the file of this program. Linux names the one that runs also after another one was
// installed in its place.
func ProgramFile() string {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe"
	}
	name, _ := os.Executable()
	return name
}

// replaced reports whether another file has the name of this program by now, as after an upgrade. It is false where that
// cannot be seen.
func replaced() bool {
	name, err := os.Executable()
	if err != nil {
		return false
	}
	runs, err := os.Stat("/proc/self/exe")
	if err != nil {
		return false
	}
	installed, err := os.Stat(name)
	return err == nil && !os.SameFile(runs, installed)
}

// checkSoon asks for a check without waiting for the agent.
func (s *Service) checkSoon() {
	select {
	case s.asked <- struct{}{}:
	default: // one is asked for already
	}
}

// inForce publishes the commit that is converged to; see agent.Options.
func (s *Service) inForce(way *hosts, repo *daemon.Copy) func(context.Context, engine.Desired, agent.HostState) {
	return func(_ context.Context, d engine.Desired, host agent.HostState) {
		s.server.InForce(daemon.ServedCommit{
			ID: d.Commit, LastGood: host.Converged, Site: d.Site, Removed: host.Removed, Moved: host.Moved, Policies: way.commits.Policies(d.Commit), Way: s.way(d.Site),
			Needs: func() (map[string][]string, error) { return way.commits.Needs(d.Commit, d.Site.Secrets) },
			Snapshot: func() (*serve.Snapshot, string, error) {
				snapshot, why, err := repo.At(d.Commit, host.Converged)
				if why != "" {
					s.o.Log.Warn("the repository is not served to children", "commit", d.Commit, "reason", why,
						"do", "git rm the file and keep what it has in secrets.sops.yaml; replace the secret, since it stays in the history")
				}
				return snapshot, why, err
			},
		})
	}
}

// children are the reports of the children; see agent.Options.
func (s *Service) children() map[string]model.ChildReport {
	out := map[string]model.ChildReport{}
	for _, r := range s.server.Reports() {
		c := model.ChildReport{At: r.ReceivedAt, Commit: r.Commit, Empty: r.Empty}
		for _, n := range r.Nodes {
			c.Nodes = append(c.Nodes, n.Name)
		}
		out[r.Identity] = c
	}
	return out
}

// Server is the server for nodes; nil if the configuration wants none.
func (s *Service) Server() *daemon.Server { return s.server }

// Parent returns what a new node needs to reach the server of this agent: its URL, its pins and a new token. The error
// is daemon.ErrNotServing while the server is not running.
func (s *Service) Parent(node, spec string) (wire.Parent, error) {
	if s.server == nil {
		return wire.Parent{}, fmt.Errorf("%w: listen of agent.hcl says so", daemon.ErrNotServing)
	}
	return s.server.Parent(node, spec)
}

// Status is that of the agent, with its server, its parent, and what the hosts below reported.
func (s *Service) Status() agent.Status {
	out := s.ownStatus()
	if len(out.Hosts) > 0 {
		out.Hosts = withReports(s.server, out.Hosts, treeOf(s.server, out))
	}
	return out
}

// ownStatus is the status without the reports of hosts below.
func (s *Service) ownStatus() agent.Status {
	out := s.Agent.Status()
	out.Parent = s.parentStatus()
	out.Notify = []agent.NotifyStatus{}
	if s.notifiers != nil {
		out.Notify = s.notifiers.Status()
	}
	if s.watch != nil {
		out.Watch = &agent.WatchStatus{}
		if err := s.watch.Err(); err != nil {
			out.Watch.Error = err.Error()
		}
	}
	if s.server != nil {
		is := s.server.State()
		out.Server = &agent.ServerStatus{Address: is.Address, Pins: append([]string{}, is.Pins...), Commit: is.Commit, Nodes: is.Nodes}
		if err := is.Err(); err != nil {
			since := is.Since.UTC()
			out.Server.Error, out.Server.Failing = err.Error(), &since
		}
		out.Server.URL = daemon.URLForHosts(s.server)
		out.Server.Waiting = []agent.WaitingHost{}
		for _, h := range s.server.Waiting() {
			out.Server.Waiting = append(out.Server.Waiting, agent.WaitingHost{Name: h.Name, From: h.From, Since: h.Since})
		}
	}
	return out
}

// withReports adds to the hosts below what they reported.
func withReports(server *daemon.Server, hosts []agent.HostBelow, tree wire.Report) []agent.HostBelow {
	if server == nil {
		return hosts
	}
	lines := map[string]wire.ReportNode{}
	for _, n := range tree.Nodes {
		if n.Parent == tree.Identity {
			lines[n.Name] = n
		}
	}
	out := slices.Clone(hosts) // the agent shares its own
	for i, h := range out {
		n, there := lines[h.Name]
		if !there { // there was no room for it
			continue
		}
		out[i].Ready, out[i].Stale, out[i].Commit, out[i].Error = n.Ready, n.Stale, n.Commit, n.Error
		if !n.Reported.IsZero() {
			at := n.Reported.UTC()
			out[i].Reported = &at
		}
	}
	return out
}

// WithTree is a status and the tree below the agent.
type WithTree struct {
	agent.Status
	Tree wire.Report `json:"tree"`
}

// StatusAndTree is the answer of /status over HTTPS.
func (s *Service) StatusAndTree() WithTree {
	st := s.ownStatus()
	tree := treeOf(s.server, st)
	st.Hosts = withReports(s.server, st.Hosts, tree)
	return WithTree{st, tree}
}

// Tree is the agent with its nodes, and what they and their own nodes reported.
func (s *Service) Tree() wire.Report { return treeOf(s.server, s.ownStatus()) }

func treeOf(server *daemon.Server, st agent.Status) wire.Report {
	own := report(st)
	if server == nil {
		return own.Fold(nil, func(string) time.Duration { return 0 }, st.At)
	}
	return server.Tree(own, st.At)
}

// wake asks a node below to check itself.
func (s *Service) wake(node string) wire.Asked {
	if s.server == nil {
		return wire.AskedUnknown
	}
	return s.server.Wake(node)
}
