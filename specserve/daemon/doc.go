// Package daemon runs the server for nodes as a process of its own: it serves the site in a folder,
// and whatever changes on the disk, without a restart.
//
//	daemon.go  the process: listener, service manager, the loop, shutdown
//	follow.go  what is served: the folder of the site, signing keys, certificate
//	state.go   notices that the folder of a site has changed
package daemon
