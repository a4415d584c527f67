package model

import (
	"errors"
	"time"
)

// Commit is a commit of the site's repository.
type Commit struct {
	ID       string // in full, hex
	Parents  []string
	Author   Person
	At       time.Time // when it was committed, as its committer's clock had it
	Subject  string    // first line of its message
	Trailers map[string]string
	Message  string // the text, at most its first 4 KiB
	Signer   string // SHA256 fingerprint of the SSH key that signed it, verified; "": none did

	Reverts        string // the commit that it takes back, as its text says
	RevertsExactly bool   // and it changes exactly what that one did, in the other direction
}

// Person is the author of a commit.
type Person struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// Short is the beginning of the id that people recognise.
func (c Commit) Short() string { return c.ID[:min(len(c.ID), 8)] }

// ErrUnrelated says that the commits between two others are unknown: the older one was never seen, or the branch
// was rewritten.
var ErrUnrelated = errors.New("not known to be an ancestor")

// Why a repository that answers has no commit to give.
var (
	ErrNoBranch = errors.New("no such branch")
	ErrNoCommit = errors.New("no commit yet") // nor any branch
)
