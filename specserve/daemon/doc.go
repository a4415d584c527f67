// Package daemon runs the server for nodes, in two forms. Run is the process of the verb serve: it serves the site in a
// folder, and follows what changes there. Server belongs to an agent: it serves the commit that the agent converges to, as
// the agent loaded it; if it cannot listen it tries again, and the agent goes on.
//
//	open.go       what both consist of: keys, certificate, program
//	daemon.go     the process: listener, service manager, the loop, shutdown
//	follow.go     what it serves: the site and the repository of its folder
//	state.go      notices that the folder of a site has changed
//	repository.go the copy of the repository that a folder is a checkout of
//	live.go       the server of an agent: listener, what is published
//	commit.go     the commit in force
//	tree.go       what children reported, below what the agent knows itself
//	reports.go    what they reported before the agent started
//	address.go    where nodes reach it, and with what
//	child.go      what the agents of children are installed with
package daemon
