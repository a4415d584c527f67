package guests

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFileSystemsOfContainers: what df said of file systems on a real host, and what
// mkfs.Ext4 said when it made them.
func TestFileSystemsOfContainers(t *testing.T) {
	for _, test := range []struct{ made, size, usable, inodes int64 }{
		{256 << 20, 320 << 20, 303979520, 65536},
		{1 << 30, 1 << 30, 1020702720, 65536},
	} {
		f := NewExt4(test.made)
		require.Equal(t, test.usable, f.usable(test.size), test)
		require.Equal(t, test.inodes, f.inodes(), test)
	}
	require.Equal(t, int64(81920), NewExt4(320<<20).inodes())
	var log []string
	NewExt4(256<<20).LogMade("id", func(format string, _ ...any) { log = append(log, format) })
	require.Len(t, log, 4)
	log = nil
	NewExt4(8<<20).LogMade("id", func(format string, _ ...any) { log = append(log, format) })
	require.Len(t, log, 2, "one group has no copies")
}
