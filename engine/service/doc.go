// Package service runs an agent as a system service: its configuration (agent.hcl, environment and flags), log,
// systemd notifications, repository, receipts and control socket, and the connection to its host.
package service
