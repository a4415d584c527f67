// Package control is how programs on one machine share a host: the socket of the agent, and
// the write lock of the host.
//
// Server answers on the socket, Client asks; Search finds the agent that runs. Offline answers
// the same questions from what an agent left behind that does not run any more. LockHost is the
// lock file that the agent and every verb take before they change a host; Client.Pause keeps
// the agent from beginning a pass in which it would wait for that file.
package control
