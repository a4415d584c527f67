// Package service runs an agent as a service of a machine: its configuration (agent.hcl,
// environment and flags), its log, what it reports to systemd, its repository, receipts
// and control socket, and the connection to its host.
package service
