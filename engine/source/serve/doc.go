// Package serve is the sending half of git's protocol: it answers clients that clone or
// fetch. It shows only what it was given: one Snapshot has the commit in force, the last
// good one, and their history, and Server.Publish puts it in force at once. A client that
// began with the snapshot before gets what it asked for, for a while.
//
// The protocol is version 0 with every round of a fetch as a request of its own, as over
// http. Package specserve/repository puts it there.
package serve
