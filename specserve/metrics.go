package specserve

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/specserve/problem"
)

// counts are what a server has answered. A mutex guards them: requests end in many goroutines. Their
// labels are rows of the table, statuses and codes, so there are never many.
type counts struct {
	mutex    sync.Mutex
	requests map[answered]uint64
	refusals map[problem.Code]uint64
	took     map[string]*histogram // by endpoint
}

// answered is what requests are counted by.
type answered struct {
	endpoint string
	status   int
}

// histogram counts how long requests took.
type histogram struct {
	below [len(buckets)]uint64 // that took no longer than the bucket, and longer than the one before
	count uint64
	sum   float64 // seconds
}

// buckets are the limits of the histogram in seconds. A long poll is in the last one.
var buckets = [...]float64{0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60}

func newCounts() *counts {
	return &counts{requests: map[answered]uint64{}, refusals: map[problem.Code]uint64{}, took: map[string]*histogram{}}
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
		h = &histogram{}
		c.took[endpoint] = h
	}
	h.count++
	h.sum += took.Seconds()
	if i, _ := slices.BinarySearch(buckets[:], took.Seconds()); i < len(buckets) {
		h.below[i]++
	}
}

// asMetrics is the text format of Prometheus (https://prometheus.io/docs/instrumenting/exposition_formats).
const asMetrics = "text/plain; version=0.0.4; charset=utf-8"

func metrics(x *request) error {
	if err := x.keyed(x.view.Access.Read, "read"); err != nil {
		return err
	}
	var b strings.Builder
	x.counts.write(&b)
	head(&b, "homestak_serve_info", "gauge", "What is served, and by which version of the program.")
	sample(&b, "homestak_serve_info", 1, "commit", x.view.Catalog.Commit, "version", x.o.Version)
	head(&b, "homestak_serve_start_time_seconds", "gauge", "When the server started.")
	sample(&b, "homestak_serve_start_time_seconds", float64(x.started.Unix()))
	head(&b, "homestak_nodes", "gauge", "Nodes that are served.")
	sample(&b, "homestak_nodes", float64(len(x.view.Catalog.Names())))
	head(&b, "homestak_nodes_waiting", "gauge", "Requests of nodes that wait for something to do.")
	sample(&b, "homestak_nodes_waiting", float64(x.waiting.count()))
	reports := x.reports.All()
	ready := 0
	head(&b, "homestak_node_report_age_seconds", "gauge", "Time since the last report of a node.")
	for _, r := range reports {
		sample(&b, "homestak_node_report_age_seconds", max(0, x.now.Sub(r.ReceivedAt).Seconds()), "node", r.Identity)
	}
	head(&b, "homestak_node_ready", "gauge", "Whether a node that reported is ready, and its report is not stale.")
	for _, r := range reports {
		is := 0
		if r.Ready && !isStale(r, x.now, PeriodOf(x.view.Catalog.Node(r.Identity))) {
			is = 1
			ready++
		}
		sample(&b, "homestak_node_ready", float64(is), "node", r.Identity)
	}
	head(&b, "homestak_nodes_ready", "gauge", "Nodes that are ready.")
	sample(&b, "homestak_nodes_ready", float64(ready))
	return x.send(200, asMetrics, []byte(b.String()))
}

// write writes the metrics of what was answered.
func (c *counts) write(w io.Writer) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	head(w, "homestak_serve_requests_total", "counter", "Requests that were answered.")
	for _, k := range slices.SortedFunc(maps.Keys(c.requests), func(a, b answered) int {
		return cmp.Or(cmp.Compare(a.endpoint, b.endpoint), a.status-b.status)
	}) {
		sample(w, "homestak_serve_requests_total", float64(c.requests[k]), "endpoint", k.endpoint, "status", strconv.Itoa(k.status))
	}
	head(w, "homestak_serve_refusals_total", "counter", "Requests that were answered with an error, by its code.")
	for _, code := range slices.Sorted(maps.Keys(c.refusals)) {
		sample(w, "homestak_serve_refusals_total", float64(c.refusals[code]), "code", string(code))
	}
	head(w, "homestak_serve_request_seconds", "histogram", "How long requests took.")
	for _, endpoint := range slices.Sorted(maps.Keys(c.took)) {
		h := c.took[endpoint]
		var sum uint64
		for i, le := range buckets {
			sum += h.below[i]
			sample(w, "homestak_serve_request_seconds_bucket", float64(sum), "endpoint", endpoint, "le", number(le))
		}
		sample(w, "homestak_serve_request_seconds_bucket", float64(h.count), "endpoint", endpoint, "le", "+Inf")
		sample(w, "homestak_serve_request_seconds_sum", h.sum, "endpoint", endpoint)
		sample(w, "homestak_serve_request_seconds_count", float64(h.count), "endpoint", endpoint)
	}
}

// head begins a metric.
func head(w io.Writer, name, kind, help string) {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample writes a value; labels are pairs of name and value.
func sample(w io.Writer, name string, value float64, labels ...string) {
	var pairs []string
	for i := 0; i+1 < len(labels); i += 2 {
		pairs = append(pairs, labels[i]+`="`+escaped(labels[i+1])+`"`)
	}
	set := ""
	if len(pairs) > 0 {
		set = "{" + strings.Join(pairs, ",") + "}"
	}
	fmt.Fprintf(w, "%s%s %s\n", name, set, number(value))
}

// escaped is the value of a label as the format has it.
func escaped(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(s, "\ufffd"))
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
