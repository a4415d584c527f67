package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source/objects"
	"github.com/homestak/homestak-gitops/engine/source/serve"
)

// commits are the local commits of a Repository, with their files.
type commits struct {
	objects *objects.Store // replaced when something is added; files of before read the old one
	graph   *objects.Graph
	path    string // the folder of the site
	maxFile int64  // bytes of one file
}

func (c *commits) use(s *objects.Store) { c.objects, c.graph = s, objects.NewGraph(s) }

// Commit describes a local commit; ErrUnknown if it is not local.
func (c *commits) Commit(_ context.Context, id string) (model.Commit, error) {
	h, err := objects.ParseID(id)
	if err != nil {
		return model.Commit{}, err
	}
	return c.commit(h)
}

func (c *commits) commit(id plumbing.Hash) (model.Commit, error) {
	found, err := c.objects.Commit(id)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return model.Commit{}, fmt.Errorf("%w: %s", objects.ErrUnknown, id)
	}
	if err != nil {
		return model.Commit{}, err
	}
	return c.objects.Describe(found), nil
}

// Since lists the commits that to has and from does not have, newest first, including those that
// merges brought in. It is model.ErrUnrelated if from is not known to be an
// ancestor of to.
func (c *commits) Since(_ context.Context, from, to string) ([]model.Commit, error) {
	a, err := objects.ParseID(from)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", model.ErrUnrelated, err)
	}
	b, err := objects.ParseID(to)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", model.ErrUnrelated, err)
	}
	nodes, err := c.graph.Between(a, b)
	if err != nil {
		return nil, err
	}
	out := make([]model.Commit, 0, len(nodes))
	for _, n := range nodes {
		one, err := c.commit(n.ID)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// Files returns the files of a commit's site folder: a read-only view of the local copy. Symbolic
// links are followed as long as they stay inside the repository. Submodules are empty folders. The
// FileInfo.Sys of a file is the id of its contents, a string that is equal for equal contents.
//
// It fails with ErrUnknown if the commit is not local, and with fs.ErrNotExist if it has no such
// folder.
func (c *commits) Files(id string) (fs.FS, error) {
	return c.objects.Files(id, c.path, c.maxFile)
}

// Tree is Files for the whole repository, whatever the site's folder in it is.
func (c *commits) Tree(id string) (fs.FS, error) { return c.objects.Files(id, ".", c.maxFile) }

// Notes warns of what Files cannot show as expected: submodules, links that are broken or point
// outside the repository, and git-lfs pointers.
func (c *commits) Notes(id string) diag.List {
	f, err := c.objects.Files(id, c.path, c.maxFile)
	if err != nil {
		return nil // Files says so, as an error
	}
	return f.Notes()
}

// Snapshot returns the local commits for a serve.server. It stays readable when the local copy
// changes.
func (c *commits) Snapshot(content serve.Content) (*serve.Snapshot, error) {
	return serve.New(c.graph, c.maxFile, content)
}
