package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/objects"
	"github.com/homestak/homestak-gitops/engine/source/serve"
)

// The files of the repository in the folder of the server.
const (
	copyFolder = "repository"      // the local copy of what is served
	copyLock   = "repository.lock" // whose server it is
)

// remembered is the number of commits that stay in the copy after they were served: a child that comes back gets
// the commits since the one that it has.
const remembered = 256

// history is the copy of the repository that the site folder is a checkout of. The server reads only from the copy,
// so untracked files are never served, and git may work in the checkout.
type history struct {
	dir    string
	log    *slog.Logger
	unlock func() // of the folder; nil before the first snapshot

	repository   *source.Repository
	root, branch string

	served []string // commits, the newest last
	clear  site.Clear
}

// notServedError is the reason why there is nothing to serve, for clients.
type notServedError string

func (e notServedError) Error() string { return string(e) }

// at is the repository at a commit of the checkout around a folder.
func (h *history) at(ctx context.Context, folder, commit string) (*serve.Snapshot, error) {
	tree, err := source.OpenWorktree(folder)
	if err != nil {
		return nil, err
	}
	root, branch, err := tree.Branch()
	switch {
	case err != nil:
		return nil, err
	case root == "":
		return nil, notServedError("the site folder is not a checkout of git")
	case commit == "":
		return nil, notServedError("the checkout of the site has no commit yet")
	case strings.HasSuffix(commit, source.DirtySuffix):
		return nil, notServedError("the site folder has changes that are not committed")
	case branch == "":
		return nil, notServedError("the checkout of the site is at no branch: git switch BRANCH")
	}
	s, err := h.snapshot(ctx, root, branch, commit)
	if s == nil && h.repository != nil && ctx.Err() == nil && !errors.As(err, new(notServedError)) {
		h.repository = nil // the copy may be damaged, or gone: it is checked when it is opened
		s, err = h.snapshot(ctx, root, branch, commit)
	}
	return s, err
}

func (h *history) snapshot(ctx context.Context, root, branch, commit string) (*serve.Snapshot, error) {
	if err := h.open(root, branch); err != nil {
		return nil, err
	}
	if _, err := h.repository.Head(ctx); err != nil {
		return nil, err
	}
	switch found, err := h.clear.In(commit); {
	case err != nil:
		return nil, err
	case found.File != "":
		return nil, notServedError("git tracks " + found.String())
	}
	s, err := h.repository.Snapshot(serve.Content{Branch: branch, InForce: commit, LastGood: commit, Withheld: h.clear.Withheld})
	if err != nil {
		return nil, err
	}
	return s, h.keep(commit)
}

// open opens the copy for a checkout.
func (h *history) open(root, branch string) error {
	if h.repository != nil && root == h.root && branch == h.branch {
		return nil
	}
	if h.unlock == nil {
		unlock, err := durable.TryLock(filepath.Join(h.dir, copyLock))
		if errors.Is(err, durable.ErrLocked) {
			err = fmt.Errorf("another server has the copy of the repository in %s: %w\ngive this one a folder of its own: --data-dir", h.dir, err)
		}
		if err != nil {
			return err
		}
		h.unlock = unlock
	}
	r, err := source.OpenRepository(source.Options{Dir: filepath.Join(h.dir, copyFolder), URL: root, Branch: branch, Log: h.log})
	if err != nil {
		return err
	}
	h.repository, h.root, h.branch, h.clear = r, root, branch, site.Clear{Files: r.Files, Log: h.log}
	return nil
}

// keep keeps a commit and those that were served before.
func (h *history) keep(commit string) error {
	if n := len(h.served); n == 0 || h.served[n-1] != commit {
		h.served = append(h.served, commit)
	}
	h.served = h.served[max(0, len(h.served)-remembered):]
	err := h.repository.Keep(h.served...)
	if errors.Is(err, objects.ErrUnknown) {
		h.served = []string{commit} // the copy was damaged, and made again
		err = h.repository.Keep(commit)
	}
	return err
}

// close lets another server have the copy.
func (h *history) close() {
	if h.unlock != nil {
		h.unlock()
	}
}
