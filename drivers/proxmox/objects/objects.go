// Package objects holds the plain objects of a host, all but guests and their templates:
// images, pools and sets of addresses. A kind is one file.
package objects

import "fmt"

// attempt says what failed; nil for nil.
func attempt(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
