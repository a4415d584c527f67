// Package core is a simulated installation and one request on its way through it.
//
// The [World] is all state: nodes, guests, storages, users, tasks and the files below
// /etc/pve. It belongs to whoever holds the lock of its host. It has a lazy clock: what is
// due later (the end of a task, the sample of a status daemon) is an event, and Advance does
// all that was due, in the order of time.
//
// A [Call] is a request whose caller is known (Identity) and whose parameters were checked
// by the API table. It knows what the caller may do (Need, Can). A handler gets both and
// returns data or a failure of package perl. What takes time is a [Task], started by Fork.
//
// Areas (packages beside this one) keep their own state in [Parts] and learn of guests by
// [Hooks].
package core
