package guest_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
)

func TestCommandThatNoMachineCanRun(t *testing.T) {
	for want, c := range map[string]guest.Command{
		"the command names no program":             {Args: []string{""}},
		"an argument of echo has a NUL byte in it": {Args: []string{"echo", "a\x00b"}},
	} {
		err := c.Check()
		require.EqualError(t, err, want)
		require.True(t, guest.Hopeless(err))
	}
	require.Error(t, guest.Command{}.Check())
	require.NoError(t, guest.Command{Args: []string{"echo", "", "\xff\n"}, Stdin: []byte{0}}.Check())
}

func TestOutputIsLimited(t *testing.T) {
	full := strings.Repeat("x", guest.OutputLimit)
	require.Equal(t, guest.Output{Out: full, Err: "e", Code: 3}, guest.Output{Out: full, Err: "e", Code: 3}.Limited())
	require.Equal(t, guest.Output{Err: full, Cut: true}, guest.Output{Err: full + "y"}.Limited())
	require.Equal(t, guest.Output{Out: full, Cut: true}, guest.Output{Out: full + "y"}.Limited())
}
