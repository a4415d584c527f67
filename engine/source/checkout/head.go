package checkout

import (
	"errors"

	"github.com/go-git/go-git/v5/plumbing"
)

// Head is the id of the commit that is checked out, "" where there is none. Unlike Commit it does not
// compare the folder with it, and so costs next to nothing.
func (w *Worktree) Head() (string, error) {
	if w.repo == nil {
		return "", nil
	}
	head, err := w.repo.Head()
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return head.Hash().String(), nil
}
