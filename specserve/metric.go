package specserve

// Metrics for Prometheus. Each server has its own registry, because the library's default one is global.

import (
	"bytes"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// contentType is the type of a text: https://prometheus.io/docs/instrumenting/exposition_formats.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

type (
	// Collector is anything that has figures.
	Collector = prometheus.Collector
	// Counter counts what happened, from any goroutine. Values of labels come in the order of their names.
	Counter = prometheus.CounterVec
	// Histogram counts how long things took, likewise.
	Histogram = prometheus.HistogramVec
)

// NewCounter counts what happened, by the values of labels.
func NewCounter(name, help string, labels ...string) *Counter {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// NewHistogram counts how long things took, by limits in seconds, ascending, and by the values of labels.
func NewHistogram(name, help string, limits []float64, labels ...string) *Histogram {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: limits}, labels)
}

// CurrentFigures are figures that are computed on request. It calls add for each: all samples of a name have the
// same help and the same labels, which are pairs of name and value.
type CurrentFigures func(add func(name, help string, value float64, labels ...string))

// Describe implements prometheus.Collector: which figures there are is known when they are collected.
func (CurrentFigures) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (n CurrentFigures) Collect(to chan<- prometheus.Metric) {
	known := map[string]*prometheus.Desc{}
	n(func(name, help string, value float64, labels ...string) {
		var names, values []string
		for i := 0; i+1 < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, diag.Clean(labels[i+1]))
		}
		desc := known[name]
		if desc == nil {
			desc = prometheus.NewDesc(name, help, names, nil)
			known[name] = desc
		}
		m, err := prometheus.NewConstMetric(desc, prometheus.GaugeValue, value, values...)
		if err != nil {
			m = prometheus.NewInvalidMetric(desc, err)
		}
		to <- m
	})
}

// Registry has the metrics of one server.
type Registry struct{ all *prometheus.Registry }

// NewRegistry makes a registry. That a figure is listed twice is a mistake in the program, and panics.
func NewRegistry(of ...Collector) Registry {
	r := Registry{prometheus.NewRegistry()}
	r.all.MustRegister(of...)
	return r
}

// Text is the response to one scrape, in the order of names.
func (r Registry) Text() ([]byte, error) {
	families, err := r.all.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather the metrics: %w", err)
	}
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			return nil, fmt.Errorf("write the metrics: %w", err)
		}
	}
	return b.Bytes(), nil
}
