package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
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

// mostServed is the number of commits that stay in the copy of serve after they were served.
const mostServed = 256

// Copy is the local copy of a repository as it is served: that of the branch that an agent follows, or of the checkout that
// the folder of serve is in. Commits that were served stay for a while, so that a child that comes back gets those since the one
// that it has. It is for one goroutine at a time.
type Copy struct {
	*source.Repository

	Branch string
	Clear  site.Clear // finds the commits that must not be served
	Most   int        // how many commits stay after they were served

	served []string // the newest last
}

// Keep names the commits that must stay available beside those that were served; see source.Repository.
func (c *Copy) Keep(ids ...string) error {
	err := c.Repository.Keep(slices.Concat(ids, c.served)...)
	if errors.Is(err, objects.ErrUnknown) && len(c.served) > 0 {
		c.served = nil // the copy was damaged, and made again
		return c.Repository.Keep(ids...)
	}
	return err
}

// At returns what is served at a commit, and at the one that was converged last, "" for nothing. If a commit has secrets in plain text,
// why says so, and nothing is served; such a commit is not served as the last good one either, nor one that is not here any more:
// then the one in force is all there is.
func (c *Copy) At(commit, lastGood string) (s *serve.Snapshot, why string, err error) {
	switch found, err := c.Clear.In(commit); {
	case err != nil:
		return nil, "", err
	case found.File != "":
		return nil, "git tracks " + found.String(), nil
	}
	if lastGood == "" || c.Clear.Withheld(lastGood) {
		lastGood = commit
	}
	s, err = c.Snapshot(serve.Content{Branch: c.Branch, InForce: commit, LastGood: lastGood, Withheld: c.Clear.Withheld})
	if err == nil {
		c.served = append(slices.DeleteFunc(c.served, func(id string) bool { return id == commit }), commit)
		c.served = c.served[max(0, len(c.served)-c.Most):]
	}
	return s, "", err
}

// history is the copy of the repository that the site folder is a checkout of. The server reads only from the copy,
// so untracked files are never served, and git may work in the checkout.
type history struct {
	dir    string
	log    *slog.Logger
	unlock func() // of the folder; nil before the first snapshot
	root   string // of the checkout
	copy   Copy   // its repository is nil while it is not open
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
	if s == nil && h.copy.Repository != nil && ctx.Err() == nil && !errors.As(err, new(notServedError)) {
		h.copy.Repository = nil // the copy may be damaged, or gone: it is checked when it is opened
		s, err = h.snapshot(ctx, root, branch, commit)
	}
	return s, err
}

func (h *history) snapshot(ctx context.Context, root, branch, commit string) (*serve.Snapshot, error) {
	if err := h.open(root, branch); err != nil {
		return nil, err
	}
	if _, err := h.copy.Head(ctx); err != nil {
		return nil, err
	}
	s, why, err := h.copy.At(commit, commit)
	switch {
	case err != nil:
		return nil, err
	case why != "":
		return nil, notServedError(why)
	}
	return s, h.copy.Keep(commit)
}

// open opens the copy for a checkout.
func (h *history) open(root, branch string) error {
	if h.copy.Repository != nil && root == h.root && branch == h.copy.Branch {
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
	h.root, h.copy.Repository, h.copy.Branch, h.copy.Most = root, r, branch, mostServed
	h.copy.Clear = site.Clear{Files: r.Tree, Log: h.log}
	return nil
}

// close lets another server have the copy.
func (h *history) close() {
	if h.unlock != nil {
		h.unlock()
	}
}
