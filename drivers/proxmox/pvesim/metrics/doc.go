// Package metrics is servers for metrics, and the history of figures that a host shows.
package metrics
