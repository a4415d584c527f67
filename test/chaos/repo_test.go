package chaos_test

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"testing/fstest"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
)

// repo is a repository in memory: a branch of commits, each with its tree. The real one
// has faults of its own, and tests of its own.
type repo struct {
	mu     sync.Mutex // the agent asks while the schedule pushes
	branch []model.Commit
	trees  map[string]fs.FS
}

func newRepo() *repo { return &repo{trees: map[string]fs.FS{}} }

func (r *repo) push(text, subject string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := fmt.Sprintf("%040x", len(r.branch)+1)
	c := model.Commit{
		ID: id, Subject: subject, Author: model.Person{Name: "Ada", Email: "ada@home.example"}, At: time.Now(),
		Trailers: map[string]string{"Allow-Deletes": "50"},
	}
	if len(r.branch) > 0 {
		c.Parents = []string{r.branch[len(r.branch)-1].ID}
	}
	r.branch = append(r.branch, c)
	r.trees[id] = fstest.MapFS{"site.hcl": {Data: []byte(text)}}
	return id
}

func (r *repo) tree(id string) fs.FS {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trees[id]
}

// Head is as agent.source wants it, and so are the others.
func (r *repo) Head(ctx context.Context) (model.Commit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.branch[len(r.branch)-1], ctx.Err()
}

func (r *repo) Commit(_ context.Context, id string) (model.Commit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := r.at(id); i >= 0 {
		return r.branch[i], nil
	}
	return model.Commit{}, fmt.Errorf("no commit %s", id)
}

func (r *repo) Since(_ context.Context, from, to string) ([]model.Commit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, j := r.at(from), r.at(to)
	if i < 0 || j < i {
		return nil, model.ErrUnrelated
	}
	out := slices.Clone(r.branch[i+1 : j+1])
	slices.Reverse(out)
	return out, nil
}

func (*repo) Keep(...string) error { return nil }

func (r *repo) at(id string) int {
	return slices.IndexFunc(r.branch, func(c model.Commit) bool { return c.ID == id })
}
