// Package certs makes the certificate of a host, with an authority of its own, and is the
// API for the certificates of a node.
package certs
