// Package objects has the plain objects of a host, all except guests and their templates: images,
// pools and IP sets. A kind is one file.
package objects

import "fmt"

// attempt wraps an error with what failed; nil for nil.
func attempt(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
