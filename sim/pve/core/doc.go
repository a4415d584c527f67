// Package core is a simulated installation and the requests to it.
//
// The [World] is all state: nodes, guests, storages, users, tasks and the files below /etc/pve. It is guarded by
// the lock of its host. Its clock is lazy: later work (the end of a task, the sample of a status daemon) is an
// event, and Advance runs all that are due, in the order of time.
//
// A [Call] is a request whose caller is known (Identity) and whose parameters were checked by the API table. It
// knows the caller's privileges (Need, Can). A handler gets both and returns data or a failure of package perl.
// What takes time is a [Task], started by Fork.
//
// Areas (packages beside this one) keep their own state in [Parts] and follow guests by [Hooks].
package core
