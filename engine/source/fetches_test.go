//go:build !race

package source_test

// fetches are enough for the copy to be put in order dozens of times: what it were to
// keep of each would show. (Over 10,000 it holds no more than over these.)
const fetches = 2_000

// raced: pools are emptied at random then, so what is taken from the heap says nothing.
const raced = false
