package source

// An author writes a site: setup its first commit, and the demo as people do. There is a checkout to edit, and pushes
// from it to a repository: a bare one in a folder, or one elsewhere.
//
// A push is a real one: the receiving side of git's protocol gets a pack and moves the branch. Both
// sides run in this process, so git need not be installed; with git you can clone the same
// repository and push to it.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strconv"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/revlist"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/plumbing/transport/server"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/go-git/go-git/v5/storage/memory"
	"golang.org/x/crypto/ssh"
)

// AuthorBranch is the branch that an author works on.
const AuthorBranch = "main"

// Author is a checkout and the repository behind it. It belongs to one goroutine.
type Author struct {
	Name, Email string // of the commits to come

	dir  string
	repo *git.Repository
	open func() (transport.ReceivePackSession, error) // begins a push
}

// ErrAhead is the error of a push to a branch that has commits which the checkout does not have.
var ErrAhead = errors.New("the branch has other commits")

// NewAuthor creates an empty bare repository and a checkout with the files of tree. Nothing is
// committed yet. Both folders must be empty.
func NewAuthor(upstream, dir string, tree fs.FS) (*Author, error) {
	head := plumbing.NewBranchReferenceName(AuthorBranch)
	if _, err := git.PlainInitWithOptions(upstream, &git.PlainInitOptions{Bare: true, InitOptions: git.InitOptions{DefaultBranch: head}}); err != nil {
		return nil, fmt.Errorf("create repository %s: %w", upstream, err)
	}
	return newAuthor(upstream, dir, tree, func() (transport.ReceivePackSession, error) {
		at, err := transport.NewEndpoint(upstream)
		if err != nil {
			return nil, err
		}
		return server.NewClient(server.DefaultLoader).NewReceivePackSession(at, nil)
	})
}

// NewRemoteAuthor creates a checkout with the files of tree. Its pushes go to an https or ssh URL.
func NewRemoteAuthor(url string, auth Auth, dir string, tree fs.FS) (*Author, error) {
	from, err := parseAddress(url)
	if err != nil {
		return nil, err
	}
	return newAuthor(from.shown, dir, tree, func() (transport.ReceivePackSession, error) { return receiver(from, auth) })
}

// receiver begins a push to an https or ssh URL.
func receiver(from address, auth Auth) (transport.ReceivePackSession, error) {
	auth.Username = cmp.Or(auth.Username, defaultUser)
	o := remoteOptions{Auth: auth, Timeout: defaultTimeout}
	switch from.by {
	case bySSH:
		r := &sshRemote{o: o, from: from}
		port, err := strconv.Atoi(from.port)
		if err != nil {
			return nil, err
		}
		return gitssh.DefaultClient.NewReceivePackSession(&transport.Endpoint{Protocol: bySSH, User: r.user(), Host: from.host, Port: port, Path: from.path}, sshLogin{r})
	case byHTTP:
		r := &httpRemote{o: o, from: from}
		login, err := r.login()
		if err == nil {
			err = r.connect()
		}
		if err != nil {
			return nil, err
		}
		return githttp.NewClient(&http.Client{Transport: r.base}).NewReceivePackSession(r.endpoint(), login)
	}
	return nil, fmt.Errorf("%s is a folder: a push from here takes https or ssh", from)
}

// sshLogin is how go-git logs in.
type sshLogin struct{ *sshRemote }

func (sshLogin) Name() string                               { return "ssh-public-keys" }
func (l sshLogin) String() string                           { return l.from.String() }
func (l sshLogin) ClientConfig() (*ssh.ClientConfig, error) { return l.config() }

func newAuthor(url, dir string, tree fs.FS, open func() (transport.ReceivePackSession, error)) (*Author, error) {
	head := plumbing.NewBranchReferenceName(AuthorBranch)
	repo, err := git.PlainInitWithOptions(dir, &git.PlainInitOptions{InitOptions: git.InitOptions{DefaultBranch: head}})
	if err == nil {
		_, err = repo.CreateRemote(&config.RemoteConfig{Name: git.DefaultRemoteName, URLs: []string{url}})
	}
	if err == nil {
		err = os.CopyFS(dir, tree)
	}
	if err != nil {
		return nil, fmt.Errorf("create checkout %s: %w", dir, err)
	}
	return &Author{Name: "A. Homelab", Email: "admin@example.org", dir: dir, repo: repo, open: open}, nil
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
	return pushTo(ctx, a.open, AuthorBranch, func(old plumbing.Hash) (storer.EncodedObjectStorer, []plumbing.Hash, plumbing.Hash, error) {
		missing, err := a.since(old, id)
		return a.repo.Storer, missing, id, err
	})
}

