package source

import (
	"errors"

	"github.com/go-git/go-git/v5/plumbing"
)

// Head is the id of the checked-out commit, "" if there is none. Unlike Commit it does not compare
// the folder with it, so it is cheap.
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

// Branch returns the folder of the checkout, and its branch: "" for none. Root is "" where no
// checkout is.
func (w *Worktree) Branch() (root, branch string, err error) {
	if w.repo == nil {
		return "", "", nil
	}
	tree, err := w.repo.Worktree()
	if err != nil {
		return "", "", err
	}
	head, err := w.repo.Reference(plumbing.HEAD, false)
	if err != nil {
		return "", "", err
	}
	if head.Target().IsBranch() {
		branch = head.Target().Short()
	}
	return tree.Filesystem.Root(), branch, nil
}
