// Package migrate moves guests to other nodes, rolls them back to snapshots, and does one
// thing to many guests at once.
package migrate
