package specserve

// Metrics for Prometheus, in the text that it reads. Each server has its own registry.

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// contentType is the type of a text: https://prometheus.io/docs/instrumenting/exposition_formats.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// Collector is anything that has figures.
type Collector interface {
	// collect adds the present figures to families, by their names.
	collect(families map[string]*family) error
}

// family is all figures of one name.
type family struct {
	help, kind string
	labels     []string           // names, sorted
	limits     []float64          // of a histogram, ascending, and infinity
	series     map[string]*series // by the values of their labels
}

// series is what is counted for some values of the labels.
type series struct {
	values []string // of the labels, in their order
	value  float64  // of a histogram the sum of what was observed
	counts []uint64 // for each limit what is at most that
}

// at is the series with these values of the labels, and whether it was there before.
func (f *family) at(values []string) (s *series, found bool) {
	key := strings.Join(values, "\x00")
	if s, found = f.series[key]; !found {
		s = &series{values: slices.Clone(values), counts: make([]uint64, len(f.limits))}
		f.series[key] = s
	}
	return s, found
}

// record is a family that changes, from any goroutine.
type record struct {
	name string
	mu   sync.Mutex
	now  family
}

// collect adds a copy.
func (r *record) collect(families map[string]*family) error {
	if families[r.name] != nil {
		return fmt.Errorf("%s is listed twice", r.name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.now
	c.series = map[string]*series{}
	for key, s := range r.now.series {
		c.series[key] = &series{s.values, s.value, slices.Clone(s.counts)}
	}
	families[r.name] = &c
	return nil
}

// Counter counts what happened, from any goroutine.
type Counter struct{ record }

// NewCounter counts what happened, by the values of labels, whose names are sorted.
func NewCounter(name, help string, labels ...string) *Counter {
	return &Counter{record{name: name, now: family{help: help, kind: "counter", labels: labels, series: map[string]*series{}}}}
}

// Add counts n more, with a value for each label.
func (c *Counter) Add(n int, values ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, _ := c.now.at(values)
	s.value += float64(n)
}

// Histogram counts how long things took, from any goroutine.
type Histogram struct{ record }

// NewHistogram counts how long things took, by limits in seconds, ascending, and by the values of labels, whose names
// are sorted. Without labels it shows zeros from the start.
func NewHistogram(name, help string, limits []float64, labels ...string) *Histogram {
	limits = append(slices.Clone(limits), math.Inf(1))
	h := &Histogram{record{name: name, now: family{help: help, kind: "histogram", labels: labels, limits: limits, series: map[string]*series{}}}}
	if len(labels) == 0 {
		h.now.at(nil)
	}
	return h
}

// Observe counts one thing that took so many seconds, with a value for each label.
func (h *Histogram) Observe(took float64, values ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, _ := h.now.at(values)
	s.value += took
	for i, limit := range h.now.limits {
		if took <= limit {
			s.counts[i]++
		}
	}
}

// CurrentFigures are figures that are computed on request. It calls add for each: all samples of a name have the
// same help and the same labels, which are pairs of name and value.
type CurrentFigures func(add func(name, help string, value float64, labels ...string))

func (n CurrentFigures) collect(families map[string]*family) (err error) {
	n(func(name, help string, value float64, labels ...string) {
		pairs := map[string]string{}
		for i := 0; i+1 < len(labels); i += 2 {
			pairs[labels[i]] = diag.Clean(labels[i+1])
		}
		names := slices.Sorted(maps.Keys(pairs))
		f := families[name]
		if f == nil {
			f = &family{help: help, kind: "gauge", labels: names, series: map[string]*series{}}
			families[name] = f
		}
		values := make([]string, len(names))
		for i, label := range names {
			values[i] = pairs[label]
		}
		s, twice := f.at(values)
		if s.value = value; twice || f.kind != "gauge" || !slices.Equal(f.labels, names) {
			err = fmt.Errorf("%s %v is listed twice, or with other labels", name, labels)
		}
	})
	return err
}

// Registry has the metrics of one server.
type Registry []Collector

// NewRegistry makes a registry. That a figure is listed twice is a mistake in the program, and panics.
func NewRegistry(of ...Collector) Registry {
	known := map[string]*family{}
	for _, c := range of {
		if _, computed := c.(CurrentFigures); computed {
			continue
		}
		if err := c.collect(known); err != nil {
			panic(err)
		}
	}
	return of
}

// Text is the response to one scrape, in the order of names.
func (r Registry) Text() ([]byte, error) {
	families := map[string]*family{}
	for _, c := range r {
		if err := c.collect(families); err != nil {
			return nil, fmt.Errorf("gather the metrics: %w", err)
		}
	}
	var out []byte
	for _, name := range slices.Sorted(maps.Keys(families)) {
		if f := families[name]; len(f.series) > 0 {
			out = fmt.Appendf(out, "# HELP %s %s\n# TYPE %s %s\n", name, f.help, name, f.kind)
			for _, s := range slices.SortedFunc(maps.Values(f.series), func(a, b *series) int { return slices.Compare(a.values, b.values) }) {
				out = s.append(out, name, f)
			}
		}
	}
	return out, nil
}

// append writes the lines of a series.
func (s *series) append(out []byte, name string, f *family) []byte {
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	var labels []string
	for i, value := range s.values {
		labels = append(labels, f.labels[i]+`="`+escape.Replace(value)+`"`)
	}
	line := func(suffix, value string, more ...string) {
		out = append(out, name+suffix...)
		if all := slices.Concat(labels, more); len(all) > 0 {
			out = append(out, "{"+strings.Join(all, ",")+"}"...)
		}
		out = append(out, " "+value+"\n"...)
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	if len(f.limits) == 0 {
		line("", number(s.value))
		return out
	}
	for i, limit := range f.limits {
		line("_bucket", strconv.FormatUint(s.counts[i], 10), `le="`+number(limit)+`"`)
	}
	line("_sum", number(s.value))
	line("_count", strconv.FormatUint(s.counts[len(f.limits)-1], 10))
	return out
}
