package specserve

import (
	"net/http"
	"strconv"
	"time"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// counts count the answers of a server. Their labels are rows of the table, statuses and codes, so there are never
// many.
type counts struct {
	requests, refusals *Counter
	took               *Histogram
}

func newCounts() *counts {
	return &counts{
		requests: NewCounter("homestak_serve_requests_total", "Requests that were answered.", "endpoint", "status"),
		refusals: NewCounter("homestak_serve_refusals_total", "Requests that were answered with an error, by its code.", "code"),
		// A long poll is above 10 seconds.
		took: NewHistogram("homestak_serve_request_seconds", "How long requests took.", []float64{0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60}, "endpoint"),
	}
}

// add counts a request; code is "" for one that is answered well.
func (c *counts) add(endpoint string, status int, code wire.Code, took time.Duration) {
	c.requests.Add(1, endpoint, strconv.Itoa(status))
	if code != "" {
		c.refusals.Add(1, string(code))
	}
	c.took.Observe(took.Seconds(), endpoint)
}

// metrics sends the figures.
func metrics(x *request) error {
	text, err := x.figures.Text()
	if err != nil {
		return err
	}
	return x.send(http.StatusOK, contentType, text)
}

// now finds out what is served, and what nodes reported.
func (s *Server) now(add func(name, help string, value float64, labels ...string)) {
	v, now := s.view.Load(), s.o.Now()
	add("homestak_serve_info", "What is served, and by which version of the program.", 1, "commit", v.commit(), "version", s.o.Version)
	add("homestak_serve_start_time_seconds", "When the server started.", float64(s.started.Unix()))
	add("homestak_nodes", "Nodes that are served.", float64(len(v.Catalog.Names())))
	add("homestak_nodes_waiting", "Requests of nodes that wait for something to do.", float64(s.waiting.count()))
	ready := 0
	for _, r := range s.reports.All() {
		is := 0
		if r.Ready && !r.Stale(now, v.Catalog.Node(r.Identity).ReportPeriod()) {
			is = 1
			ready++
		}
		add("homestak_node_report_age_seconds", "Time since the last report of a node.", max(0, now.Sub(r.ReceivedAt).Seconds()), "node", r.Identity)
		add("homestak_node_ready", "Whether a node that reported is ready, and its report is not stale.", float64(is), "node", r.Identity)
	}
	add("homestak_nodes_ready", "Nodes that are ready.", float64(ready))
}
