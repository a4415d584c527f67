// Package specserve is the server that nodes get their specs from, over HTTPS.
//
//	endpoints.go  the table of endpoints, and its lookup by path
//	request.go    one request: limits, endpoint, error response, log
//	auth.go       authentication, and the site's rules
//	specs.go      specs
//	config.go     the configuration of a child of type pve for its own subtree
//	downloads.go  the repository of the site, and the program
//	reports.go    the reports of nodes, and who may read them
//	wait.go       long polls
//	metrics.go    request metrics for Prometheus
//	operate.go    clients that are not nodes: requested checks, push notifications
//	server.go     connections: deadlines, bounds, shutdown
//	limits.go     all limits
//
// A request reads a View: one commit (Catalog), the signing keys and the pins. Publish replaces it as a whole, so a
// request never sees two versions. Request paths never reach the file system: the table and the node names in it
// define all of them, and the files of the repository are those of git's trees.
package specserve
