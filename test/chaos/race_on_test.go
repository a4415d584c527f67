//go:build race

package chaos_test

// sample: the race detector makes each of them ten times as slow, and needs few of them
// to see all goroutines at work.
const sample = 5
