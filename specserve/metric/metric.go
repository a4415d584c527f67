// Package metric writes figures in the text format of Prometheus
// (https://prometheus.io/docs/instrumenting/exposition_formats).
package metric

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ContentType is the type of a Text.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Text is what one scrape gets. The zero value is empty.
type Text struct{ b strings.Builder }

// String is all that was written.
func (t *Text) String() string { return t.b.String() }

// Head begins a metric; all its samples follow before the next one begins.
// The kind is gauge, counter or histogram.
func (t *Text) Head(name, kind, help string) {
	fmt.Fprintf(&t.b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// Sample writes a value; labels are pairs of name and value.
func (t *Text) Sample(name string, value float64, labels ...string) {
	var pairs []string
	for i := 0; i+1 < len(labels); i += 2 {
		pairs = append(pairs, labels[i]+`="`+escaped(labels[i+1])+`"`)
	}
	set := ""
	if len(pairs) > 0 {
		set = "{" + strings.Join(pairs, ",") + "}"
	}
	fmt.Fprintf(&t.b, "%s%s %s\n", name, set, number(value))
}

// Gauge writes a metric that has one sample.
func (t *Text) Gauge(name, help string, value float64, labels ...string) {
	t.Head(name, "gauge", help)
	t.Sample(name, value, labels...)
}

// Histogram writes the samples of a histogram.
func (t *Text) Histogram(name string, h *Histogram, labels ...string) {
	var sum uint64
	for i, limit := range h.limits {
		sum += h.below[i]
		t.Sample(name+"_bucket", float64(sum), append(slices.Clone(labels), "le", number(limit))...)
	}
	t.Sample(name+"_bucket", float64(h.count), append(slices.Clone(labels), "le", "+Inf")...)
	t.Sample(name+"_sum", h.sum, labels...)
	t.Sample(name+"_count", float64(h.count), labels...)
}

// Histogram counts how long things took. It is for one goroutine at a time.
type Histogram struct {
	limits []float64 // seconds, ascending
	below  []uint64  // that took no longer than the limit, and longer than the one before
	count  uint64
	sum    float64 // seconds
}

// NewHistogram makes a histogram with these limits in seconds, ascending.
func NewHistogram(limits ...float64) *Histogram {
	return &Histogram{limits: limits, below: make([]uint64, len(limits))}
}

// Add counts one more.
func (h *Histogram) Add(took time.Duration) {
	h.count++
	h.sum += took.Seconds()
	if i, _ := slices.BinarySearch(h.limits, took.Seconds()); i < len(h.limits) {
		h.below[i]++
	}
}

// escaped is the value of a label as the format has it.
func escaped(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(s, "\ufffd"))
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
