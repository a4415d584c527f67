package source

import (
	"errors"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// The kinds of fetchError, for errors.Is.
var (
	errNotFound    = errors.New("no such repository")
	errDenied      = errors.New("not permitted")
	errNoBranch    = model.ErrNoBranch
	errEmpty       = model.ErrNoCommit
	errUntrusted   = errors.New("the server's certificate is not trusted")
	errHostKey     = errors.New("the server's host key is not trusted")
	errTimeout     = errors.New("took too long")
	errUnreachable = errors.New("cannot be reached")
	errNotGit      = errors.New("not a git server")
	errDumb        = errors.New("serves git as plain files")
	errCut         = errors.New("the connection ended early")
	errLogin       = errors.New("the credentials cannot be used")
)

// fetchError is the reason why the remote could not be read. The local copy stays as it was.
type fetchError struct {
	Kind   error  // one of the kinds above
	Where  string // the repository, without credentials
	Detail string // what was seen; may be empty
	Advice string // what to do next
	Err    error  // the cause, for errors.As; may be nil

	temporary bool
}

// Error gives where, what, the detail and the advice in one line.
func (f *fetchError) Error() string {
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
func (f *fetchError) Unwrap() []error {
	if f.Err == nil {
		return []error{f.Kind}
	}
	return []error{f.Kind, f.Err}
}

// Temporary reports whether a retry may help without any change here.
func (f *fetchError) Temporary() bool { return f.temporary }

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
func (a address) Fault(kind error, detail, advice string, err error) *fetchError {
	again := kind == errEmpty || kind == errTimeout || kind == errUnreachable || kind == errCut //nolint:errorlint // the kinds themselves
	return &fetchError{Kind: kind, Where: a.String(), Detail: detail, Advice: advice, Err: err, temporary: again}
}

// NoCommit is the error of an empty repository.
func (a address) NoCommit() error {
	return a.Fault(errEmpty, "", "push a first commit with a site", nil)
}

// refused converts a server's refusal to a fetchError.
func (a address) refused(text string) *fetchError {
	low := strings.ToLower(text)
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(low, p) })
	}
	kind, advice := errUnreachable, "this is retried"
	switch {
	case has("permission denied", "access denied", "not allowed", "unauthorized", "forbidden"):
		kind, advice = errDenied, "give the key or token the right to read this repository; some servers say the same if the repository does not exist"
	case has("not found", "does not appear to be a git repository", "does not exist", "no such", "not a git repository", "could not be found"):
		kind, advice = errNotFound, adviceNotFound
	case has("dubious ownership"):
		kind, advice = errDenied, "the repository belongs to another user there; see safe.directory in git's manual"
	}
	return a.Fault(kind, "the server says: "+strings.TrimSpace(text), advice, nil)
}

const adviceNotFound = "check the path in the URL; many servers answer the same when a login is missing or may not read it"
