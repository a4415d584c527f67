// Package control lets programs on one machine share a host: the socket of the agent, and the write
// lock of the host.
//
// Server listens on the socket, Client connects to it; Search finds the running agent. Offline
// answers the same requests from the data folder of an agent that is not running. Folder.LockHost is the
// lock file that the agent and every verb take before they change a host; Client.Pause keeps the
// agent from starting a pass in which it would wait for that file.
package control
