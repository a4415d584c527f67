package provision

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddressesOfCardsAreStable(t *testing.T) {
	require.Equal(t, "BC:24:11:DE:69:E4", macFor("a", "lan"), "for ever the same")
	require.NotEqual(t, macFor("a", "lan"), macFor("b", "lan"))
	require.NotEqual(t, macFor("a", "lan"), macFor("a", "dmz"))
	require.Regexp(t, `^BC:24:11(:[0-9A-F]{2}){3}$`, macFor("a", "lan"))
}