// pushTo moves a branch of a repository. Build gets the commit that it is at, zero for none, and returns where the objects
// are, which of them the repository lacks, and the new commit.
func pushTo(ctx context.Context, open func() (transport.ReceivePackSession, error), name string, build func(old plumbing.Hash) (storer.EncodedObjectStorer, []plumbing.Hash, plumbing.Hash, error)) error {
	session, err := open()
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	there, err := session.AdvertisedReferencesContext(ctx)
	if err != nil && !errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return err
	}
	branch := plumbing.NewBranchReferenceName(name)
	var old plumbing.Hash
	if there != nil {
		old = there.References[branch.String()]
	}
	objects, missing, id, err := build(old)
	if err != nil {
		return err
	}
	req := packp.NewReferenceUpdateRequest()
	if err := req.Capabilities.Set(capability.ReportStatus); err != nil {
		return err
	}
	req.Commands = []*packp.Command{{Name: branch, Old: old, New: id}}
	pack, done := packFrom(objects, missing)
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

// File is a file that Push commits.
type File struct {
	Branch, Path, Text string
	Message            string
	Name, Email        string    // of its author
	At                 time.Time // of the commit
}

// Push commits one file to a branch of a repository at an https or ssh URL, and replaces all that the branch had. The
// commit follows the last one of the branch. Nothing is fetched.
func (f File) Push(ctx context.Context, url string, auth Auth) error {
	from, err := parseAddress(url)
	if err != nil {
		return err
	}
	err = pushTo(ctx, func() (transport.ReceivePackSession, error) { return receiver(from, auth) }, f.Branch, f.build)
	if err != nil {
		return fmt.Errorf("push %s to branch %s of %s: %w", f.Path, f.Branch, from, err)
	}
	return nil
}

// build makes the objects of the commit.
func (f File) build(old plumbing.Hash) (storer.EncodedObjectStorer, []plumbing.Hash, plumbing.Hash, error) {
	objects := memory.NewStorage()
	var all []plumbing.Hash
	var failed error
	keep := func(o object.Object) plumbing.Hash {
		e := objects.NewEncodedObject()
		err := o.Encode(e)
		id, errSet := objects.SetEncodedObject(e)
		failed = errors.Join(failed, err, errSet)
		all = append(all, id)
		return id
	}
	blob := objects.NewEncodedObject()
	blob.SetType(plumbing.BlobObject)
	w, err := blob.Writer()
	if err == nil {
		_, err = io.WriteString(w, f.Text)
	}
	id, errSet := objects.SetEncodedObject(blob)
	if err = errors.Join(err, errSet); err != nil {
		return nil, nil, id, err
	}
	all = append(all, id)
	mode := filemode.Regular
	for name := f.Path; name != "."; name = path.Dir(name) {
		id = keep(&object.Tree{Entries: []object.TreeEntry{{Name: path.Base(name), Mode: mode, Hash: id}}})
		mode = filemode.Dir
	}
	who := object.Signature{Name: f.Name, Email: f.Email, When: f.At}
	commit := &object.Commit{Author: who, Committer: who, Message: f.Message, TreeHash: id}
	if !old.IsZero() {
		commit.ParentHashes = []plumbing.Hash{old}
	}
	id = keep(commit)
	return objects, all, id, failed
}

// since lists the objects of a commit that one of its ancestors has not.
func (a *Author) since(old, id plumbing.Hash) ([]plumbing.Hash, error) {
	if old.IsZero() {
		return revlist.Objects(a.repo.Storer, []plumbing.Hash{id}, nil)
	}
	theirs, err := a.repo.CommitObject(old)
	if err != nil {
		return nil, fmt.Errorf("%w: it is at %.8s", ErrAhead, old)
	}
	ours, err := a.repo.CommitObject(id)
	if err != nil {
		return nil, err
	}
	if on, err := theirs.IsAncestor(ours); err != nil || !on {
		return nil, errors.Join(err, fmt.Errorf("%w: it is at %.8s, which %.8s does not build on", ErrAhead, old, id))
	}
	have, err := revlist.Objects(a.repo.Storer, []plumbing.Hash{old}, nil)
	if err != nil {
		return nil, err
	}
	return revlist.Objects(a.repo.Storer, []plumbing.Hash{id}, have)
}

// packFrom writes objects as one pack into a pipe. Closing it ends the writer, whose error
// comes on the channel.
func packFrom(from storer.EncodedObjectStorer, ids []plumbing.Hash) (io.ReadCloser, <-chan error) {
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := packfile.NewEncoder(w, from, false).Encode(ids, 0)
		_ = w.CloseWithError(err)
		if errors.Is(err, io.ErrClosedPipe) {
			err = nil // the reader says why it went away
		}
		done <- err
	}()
	return r, done
}
