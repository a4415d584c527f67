package pveapi

import (
	"regexp"
	"strings"
	"sync"
)

// expression makes a test of a regular expression, compiled when first used. It
// is applied as PVE applies the patterns of its schema: anchors are put around it
// without grouping (in "a|b" each then holds for one side only), and a line break
// at the very end is overlooked, as Perl's $ does.
//
// What Go cannot compile passes: one pattern of the table, of an answer.
func expression(pattern string) func(word string) bool {
	compile := sync.OnceValue(func() *regexp.Regexp {
		// Perl reads {,8} as {0,8}, and counts beyond Go's limit of 1000: there any
		// number will do.
		translated := strings.NewReplacer("{,", "{0,", "{0,4096}", "*").Replace(pattern)
		re, err := regexp.Compile("^" + translated + `\n?\z`)
		if err != nil {
			return nil
		}
		return re
	})
	return func(word string) bool {
		re := compile()
		return re == nil || re.MatchString(word)
	}
}

// Numbers as in PVE/JSONSchema.pm, and other expressions that more than one file needs.
var (
	isNumber  = numberAfter(expression(`[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?`))
	isDNSName = expression(dnsName)
)

// isDigits is [0-9]+, isInteger [+-]?[0-9]+. Every number of a request and an answer is
// held against them, and as expressions they cost more than all other checks.
func isDigits(word string) bool {
	word = strings.TrimSuffix(word, "\n")
	for i := range len(word) {
		if word[i] < '0' || word[i] > '9' {
			return false
		}
	}
	return word != ""
}

func isInteger(word string) bool {
	if word != "" && (word[0] == '+' || word[0] == '-') {
		word = word[1:]
	}
	return isDigits(word)
}

// numberAfter asks an expression only of what begins like a number and is not plainly one.
func numberAfter(matches func(word string) bool) func(word string) bool {
	return func(word string) bool {
		return word != "" && strings.IndexByte("+-.0123456789", word[0]) >= 0 && (isInteger(word) || matches(word))
	}
}
