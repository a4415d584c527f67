//go:build race

package source_test

// fetches are fewer where each step is ten times as slow.
const fetches = 300

// raced: pools are emptied at random then, so what is taken from the heap says nothing.
const raced = true
