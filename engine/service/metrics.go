package service

import (
	"slices"
	"strconv"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// counts are figures that are not in a status: what happened since the start of the agent.
type counts struct {
	passes   *specserve.Counter
	took     *specserve.Histogram // passes
	requests *specserve.Counter   // to the API of the host
}

// newCounts creates the counters. Outcomes start at zero, because alerts cannot match a metric without samples.
func newCounts() *counts {
	c := &counts{
		passes:   specserve.NewCounter("homestak_agent_passes_total", "Passes that ended, by their outcome.", "outcome"),
		took:     specserve.NewHistogram("homestak_agent_pass_seconds", "How long passes took.", []float64{0.1, 0.5, 2.5, 10, 60, 300, 1800, 7200}),
		requests: specserve.NewCounter("homestak_agent_pve_requests_total", "Requests that were sent to the API of the host.", "class", "method"),
	}
	for _, o := range outcomes {
		c.passes.Add(0, string(o))
	}
	return c
}

// passed counts a pass that has ended.
func (c *counts) passed(p *agent.PassStatus) {
	c.passes.Add(1, string(p.Outcome))
	c.took.Observe(p.Seconds)
}

// sent counts a request to the API of the host. The class of its answer is 2xx to 5xx, or none.
func (c *counts) sent(method string, status int) {
	class := "none"
	if status > 0 {
		class = strconv.Itoa(status/100) + "xx"
	}
	c.requests.Add(1, class, method)
}

// all are the counts as a registry takes them.
func (c *counts) all() []specserve.Collector {
	return []specserve.Collector{c.passes, c.took, c.requests}
}

// outcomes are all the ends of a pass.
var outcomes = [...]engine.Outcome{engine.Done, engine.Planned, engine.Invalid, engine.Refused, engine.Partly, engine.Failed, engine.Interrupted}

// metrics are the figures of the agent, beside those of its server.
func (s *Service) metrics() []specserve.Collector {
	return append(s.counts.all(), specserve.CurrentFigures(func(add adder) {
		st := s.StatusAndTree()
		figures(add, st.Status)
		below(add, st.Tree, st.At)
	}))
}

// mostHosts is the number of hosts below that have samples of their own.
const mostHosts = 5000

// below adds what is below the agent, at any depth, by the reports.
func below(add adder, tree wire.Report, now time.Time) {
	hosts, waiting := 0, 0
	for _, n := range tree.Nodes {
		if !n.Ready {
			waiting++
		}
		if n.Type != model.PVEType || hosts == mostHosts {
			continue
		}
		hosts++
		add("homestak_host_ready", "Whether a host below is ready, and its last report is not stale.", one(n.Ready), "host", n.Name, "parent", n.Parent)
		if !n.Reported.IsZero() {
			add("homestak_host_report_age_seconds", "Time since the last report of a host below.", max(0, now.Sub(n.Reported).Seconds()), "host", n.Name, "parent", n.Parent)
		}
	}
	add("homestak_tree_nodes", "Hosts and nodes below the agent, at any depth.", float64(len(tree.Nodes)+tree.Cut))
	add("homestak_tree_nodes_not_ready", "Those that are not ready, or whose state is unknown.", float64(waiting+tree.Cut))
}

// adder adds a figure; labels are pairs of name and value.
type adder = func(name, help string, value float64, labels ...string)

// figures adds what a status says.
func figures(add adder, s agent.Status) {
	add("homestak_agent_info", "The agent, and the version of the program.", 1, "identity", s.Identity, "version", s.Agent)
	add("homestak_agent_start_time_seconds", "When the agent started.", float64(s.Started.Unix()))
	add("homestak_agent_healthy", "Whether the last pass completed, nothing is refused, and the repository answers.", one(s.Healthy))
	for _, c := range []struct {
		as     string
		commit *agent.CommitStatus
	}{{"head", s.Head}, {"in_force", s.InForce}, {"converged", s.Converged}} {
		if c.commit != nil {
			add("homestak_agent_commit_info", "The commits that the agent has, by what they are for it.", 1, "as", c.as, "commit", c.commit.ID)
		}
	}
	add("homestak_agent_suspensions", "Suspensions of the host or of a manifest.", float64(len(s.Suspended)))
	drift, waiting := 0, 0
	for _, n := range s.Nodes {
		drift += n.Drift
		if !n.Ready {
			waiting++
		}
	}
	add("homestak_agent_nodes", "Nodes that the agent manages itself.", float64(len(s.Nodes)))
	add("homestak_agent_nodes_not_ready", "Managed nodes that differ from the commit in force.", float64(waiting))
	add("homestak_agent_drift_attributes", "Attributes of these nodes that differ from the commit in force.", float64(drift))
	life := map[plan.Phase]int{}
	for _, n := range s.Nodes {
		life[n.Life]++
		if n.Overdue != "" {
			add("homestak_agent_node_review_overdue", "Nodes whose date of review has passed.", 1, "address", n.Address)
		}
	}
	for _, p := range plan.Phases() {
		add("homestak_agent_nodes_in_phase", "Nodes by where they are in their life.", float64(life[p]), "phase", string(p))
	}
	failing := func(what string, is bool) {
		add("homestak_agent_failing", "Whether it is failing now; status has the reason.", one(is), "what", what)
	}
	failing("commit", s.Refused != nil)
	failing("pass", s.Last != nil && s.Last.Error != "")
	failing("repository", s.Repository.Error != "")
	failing("history", s.Repository.Rewritten != "")
	if len(s.Notify) > 0 {
		failing("notify", slices.ContainsFunc(s.Notify, func(n agent.NotifyStatus) bool { return n.Error != "" }))
	}
	if s.Server != nil {
		failing("server", s.Server.Error != "")
	}
	if s.Parent != nil {
		failing("parent", s.Parent.Error != "")
	}
	if s.Watch != nil {
		failing("watch", s.Watch.Error != "")
	}
	if len(s.Outputs) > 0 {
		failing("output", slices.ContainsFunc(s.Outputs, func(o agent.OutputStatus) bool { return o.Error != "" }))
	}
	checks(add, &s)
	backups(add, &s)
	if s.Last != nil {
		lastPass(add, s.Last)
	}
}

// mostChecks is the number of checks that have a sample of their own.
const mostChecks = 2000

// checks adds the checks that run between passes.
func checks(add adder, s *agent.Status) {
	add("homestak_agent_checks_failing", "Checks of nodes that fail.", float64(len(s.FailingChecks())))
	for _, c := range s.Checks[:min(len(s.Checks), mostChecks)] {
		if c.State != agent.CheckUnknown && c.Idle == "" {
			add("homestak_agent_check_failing", "Whether a check of a node fails, as it ran between passes.", one(c.State == agent.CheckFailing), "address", c.Address, "check", c.Check)
		}
	}
}

// backups adds how old the backups of nodes are.
func backups(add adder, s *agent.Status) {
	for _, n := range s.Nodes[:min(len(s.Nodes), mostChecks)] {
		b := n.Backup
		if b == nil {
			continue
		}
		add("homestak_agent_backup_stale", "Whether the newest backup of a node is older than the site allows.", one(b.Stale != ""), "address", n.Address)
		add("homestak_agent_backup_verify_failing", "Whether the last restore of a backup of a node failed.", one(b.Failed != ""), "address", n.Address)
		if b.Newest != nil {
			add("homestak_agent_backup_time_seconds", "When the newest backup of a node was made.", float64(b.Newest.Unix()), "address", n.Address)
		}
		if b.Proved != nil {
			add("homestak_agent_backup_proved_time_seconds", "When a restore of a backup of a node booted last.", float64(b.Proved.Unix()), "address", n.Address)
		}
	}
}

// lastPass adds how the last pass ended.
func lastPass(add adder, p *agent.PassStatus) {
	add("homestak_agent_last_pass_seconds", "How long the last pass took.", p.Seconds)
	add("homestak_agent_last_pass_end_time_seconds", "When the last pass ended.", float64(p.Ended.Unix()))
	errors := 0
	for _, f := range p.Findings {
		if f.Severity == diag.Error {
			errors++
		}
	}
	add("homestak_agent_last_pass_errors", "Findings of the last pass that are errors.", float64(errors))
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
