// Package guestagent is the guest agent of VMs: it answers what a small Linux would, keeps
// files that were written, and runs a few programs.
package guestagent
