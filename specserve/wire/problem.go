package wire

// The errors between parent and child, in one table: code, HTTP status, and the fix. Server, client and the docs
// share it.

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Code names a problem. Codes are permanent: children of other versions read them.
type Code string

// The codes.
const (
	CodeNoEndpoint   Code = "E100" // the path is unknown
	CodeBadRequest   Code = "E101" // the request cannot be understood
	CodeNotFound     Code = "E200" // no such spec, repository or file
	CodeNoPosture    Code = "E201"
	CodeNoKey        Code = "E202"
	CodeNoCredential Code = "E300" // no credentials, or malformed ones
	CodeRefused      Code = "E301" // the credentials are not valid
	CodeNotYours     Code = "E302" // valid, but not for this identity
	CodeExpired      Code = "E303"
	CodeSchema       Code = "E400" // a document is not valid
	CodeTooMany      Code = "E429"
	CodeInternal     Code = "E500"
	CodeConnection   Code = "E501" // of the client: no answer that can be used
)

// ProblemKind is a row of the table.
type ProblemKind struct {
	Code    Code
	Status  int    // of HTTP; 0 for what only a client notices
	Message string // default message
	Hint    string // what to do
}

// allProblems is the table, by code.
func allProblems() []ProblemKind {
	return []ProblemKind{
		{CodeNoEndpoint, http.StatusNotFound, "unknown endpoint", "check the address of the server, and that it is as new as this program"},
		{CodeBadRequest, http.StatusBadRequest, "the request cannot be understood", "check that server and client have the same version"},
		{CodeNotFound, http.StatusNotFound, "not found", "check the name, and that the commit that the server has in force declares it"},
		{CodeNoPosture, http.StatusNotFound, "posture not found", "declare the posture that the spec names"},
		{CodeNoKey, http.StatusNotFound, "key not found", "declare the key that the spec names in ssh_keys"},
		{CodeNoCredential, http.StatusUnauthorized, "no credentials, or malformed ones", "send the token of this node: Authorization: Bearer TOKEN"},
		{CodeRefused, http.StatusUnauthorized, "the credentials are not valid", "mint a token with the key that the server has now"},
		{CodeNotYours, http.StatusForbidden, "the credentials are not for this identity", "use the token of this node"},
		{CodeExpired, http.StatusUnauthorized, "the credentials have expired", "mint a new token on the machine of its parent: homestak-gitops token mint NODE"},
		{CodeSchema, http.StatusUnprocessableEntity, "the document is not valid", "check that server and client have the same version"},
		{CodeTooMany, http.StatusTooManyRequests, "too many requests", "wait as long as Retry-After says"},
		{CodeInternal, http.StatusInternalServerError, "internal error", "the log of the program says more"},
		{CodeConnection, 0, "the server does not answer", "check that the server runs, that its address is right, and that no firewall is in between"},
	}
}

// Kind returns the row of a code; that of Internal for an unknown one.
func (code Code) Kind() ProblemKind {
	var internal ProblemKind
	for _, k := range allProblems() {
		if k.Code == code {
			return k
		}
		if k.Code == CodeInternal {
			internal = k
		}
	}
	return internal
}

// Error is a problem that happened. Its text never has a credential in it.
type Error struct {
	Code    Code
	Message string // "": that of the table
	Hint    string // "": that of the table
	Cause   error  // may be nil
}

// Errorf makes an error. What %w names becomes its cause.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Cause: errors.Unwrap(err)}
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s\n%s", e.Code, cmp.Or(e.Message, e.Code.Kind().Message), cmp.Or(e.Hint, e.Code.Kind().Hint))
}

func (e *Error) Unwrap() error { return e.Cause }

// ErrReplaced is the cause of an error about a token that was revoked, or replaced by a newer one.
var ErrReplaced = errors.New("it was replaced")

// Status is the HTTP status to answer with.
func (e *Error) Status() int {
	return cmp.Or(e.Code.Kind().Status, http.StatusInternalServerError)
}

// CodeOf is the code of an error: that of the Error in its chain, Internal for any other one.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// body is an error as it travels.
type body struct {
	Error struct {
		Code    Code   `json:"code"`
		Message string `json:"message"`
		Hint    string `json:"hint"`
	} `json:"error"`
}

// Body is the document of an error: {"error":{"code":…,"message":…,"hint":…}}.
func (e *Error) Body() []byte {
	var b body
	b.Error.Code, b.Error.Message, b.Error.Hint = e.Code, cmp.Or(e.Message, e.Code.Kind().Message), cmp.Or(e.Hint, e.Code.Kind().Hint)
	out, err := json.Marshal(b)
	if err != nil {
		panic(err) // strings always encode
	}
	return append(out, '\n')
}

// The longest texts that are taken from another program.
const (
	mostMessage = 500
	mostHint    = 300
)

// ReadProblem reads the error from a response. Without the document, as from a proxy, it has the code for the
// status.
func ReadProblem(status int, document []byte) *Error {
	var b body
	if err := json.Unmarshal(document, &b); err == nil && known(b.Error.Code) {
		return &Error{Code: b.Error.Code, Message: diag.ShortLine(b.Error.Message, mostMessage), Hint: diag.ShortLine(b.Error.Hint, mostHint)}
	}
	code := CodeInternal
	for _, k := range allProblems() {
		if k.Status == status {
			code = k.Code
			break
		}
	}
	return &Error{Code: code, Message: fmt.Sprintf("the server answered %d %s", status, http.StatusText(status))}
}

func known(code Code) bool { return code != "" && code.Kind().Code == code }

// RetryAfter is how long an answer asks to wait (RFC 9110, 10.2.3): seconds, or a date.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	value := h.Get("Retry-After")
	if n, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(n) * time.Second //nolint:gosec // at most 31 bits
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
