package source_test

import (
	"math/rand/v2"
	"runtime"
)

// noiseSource gives the same noise for the same seed.
func noiseSource(seed int) *rand.ChaCha8 {
	return rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
}

// allocated is how many bytes f takes from the heap, given back or not.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
