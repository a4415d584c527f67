package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// ProblemError is the reason why a request failed.
type ProblemError struct {
	Status  int    `json:"-"`
	Code    string `json:"code"`
	Message string `json:"message"` // what, as an error says it
	Hint    string `json:"hint"`    // what to do next, "" if there is nothing to say
}

// Error returns the message, and the hint on the next line.
func (p *ProblemError) Error() string {
	if p.Hint == "" {
		return p.Message
	}
	return p.Message + "\n" + p.Hint
}

// ProblemOf is an error as a document.
func ProblemOf(err error) any {
	p, ok := errors.AsType[*ProblemError](err)
	if !ok {
		p = &ProblemError{Code: "failed"}
		p.Message, p.Hint, _ = strings.Cut(err.Error(), "\n")
	}
	return problemDocument{p}
}

// problemDocument is a ProblemError on the wire.
type problemDocument struct {
	Error *ProblemError `json:"error"`
}

func (p *ProblemError) write(w http.ResponseWriter) {
	if p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "5") // an agent that is upgraded is back by then
	}
	writeAnswer(w, p.Status, problemDocument{p})
}

func badRequest(message, hint string) *ProblemError {
	return &ProblemError{Status: http.StatusBadRequest, Code: "bad_request", Message: message, Hint: hint}
}

func stoppingProblem() *ProblemError {
	return &ProblemError{Status: http.StatusServiceUnavailable, Code: "stopping", Message: "the agent is stopping", Hint: "run it again after its restart"}
}

func writeAnswer(w http.ResponseWriter, status int, doc any) {
	b, err := json.Marshal(doc)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"error":{"code":"failed","message":"the answer cannot be written","hint":""}}`)
	}
	b = append(b, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b) // who does not take the answer has none
}

// RefusedError is an error because another process changes the host, or is about to.
type RefusedError struct{ Err error }

// Error gives the message of the cause, and on the next line what to do.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

func refusedf(format string, args ...any) error { return &RefusedError{fmt.Errorf(format, args...)} }

// DeniedError is an error because the user may not open or read something.
type DeniedError struct{ Err error }

// Error gives the message of the cause, and on the next line what to do.
func (e *DeniedError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *DeniedError) Unwrap() error { return e.Err }

func deniedf(format string, args ...any) error { return &DeniedError{fmt.Errorf(format, args...)} }

// SuspendedWhat names what a suspension is about, at the beginning of a sentence.
func SuspendedWhat(manifest string) string {
	if manifest == "" {
		return "everything"
	}
	return "manifest " + manifest
}
