package specserve

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/specserve/metric"
	"github.com/homestak/homestak-gitops/specserve/problem"
)

// counts are what a server has answered. A mutex guards them: requests end in many goroutines. Their
// labels are rows of the table, statuses and codes, so there are never many.
type counts struct {
	mutex    sync.Mutex
	requests map[answered]uint64
	refusals map[problem.Code]uint64
	took     map[string]*metric.Histogram // by endpoint
}

// answered is what requests are counted by.
type answered struct {
	endpoint string
	status   int
}

// newLatency is for how long requests took. A long poll is above 10 seconds.
func newLatency() *metric.Histogram {
	return metric.NewHistogram(0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60)
}

func newCounts() *counts {
	return &counts{requests: map[answered]uint64{}, refusals: map[problem.Code]uint64{}, took: map[string]*metric.Histogram{}}
}

// add counts a request; code is "" for one that is answered well.
func (c *counts) add(endpoint string, status int, code problem.Code, took time.Duration) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.requests[answered{endpoint, status}]++
	if code != "" {
		c.refusals[code]++
	}
	h := c.took[endpoint]
	if h == nil {
		h = newLatency()
		c.took[endpoint] = h
	}
	h.Add(took)
}

func metrics(x *request) error {
	if err := x.keyed(x.view.Access.Read, "read"); err != nil {
		return err
	}
	var b metric.Text
	x.counts.write(&b)
	b.Head("homestak_serve_info", "gauge", "What is served, and by which version of the program.")
	b.Sample("homestak_serve_info", 1, "commit", x.view.commit(), "version", x.o.Version)
	b.Head("homestak_serve_start_time_seconds", "gauge", "When the server started.")
	b.Sample("homestak_serve_start_time_seconds", float64(x.started.Unix()))
	b.Head("homestak_nodes", "gauge", "Nodes that are served.")
	b.Sample("homestak_nodes", float64(len(x.view.Catalog.Names())))
	b.Head("homestak_nodes_waiting", "gauge", "Requests of nodes that wait for something to do.")
	b.Sample("homestak_nodes_waiting", float64(x.waiting.count()))
	reports := x.reports.All()
	ready := 0
	b.Head("homestak_node_report_age_seconds", "gauge", "Time since the last report of a node.")
	for _, r := range reports {
		b.Sample("homestak_node_report_age_seconds", max(0, x.now.Sub(r.ReceivedAt).Seconds()), "node", r.Identity)
	}
	b.Head("homestak_node_ready", "gauge", "Whether a node that reported is ready, and its report is not stale.")
	for _, r := range reports {
		is := 0
		if r.Ready && !r.Stale(x.now, PeriodOf(x.view.Catalog.Node(r.Identity))) {
			is = 1
			ready++
		}
		b.Sample("homestak_node_ready", float64(is), "node", r.Identity)
	}
	b.Head("homestak_nodes_ready", "gauge", "Nodes that are ready.")
	b.Sample("homestak_nodes_ready", float64(ready))
	x.o.Metrics(&b)
	return x.send(200, metric.ContentType, []byte(b.String()))
}

// write writes the metrics of what was answered.
func (c *counts) write(b *metric.Text) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	b.Head("homestak_serve_requests_total", "counter", "Requests that were answered.")
	for _, k := range slices.SortedFunc(maps.Keys(c.requests), func(a, b answered) int {
		return cmp.Or(cmp.Compare(a.endpoint, b.endpoint), a.status-b.status)
	}) {
		b.Sample("homestak_serve_requests_total", float64(c.requests[k]), "endpoint", k.endpoint, "status", strconv.Itoa(k.status))
	}
	b.Head("homestak_serve_refusals_total", "counter", "Requests that were answered with an error, by its code.")
	for _, code := range slices.Sorted(maps.Keys(c.refusals)) {
		b.Sample("homestak_serve_refusals_total", float64(c.refusals[code]), "code", string(code))
	}
	b.Head("homestak_serve_request_seconds", "histogram", "How long requests took.")
	for _, endpoint := range slices.Sorted(maps.Keys(c.took)) {
		b.Histogram("homestak_serve_request_seconds", c.took[endpoint], "endpoint", endpoint)
	}
}
