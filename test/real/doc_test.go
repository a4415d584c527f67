// Package real_test runs the acceptance stories that one node allows against a real
// Proxmox VE host, through the program as it is released:
//
//	make real HOST=192.0.2.10 TOKEN='root@pam!test=…'
//
// The stories are those of create, edit key by key, drift, templates, decommission, kill
// and agent. They know the host by its API alone, as users do: what holds is read from
// there and not from what the program says about itself.
//
// Nothing that is not part of the tests is touched. They use a range of VMIDs of their own
// and refuse a host where a guest or a volume is in it. They remove what they made, also
// after a failure, and fail if anything is left. Guests, disk images and container
// templates are made of files that the tests build: nothing is downloaded.
//
// The same stories run against the simulator of each version in TestOnTheSimulator, so
// that a story which a host fails shows where the simulator answers differently.
package real_test
