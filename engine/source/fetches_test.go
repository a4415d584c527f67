//go:build !race

package source_test

// fetches is months of polling: a commit every few minutes.
const fetches = 10_000

// raced: pools are emptied at random then, so what is taken from the heap says nothing.
const raced = false
