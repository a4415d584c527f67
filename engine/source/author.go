package source

// The demo simulates the author of a site: a bare repository that an agent follows, a checkout to edit, and
// pushes from the checkout to the repository.
//
// A push is a real one: the receiving side of git's protocol gets a pack and moves the branch. Both
// sides run in this process, so git need not be installed; with git you can clone the same
// repository and push to it.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/revlist"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/server"
)

// AuthorBranch is the branch that an author works on.
const AuthorBranch = "main"

// Author is a checkout and the repository behind it. It belongs to one goroutine.
type Author struct {
	Name, Email string // of the commits to come

	upstream, dir string
	repo          *git.Repository
}

// NewAuthor creates an empty bare repository and a checkout with the files of tree. Nothing is
// committed yet. Both folders must be empty.
func NewAuthor(upstream, dir string, tree fs.FS) (*Author, error) {
	head := plumbing.NewBranchReferenceName(AuthorBranch)
	if _, err := git.PlainInitWithOptions(upstream, &git.PlainInitOptions{Bare: true, InitOptions: git.InitOptions{DefaultBranch: head}}); err != nil {
		return nil, fmt.Errorf("create repository %s: %w", upstream, err)
	}
	repo, err := git.PlainInitWithOptions(dir, &git.PlainInitOptions{InitOptions: git.InitOptions{DefaultBranch: head}})
	if err == nil {
		_, err = repo.CreateRemote(&config.RemoteConfig{Name: git.DefaultRemoteName, URLs: []string{upstream}})
	}
	if err == nil {
		err = os.CopyFS(dir, tree)
	}
	if err != nil {
		return nil, fmt.Errorf("create checkout %s: %w", dir, err)
	}
	return &Author{Name: "A. Homelab", Email: "admin@example.org", upstream: upstream, dir: dir, repo: repo}, nil
}

// Push commits the checkout, deletions included, and pushes it. It returns the id of the commit.
// Without changes it creates an empty commit.
func (a *Author) Push(ctx context.Context, message string) (string, error) {
	id, err := a.commit(message)
	if err == nil {
		err = a.push(ctx, id)
	}
	if err != nil {
		return "", fmt.Errorf("push %s: %w", a.dir, err)
	}
	return id.String(), nil
}

func (a *Author) commit(message string) (plumbing.Hash, error) {
	tree, err := a.repo.Worktree()
	if err != nil {
		return plumbing.ZeroHash, err
	}
	if err := tree.AddWithOptions(&git.AddOptions{All: true}); err != nil {
		return plumbing.ZeroHash, err
	}
	who := &object.Signature{Name: a.Name, Email: a.Email, When: time.Now()}
	return tree.Commit(message, &git.CommitOptions{Author: who, Committer: who, AllowEmptyCommits: true})
}

// push sends the missing objects of a commit, and moves the branch to it. Like git, it refuses if
// the branch is not an ancestor of the commit.
func (a *Author) push(ctx context.Context, id plumbing.Hash) error {
	at, err := transport.NewEndpoint(a.upstream)
	if err != nil {
		return err
	}
	session, err := server.NewClient(server.DefaultLoader).NewReceivePackSession(at, nil)
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	there, err := session.AdvertisedReferencesContext(ctx)
	if err != nil && !errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return err
	}
	branch := plumbing.NewBranchReferenceName(AuthorBranch)
	var old plumbing.Hash
	if there != nil {
		old = there.References[branch.String()]
	}
	missing, err := a.since(old, id)
	if err != nil {
		return err
	}
	req := packp.NewReferenceUpdateRequest()
	if err := req.Capabilities.Set(capability.ReportStatus); err != nil {
		return err
	}
	req.Commands = []*packp.Command{{Name: branch, Old: old, New: id}}
	pack, done := a.pack(missing)
	req.Packfile = pack
	status, err := session.ReceivePack(ctx, req)
	_ = pack.Close() // ends the packer even if its output was not read to the end
	if perr := <-done; err == nil {
		err = perr
	}
	if err == nil && status != nil {
		err = status.Error()
	}
	return err
}

// since lists the objects of a commit that one of its ancestors has not.
func (a *Author) since(old, id plumbing.Hash) ([]plumbing.Hash, error) {
	if old.IsZero() {
		return revlist.Objects(a.repo.Storer, []plumbing.Hash{id}, nil)
	}
	theirs, err := a.repo.CommitObject(old)
	if err != nil {
		return nil, fmt.Errorf("another push of %.8s came first: %w", old, err)
	}
	ours, err := a.repo.CommitObject(id)
	if err != nil {
		return nil, err
	}
	if on, err := theirs.IsAncestor(ours); err != nil || !on {
		return nil, errors.Join(err, fmt.Errorf("the branch is at %.8s, which %.8s does not build on", old, id))
	}
	have, err := revlist.Objects(a.repo.Storer, []plumbing.Hash{old}, nil)
	if err != nil {
		return nil, err
	}
	return revlist.Objects(a.repo.Storer, []plumbing.Hash{id}, have)
}

// pack writes objects as one pack into a pipe. Closing it ends the writer, whose error
// comes on the channel.
func (a *Author) pack(ids []plumbing.Hash) (io.ReadCloser, <-chan error) {
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := packfile.NewEncoder(w, a.repo.Storer, false).Encode(ids, 0)
		_ = w.CloseWithError(err)
		if errors.Is(err, io.ErrClosedPipe) {
			err = nil // the reader says why it went away
		}
		done <- err
	}()
	return r, done
}
