// Package acme is accounts with authorities that issue certificates automatically, and the
// orders of nodes.
package acme
