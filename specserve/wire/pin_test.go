package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

func TestParse(t *testing.T) {
	digits := strings.Repeat("0a", 32)
	for _, text := range []string{digits, "sha256:" + digits, " sha256:" + strings.ToUpper(digits) + "\n"} {
		p, err := wire.ParsePin(text)
		require.NoError(t, err)
		require.Equal(t, "sha256:"+digits, p.String())
	}
	for _, bad := range []string{"", "sha256:", "sha1:" + digits, digits[2:], digits + "00", strings.Repeat("zz", 32)} {
		_, err := wire.ParsePin(bad)
		require.ErrorContains(t, err, "is not a pin", bad)
	}
	a, b := "sha256:"+digits, "sha256:"+strings.Repeat("0b", 32)
	got, err := wire.ParsePins([]string{a, b, digits})
	require.NoError(t, err)
	require.Equal(t, []string{a, b}, wire.PinTexts(got))
	_, err = wire.ParsePins(nil)
	require.ErrorContains(t, err, "there are no pins")
	many := []string{a, b, "sha256:" + strings.Repeat("0c", 32), "sha256:" + strings.Repeat("0d", 32), "sha256:" + strings.Repeat("0e", 32)}
	_, err = wire.ParsePins(many)
	require.ErrorContains(t, err, "5 pins, 4 are the most")
}
