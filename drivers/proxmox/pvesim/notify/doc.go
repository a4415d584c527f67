// Package notify keeps the targets and matchers of notifications. Nobody is notified.
package notify
