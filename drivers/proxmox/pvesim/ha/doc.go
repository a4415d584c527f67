// Package ha is the manager of high availability. Who manages a guest decides whether it
// runs: a call that starts or stops a managed guest files a request only, the manager acts
// every ten seconds.
package ha
