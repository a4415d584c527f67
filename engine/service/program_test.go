package service

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Pages of the program are mapped by use alone, so this test must not run beside others.
func TestProgramIsUnmappedAfterALargePass(t *testing.T) { //nolint:paralleltest // see above
	mapped := func() (kib int) {
		text, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Skip("this system does not say what is mapped")
		}
		for line := range strings.Lines(string(text)) {
			if n, _ := fmt.Sscanf(line, "RssFile: %d kB", &kib); n == 1 {
				return kib
			}
		}
		t.Skip("this system does not say what is mapped")
		return 0
	}
	program := programMappings()
	require.NotEmpty(t, program)
	memory, err := os.Open("/proc/self/mem") // a page that is read through it is mapped
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, memory.Close()) })
	n := &notifier{}
	n.giveBack()
	for _, m := range program {
		for at := m.from; at < m.to; at += uintptr(os.Getpagesize()) {
			_, err := memory.ReadAt(make([]byte, 1), int64(at))
			require.NoError(t, err)
		}
	}
	var last []byte
	pass := func(allocates int) {
		for range allocates >> 10 {
			last = bytes.Repeat([]byte{1}, 1<<10)
		}
		require.Len(t, last, 1<<10)
		n.giveBack()
	}
	full := mapped()
	pass(passWorth / 2)
	require.GreaterOrEqual(t, mapped(), full, "what a small pass used, the next one uses again")
	pass(2 * passWorth)
	require.Less(t, mapped(), full/2)
}
