// Package daemon runs the server for nodes, in two forms. Run is the process of the verb serve: it serves the site
// in a folder, and follows its changes. Server belongs to an agent: it serves the commit that the agent converges
// to. If it cannot listen it retries, and the agent continues.
//
//	open.go       shared parts: keys, certificate, program
//	daemon.go     the process: listener, service manager, the loop, shutdown
//	follow.go     what it serves: the site and the repository of its folder
//	state.go      detects changes of a site's folder
//	repository.go the copy of the repository that a folder is a checkout of
//	live.go       the server of an agent: listener, what is published
//	commit.go     the current commit
//	tree.go       the reports of children, merged with the agent's own state
//	reports.go    reports from before the agent started
//	address.go    the server's address and credentials for nodes
//	child.go      the configuration of a child's agent at its installation
package daemon
