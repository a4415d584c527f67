package daemon

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What a check costs while nothing changes; the server makes one each second or two.
func BenchmarkState(b *testing.B) {
	for b.Loop() {
		_, err := stateOf("../../examples/site", "", nil)
		require.NoError(b, err)
	}
}
