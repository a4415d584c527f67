// Package serve is the server side of git's protocol for clone and fetch. It only serves one Snapshot with the
// current commit, the last good one, and their history; Server.Publish replaces it at once. A client that started
// with the previous snapshot can still use it for a while.
//
// The protocol is version 0, with every round of a fetch as a request of its own, as over http.
package serve
