package pveapi

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestNumbersAreThoseOfTheExpressions: the tests for numbers without an expression say what
// the expressions of PVE say.
func TestNumbersAreThoseOfTheExpressions(t *testing.T) {
	digits, integer := expression(`[0-9]+`), expression(`[+-]?[0-9]+`)
	number := expression(`[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?`)
	rapid.Check(t, func(rt *rapid.T) {
		word := rapid.StringMatching(`[+-]{0,2}[0-9]{0,3}\.?[0-9]{0,2}(e[+-]?[0-9]?)?[\nax٣]{0,2}`).Draw(rt, "word")
		require.Equal(rt, []bool{digits(word), integer(word), number(word)}, []bool{isDigits(word), isInteger(word), isNumber(word)}, "%q", word)
	})
}
