package service

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/specserve/metric"
)

// counts are what a status does not say: what happened since the start of the agent. A mutex guards them:
// the goroutine of the agent counts passes, those of steps count requests, and the server reads both.
type counts struct {
	mutex    sync.Mutex
	passes   map[engine.Outcome]uint64
	took     *metric.Histogram // passes
	requests map[answered]uint64
}

// answered is what requests to the API of the host are counted by.
type answered struct {
	method string
	class  string // 2xx to 5xx, "none" for no answer
}

func newCounts() *counts {
	return &counts{
		passes:   map[engine.Outcome]uint64{},
		took:     metric.NewHistogram(0.1, 0.5, 2.5, 10, 60, 300, 1800, 7200),
		requests: map[answered]uint64{},
	}
}

// passed counts a pass that has ended.
func (c *counts) passed(p *agent.PassStatus) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.passes[p.Outcome]++
	c.took.Add(time.Duration(p.Seconds * float64(time.Second)))
}

// sent counts a request to the API of the host.
func (c *counts) sent(method string, status int) {
	class := "none"
	if status > 0 {
		class = strconv.Itoa(status/100) + "xx"
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.requests[answered{method, class}]++
}

// outcomes are all the ends of a pass.
var outcomes = [...]engine.Outcome{engine.Done, engine.Planned, engine.Invalid, engine.Refused, engine.Partly, engine.Failed, engine.Interrupted}

// write writes what was counted. A metric without a sample would be one that nobody can alert on, hence the
// zeros of outcomes.
func (c *counts) write(b *metric.Text) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	b.Head("homestak_agent_passes_total", "counter", "Passes that ended, by their outcome.")
	for _, o := range outcomes {
		b.Sample("homestak_agent_passes_total", float64(c.passes[o]), "outcome", string(o))
	}
	b.Head("homestak_agent_pass_seconds", "histogram", "How long passes took.")
	b.Histogram("homestak_agent_pass_seconds", c.took)
	b.Head("homestak_agent_pve_requests_total", "counter", "Requests that were sent to the API of the host.")
	for _, k := range slices.SortedFunc(maps.Keys(c.requests), func(x, y answered) int {
		return cmp.Or(cmp.Compare(x.method, y.method), cmp.Compare(x.class, y.class))
	}) {
		b.Sample("homestak_agent_pve_requests_total", float64(c.requests[k]), "method", k.method, "class", k.class)
	}
}

// metrics adds the figures of the agent to those of its server.
func (s *Service) metrics(b *metric.Text) {
	figures(b, s.Status())
	s.counts.write(b)
}

// figures writes what a status says.
func figures(b *metric.Text, s agent.Status) {
	b.Gauge("homestak_agent_info", "The agent, and the version of the program.", 1, "identity", s.Identity, "version", s.Agent)
	b.Gauge("homestak_agent_start_time_seconds", "When the agent started.", float64(s.Started.Unix()))
	b.Gauge("homestak_agent_healthy", "Whether the last pass came to its end, and nothing is refused.", one(s.Healthy))
	b.Head("homestak_agent_commit_info", "gauge", "The commits that the agent has, by what they are for it.")
	for _, c := range []struct {
		as     string
		commit *agent.CommitStatus
	}{{"head", s.Head}, {"in_force", s.InForce}, {"converged", s.Converged}} {
		if c.commit != nil {
			b.Sample("homestak_agent_commit_info", 1, "as", c.as, "commit", c.commit.ID)
		}
	}
	b.Gauge("homestak_agent_suspensions", "Suspensions, of everything or of a manifest.", float64(len(s.Suspended)))
	drift, waiting := 0, 0
	for _, n := range s.Nodes {
		drift += n.Drift
		if !n.Ready {
			waiting++
		}
	}
	b.Gauge("homestak_agent_nodes", "Nodes that the agent manages itself.", float64(len(s.Nodes)))
	b.Gauge("homestak_agent_nodes_not_ready", "Nodes of them that are not as the commit in force says.", float64(waiting))
	b.Gauge("homestak_agent_drift_attributes", "Attributes of these nodes that differ from the commit in force.", float64(drift))
	b.Head("homestak_agent_failing", "gauge", "Whether something fails now; the status says why.")
	failing := func(what string, is bool) { b.Sample("homestak_agent_failing", one(is), "what", what) }
	failing("commit", s.Refused != nil)
	failing("pass", s.Last != nil && s.Last.Error != "")
	failing("repository", s.Repository.Error != "")
	if s.Server != nil {
		failing("server", s.Server.Error != "")
	}
	if s.Parent != nil {
		failing("parent", s.Parent.Error != "")
	}
	if s.Watch != nil {
		failing("watch", s.Watch.Error != "")
	}
	if s.Last != nil {
		lastPass(b, s.Last)
	}
}

// lastPass writes how the last pass ended.
func lastPass(b *metric.Text, p *agent.PassStatus) {
	b.Gauge("homestak_agent_last_pass_seconds", "How long the last pass took.", p.Seconds)
	b.Gauge("homestak_agent_last_pass_end_time_seconds", "When the last pass ended.", float64(p.Ended.Unix()))
	errors := 0
	for _, f := range p.Findings {
		if f.Severity == diag.Error {
			errors++
		}
	}
	b.Gauge("homestak_agent_last_pass_errors", "Findings of the last pass that are errors.", float64(errors))
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
