package source

import (
	"errors"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// The kinds of Error, for errors.Is.
var (
	ErrNotFound    = errors.New("no such repository")
	ErrDenied      = errors.New("not permitted")
	ErrNoBranch    = model.ErrNoBranch
	ErrEmpty       = model.ErrNoCommit
	ErrUntrusted   = errors.New("the server's certificate is not trusted")
	ErrHostKey     = errors.New("the server's host key is not trusted")
	ErrTimeout     = errors.New("took too long")
	ErrUnreachable = errors.New("cannot be reached")
	ErrNotGit      = errors.New("not a git server")
	ErrDumb        = errors.New("serves git as plain files")
	ErrCut         = errors.New("the connection ended early")
	ErrLogin       = errors.New("the credentials cannot be used")
)

// Error is the reason why the remote could not be read. The local copy stays as it was.
type Error struct {
	Kind   error  // one of the kinds above
	Where  string // the repository, without credentials
	Detail string // what was seen; may be empty
	Advice string // what to do next
	Err    error  // the cause, for errors.As; may be nil

	temporary bool
}

// Error gives where, what, the detail and the advice in one line.
func (f *Error) Error() string {
	s := f.Where + ": " + f.Kind.Error()
	if f.Detail != "" {
		s += ": " + oneLine(f.Detail)
	}
	if f.Advice != "" {
		s += "; " + f.Advice
	}
	return s
}

// Unwrap gives the kind and the cause.
func (f *Error) Unwrap() []error {
	if f.Err == nil {
		return []error{f.Kind}
	}
	return []error{f.Kind, f.Err}
}

// Temporary reports whether a retry may help without any change here.
func (f *Error) Temporary() bool { return f.temporary }

// oneLine makes text of a server safe to print: one line, no control characters,
// not long.
func oneLine(s string) string {
	const longest = 300
	s = diag.Line(s)
	if r := []rune(s); len(r) > longest {
		return string(r[:longest]) + "…"
	}
	return s
}

// Fault returns an error of the remote at an address.
func (a address) Fault(kind error, detail, advice string, err error) *Error {
	again := kind == ErrEmpty || kind == ErrTimeout || kind == ErrUnreachable || kind == ErrCut //nolint:errorlint // the kinds themselves
	return &Error{Kind: kind, Where: a.String(), Detail: detail, Advice: advice, Err: err, temporary: again}
}

// NoCommit is the error of an empty repository.
func (a address) NoCommit() error {
	return a.Fault(ErrEmpty, "", "push a first commit with a site", nil)
}

// refused converts a server's refusal to an Error.
func (a address) refused(text string) *Error {
	low := strings.ToLower(text)
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(low, p) })
	}
	kind, advice := ErrUnreachable, "this is retried"
	switch {
	case has("permission denied", "access denied", "not allowed", "unauthorized", "forbidden"):
		kind, advice = ErrDenied, "give the key or token the right to read this repository; some servers say the same if the repository does not exist"
	case has("not found", "does not appear to be a git repository", "does not exist", "no such", "not a git repository", "could not be found"):
		kind, advice = ErrNotFound, adviceNotFound
	case has("dubious ownership"):
		kind, advice = ErrDenied, "the repository belongs to another user there; see safe.directory in git's manual"
	}
	return a.Fault(kind, "the server says: "+strings.TrimSpace(text), advice, nil)
}

const adviceNotFound = "check the path in the URL; many servers answer the same when a login is missing or may not read it"
