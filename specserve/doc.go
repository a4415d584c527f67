// Package specserve is the server that nodes get their specs from, over HTTPS.
//
//	endpoints.go  the table of what it answers, and how a path finds its row
//	request.go    one request: its limits, its endpoint, the answer to an error, the log
//	auth.go       who asks, and whether the site's rules allow it
//	specs.go      the answers about specs
//	config.go     what a child of type pve gets for its own subtree
//	downloads.go  the repository of the site, and the program
//	reports.go    what nodes report, and who sees it
//	wait.go       nodes that wait for something to do
//	metrics.go    what was answered, as Prometheus reads it
//	operate.go    keys of those who are no nodes: checks that somebody asks for, notifications of pushes
//	server.go     connections: deadlines, bounds, shutdown
//	limits.go     all of its limits
//
// What a request sees is a View: one commit (Catalog), the signing keys and the pins. Publish
// replaces it as a whole, so no request sees parts of two. Nothing of a
// path reaches a file: a path either is in the table, with the name of a node in it, or is unknown. The
// files of the repository are those of git's trees.
package specserve
