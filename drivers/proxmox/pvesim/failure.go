package pvesim

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// apiError is a failure as PVE answers it: a status, a message of which the
// first line becomes the reason phrase, and texts per parameter.
type apiError struct {
	status  int
	message string
	errors  map[string]string
	bare    bool   // No JSON: the failure came before the API was reached.
	text    string // Body of a bare failure, mostly empty.
}

func (e *apiError) Error() string {
	if e.message == "" && e.status == http.StatusBadRequest {
		return "Parameter verification failed."
	}
	return e.message
}

// lockedError says that a file lock is held; try again at a time.
type lockedError struct{ until time.Time }

func (e *lockedError) Error() string { return "file lock held until " + e.until.String() }

// fail is Perl's die: status 500.
func fail(format string, args ...any) error {
	return &apiError{status: http.StatusInternalServerError, message: fmt.Sprintf(format, args...)}
}

// badParam is raise_param_exc for one parameter.
func badParam(name, text string) error {
	return &apiError{status: http.StatusBadRequest, errors: map[string]string{name: text}}
}

// forbidden is raise_perm_exc; what names path and privileges, or is empty.
func forbidden(what string) error {
	message := "Permission check failed"
	if what != "" {
		message += " (" + what + ")"
	}
	return &apiError{status: http.StatusForbidden, message: message}
}

// bareError fails before the API is reached, with the text as the body.
func bareError(status int, text string) error {
	return &apiError{status: status, message: text, bare: true, text: text}
}

// perlError is a die inside the HTTP server.
func perlError(text string) error {
	return &apiError{status: http.StatusInternalServerError, message: text, bare: true, text: text + "\n"}
}

// stringified is a failure as Perl shows it inside of another text: of an exception that
// has a status with that (stringify in PVE/Exception.pm).
func stringified(err error) string {
	e, ok := errors.AsType[*apiError](err)
	if !ok || e.status == http.StatusInternalServerError {
		return err.Error()
	}
	lines := []string{fmt.Sprintf("%d %s", e.status, e.Error())}
	for _, name := range slices.Sorted(maps.Keys(e.errors)) {
		lines = append(lines, name+": "+e.errors[name])
	}
	return strings.Join(lines, "\n")
}
