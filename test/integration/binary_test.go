package integration_test

import (
	"bytes"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// mostBytes is the size of the released program for amd64.
const mostBytes = 46_000_000

// The program stays small, and without the template packages of the standard library: each costs 6.7 MB, because
// the linker keeps every exported method once methods are called by name.
func TestTheBinaryStaysSmall(t *testing.T) {
	text, err := os.ReadFile(program(t))
	require.NoError(t, err)
	if runtime.GOARCH == "amd64" {
		require.LessOrEqual(t, len(text), mostBytes)
	}
	linked := func(pkg string) bool { return bytes.Contains(text, []byte(pkg+".(*")) } // names of methods, for traces
	require.True(t, linked("encoding/json"), "packages are found by their methods")
	require.False(t, linked("text/template"))
	require.False(t, linked("html/template"))
}
