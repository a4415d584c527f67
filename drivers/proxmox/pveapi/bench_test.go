package pveapi

import "testing"

// BenchmarkFirstUse is what a command line tool pays that looks up one method.
func BenchmarkFirstUse(b *testing.B) {
	for b.Loop() {
		lines := unpack().lines
		_ = lines[0].method()
	}
}
