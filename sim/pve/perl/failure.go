package perl

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// APIError is a failure as PVE answers it: a status, a message of which the
// first line becomes the reason phrase, and texts per parameter.
type APIError struct {
	Status  int
	Message string
	Errors  map[string]string
	Plain   bool   // No JSON: the failure came before the API was reached.
	Text    string // Body of a plain failure, mostly empty.
}

func (e *APIError) Error() string {
	if e.Message == "" && e.Status == http.StatusBadRequest {
		return "Parameter verification failed."
	}
	return e.Message
}

// LockedError says that a file lock is held; try again at a time.
type LockedError struct{ Until time.Time }

func (e *LockedError) Error() string { return "file lock held until " + e.Until.String() }

// Fail is Perl's die: status 500.
func Fail(format string, args ...any) error {
	return &APIError{Status: http.StatusInternalServerError, Message: fmt.Sprintf(format, args...)}
}

// BadParam is raise_param_exc for one parameter.
func BadParam(name, text string) error {
	return &APIError{Status: http.StatusBadRequest, Errors: map[string]string{name: text}}
}

// Forbidden is raise_perm_exc; what names path and privileges, or is empty.
func Forbidden(what string) error {
	message := "Permission check failed"
	if what != "" {
		message += " (" + what + ")"
	}
	return &APIError{Status: http.StatusForbidden, Message: message}
}

// PlainError fails before the API is reached, with the text as the body.
func PlainError(status int, text string) error {
	return &APIError{Status: status, Message: text, Plain: true, Text: text}
}

// Stringified is a failure as Perl shows it inside of another text: of an exception that
// has a status with that (stringify in PVE/Exception.pm).
func Stringified(err error) string {
	e, ok := errors.AsType[*APIError](err)
	if !ok || e.Status == http.StatusInternalServerError {
		return err.Error()
	}
	lines := []string{fmt.Sprintf("%d %s", e.Status, e.Error())}
	for _, name := range slices.Sorted(maps.Keys(e.Errors)) {
		lines = append(lines, name+": "+e.Errors[name])
	}
	return strings.Join(lines, "\n")
}
