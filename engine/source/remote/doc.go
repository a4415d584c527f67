// Package remote asks a repository on this machine or another one which branches it has, and
// fetches a pack from it: by file, https or ssh. New gives what asks the repository at an
// Address; Ask begins a Conversation with one answer, and Pack ends it.
//
// Each check has its deadlines, and each answer its bound in bytes. What can go wrong is a
// *Error: of a kind, such as ErrDenied, with a text that says what to do. No text holds
// credentials, which are read from their files at every use.
package remote
